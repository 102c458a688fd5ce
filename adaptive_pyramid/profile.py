"""A tuned configuration with everything needed to trust it, as YAML. No torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .atomic_write import write_atomically
from .config import PyramidConfig
from .errors import check_int, check_keys, check_number, unknown_name
from .names import DIVERGENCE_NAMES, METHOD_NAMES, RULE_NAMES
from .throughput import CostModel
from .yaml_file import read_yaml

SCHEMA_VERSION = 1

# What every measured number of a profile is, with its unit.
MEASUREMENTS = {
    "speed_ratio": "total time of target-only decoding over the config's for the same text, prompts in turn; see study.measured_on",
    "speed_ratio_interval": "its 95 % interval over questions: [low, high]",
    "answer_speed_ratio": "the same ratio of the time until the model's own end of its answers",
    "speed_ratio_hf": "tokens/s over Hugging Face generate with the same target",
    "speed_ratio_other_targets": "family target -> tokens/s over target-only decoding with it (same weights, other kernels)",
    "tokens_per_second": "new tokens per second, prefill included",
    "acceptance": "verifying tier -> accepted / tested positions",
    "acceptance_length": "verifying tier -> tokens per verification",
    "agreement": "share of tokens before the first that differs from target-only decoding's",
    "mean_drift": "drift per token (total variation in sampling, nats in greedy decoding)",
    "score": "task score: value, low, high (95 % interval), n, label",
    "prompts": "prompts measured on",
    "predicted_ratio": "what the throughput formula predicted for speed_ratio",
}


@dataclass(eq=False)
class Profile:
    """Tuned defaults for one task on one family and machine.

    Args:
        task, family: names. target: which of the family's targets, as in `families.load`. tiers: model names from draft
            to target. method: by name. divergence: what `fuzzy` stages compare with tau. rules: (lower, top) rule names; with the divergence and `do_sample` they give a tau its
            meaning. do_sample: what it was tuned for.
        config: route, lengths, taus, stops. drift_budget: per token, or None.
        measured: see MEASUREMENTS. costs: the cost table, tier -> width -> seconds, or None.
        device, dtype, versions: where it was measured. revisions: tier name -> source. study: provenance of the search.
        control: what an online controller learned (`AdaptivePyramid.state_dict()`), to warm-start from.
    """

    task: str
    family: str
    tiers: tuple[str, ...]
    method: str
    config: PyramidConfig
    target: str = "auto"
    rules: tuple[str, ...] = ("exact", "exact")
    divergence: str = "js"
    do_sample: bool = False
    drift_budget: float | None = None
    measured: dict[str, Any] = field(default_factory=dict)
    costs: CostModel | None = None
    device: str = "cpu"
    dtype: str = "float32"
    versions: dict[str, str] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    study: dict[str, Any] = field(default_factory=dict)
    control: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        self.tiers, self.rules = tuple(self.tiers), tuple(self.rules)
        _check("profile", self)

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Profile) else NotImplemented

    def to_dict(self) -> dict[str, Any]:
        data = {name: value for name, value in asdict(self).items() if name not in ("config", "costs")}
        data.update(
            tiers=list(self.tiers),
            rules=list(self.rules),
            config=self.config.to_dict(),
            costs=None if self.costs is None else self.costs.to_dict(),
        )
        order = [
            "schema_version",
            "task",
            "family",
            "target",
            "tiers",
            "method",
            "rules",
            "divergence",
            "do_sample",
            "drift_budget",
            "config",
        ]
        return {name: data[name] for name in [*order, *(n for n in data if n not in order)]}

    @classmethod
    def from_dict(cls, data: Any, where: str = "profile") -> Profile:
        """Validate every field; raises ValueError or TypeError naming the field, its value and what was expected."""
        required = ("schema_version", "task", "family", "tiers", "method", "config")
        check_keys(where, data, cls.__dataclass_fields__, required=required)
        version = check_int(f"{where}: schema_version", data["schema_version"], 1)
        if version > SCHEMA_VERSION:
            raise ValueError(f"{where}: schema_version {version} is newer than this library reads ({SCHEMA_VERSION})")
        for name, (kind, words) in _FIELDS.items():
            if name in data and not isinstance(data[name], kind):
                raise TypeError(f"{where}: {name} must be {words}, got {data[name]!r}")
        fields = dict(data)
        try:
            fields["config"] = PyramidConfig.from_dict(data["config"])
            if data.get("costs") is not None:
                fields["costs"] = _cost_model(data["costs"])
            return cls(**fields)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {str(error).removeprefix('profile: ')}") from None

    def save(self, path: str | Path) -> None:
        """Write YAML that `load` reads back to an equal profile."""
        comments = "".join(f"#   {name}: {what}\n" for name, what in MEASUREMENTS.items() if name in self.measured)
        head = f"# adaptive_pyramid profile. Load it with AdaptivePyramid.from_profile(...).\n# measured:\n{comments}"
        text = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=120)
        write_atomically(path, head + text)

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read and validate a profile.

        Raises:
            FileNotFoundError: no such file. ValueError, TypeError: broken YAML, an unknown key, a wrong value.
        """
        return cls.from_dict(read_yaml(Path(path), "profile"), where=str(path))

    @classmethod
    def shipped(cls, family: str, task: str, target: str = "auto") -> Profile:
        """The profile that comes with the package for `family`, its `target` and `task`; else ValueError with the nearest name."""
        folder = Path(__file__).with_name("profiles")
        names = {file.stem: file for file in folder.glob("*.yaml")}
        wanted = f"{family}-{task}" if target == "auto" else f"{family}-{target}-{task}"
        if wanted not in names:
            raise ValueError(unknown_name("shipped profile", wanted, names or ["none"]))
        return cls.load(names[wanted])

    def describes(self, method: str, config: PyramidConfig, do_sample: bool, drift_budget: float | None) -> bool:
        """Whether decoding like this is what was measured."""
        return (method, config, do_sample, drift_budget or None) == (
            self.method,
            self.config,
            self.do_sample,
            self.drift_budget or None,
        )

    def warn_differences(self, actual: Mapping[str, Any]) -> list[str]:
        """Warn (UserWarning) of what differs between where this was measured and `actual`; returns the sentences.

        `actual` has any of: family, tiers, rules, divergence, device, dtype, versions.
        """
        found = []
        for name in ("family", "device", "dtype", "divergence"):
            ours, theirs = getattr(self, name), actual.get(name)
            if theirs is not None and theirs != ours:
                found.append(f"{name} is {theirs}, the profile was measured with {ours}")
        for name in ("tiers", "rules"):
            ours, theirs = getattr(self, name), actual.get(name)
            if theirs is not None and tuple(theirs) != ours:
                found.append(f"{name} are {', '.join(theirs)}, the profile was measured with {', '.join(ours)}")
        for package, version in actual.get("versions", {}).items():
            measured = self.versions.get(package)
            if measured is not None and measured != version:
                found.append(f"{package} is {version}, the profile was measured with {measured}")
        if found:
            warnings.warn(
                f"profile for {self.task!r}: {'; '.join(found)}. Its config is used; its speeds may not hold.",
                stacklevel=3,
            )
        return found


_FIELDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "task": (str, "a name"),
    "family": (str, "a name"),
    "target": (str, "a name"),
    "tiers": ((list, tuple), "a list of names"),
    "method": (str, "a name"),
    "rules": ((list, tuple), "[lower, top]"),
    "divergence": (str, "a name"),
    "do_sample": (bool, "true or false"),
    "drift_budget": ((int, float, type(None)), "a number or null"),
    "config": (Mapping, "a mapping with route and stages"),
    "measured": (Mapping, "a mapping"),
    "costs": ((Mapping, type(None)), "a mapping tier -> width -> seconds, or null"),
    "device": (str, "a name"),
    "dtype": (str, "a name"),
    "versions": (Mapping, "a mapping package -> version"),
    "revisions": (Mapping, "a mapping tier name -> source"),
    "study": (Mapping, "a mapping"),
    "control": (Mapping, "a mapping"),
}
_SCORE = ("value", "low", "high", "n", "label")
_SHARES = ("agreement",)
_BY_TIER = {"acceptance": 1.0, "acceptance_length": math.inf}


def _check(where: str, profile: Profile) -> None:
    """Raise ValueError or TypeError for a field whose type is right and whose value is not."""
    for name in ("tiers", "rules"):
        if not all(isinstance(entry, str) for entry in getattr(profile, name)):
            raise TypeError(f"{where}: {name} must be a list of names, got {list(getattr(profile, name))!r}")
    if profile.config.n_tiers != len(profile.tiers):
        raise ValueError(f"{where}: config is for {profile.config.n_tiers} tiers, but tiers names {len(profile.tiers)}")
    if len(profile.rules) != 2:
        raise ValueError(f"{where}: rules must be [lower, top], got {list(profile.rules)!r}")
    names = [
        ("method", profile.method, METHOD_NAMES),
        ("divergence", profile.divergence, DIVERGENCE_NAMES),
        *(("rule", rule, RULE_NAMES) for rule in profile.rules),
    ]
    for kind, name, known in names:
        if name not in known:
            raise ValueError(f"{where}: {unknown_name(kind, name, known)}")
    if profile.drift_budget is not None:
        profile.drift_budget = check_number(f"{where}: drift_budget", profile.drift_budget, minimum=0.0)
    for name in ("versions", "revisions"):
        for key, value in getattr(profile, name).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"{where}: {name} must map names to text, got {key!r}: {value!r}")
    tiers = range(len(profile.tiers))
    costs = {} if profile.costs is None else profile.costs.table
    for tier, row in costs.items():
        if tier not in tiers:
            raise ValueError(f"{where}: costs names tier {tier}, but tiers are 0 to {len(tiers) - 1}")
        if min(row.values()) <= 0:
            raise ValueError(f"{where}: costs of tier {tier} must be seconds above 0, got {row}")
    if profile.costs is not None and tiers[-1] not in costs:
        raise ValueError(f"{where}: costs lacks the target, tier {tiers[-1]}")
    for name, state in profile.control.items():
        if not isinstance(state, Mapping):
            raise TypeError(f"{where}: control must map names to states (mappings), got {name!r}: {state!r}")
    if "max_new_tokens" in profile.study:
        check_int(f"{where}: study.max_new_tokens", profile.study["max_new_tokens"], 1)
    _check_measured(f"{where}: measured", profile.measured, tiers)


