"""The search from end to end on tiny models: what it writes, resuming, Ctrl-C, and the sentences for mistakes."""

from __future__ import annotations

import csv
import os
import platform
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import torch
import yaml
from optuna.trial import TrialState

from adaptive_pyramid import AdaptivePyramid, Profile
from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.factory import default_config
from tests.tiny import graded_family, tiny_tokenizer
from tests.tiny_search import QUESTIONS, TOKENS, search, tiny_family
from tuning.replay.what_if_costs import load_costs
from tuning.report import paper_decodings
from tuning.report.study_data import StudyData
from tuning.study import storage, trial_table
from tuning.study.runner import run_search
from tuning.study.settings import Settings

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "200",
}


def load_study(out: Path) -> optuna.Study:
    return optuna.load_study(study_name=out.stem, storage=f"sqlite:///{out.with_suffix('.db')}")


@pytest.fixture(scope="module")
def family():
    return tiny_family()


@pytest.fixture(scope="module")
def done(tmp_path_factory, family):
    out = tmp_path_factory.mktemp("search") / "csqa.yaml"
    return search(out, trials=5, family=family)


def test_every_trial_is_measured_in_full(done) -> None:
    trials = load_study(done.out).trials
    assert len(trials) == 5 and {trial.state for trial in trials} == {TrialState.COMPLETE}
    for trial in trials:
        seen = trial.user_attrs
        assert seen["prompts"] == QUESTIONS and seen["tokens"] == QUESTIONS * TOKENS
        assert len(seen["seconds"]) == QUESTIONS and all(a > 0 and b > 0 for a, b in seen["seconds"])
        assert (
            trial.value
            == seen["ratio"]
            == pytest.approx(sum(a for a, _ in seen["seconds"]) / sum(b for _, b in seen["seconds"]), rel=0.01)
        )
        assert seen["ratio_interval"][0] <= seen["ratio"] <= seen["ratio_interval"][1]
        assert (
            seen["agreement"] == 1.0 and seen["mean_drift"] == 0.0
        )  # fp64: a lossless method writes the target's text
        assert seen["predicted_ratio"] > 0 and seen["formula_ratio"] > 0
        assert list(trial.intermediate_values) == list(range(QUESTIONS))


def test_the_prior_and_the_untuned_default_are_the_first_trials(done) -> None:
    trials = load_study(done.out).trials
    assert [("fixed_params" in trial.system_attrs) for trial in trials] == [True] * 4 + [False]
    assert len({trial.params["route"] for trial in trials[:3]}) == 3
    assert PyramidConfig.from_dict(trials[3].user_attrs["config"]) == default_config(3)


def test_the_profile_drives_generate(done, family) -> None:
    profile = Profile.load(done.out)
    assert profile == done.profile
    assert (profile.task, profile.family, profile.tiers, profile.method) == (
        "csqa",
        "tiny",
        ("lookup", "middle", "target"),
        "pyramid",
    )
    assert profile.rules == ("relaxed", "exact") and profile.dtype == "float64"
    assert profile.measured["speed_ratio"] >= 1.0 and profile.measured["speed_ratio_hf"] > 0
    assert profile.revisions["target"] == "repo: tiny, revision: 1"
    assert set(profile.costs.table) == {1, 2} and profile.study["trials"] == 5
    assert profile.study["workers"] == {platform.node(): [0, 1, 2, 3, 4]}
    pyramid = AdaptivePyramid(family, profile=done.out, control="fixed")
    ids = torch.tensor([[1, 10, 11, 12]])
    expected = family.models[-1].generate(ids, max_new_tokens=20, do_sample=False)
    assert torch.equal(pyramid.generate(ids, max_new_tokens=20, do_sample=False).sequences, expected)


def test_a_profile_that_fits_loads_without_a_warning(done, family, recwarn) -> None:
    AdaptivePyramid(family, profile=done.out)
    assert not [warning for warning in recwarn if "profile" in str(warning.message)]


