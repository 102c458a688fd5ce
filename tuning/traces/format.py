"""Traces: the target's own greedy answers, and what every tier of the pool says along them. Recorded once, asked often.

    python -m tuning.traces --task gsm8k csqa --out traces.npz

A trace set is one .npz file: flat arrays over the tokens of all traces, and a JSON header (tiers, tokenizer, settings,
measured costs, versions). docs/traces.md describes the format. Reading it needs no torch and no model.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_pyramid.atomic_write import write_atomically
from adaptive_pyramid.errors import check_keys, unknown_name
from adaptive_pyramid.throughput import CostModel

FORMAT_VERSION = 1
DIVERGENCES = ("js", "tv", "kl", "kl_rev", "logit_gap")
# In place of a token: a lookup that found nothing, or a text that the tier cannot read.
NOTHING = -1


@dataclass(frozen=True)
class TierInfo:
    """What replay must know of a tier.

    Args:
        name: for people. source: where the model came from, as in a profile. lookup: None for a model, else
            (max_ngram, min_ngram) of a prompt lookup.
        usable_ids: a lookup's proposals end before an id from here on. max_context: what a model can read, None = any.
    """

    name: str
    source: str = ""
    lookup: tuple[int, int] | None = None
    usable_ids: int | None = None
    max_context: int | None = None


@dataclass(frozen=True)
class Header:
    """What holds for every trace of a set.

    Args:
        tiers: from draft to target. eos: ids that end a text. family, tokenizer, dtype, device, versions: provenance.
        costs: the forward times measured where the set was recorded (tier -> width -> seconds), or None.
        labels: task -> what data its prompts are (a sample says so).
    """

    tiers: tuple[TierInfo, ...]
    eos: tuple[int, ...] = ()
    family: str = ""
    tokenizer: str = ""
    dtype: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    costs: CostModel | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> int:
        return len(self.tiers) - 1

    @property
    def models(self) -> tuple[int, ...]:
        """Tiers with a model of their own."""
        return tuple(tier for tier, info in enumerate(self.tiers) if info.lookup is None)

    @property
    def model_names(self) -> dict[int, str]:
        """tier -> name, of tiers with a model of their own."""
        return {tier: self.tiers[tier].name for tier in self.models}

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(proposer, verifier), in the order of `Trace.divergence`'s second axis; only models verify."""
        return tuple((low, high) for high in self.models for low in range(high))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "costs": None if self.costs is None else self.costs.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Header:
        check_keys("the header", data, [entry.name for entry in fields(cls)], required=("tiers",))
        tiers = []
        for tier in data["tiers"]:
            check_keys("a tier of the header", tier, [entry.name for entry in fields(TierInfo)], required=("name",))
            tiers.append(TierInfo(**{**tier, "lookup": None if tier.get("lookup") is None else tuple(tier["lookup"])}))
        known = {
            **data,
            "tiers": tuple(tiers),
            "costs": None if data.get("costs") is None else CostModel(data["costs"]),
        }
        return cls(**{**known, "eos": tuple(known.get("eos", ()))})

    def differences(self, other: Header) -> list[str]:
        """What makes traces of the two sets incomparable, in words; costs and versions may differ."""
        names = ("tiers", "eos", "family", "tokenizer", "dtype")
        return [
            f"{name}: {getattr(self, name)!r} there, {getattr(other, name)!r} here"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]


@dataclass(frozen=True)
class Trace:
    """One greedy answer of N tokens, and every tier along it (K tiers, the target last; V verifier pairs).

    Position i is where `ids[i]` was chosen, given prompt + ids[:i]. Distributions are unprocessed, at temperature 1.

    Args:
        task, example, turn: where the prompt came from; together they name the trace within its set.
        prompt: int32 [P]. ids: int32 [N], the target's output. ended: True if by EOS, False if by `max_new_tokens`.
        top: int32 [K, N], each tier's most likely id; of a lookup the first id it proposes; NOTHING where it has none.
        logprob: float32 [K, N], log-prob of ids[i]. gap: float32 [K, N], how much less likely ids[i] is than the tier's
            own best. entropy: float32 [K, N]. All in nats, and NaN for lookups.
        divergence: float32 [5, V, N], by DIVERGENCES and `Header.pairs`. `logit_gap` is also the regret of the
            proposer's best under the verifier: log p(best) - log p(proposed). A lookup counts as a point mass on `top`.
        source: int32 [K, N], where in prompt + ids a lookup copies from; NOTHING for none, and for models.
        departures: int32 [M, 3], (lookup, position, id): every id other than the text's with which a lookup's proposal
            can leave the text. departure_regret: float32 [M, K], its regret under each tier, nats; NaN for lookups.
    """

    task: str
    example: str
    turn: int
    max_new_tokens: int
    ended: bool
    prompt: np.ndarray
    ids: np.ndarray
    top: np.ndarray
    logprob: np.ndarray
    gap: np.ndarray
    entropy: np.ndarray
    divergence: np.ndarray
    source: np.ndarray
    departures: np.ndarray
    departure_regret: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def key(self) -> tuple[str, str, int]:
        return self.task, self.example, self.turn

    @property
    def regret(self) -> np.ndarray:
        """float32 [K, N]: regret under the target of each tier's best id, nats; 0 where it is the target's own."""
        first = self.divergence.shape[1] - (len(self.top) - 1)  # the target's pairs stand last in Header.pairs
        rows = self.divergence[DIVERGENCES.index("logit_gap"), first:]
        return np.concatenate([rows, np.zeros((1, len(self)), np.float32)])


