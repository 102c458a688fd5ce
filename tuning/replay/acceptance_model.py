"""How likely a stage accepts, as a function of tau, entropy and position: learned from traces, calibrated, checked.

    model = AcceptanceModel.fit(calibration_traces)
    print(reliability_table(model.reliability(held_out_traces, 0, 2)))
    Replay(traces, costs, acceptance=model)

Gradient-boosted trees, monotone in tau, and isotonic regression on traces that the trees never saw. Replay asks it
where the recorded text ends: behind a token that a mid tier prefers to the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.isotonic import IsotonicRegression

from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.errors import check_int, unknown_name
from tuning.replay.position_index import compared_below_target
from tuning.traces.format import DIVERGENCES, NOTHING, Trace, TraceSet

# A lookup has no entropy: for it the verifier's stands in.
FEATURES = ("tau", "proposer's entropy (nats)", "position in the answer", "tokens since the last refusal")
# Denser where thresholds are set; 0 is the strict rule.
_NATS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0)
_SHARES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
TAUS = {
    "logit_gap": _NATS,
    "kl": _NATS,
    "kl_rev": _NATS,
    "tv": _SHARES,
    "js": (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
}
_CALIBRATION_SHARE = 1 / 3
FEWEST_TRACES = 4
_LEAF = 30  # positions per leaf, each of which counts once per tau


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions within one bin: their mean, the share really accepted, and how many (token, tau) pairs there were."""

    predicted: float
    observed: float
    n: int


@dataclass
class AcceptanceModel:
    """P(the verifier accepts the proposer's token), for every pair of tiers; of a lookup, the first token it proposes.

    Args:
        divergence: what is compared with tau. "logit_gap" is the `relaxed` rule in greedy decoding; the others are
            `fuzzy` with that divergence. A token that is the verifier's own best always passes.
        taus: at which outcomes are learned. seed: of the split and of the trees.
    """

    divergence: str = "logit_gap"
    taus: tuple[float, ...] = ()
    seed: int = 0
    _pairs: dict[tuple[int, int], _Calibrated] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.divergence not in DIVERGENCES:
            raise ValueError(unknown_name("divergence", self.divergence, DIVERGENCES))
        self.taus = tuple(self.taus) or TAUS[self.divergence]

    @classmethod
    def fit(
        cls, traces: TraceSet, divergence: str = "logit_gap", taus: Sequence[float] = (), seed: int = 0
    ) -> AcceptanceModel:
        """Learn from `traces`: trees from two thirds of them, calibration from the others.

        Raises:
            ValueError: fewer than four traces, or a single tier.
        """
        if len(traces) < FEWEST_TRACES:
            raise ValueError(f"an acceptance model needs at least {FEWEST_TRACES} traces, got {len(traces)}")
        if not traces.header.pairs:
            raise ValueError("an acceptance model needs two tiers; these traces have one")
        model = cls(divergence, tuple(taus), seed)
        order = np.random.default_rng(seed).permutation(len(traces))
        held = max(1, round(_CALIBRATION_SHARE * len(traces)))
        for pair in traces.header.pairs:
            fitted, kept = (
                outcomes(traces.select(indices=part), *pair, divergence, model.taus)
                for part in (order[held:], order[:held])
            )
            if len(fitted[1]) and len(kept[1]):  # a lookup may find nothing anywhere
                model._pairs[pair] = _Calibrated.fit(*fitted, *kept, leaf=_LEAF * len(model.taus), seed=seed)
        return model

    def predict(self, x: np.ndarray, proposer: int, verifier: int) -> np.ndarray:
        """Probabilities for rows of FEATURES, float [n]; ValueError for a pair that was not learned."""
        if (proposer, verifier) not in self._pairs:
            raise ValueError(
                f"no acceptance was learned for the tiers {(proposer, verifier)}; expected one of {sorted(self._pairs)}"
            )
        return self._pairs[proposer, verifier](x)

    def probabilities(self, traces: TraceSet, proposer: int, verifier: int, tau: float) -> list[np.ndarray]:
        """Per trace, float [N]: acceptance at each of its positions; NaN where nothing is known."""
        pair = traces.pair(proposer, verifier)
        if (proposer, verifier) not in self._pairs:
            return [np.full(len(trace), np.nan) for trace in traces]
        rows = [_rows(trace, pair, proposer, verifier, self.divergence, tau) for trace in traces]
        predicted = self.predict(np.concatenate([x for x, _ in rows]), proposer, verifier)
        known = np.where(np.isnan(np.concatenate([y for _, y in rows])), np.nan, predicted)
        return np.split(known, np.cumsum([len(trace) for trace in traces])[:-1])

    def reliability(self, traces: TraceSet, proposer: int, verifier: int, bins: int = 10) -> list[ReliabilityBin]:
        """Predicted against observed acceptance on `traces`, which the model should not have seen, in equal bins."""
        check_int("bins", bins, 1)
        x, y = outcomes(traces, proposer, verifier, self.divergence, self.taus)
        predicted = self.predict(x, proposer, verifier)
        which = np.minimum((predicted * bins).astype(int), bins - 1)
        return [
            ReliabilityBin(float(predicted[which == i].mean()), float(y[which == i].mean()), int((which == i).sum()))
            for i in range(bins)
            if (which == i).any()
        ]