def test_the_tables_hold_every_trial(done) -> None:
    rows = list(csv.DictReader(done.out.with_suffix(".csv").open()))
    assert len(rows) == 5
    measured = [float(row["measured"]) for row in rows]
    assert measured == sorted(measured, reverse=True)
    text = done.out.with_suffix(".md").read_text()
    assert all(row["config"] in text for row in rows) and "Hugging Face generate" in text


def test_resuming_adds_trials_up_to_the_total(tmp_path, family) -> None:
    out = tmp_path / "more.yaml"
    search(out, trials=2, family=family)
    first = [(trial.params, trial.value) for trial in load_study(out).trials]
    before = load_study(out).user_attrs
    outcome = search(out, trials=3, family=family)
    after = load_study(out)
    assert [(trial.params, trial.value) for trial in after.trials if trial.state == TrialState.COMPLETE][:2] == first
    assert len(storage.finished(after)) == 3 and outcome.profile.study["trials"] == 3
    assert after.user_attrs["prior"] == before["prior"]  # calibrated once
    search(out, trials=3, family=family)
    assert len(load_study(out).trials) == 3


@pytest.mark.parametrize(
    "change, named",
    [
        ({"questions": 3}, "questions was 2 and is 3 now"),
        ({"max_new_tokens": 9}, "max_new_tokens was 8 and is 9 now"),
        ({"seed": 1}, "seed was 0 and is 1 now"),
        ({"method": "polybasic"}, "method was 'pyramid' and is 'polybasic' now"),
    ],
    ids=str,
)
def test_other_settings_cannot_resume_a_study(done, family, change, named) -> None:
    with pytest.raises(ValueError, match=named):
        search(done.out, trials=5, family=family, **change)


def test_a_search_of_another_target(tmp_path, capsys) -> None:
    for name, model in zip(
        ("small", "big"), graded_family("llama", 2, dtype=torch.float32, max_position_embeddings=2048)
    ):
        model.save_pretrained(tmp_path / name)
        tiny_tokenizer().save_pretrained(tmp_path / name)
    tiers = [{"name": name, "repo": name} for name in ("small", "big")]
    file = tmp_path / "mine.yaml"
    file.write_text(
        yaml.safe_dump(
            {"name": "mine", "tiers": [{"name": "lookup", "lookup": True}, tiers[1]], "targets": {"pair": tiers}}
        )
    )
    asked = Settings(
        "csqa",
        family=str(file),
        target="pair",
        trials=2,
        questions=QUESTIONS,
        max_new_tokens=TOKENS,
        out=tmp_path / "t.yaml",
    )
    profile = run_search(asked).profile
    assert profile.target == "pair" and profile.tiers == ("small", "big")
    ratios = profile.measured["speed_ratio_other_targets"]
    assert set(ratios) == {"auto"} and ratios["auto"] > 0 and Profile.load(asked.out) == profile
    assert f"{ratios['auto']:.2f} x target-only decoding with target auto" in capsys.readouterr().out
    with pytest.raises(ValueError, match="target was 'pair' and is 'auto' now"):
        run_search(replace(asked, target="auto"))
    study = StudyData.load(asked.out)
    assert paper_decodings.made_with(study)["target"] == "pair"


def test_a_method_that_drifts_is_scored_on_its_own_text(tmp_path, family) -> None:
    outcome = search(tmp_path / "psd.yaml", trials=3, method="psd_f", family=family)
    trials = load_study(tmp_path / "psd.yaml").trials
    assert all(set(trial.constraints) == {"max_score_loss"} for trial in trials)
    assert any("tau_2" in trial.params for trial in trials)
    assert any(trial.user_attrs["mean_drift"] > 0 for trial in trials)
    assert outcome.profile.rules == ("fuzzy", "fuzzy") and outcome.profile.divergence == "js"


