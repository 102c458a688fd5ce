"""What a trial remembers, and whose text is scored."""

from __future__ import annotations

import json
from types import SimpleNamespace

import optuna
import pytest
from jinja2 import TemplateError

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.method import METHODS
from adaptive_pyramid.models.families import source_text
from adaptive_pyramid.prompts import prompt_ids, read_prompts
from adaptive_pyramid.stats import BlockStats, GenerationStats, Verification
from tests.tiny import CHAT_TEMPLATE, tiny_tokenizer
from tuning.study import trial_table
from tuning.study.benchmark import Timed
from tuning.study.objective import Limits, Objective, Question, ask
from tuning.study.paired_timings import PairedTimings, agreement
from tuning.study.prior import Prediction
from tuning.study.profile_builder import make_profile, with_spare_stages
from tuning.study.rerun import rerun_best, split_fresh
from tuning.study.search_space import SearchSpace
from tuning.study.trial_record import ScoreSummary, SpeedSummary, TrialRecord
from tuning.tasks.formats import Example
from tuning.tasks.scorers import make_scorer
from tuning.tasks.task import Task

CHOICES = {"A": "a cat", "B": "a dog"}
ROUTES = ((2,), (0, 2), (0, 1, 2))


def example(name: str, answer: str, turns: int = 1) -> Example:
    return Example(name, ("which?",) * turns, answer, meta={"choices": CHOICES})


EXAMPLES = [example("one", "A"), example("two", "B")]


class FakeBench:
    """Texts by (prompt, whether a config was given): `ar` always says A, the method what `own` holds."""

    max_new_tokens = 4

    def __init__(self, method: str, own: str = "Answer: B") -> None:
        self.method = METHODS[method]
        self.own = own
        self.texts = ["Answer: A", own]
        self.pyramid = SimpleNamespace(tokenizer=None)
        self.price = None
        self.order: list[str] = []
        self.seconds = {"ar": 2.0, "own": 1.0, "hf": 4.0}

    def timed(self, name: str, ids: list[int]) -> Timed:
        self.order.append(name)
        block = BlockStats(
            PyramidConfig.simple((2, 3)), 0, 0, len(ids), 0.0, verifications=(verification(),), drift=(0.5,) * len(ids)
        )
        return Timed(ids, self.seconds[name], GenerationStats(blocks=[block]), [(self.seconds[name], len(ids))])

    def ar(self, prompt):
        return self.timed("ar", [1, 2, 3, 4])

    ar_at_its_pace = ar

    def run(self, prompt, config):
        return self.timed("own", [1, 2, 9, 4])

    def hugging_face(self, prompt):
        return self.timed("hf", [1, 2, 3, 4])

    def answer(self, prompt, config=None):
        return Timed([0 if config is None else 1], 1.0)

    def answer_text(self, ids):
        return self.texts[ids[0]]


def verification() -> Verification:
    return Verification(2, 0, 3, 2, 1, 3, 0, (), (), (), ())


class FakePrior:
    def predict(self, config):
        return Prediction(1.5, 1.4)


def objective(method: str, own: str = "Answer: B", limits: Limits | None = None, **fields) -> Objective:
    bench = FakeBench(method, own)
    questions = [Question(one, [[5]], [[0]]) for one in EXAMPLES]
    task = Task("t", "a task", "", EXAMPLES, 8, False, make_scorer("choice", False))
    return Objective(
        bench,
        questions,
        SearchSpace.of(METHODS[method], 3, ROUTES),
        FakePrior(),
        task,
        limits or Limits(),
        "me",
        **fields,
    )


def trial_of(goal: Objective) -> optuna.trial.FrozenTrial:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        directions=["maximize"] * (1 + goal.with_score), sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.optimize(goal, n_trials=1)
    return study.trials[0]


def test_a_lossless_method_has_the_targets_score() -> None:
    seen = trial_of(objective("pyramid", own="Answer: B")).user_attrs
    assert seen["score"]["value"] == 0.5 and seen["score_loss"] == [0.0, 0.0, 0.0]  # `ar` says A to both