@dataclass(frozen=True)
class _Calibrated:
    """Trees, then isotonic regression; or one number where all outcomes were alike."""

    trees: HistGradientBoostingClassifier | None
    isotonic: IsotonicRegression

    @classmethod
    def fit(
        cls, x: np.ndarray, y: np.ndarray, held_x: np.ndarray, held_y: np.ndarray, leaf: int, seed: int
    ) -> _Calibrated:
        trees = None
        if len(np.unique(y)) == 2:
            trees = HistGradientBoostingClassifier(
                max_iter=60,
                max_leaf_nodes=12,
                min_samples_leaf=leaf,
                learning_rate=0.1,
                monotonic_cst=[1, 0, 0, 0],
                random_state=seed,
            ).fit(x, y)
        isotonic = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
        return cls(trees, isotonic.fit(cls._scores(trees, held_x), held_y))

    @staticmethod
    def _scores(trees: HistGradientBoostingClassifier | None, x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x)) if trees is None else trees.predict_proba(x)[:, 1]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.isotonic.predict(self._scores(self.trees, x))


def fitting(traces: TraceSet, method: Method) -> AcceptanceModel | None:
    """The model that `Replay(traces, method=method)` takes; None where there is too little to learn it from."""
    if len(traces) < FEWEST_TRACES or not traces.header.pairs:
        return None
    return AcceptanceModel.fit(traces, compared_below_target(method) or "logit_gap")


def model_pairs(traces: TraceSet) -> list[tuple[int, int]]:
    """(proposer, verifier) for all pairs of tiers with models."""
    return [pair for pair in traces.header.pairs if pair[0] in traces.header.models]


def outcomes(
    traces: TraceSet, proposer: int, verifier: int, divergence: str, taus: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """(float [n, 4] by FEATURES, bool [n] accepted) for every position of every trace at every tau."""
    pair = traces.pair(proposer, verifier)
    parts = [_rows(trace, pair, proposer, verifier, divergence, tau) for trace in traces for tau in taus]
    x, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    known = ~np.isnan(y)
    return x[known], y[known] > 0


def _rows(
    trace: Trace, pair: int, proposer: int, verifier: int, divergence: str, tau: float
) -> tuple[np.ndarray, np.ndarray]:
    """(float [N, 4], float [N]: 1 accepted, 0 refused, NaN not recorded) of one trace at one tau."""
    low, high = trace.top[proposer], trace.ids if verifier == len(trace.top) - 1 else trace.top[verifier]
    accepted = ((low == high) | ((tau > 0) & (trace.divergence[DIVERGENCES.index(divergence), pair] <= tau))).astype(
        float
    )
    accepted[(low == NOTHING) | (high == NOTHING)] = np.nan
    entropy = trace.entropy[verifier if np.isnan(trace.entropy[proposer]).all() else proposer]
    here = np.arange(len(trace))
    last = np.maximum.accumulate(np.where(accepted == 1, -1, here))  # the latest refusal up to and including here
    since = here - np.r_[-1, last[:-1]] - 1
    return np.column_stack([np.full(len(trace), tau), entropy, here, since]), accepted


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Mean |predicted - observed| over bins, weighted by their sizes."""
    return sum(b.n * abs(b.predicted - b.observed) for b in bins) / sum(b.n for b in bins)


def reliability_table(bins: Sequence[ReliabilityBin]) -> str:
    """The bins as a Markdown table."""
    rows = [f"| {b.predicted:.3f} | {b.observed:.3f} | {b.n} |" for b in bins]
    return "\n".join(["| predicted | observed | n |", "| ---: | ---: | ---: |", *rows])
