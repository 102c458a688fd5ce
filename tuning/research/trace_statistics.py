"""What traces show by themselves: entropy by tier, acceptance by position and entropy, acceptance against tau."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuning.replay.acceptance_model import TAUS
from tuning.traces.format import DIVERGENCES, NOTHING, TraceSet

POSITIONS = (0, 8, 16, 32, 64, 128, 256)
ENTROPIES = (0.0, 0.1, 0.5, 1.0, 2.0, 3.0)


@dataclass(frozen=True)
class Share:
    """A share of n observations, by what it was sorted by."""

    label: str
    value: float
    n: int


def quantiles(
    traces: TraceSet, tier: int, shares: Sequence[float] = (0.25, 0.5, 0.75, 0.9)
) -> tuple[float, list[float]]:
    """(mean, quantiles) of a tier's entropy along the target's text, nats; NaN for a lookup."""
    values = np.concatenate([trace.entropy[tier] for trace in traces])
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), [float("nan")] * len(shares)
    return float(values.mean()), [float(value) for value in np.quantile(values, shares)]


def accepted(traces: TraceSet, proposer: int, verifier: int) -> np.ndarray:
    """Per position of all traces: 1 if the proposer's best id is the verifier's own, 0 if not, NaN for no proposal."""

    def one(trace) -> np.ndarray:
        low, high = trace.top[proposer], trace.ids if verifier == traces.header.target else trace.top[verifier]
        return np.where((low == NOTHING) | (high == NOTHING), np.nan, low == high)

    return np.concatenate([one(trace) for trace in traces])


def by_position(traces: TraceSet, proposer: int, verifier: int) -> list[Share]:
    """Acceptance by position in the answer."""
    positions = np.concatenate([np.arange(len(trace)) for trace in traces])
    return _binned(accepted(traces, proposer, verifier), positions, POSITIONS, "{:g}")


def by_entropy(traces: TraceSet, proposer: int, verifier: int) -> list[Share]:
    """Acceptance by the proposer's entropy (nats); by the verifier's, where the proposer is a lookup."""
    tier = proposer if proposer in traces.header.models else verifier
    return _binned(
        accepted(traces, proposer, verifier),
        np.concatenate([trace.entropy[tier] for trace in traces]),
        ENTROPIES,
        "{:.1f}",
    )


def _binned(outcome: np.ndarray, values: np.ndarray, edges: Sequence[float], form: str) -> list[Share]:
    known = ~np.isnan(outcome) & ~np.isnan(values)
    which = np.digitize(values, edges) - 1
    found = []
    for i, low in enumerate(edges):
        mine = known & (which == i)
        if mine.any():
            high = form.format(edges[i + 1]) if i + 1 < len(edges) else ""
            found.append(
                Share(
                    f"{form.format(low)} to {high}" if high else f"from {form.format(low)}",
                    float(outcome[mine].mean()),
                    int(mine.sum()),
                )
            )
    return found


@dataclass(frozen=True)
class Loosened:
    """What a threshold does: acceptance, and the regret under the verifier that it lets through, nats per position."""

    tau: float
    acceptance: float
    regret: float


def by_tau(traces: TraceSet, proposer: int, verifier: int, divergence: str) -> list[Loosened]:
    """Acceptance and regret against tau, if a token passes where `divergence` <= tau or it is the verifier's own."""
    pair = traces.pair(proposer, verifier)
    own = accepted(traces, proposer, verifier)
    distance, regret = (
        np.concatenate([trace.divergence[DIVERGENCES.index(name), pair] for trace in traces])
        for name in (divergence, "logit_gap")
    )
    known = ~np.isnan(own) & ~np.isnan(distance)
    found = []
    for tau in TAUS[divergence]:
        loose = (own[known] == 1) | (distance[known] <= tau) if tau else own[known] == 1
        found.append(
            Loosened(tau, float(loose.mean()), float(np.where(loose & (own[known] == 0), regret[known], 0.0).mean()))
        )
    return found