def test_a_trial_is_claimed_when_others_can_see_its_parameters_and_before_anything_slow() -> None:
    goal, study, seen = objective("pyramid"), optuna.create_study(), []
    goal(study.ask(), lambda: seen.append((study.trials[0].params, list(goal.bench.order))))
    [(params, order)] = seen
    assert params == study.trials[0].params and order == []


@pytest.mark.parametrize("own, value, loss", [("Answer: B", 0.5, 0.0), ("no idea", 0.0, 0.5)])
def test_a_method_that_drifts_is_scored_on_its_own_text(own, value, loss) -> None:
    trial = trial_of(objective("psd_f", own=own, limits=Limits(min_score=0.4, max_score_loss=0.1, max_drift=0.2)))
    assert trial.user_attrs["score"]["value"] == value and trial.user_attrs["score_loss"][0] == loss
    assert trial.constraints == pytest.approx(
        {"min_score": 0.4 - value, "max_score_loss": loss - 0.1, "max_drift": 0.5 - 0.2}
    )
    assert not trial_table.feasible(trial)  # too much drift


def test_limits_that_are_kept_make_a_usable_trial() -> None:
    trial = trial_of(objective("psd_f", limits=Limits(max_drift=0.6)))
    assert (
        trial_table.feasible(trial) and trial_table.best_first([trial]) == [trial] and trial_table.front([trial]) == {0}
    )


def test_what_a_trial_remembers() -> None:
    goal = objective("psd_f")
    trial = trial_of(goal)
    seen = trial.user_attrs
    assert trial.value == seen["ratio"] == seen["ratio_median"] == 2.0 and seen["answer_ratio"] == 2.0
    assert (
        seen["tokens_per_second"] == 4.0
        and seen["ar_tokens_per_second"] == 2.0
        and seen["prompts"] == 2
        and seen["tokens"] == 8
    )
    assert seen["acceptance"] == {"2": pytest.approx(2 / 3)} and seen["acceptance_length"] == {"2": 3.0}
    assert seen["agreement"] == 0.5 and seen["mean_drift"] == 0.5 and seen["worker"] == "me"
    assert seen["predicted_ratio"] == 1.5 and PyramidConfig.from_dict(seen["config"]).route in ROUTES
    assert goal.bench.order == ["ar", "own", "own", "ar"]  # each goes first in turn
    (row,) = trial_table.rows([trial], ("lookup", "small", "big"))
    assert (
        row["measured"] == "2.00"
        and row["acceptance"] == "big 0.67"
        and row["state"] == "measured"
        and row["front"] == "*"
    )
    assert trial_table.median_error([trial]) == 0.25


def test_the_front_holds_what_nothing_else_beats() -> None:
    points = [(1.0, 0.9), (1.5, 0.9), (2.0, 0.5), (2.0, 0.4), (1.9, 0.5), (2.5, 0.5)]
    trials = []
    for number, (ratio, score) in enumerate(points):
        record = TrialRecord(PyramidConfig.simple((1, 1)), ratio, speed=SpeedSummary(ratio), score=ScoreSummary(score))
        trial = optuna.trial.create_trial(value=ratio, user_attrs=record.to_attrs())
        trial.number = number
        trials.append(trial)
    assert trial_table.front(trials) == {1, 5}


def test_two_objectives() -> None:
    trial = trial_of(objective("psd_f", with_score=True))
    assert trial.values == [2.0, 0.5] and not trial.intermediate_values


def test_agreement_counts_up_to_the_first_difference() -> None:
    assert agreement(Timed([1, 2, 3], 1), Timed([1, 2, 3], 1)) == 1.0
    assert agreement(Timed([1, 2, 3, 4], 1), Timed([1, 9, 3, 4], 1)) == 0.25
    assert (
        agreement(Timed([1, 2], 1, planned=4), Timed([1, 2, 3, 4], 1)) == 1.0
    )  # half an `ar` run has no say on the rest
    assert agreement(Timed([1, 9], 1, planned=4), Timed([1, 2, 3, 4], 1)) == 0.5


def timed_run(seconds: float) -> Timed:
    return Timed([1] * 4, seconds, blocks=[(seconds, 4)])