# Arrays whose last axis is the token's.
_BY_TOKEN = ("ids", "top", "logprob", "gap", "entropy", "divergence", "source")
_BY_ROW = ("prompt", "departures", "departure_regret")  # numbers of their own
_META = ("task", "example", "turn", "max_new_tokens", "ended")


@dataclass
class TraceSet:
    """Traces with one header."""

    header: Header
    traces: list[Trace] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.traces)

    def __iter__(self) -> Iterator[Trace]:
        return iter(self.traces)

    def __getitem__(self, index: int) -> Trace:
        return self.traces[index]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.traces))

    @property
    def tasks(self) -> list[str]:
        """Task names, in order of appearance."""
        return list(dict.fromkeys(trace.task for trace in self.traces))

    def select(self, task: str | None = None, indices: Sequence[int] | None = None) -> TraceSet:
        """The traces of one task, or those at `indices`."""
        if task is not None and task not in self.tasks:
            raise ValueError(unknown_name("task", task, self.tasks))
        chosen = self.traces if indices is None else [self.traces[i] for i in indices]
        return TraceSet(self.header, [trace for trace in chosen if task is None or trace.task == task])

    def pair(self, proposer: int, verifier: int) -> int:
        """Index of a pair on the second axis of `Trace.divergence`."""
        if (proposer, verifier) not in self.header.pairs:
            raise ValueError(f"no such pair of tiers: {(proposer, verifier)}; expected one of {self.header.pairs}")
        return self.header.pairs.index((proposer, verifier))

    @property
    def width_flips(self) -> float:
        """Share of positions where the target, read some positions at a time, prefers another token than it wrote."""
        return sum(int((trace.top[-1] != trace.ids).sum()) for trace in self.traces) / max(1, self.tokens)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the set to `path`, whole or not at all: a reader never sees half a file."""
        write_atomically(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """What `save` writes; ValueError for a set without traces."""
        if not self.traces:
            raise ValueError("a trace set without traces is not written")
        arrays = {name: np.concatenate([getattr(trace, name) for trace in self.traces], axis=-1) for name in _BY_TOKEN}
        arrays |= {name: np.concatenate([getattr(trace, name) for trace in self.traces]) for name in _BY_ROW}
        header = {
            "version": FORMAT_VERSION,
            "header": self.header.to_dict(),
            "traces": [
                {name: getattr(trace, name) for name in _META}
                | {"rows": [len(getattr(trace, name)) for name in ("ids", *_BY_ROW)]}
                for trace in self.traces
            ],
        }
        buffer = io.BytesIO()
        np.savez_compressed(buffer, json=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays)
        return buffer.getvalue()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TraceSet:
        """Read a set.

        Raises:
            FileNotFoundError: no such file. ValueError: something else than a trace set, or one of a newer format.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no traces at {path}")
        return cls.from_bytes(path.read_bytes(), str(path))

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "these bytes") -> TraceSet:
        """The inverse of `to_bytes`; raises ValueError as `load` does."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                arrays = dict(file)
            described = json.loads(bytes(arrays["json"]))
            version, header, metas = described["version"], described["header"], described["traces"]
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{where}: not a trace set as tuning.traces writes it ({error})") from None
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{where} has format version {version}; this library reads {FORMAT_VERSION}: record it again"
            )
        traces, at = [], dict.fromkeys(("ids", *_BY_ROW), 0)
        for meta in metas:
            rows = {name: slice(at[name], at[name] + n) for name, n in zip(at, meta["rows"])}
            traces.append(
                Trace(
                    **{name: meta[name] for name in _META},
                    **{name: arrays[name][..., rows["ids"]] for name in _BY_TOKEN},
                    **{name: arrays[name][rows[name]] for name in _BY_ROW},
                )
            )
            at = {name: piece.stop for name, piece in rows.items()}
        return cls(Header.from_dict(header), traces)
