"""A tuned configuration with everything needed to trust it, as YAML. No torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .config import PyramidConfig
from .errors import check_int, check_keys, check_number, unknown_name
from .throughput import CostModel

SCHEMA_VERSION = 1

# What every measured number of a profile is, with its unit.
MEASUREMENTS = {
    "speed_ratio": "tokens/s over target-only decoding of the same target, interleaved in the same run",
    "speed_ratio_interval": "its 95 % bootstrap interval over prompts: [low, high]",
    "answer_speed_ratio": "the same ratio of the time until the model's own end of its answers",
    "speed_ratio_hf": "tokens/s over Hugging Face generate with the same target",
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
        task, family: names. tiers: model names from draft to target. method: by name. divergence: what `fuzzy` stages
            compare with tau. rules: (lower, top) rule names; with the divergence and `do_sample` they give a tau its
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
    rules: tuple[str, str] = ("exact", "exact")
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
        self.tiers = tuple(self.tiers)
        if self.config.n_tiers != len(self.tiers):
            raise ValueError(f"profile: config is for {self.config.n_tiers} tiers, but tiers names {len(self.tiers)}")
        check_keys("profile.measured", self.measured, MEASUREMENTS)

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Profile) else NotImplemented

    def to_dict(self) -> dict[str, Any]:
        data = {name: value for name, value in asdict(self).items() if name not in ("config", "costs")}
        data.update(tiers=list(self.tiers), rules=list(self.rules), config=self.config.to_dict(),
                    costs=None if self.costs is None else self.costs.to_dict())
        order = ["schema_version", "task", "family", "tiers", "method", "rules", "divergence", "do_sample", "drift_budget", "config"]
        return {name: data[name] for name in [*order, *(n for n in data if n not in order)]}

    @classmethod
    def from_dict(cls, data: Any, where: str = "profile") -> Profile:
        """Validate every field; raises ValueError or TypeError naming the field, its value and what was expected."""
        if not isinstance(data, Mapping):
            raise ValueError(f"{where} must be a YAML mapping, got {type(data).__name__}")
        known = list(cls.__dataclass_fields__)
        check_keys(where, data, known, required=("schema_version", "task", "family", "tiers", "method", "config"))
        version = check_int(f"{where}: schema_version", data["schema_version"], 1)
        if version > SCHEMA_VERSION:
            raise ValueError(f"{where}: schema_version {version} is newer than this library reads ({SCHEMA_VERSION})")
        for name, kind, words in _FIELDS:
            value = data.get(name)
            if name in data and not (isinstance(value, kind) or (value is None and name in _OPTIONAL)):
                raise TypeError(f"{where}: {name} must be {words}, got {value!r}")
        for name in ("tiers", "rules"):
            if name in data and not all(isinstance(entry, str) for entry in data[name]):
                raise TypeError(f"{where}: {name} must be a list of names, got {data[name]!r}")
        fields = dict(data)
        try:
            fields["config"] = PyramidConfig.from_dict(data["config"])
            if data.get("costs") is not None:
                fields["costs"] = CostModel(data["costs"])
        except (TypeError, ValueError, AttributeError) as error:
            raise type(error)(f"{where}: {error}") from None
        fields["tiers"] = tuple(data["tiers"])
        if "rules" in data:
            if len(data["rules"]) != 2:
                raise ValueError(f"{where}: rules must be [lower, top], got {data['rules']!r}")
            fields["rules"] = tuple(data["rules"])
        if data.get("drift_budget") is not None:
            fields["drift_budget"] = check_number(f"{where}: drift_budget", data["drift_budget"], minimum=0.0)
        return cls(**fields)

    def save(self, path: str | Path) -> None:
        """Write YAML that `load` reads back to an equal profile."""
        comments = "".join(f"#   {name}: {what}\n" for name, what in MEASUREMENTS.items() if name in self.measured)
        head = f"# adaptive_pyramid profile. Load it with AdaptivePyramid.from_profile(...).\n# measured:\n{comments}"
        text = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=120)
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        partial.write_text(head + text, encoding="utf-8")
        partial.replace(target)   # a reader never sees half a profile

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read and validate a profile.

        Raises:
            FileNotFoundError: no such file. ValueError, TypeError: broken YAML, an unknown key, a wrong value.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no profile at {path}")
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
        return cls.from_dict(data, where=str(path))

    @classmethod
    def shipped(cls, family: str, task: str) -> Profile:
        """The profile that comes with the package for `family` and `task`; ValueError with the nearest name if none does."""
        folder = Path(__file__).with_name("profiles")
        names = {file.stem: file for file in folder.glob("*.yaml")}
        wanted = f"{family}-{task}"
        if wanted not in names:
            raise ValueError(unknown_name("shipped profile", wanted, names or ["none"]))
        return cls.load(names[wanted])

    def warn_differences(self, actual: Mapping[str, Any]) -> list[str]:
        """Warn (UserWarning) of everything that differs between where this was measured and `actual`; returns the sentences.

        `actual` has any of: family, tiers, device, dtype, versions.
        """
        found = []
        for name in ("family", "device", "dtype"):
            ours, theirs = getattr(self, name), actual.get(name)
            if theirs is not None and theirs != ours:
                found.append(f"{name} is {theirs}, the profile was measured with {ours}")
        tiers = actual.get("tiers")
        if tiers is not None and tuple(tiers) != self.tiers:
            found.append(f"tiers are {', '.join(tiers)}, the profile was measured with {', '.join(self.tiers)}")
        for package, version in actual.get("versions", {}).items():
            measured = self.versions.get(package)
            if measured is not None and measured != version:
                found.append(f"{package} is {version}, the profile was measured with {measured}")
        if found:
            warnings.warn(f"profile for {self.task!r}: " + "; ".join(found) + ". Its config is used; its speeds may not hold.", stacklevel=3)
        return found


_OPTIONAL = {"drift_budget", "costs"}
_FIELDS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("task", str, "a name"), ("family", str, "a name"), ("tiers", (list, tuple), "a list of names"), ("method", str, "a name"),
    ("rules", (list, tuple), "[lower, top]"), ("divergence", str, "a name"), ("do_sample", bool, "true or false"),
    ("drift_budget", (int, float), "a number or null"), ("config", Mapping, "a mapping with route and stages"),
    ("measured", Mapping, "a mapping"), ("costs", Mapping, "a mapping tier -> width -> seconds, or null"),
    ("device", str, "a name"), ("dtype", str, "a name"), ("versions", Mapping, "a mapping"), ("revisions", Mapping, "a mapping"),
    ("study", Mapping, "a mapping"), ("control", Mapping, "a mapping"),
)