def test_the_total_counts_long_prompts_more() -> None:
    tally = PairedTimings()
    for ar, own in ((1.0, 1.0), (9.0, 3.0)):
        tally.add(timed_run(ar), timed_run(own), answer_tokens=4)
    assert tally.gain.value == 2.5 and tally.summary().ratio_median == 2.0


def test_a_disturbed_prompt_is_timed_again_and_does_not_decide() -> None:
    tally, again = PairedTimings(), []
    for i in range(12):
        tally.add(timed_run(30.0 if i == 5 else 2.0), timed_run(40.0 if i == 7 else 1.0 + i / 100), answer_tokens=4)
    assert tally.settle(lambda index: again.append(index) or (timed_run(2.0), timed_run(1.0 + index / 100))) == 2
    assert again == [5, 5, 7, 7]  # only what stood apart
    seen = tally.summary().to_attrs()
    assert seen["ratio"] == tally.gain.value == pytest.approx(24 / 12.66) and seen["prompts"] == 12
    assert seen["tokens_per_second"] == pytest.approx(48 / 12.66) and len(seen["seconds"]) == 12
    assert seen["ratio_interval"][0] < seen["ratio"] < seen["ratio_interval"][1]
    assert seen["answer_ratio"] == pytest.approx(24 / 12.66)


def test_a_prompt_that_truly_gains_more_keeps_its_gain() -> None:
    tally = PairedTimings()
    for i in range(12):
        tally.add(timed_run(3.0), timed_run(1.0 if i == 7 else 3.0), answer_tokens=4)
    assert tally.settle(lambda index: (timed_run(3.0), timed_run(1.0))) == 1
    assert tally.gain.value == pytest.approx(36 / 34)  # 1 / (11/12 + 1/36)


def test_turns_of_a_question_count_once() -> None:
    apart, together = PairedTimings(), PairedTimings()
    for i, own in enumerate((1.0, 1.0, 1.5, 1.5, 1.2, 1.2)):
        apart.add(timed_run(2.0), timed_run(own), 4)
        together.add(timed_run(2.0), timed_run(own), 4, question=i // 2)
    assert apart.gain.value == pytest.approx(together.gain.value)
    assert together.gain.high - together.gain.low > 1.5 * (apart.gain.high - apart.gain.low)


class Words:
    chat_template = None
    texts: list[str] = []

    def __call__(self, text: str) -> dict:
        self.texts.append(text)
        return {"input_ids": [len(text)]}

    def get_vocab(self) -> dict:
        return {}


def test_later_turns_follow_the_targets_answers() -> None:
    bench = FakeBench("pyramid")
    bench.pyramid.tokenizer = Words()
    (question,) = ask(bench, [example("x", "A", turns=2)])
    assert len(question.prompts) == len(question.answers) == 2 and "Answer: A" in Words.texts[-1]
    (again,) = ask(bench, [example("x", "A", turns=2)], [[[1], [1]]])  # known answers are not generated again
    assert again.answers == [[1], [1]] and "Answer: B" in Words.texts[-1]
    assert prompt_ids(Words(), [{"role": "user", "content": "hi"}]) == [4]


# As Gemma 2's: no system role, and the two others must alternate.
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
SILENT = "{% for m in messages if m['role'] != 'system' %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
CHAT = [
    {"role": "system", "content": " be brief. "},
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "second"},
]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (NO_SYSTEM, "<bos>user:  be brief. \n\nfirst\nassistant: ok\nuser: second\nassistant: "),
        (SILENT, "user:  be brief. \n\nfirst\nassistant: ok\nuser: second\n"),
        (CHAT_TEMPLATE, "<bos>system:  be brief. \nuser: first\nassistant: ok\nuser: second\nassistant: "),
    ],
)
def test_a_template_without_a_system_role_takes_the_system_prompt_in_the_first_turn(template, text) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    chat = [dict(message) for message in CHAT]
    assert tokenizer.decode(prompt_ids(tokenizer, chat)) == text
    assert chat == CHAT
    if template != NO_SYSTEM:
        return
    with pytest.raises(ValueError, match="roles system, user, user: Conversation roles must alternate"):
        prompt_ids(tokenizer, [*CHAT[:2], CHAT[3]])
    with pytest.raises(TemplateError, match="System role not supported"):  # a user's own chat: the template decides
        read_prompts(chat, None, tokenizer)