def test_too_few_questions_for_fresh_ones_are_said(tmp_path, family, capsys) -> None:
    sample = (ROOT / "tuning" / "tasks" / "data" / "csqa_sample.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "few.jsonl").write_text("\n".join(sample[: QUESTIONS + 2]), encoding="utf-8")
    outcome = search(tmp_path / "few.yaml", trials=2, family=family, data=str(tmp_path / "few.jsonl"))
    assert outcome.profile.study["measured_on"].startswith("the trials' questions, which chose the config")
    assert "the speeds may be too high)" in capsys.readouterr().out


def test_what_a_profile_states_is_of_fresh_questions(done) -> None:
    study, seen = done.profile.study, done.profile.measured
    assert study["measured_on"].startswith("fresh questions") and seen["prompts"] == 12  # trials measure QUESTIONS
    low, high = study["best_speed_ratio_interval"]
    assert low < study["best_speed_ratio"] < high and study["gain_shown"] == (low > 1)
    assert (len(done.profile.config.route) > 1) == study["gain_shown"] == ("speed_ratio_interval" in seen)
    assert seen["speed_ratio"] == (study["best_speed_ratio"] if study["gain_shown"] else 1.0)


def test_methods_with_nothing_to_tune_say_so(tmp_path, family) -> None:
    with pytest.raises(ValueError, match="'ar' has nothing to tune"):
        search(tmp_path / "ar.yaml", method="ar", family=family)


def test_interrupted_trials_are_kept_and_the_same_command_finishes(tmp_path, ctrl_c_works) -> None:
    out = tmp_path / "stopped.yaml"
    command = [sys.executable, "-m", "tests.tiny_search", str(out), "7"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith("trial 1:"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    output = process.stdout.read()
    assert process.wait(timeout=60) == 130, "".join(seen) + rest
    assert "Traceback" not in rest and "the same command goes on" in rest
    kept = [(trial.number, trial.value) for trial in storage.finished(load_study(out))]
    assert 2 <= len(kept) < 7 and Profile.load(out).study["trials"] == len(kept)
    assert "not measured again" in output

    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    trials = storage.finished(load_study(out))
    assert len(trials) == 7 and [(trial.number, trial.value) for trial in trials][: len(kept)] == kept
    assert Profile.load(out).study["trials"] == 7


def test_what_was_cut_short_is_queued_again_once() -> None:
    study = optuna.create_study()

    def objective(trial: optuna.Trial) -> float:
        if trial.suggest_int("x", 0, 9) == 3:
            raise KeyboardInterrupt
        return 1.0

    for x in (1, 3):
        study.enqueue_trial({"x": x})
    with pytest.raises(KeyboardInterrupt):
        study.optimize(objective, n_trials=2)
    assert storage.requeue_interrupted(study) == 1 and storage.requeue_interrupted(study) == 0
    assert [trial.system_attrs["fixed_params"] for trial in study.trials if trial.state == TrialState.WAITING] == [
        {"x": 3}
    ]
    study.optimize(lambda trial: float(trial.suggest_int("x", 0, 9)), n_trials=1)
    assert study.trials[-1].value == 3.0 and storage.requeue_interrupted(study) == 0


def test_what_had_only_begun_is_queued_again() -> None:
    study = optuna.create_study()
    study.enqueue_trial({"x": 3})
    study.tell(study.ask().number, state=TrialState.FAIL)  # before it could suggest anything
    assert storage.requeue_interrupted(study) == 1 and storage.requeue_interrupted(study) == 0
    study.optimize(lambda trial: float(trial.suggest_int("x", 0, 9)), n_trials=1)
    assert study.trials[-1].value == 3.0


def command_line(*arguments: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tuning.search", *arguments],
        env=ENVIRONMENT,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--task", "csqq"], "unknown task 'csqq'; did you mean 'csqa'?"),
        (["--task", "csqa", "--family", "smollm2-135"], "unknown family 'smollm2-135'; did you mean 'smollm2-135m'?"),
        (
            ["--task", "csqa", "--target", "int5"],
            "unknown target of family 'smollm2-135m' 'int5'; did you mean 'int4'?",
        ),
        (["--task", "csqa", "--method", "pyramide"], "unknown method 'pyramide'; did you mean 'pyramid'?"),
        (["--task", "csqa", "--trails", "3"], "unknown option '--trails'; did you mean '--trials'?"),
        (["--task", "csqa", "--trials", "0"], "--trials must be at least 1, got 0"),
        (["--task", "csqa", "--questions", "many"], "argument --questions: invalid int value: 'many'"),
        (["--task", "csqa", "--questions", "5000"], "--questions 5000 leaves nothing to calibrate on"),
        (["--task", "csqa", "--max-new-tokens", "-1"], "--max-new-tokens must be at least 2, got -1"),
        (["--task", "csqa", "--min-score", "2"], "--min-score must be a finite number in [0, 1], got 2.0"),
        (["--task", "csqa", "--sampler", "gpp"], "unknown --sampler 'gpp'; did you mean 'gp'?"),
        (["--task", "csqa", "--clock", "walll"], "unknown --clock 'walll'; did you mean 'wall'?"),
        (["--task", "csqa", "--costs", "gpu-24gb"], "expected --clock model with it, got --clock wall"),
        (["--task", "csqa", "--cost-rows", "1b"], "--cost-rows belongs to --costs"),
        (
            ["--task", "csqa", "--clock", "model", "--costs", "gpu-24"],
            "unknown cost table 'gpu-24'; did you mean 'gpu-24gb'?",
        ),
        (["--task", "csqa", "--min-gain", "0.1", "--sampler", "tpe"], "--min-gain needs the sampler gp"),
        (
            ["--task", "csqa", "--multi-objective", "--min-score", "0.1"],
            "--multi-objective shows the whole front, so it takes no limits",
        ),
        (["--task", "csqa", "--data", "missing.jsonl"], "missing.jsonl"),
        (["--task", "csqa", "--data", "broken.jsonl"], "broken.jsonl"),
        (["--task", "broken.yaml"], "broken.yaml"),
        (["--task", "csqa", "--family", "broken.yaml"], "broken.yaml"),
        (["--task", "csqa", "--out", "nowhere/csqa.yaml"], "there is no directory 'nowhere'"),
        (["--task", "csqa", "--out", "csqa.txt"], "--out must be a file that ends in .yaml"),
        ([], "the following arguments are required: --task"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gives_one_sentence(tmp_path, arguments, expected) -> None:
    (tmp_path / "broken.yaml").write_text("name: [unclosed")
    (tmp_path / "broken.jsonl").write_text('{"question": "what?"}\n')
    result = command_line(*arguments, folder=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and expected in lines[0], result.stderr


@pytest.mark.parametrize(
    "url, expected",
    [
        ("study.db", "expected a database URL such as sqlite:///study.db"),
        ("sqlite:///no/such/folder/study.db", "unable to open"),
        ("sqlite:///broken.db", "file is not a database"),
        ("oracle://nobody@nowhere/x", "expected a database URL"),
    ],
)
def test_storages_that_cannot_be_opened(tmp_path, monkeypatch, url, expected) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.db").write_text("not a database " * 100)
    with pytest.raises(ValueError, match="cannot open the storage") as error:
        storage.open_study(url, "x", {}, optuna.pruners.NopPruner())
    assert expected in str(error.value)


def test_help_needs_no_torch() -> None:
    code = "import sys, tuning.search as s\ntry: s.main(['--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True).returncode == 0


def test_the_model_clock_prices_what_happened(tmp_path, family) -> None:
    outcome = search(tmp_path / "m.yaml", trials=4, family=family, clock="model")
    assert "speed_ratio_hf" not in outcome.profile.measured and outcome.profile.study["clock"] == "model"
    for trial in load_study(tmp_path / "m.yaml").trials:
        # The replay knows every two-tier route on its own prompts exactly; on others it is a good guess.
        assert trial.user_attrs["ratio"] == pytest.approx(trial.user_attrs["predicted_ratio"], rel=0.5)
        assert len({round(a, 9) for a, _ in trial.user_attrs["seconds"]}) <= QUESTIONS


def test_what_if_costs_price_everything_and_say_so(tmp_path, family, capsys) -> None:
    out = tmp_path / "w.yaml"
    profile = search(out, trials=4, family=family, clock="model", costs="gpu-24gb", cost_rows=("1b", "8b")).profile
    study = load_study(out)
    assert study.user_attrs["prior"]["overhead"] == 0.0
    table = {
        tier: {int(width): seconds for width, seconds in row.items()}
        for tier, row in study.user_attrs["prior"]["costs"].items()
    }
    shipped = load_costs("gpu-24gb").rows
    assert table == {"1": shipped["1b"], "2": shipped["8b"]}
    for trial in study.trials:  # a token of the target costs 9.436 ms there, and some hundred of a prompt at most 0.2 s
        assert all(TOKENS * 0.0094 < alone < TOKENS * 0.0094 + 0.2 for alone, _ in trial.user_attrs["seconds"])
    assert (
        profile.costs is None and profile.device == "what-if gpu-24gb" and profile.study["costs"]["name"] == "gpu-24gb"
    )
    assert "what-if costs 'gpu-24gb', modelled and not measured" in out.with_suffix(".md").read_text()
    assert StudyData.load(out).what_if == "gpu-24gb"
    with pytest.raises(ValueError, match="costs was .*1b.* and is None now"):
        search(out, trials=4, family=family, clock="model")
    with pytest.raises(ValueError, match="name 2 of the rows"):
        search(tmp_path / "x.yaml", family=family, clock="model", costs="gpu-24gb")


def test_a_study_ends_early_when_little_is_to_be_gained(tmp_path, family, capsys) -> None:
    search(tmp_path / "early.yaml", trials=9, family=family, clock="model", min_gain=0.9)
    assert len(load_study(tmp_path / "early.yaml").trials) == 7  # the prior's and the default
    assert "the study ends here" in capsys.readouterr().err


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_other_samplers_by_flag(tmp_path, family, sampler) -> None:
    search(tmp_path / "s.yaml", trials=4, family=family, clock="model", sampler=sampler, questions=1)
    assert len(storage.finished(load_study(tmp_path / "s.yaml"))) == 4


def test_two_objectives_show_the_front(tmp_path, family, capsys) -> None:
    outcome = search(tmp_path / "two.yaml", trials=4, method="fsd", family=family, clock="model", multi_objective=True)
    study = load_study(tmp_path / "two.yaml")
    assert len(study.directions) == 2 and all(
        len(trial.values) == 2 and not trial.constraints for trial in study.trials
    )
    assert "no trial is pruned" in capsys.readouterr().err and outcome.profile is not None
    front = {
        trial.number
        for trial in study.trials
        if trial.user_attrs["ratio"] == max(t.user_attrs["ratio"] for t in study.trials)
    }
    assert front <= trial_table.front(study.trials)


def test_pruning_starts_at_twelve_questions(tmp_path, family, monkeypatch) -> None:
    def never_slow_at_first(self, study, trial) -> bool:
        return trial.number == 1

    monkeypatch.setattr(optuna.pruners.WilcoxonPruner, "prune", never_slow_at_first)
    outcome = search(tmp_path / "p.yaml", trials=2, family=family, clock="model", questions=14, max_new_tokens=2)
    first, second = load_study(tmp_path / "p.yaml").trials
    assert first.state == TrialState.COMPLETE and first.user_attrs["prompts"] == 14
    assert second.state == TrialState.PRUNED and second.user_attrs["prompts"] == 12 and "score" not in second.user_attrs
    assert outcome.profile.study["best_trial"] == 0 and outcome.profile.study["trials"] == 2