def _check_measured(where: str, measured: Mapping[str, Any], tiers: range) -> None:
    check_keys(where, measured, MEASUREMENTS)
    for name, value in measured.items():
        if name == "score":
            if not isinstance(value, Mapping):
                raise TypeError(f"{where}.score must be a mapping with {', '.join(_SCORE)}, got {value!r}")
            check_keys(f"{where}.score", value, _SCORE, required=_SCORE)
            for key in ("value", "low", "high"):
                check_number(f"{where}.score.{key}", value[key], 0.0, 1.0)
            check_int(f"{where}.score.n", value["n"], 1)
            if not isinstance(value["label"], str):
                raise TypeError(f"{where}.score.label must be text, got {value['label']!r}")
        elif name in _BY_TIER:
            if not isinstance(value, Mapping) or not set(value) <= set(tiers):
                raise TypeError(f"{where}.{name} must map tiers (0 to {len(tiers) - 1}) to numbers, got {value!r}")
            for tier, number in value.items():
                check_number(f"{where}.{name} of tier {tier}", number, 0.0, _BY_TIER[name])
        elif name == "speed_ratio_interval":
            if not isinstance(value, (list, tuple)) or len(value) != 2:
                raise TypeError(f"{where}.{name} must be [low, high], got {value!r}")
            for number in value:
                check_number(f"{where}.{name}", number, 0.0)
        elif name == "speed_ratio_other_targets":
            if not isinstance(value, Mapping) or not all(isinstance(target, str) for target in value):
                raise TypeError(f"{where}.{name} must map names of targets to numbers, got {value!r}")
            for target, number in value.items():
                check_number(f"{where}.{name} of target {target!r}", number, 0.0)
        elif name == "prompts":
            check_int(f"{where}.prompts", value, 1)
        else:
            check_number(f"{where}.{name}", value, 0.0, 1.0 if name in _SHARES else math.inf)


def _cost_model(data: Mapping[Any, Any]) -> CostModel:
    for tier, row in data.items():
        if not isinstance(row, Mapping) or not all(type(key) is int for key in (tier, *row)):
            raise TypeError(
                f"costs must be a mapping tier -> width -> seconds with integer tiers and widths, got {tier!r}: {row!r}"
            )
        for width in row:
            check_int(f"a width in costs of tier {tier}", width, 1)
    return CostModel(data)