def finalists() -> list:
    return [trial_of(objective("pyramid")), trial_of(objective("pyramid"))]


def asked(*examples: Example) -> list[Question]:
    return [Question(one, [[5]], [[0]]) for one in examples]


def test_the_choice_and_the_statement_are_of_different_questions() -> None:
    bench = FakeBench("pyramid")
    again = rerun_best(bench, asked(EXAMPLES[0]), asked(*EXAMPLES), finalists())
    assert bench.order == ["ar", "own", "own", "ar", "own", "hf", "own", "hf", "ar"]
    assert len(again.choice) == 2 and [tally.question for tally in again.choice] == [[0], [0]]
    assert again.stated.question == [0, 1] and again.stated.gain.value == 2.0
    assert again.over_hugging_face(again.stated.own) == 4.0 and again.over_other_targets(again.stated.own) == {}
    bench.order.clear()
    again = rerun_best(bench, asked(EXAMPLES[0]), asked(*EXAMPLES), finalists()[:1])
    assert bench.order == ["ar", "own", "hf", "own", "hf", "ar"]  # one finalist: nothing to choose
    assert again.winner is again.finalists[0]


def test_the_familys_other_targets_take_their_turn_on_the_first_questions() -> None:
    bench, other = FakeBench("pyramid"), FakeBench("pyramid")
    other.order, other.timed = bench.order, lambda name, ids: FakeBench.timed(other, "other", ids)
    other.seconds["other"] = 0.5
    again = rerun_best(bench, [], asked(*EXAMPLES * 4), finalists()[:1], others={"int4": other})
    assert bench.order[:9] == ["other", "ar", "own", "other", "hf", "own", "other", "hf", "ar"]  # warmed up first
    assert [bench.order.count(name) for name in ("ar", "own", "hf", "other")] == [8, 8, 6, 7]
    ours = again.stated.own
    assert again.over_other_targets(ours) == {"int4": 0.5} and again.over_hugging_face(ours) == 4.0


def test_fresh_questions_are_for_the_statement_first() -> None:
    trials = list(range(100, 120))
    assert split_fresh(list(range(16)), trials) == ([12, 13, 14, 15], list(range(12)), True)
    assert split_fresh(list(range(15)), trials) == ([100, 101, 102, 103], list(range(12)), True)
    assert split_fresh([0, 1], trials) == ([100, 101, 102, 103], [0, 1], True)
    assert split_fresh([0], trials) == ([100, 101, 102, 103], list(range(100, 112)), False)


def profile_of(own_seconds: float, fresh: bool = True):
    bench = FakeBench("pyramid")
    bench.seconds["own"] = own_seconds
    bench.pyramid.description = lambda: {
        "tiers": ["lookup", "small", "big"],
        "device": "cpu",
        "dtype": "float32",
        "versions": {"torch": "2"},
    }
    family = SimpleNamespace(
        name="f",
        tier_names=("lookup", "small", "big"),
        models=(None, None, None),
        sources={"lookup": {"lookup": True}, "small": {"repo": "s"}, "big": {"repo": "b", "revision": "1"}},
    )
    again = rerun_best(
        bench, asked(EXAMPLES[0]), asked(*EXAMPLES), finalists(), fresh, others={"int4": FakeBench("pyramid")}
    )
    prior = SimpleNamespace(costs=None)
    score = ScoreSummary(0.5, 0.1, 0.9, 2, "x")
    return make_profile("t", family, bench, prior, again.winner, again, score, {"trials": 1, "target": "int8"})


def test_a_profile_holds_the_fresh_numbers() -> None:
    profile = profile_of(0.5)
    assert (
        profile.measured["speed_ratio"] == 4.0
        and profile.measured["speed_ratio_hf"] == 8.0
        and profile.measured["acceptance"] == {2: pytest.approx(2 / 3)}
    )
    assert profile.measured["speed_ratio_other_targets"] == {"int4": 4.0} and profile.target == "int8"
    assert len(profile.config.route) > 1 and profile.revisions["big"] == "repo: b, revision: 1"
    assert profile.study["gain_shown"] is True and profile.study["measured_on"].startswith("fresh questions")
    assert profile_of(0.5, fresh=False).study["measured_on"].startswith("the trials' questions")


def test_a_config_that_does_not_pay_is_not_shipped() -> None:
    profile = profile_of(2.5)
    assert profile.config.route == (2,) and profile.measured["speed_ratio"] == 1.0
    assert profile.measured["tokens_per_second"] == 2.0 and profile.measured["speed_ratio_hf"] == 2.0
    assert profile.measured["speed_ratio_other_targets"] == {"int4": 1.0}
    assert profile.study["gain_shown"] is False and profile.study["best_speed_ratio"] == 0.8
    assert len(profile.study["best_config"]["route"]) > 1 and "speed_ratio_interval" not in profile.measured


def test_spare_stages_get_sensible_lengths() -> None:
    config = with_spare_stages(PyramidConfig.simple((1, 9), route=(0, 2)))
    assert config.stage(2).length == 9 and config.stage(1).length > 1 and config.route == (0, 2)


def test_sources_in_one_line() -> None:
    from adaptive_pyramid.decoding.drafters import PromptLookup

    assert source_text({"lookup": True}, PromptLookup(5, 3)) == "lookup: max_ngram 5, min_ngram 3"
    assert source_text({"wheel": {"package": "p", "version": "1", "sha256": "ab"}}, None) == "p==1 sha256:ab"
    assert source_text({"repo": "r", "revision": "x"}, None) == "repo: r, revision: x"


def test_a_trial_record_survives_being_stored() -> None:
    record = TrialRecord(
        PyramidConfig.simple((2, 3)),
        1.5,
        1.4,
        "me",
        SpeedSummary(2.0, (1.9, 2.1), acceptance={2: 0.5}, seconds=((0.2, 0.1),)),
        ScoreSummary(0.5, 0.1, 0.9, 4, "a task"),
        (0.1, 0.0, 0.2),
    )
    stored = json.loads(json.dumps(record.to_attrs()))
    assert repr(TrialRecord.from_attrs(stored)) == repr(record)  # repr, since what was not measured is NaN
    begun = TrialRecord(PyramidConfig.simple((2, 3)), 1.5, 1.4, "me")
    assert TrialRecord.from_attrs(json.loads(json.dumps(begun.to_attrs()))) == begun and "ratio" not in begun.to_attrs()


def test_trials_of_an_earlier_version_are_read() -> None:
    """Names and shapes as version 0.1.0 stored them; studies live longer than versions."""
    attrs = {
        "config": {"route": [0, 2], "stages": [{"length": 1}, {"length": 6}]},
        "predicted_ratio": 1.9,
        "formula_ratio": 2.0,
        "worker": "host",
        "ratio": 2.5,
        "ratio_interval": [2.4, 2.6],
        "ratio_median": 2.45,
        "answer_ratio": 2.2,
        "tokens_per_second": 249.3,
        "ar_tokens_per_second": 99.7,
        "prompts": 4,
        "tokens": 96,
        "acceptance": {"2": 0.98},
        "acceptance_length": {"2": 6.5},
        "agreement": 1.0,
        "mean_drift": 0.0,
        "seconds": [[1.0, 0.4]],
        "score": {"value": 0.25, "low": 0.05, "high": 0.7, "n": 4, "label": "accuracy"},
        "score_loss": [0.0, 0.0, 0.0],
    }
    record = TrialRecord.from_attrs(attrs)
    assert record.config.route == (0, 2) and record.speed.acceptance == {2: 0.98} and record.score.value == 0.25
    assert {name: value for name, value in record.to_attrs().items() if name != "config"} == {
        name: value for name, value in attrs.items() if name != "config"
    }
    pruned = {name: value for name, value in attrs.items() if not name.startswith("score")}
    assert TrialRecord.from_attrs(pruned).score is None
