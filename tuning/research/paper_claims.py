"""What the papers say of three-model decoding, tested on one family: confirmed, refuted, or cannot be told here.

The claims are those of PyramidSD (arXiv 2510.12966) in our reading, which stands beside every verdict. A verdict rests on
95 % bootstrap intervals over prompts: an interval on the claim's side of its threshold confirms, one on the other side
refutes, one that holds the threshold tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_pyramid.config import route_label
from tuning.research.modelled_speeds import LENGTHS_D, LENGTHS_Q, ModelledSpeeds
from tuning.research.paper_runs import REFERENCE_TAUS, TAUS, PaperRun, PaperRuns, Setting, totals
from tuning.statistics import bootstrap

CONFIRMED, REFUTED, UNTOLD, UNMEASURED = "confirmed", "refuted", "cannot be told here", "not measured"
MARGIN = 0.02  # speed that pays for nothing: below it, "faster" is not worth a word
MIN_PROMPTS = 4  # an interval over fewer prompts means nothing
_HIGH_TAU = 0.5


@dataclass(frozen=True)
class Claim:
    """One claim and what became of it.

    Args:
        text: as the papers put it. reading: how it was tested. verdict: one of the four words above.
        numbers: sentences with what was measured. basis: where they come from, exact or estimated.
    """

    text: str
    reading: str
    verdict: str
    numbers: tuple[str, ...]
    basis: str


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, and the threshold that a claim says it is above."""

    value: float
    low: float
    high: float
    threshold: float = 0.0

    @property
    def verdict(self) -> str:
        return CONFIRMED if self.low > self.threshold else REFUTED if self.high < self.threshold else UNTOLD

    def __str__(self) -> str:
        return f"{self.value:.3f} (95 % interval {self.low:.3f} to {self.high:.3f})"


LENGTHS = "l_D : l_Q between 1:2 and 1:3 is fastest"
ORDER = "tau_Q at most tau_T gives the most consistent speed"
HIGH_TAU = f"tau_T above {_HIGH_TAU:g} hurts quality without paying in speed"
CASCADE = "Speed is not monotone in aggressiveness: past some tau_Q, tokens that Q passes are rejected by T"
VARIANTS = "PSD_F is faster than PSD_A, but more variable in speed and in score"


def claims(modelled: ModelledSpeeds, decodings: PaperRuns | None) -> list[Claim]:
    """All five, in the papers' order; those that need decodings are "not measured" without them."""
    route = modelled.pyramid_route
    if route is None:
        why = f"This family has no chain of draft, qualifier and target ({', '.join(modelled.names)})."
        return [Claim(text, "", UNTOLD, (why,), "") for text in (LENGTHS, ORDER, HIGH_TAU, CASCADE, VARIANTS)]
    measured = ((ORDER, order_claim), (HIGH_TAU, high_tau_claim), (CASCADE, cascade_claim), (VARIANTS, variants_claim))
    found = [lengths_claim(modelled)]
    if decodings is None or len(decodings) < MIN_PROMPTS:
        have = 0 if decodings is None else len(decodings)
        why = "Drifting methods leave the recorded text, so this needs real decodings."
        if have:
            why = f"{have} questions were decoded, at least {MIN_PROMPTS} are needed."
        return found + [Claim(text, "", UNMEASURED, (why,), "") for text, _ in measured]
    return found + [test(decodings, basis(modelled, decodings)) for _, test in measured]


def basis(modelled: ModelledSpeeds, decodings: PaperRuns) -> str:
    """Where the measured claims come from, in one sentence."""
    lengths = ", ".join(str(decodings.config.stage(tier).length) for tier in decodings.config.route[1:])
    names = " > ".join(modelled.names[tier] for tier in decodings.config.route)
    return (
        f"Measured: real greedy decodings of {len(decodings)} questions on {names}, lengths {lengths}, "
        f"taus of {modelled.method.divergence}; seconds are the forwards that happened, priced with the cost table."
    )


def lengths_claim(modelled: ModelledSpeeds) -> Claim:
    """By replay: the best cell inside the band of ratios against the best outside."""
    route = modelled.pyramid_route
    fields = {
        "the study's method, tau 0": (modelled.method, None),
        "PSD_F at tau .2": (modelled.named("psd_f"), REFERENCE_TAUS),
    }
    verdicts, numbers = [], []
    for name, (method, taus) in fields.items():
        cells = {
            (d, q): modelled.seconds(modelled.config(route, (d, q), taus), method) for d in LENGTHS_D for q in LENGTHS_Q
        }
        alone = modelled.seconds(modelled.config((modelled.target,), ()))
        inside = [cell for cell in cells if 2 * cell[0] <= cell[1] <= 3 * cell[0]]
        outside = [cell for cell in cells if cell not in inside]
        table = {cell: seconds.sum() for cell, seconds in cells.items()}
        best = [min(group, key=table.__getitem__) for group in (inside, outside)]
        groups = [np.array([cells[cell] for cell in group]) for group in (inside, outside)]
        # The best of each group is chosen anew in every resample: its choice is part of what is uncertain.
        gain = Estimate(
            *bootstrap(lambda drawn: (groups[1] @ drawn).min() / (groups[0] @ drawn).min(), modelled.n_traces), 1.0
        )
        verdicts.append(gain.verdict)
        said = [f"{cell[0]}, {cell[1]} ({alone.sum() / table[cell]:.2f} × ar)" for cell in best]
        numbers.append(f"{name}: best inside l_D, l_Q = {said[0]}, outside {said[1]}; speed inside over outside {gain}")
    verdict = verdicts[0] if len(set(verdicts)) == 1 else UNTOLD
    reading = (
        "The best cell with 2 l_D <= l_Q <= 3 l_D is faster than the best cell elsewhere; both fields below must agree."
    )
    what = (
        f"Modelled: {modelled.n_traces} recorded answers ({modelled.n_positions} tokens) replayed on {route_label(route)} and priced "
        "with the cost table; passes off the recorded text are estimated."
    )
    return Claim(LENGTHS, reading, verdict if modelled.n_traces >= MIN_PROMPTS else UNTOLD, tuple(numbers), what)


def order_claim(decodings: PaperRuns, source: str) -> Claim:
    """The same two values either way round: does the speed spread more over prompts when the larger one is tau_Q?"""
    pairs = [(low, high) for low in TAUS for high in TAUS if low < high]
    kept, broken = ([_speeds(decodings, key(*pair)) for pair in pairs] for key in (_f, lambda low, high: _f(high, low)))
    more = Estimate(*bootstrap(lambda drawn: _mean_spread(broken, drawn) - _mean_spread(kept, drawn), len(decodings)))
    every = np.ones(len(decodings))
    numbers = (
        f"relative spread (standard deviation over mean) of the speed over prompts: {_mean_spread(kept, every):.3f} with tau_Q < tau_T, "
        f"{_mean_spread(broken, every):.3f} with the same values exchanged; difference {more}",
    )
    reading = "Over mirrored pairs (a, b) and (b, a) of PSD_F, the speed over ar varies less from prompt to prompt when tau_Q is the smaller."
    return Claim(ORDER, reading, more.verdict, numbers, source)


def high_tau_claim(decodings: PaperRuns, source: str) -> Claim:
    """The fastest setting above the limit against the fastest at or below it."""
    everything = {(q, t): decodings.runs(_f(q, t)) for q in TAUS for t in TAUS}

    def fastest(above: bool) -> tuple[float, float]:
        return min(
            (cell for cell in everything if (cell[1] > _HIGH_TAU) == above),
            key=lambda cell: _column(everything[cell], "seconds").sum(),
        )

    low, high = fastest(False), fastest(True)
    gain = Estimate(*_ratio(everything[low], everything[high]), 1.0)
    drift = Estimate(*_difference(everything[high], everything[low], lambda run: run.drift / run.tokens))
    loss = Estimate(*_difference(everything[low], everything[high], lambda run: run.score))
    if max(drift.low, loss.low) > 0 and gain.high < 1 + MARGIN:
        verdict = CONFIRMED
    elif gain.low > 1 + MARGIN or max(drift.high, loss.high) <= 0:
        verdict = REFUTED
    else:
        verdict = UNTOLD
    numbers = (
        f"speed of (tau_Q, tau_T) = {high} over {low}, the fastest on either side: {gain}",
        f"drift it adds, nats per token: {drift}",
        f"score it loses: {loss}",
    )
    reading = (
        f"Hurts: drift rises or score falls beyond doubt. Does not pay: less than {MARGIN:.0%} faster beyond doubt. "
        f"Refuted when it is more than {MARGIN:.0%} faster beyond doubt, or harmless."
    )
    return Claim(HIGH_TAU, reading, verdict, numbers, source)


def cascade_claim(decodings: PaperRuns, source: str) -> Claim:
    """Speed by tau_Q, over all tau_T together: is there a peak inside, and does speed fall behind it?"""
    rows = [_merged([decodings.runs(_f(q, t)) for t in TAUS]) for q in TAUS]
    seconds = [_column(row, "seconds").sum() / _column(row, "tokens").sum() for row in rows]
    peak = int(np.argmin(seconds))
    inner = 1 + int(np.argmin(seconds[1:-1]))
    rise, drop = (Estimate(*_ratio(rows[end], rows[inner]), 1.0) for end in (0, len(rows) - 1))
    verdicts = (rise.verdict, drop.verdict)
    verdict = CONFIRMED if verdicts == (CONFIRMED, CONFIRMED) else REFUTED if REFUTED in verdicts else UNTOLD
    lost = ", ".join(f"{tau:g}: {totals(row)['lost']:.1f}" for tau, row in zip(TAUS, rows))
    numbers = (
        f"fastest tau_Q: {TAUS[peak]:g}",
        f"speed at tau_Q {TAUS[inner]:g} over tau_Q {TAUS[0]:g}: {rise}; over tau_Q {TAUS[-1]:g}: {drop}",
        f"tokens that Q passed and T did not take, per 100 emitted, by tau_Q: {lost}",
    )
    reading = "PSD_F, all tau_T pooled: the best tau_Q inside the grid is faster than both of its ends."
    return Claim(CASCADE, reading, verdict, numbers, source)


def variants_claim(decodings: PaperRuns, source: str) -> Claim:
    """PSD_F with tau_Q = tau_T against PSD_A at the same tau_T."""
    taus = [tau for tau in TAUS if tau > 0]
    fuzzy, assisted = ([decodings.runs(key(tau)) for tau in taus] for key in (lambda tau: _f(tau, tau), _a))
    faster = Estimate(*_ratio(_merged(assisted), _merged(fuzzy)), 1.0)
    speeds = [
        [_speeds(decodings, key) for key in keys]
        for keys in ([_f(tau, tau) for tau in taus], [_a(tau) for tau in taus])
    ]
    scores = [[_column(runs, "score") for runs in group] for group in (fuzzy, assisted)]
    n = len(decodings)
    speed = Estimate(*bootstrap(lambda drawn: _mean_spread(speeds[0], drawn) - _mean_spread(speeds[1], drawn), n))
    score = Estimate(*bootstrap(lambda drawn: _mean_deviation(scores[0], drawn) - _mean_deviation(scores[1], drawn), n))
    verdicts = {faster.verdict, speed.verdict, score.verdict}
    verdict = CONFIRMED if verdicts == {CONFIRMED} else REFUTED if REFUTED in verdicts else UNTOLD
    numbers = (
        f"speed of PSD_F over PSD_A: {faster}: {faster.verdict}",
        f"relative spread of speed over prompts, PSD_F less PSD_A: {speed}: {speed.verdict}",
        f"standard deviation of the score over prompts, PSD_F less PSD_A: {score}: {score.verdict}",
    )
    reading = (
        f"tau_Q = tau_T in PSD_F, the same tau_T in PSD_A, over tau {', '.join(f'{tau:g}' for tau in taus)}; all three parts must "
        "hold, one that fails refutes."
    )
    return Claim(VARIANTS, reading, verdict, numbers, source)


def _f(tau_Q: float, tau_T: float) -> str:
    return Setting("psd_f", tau_Q, tau_T).key


def _a(tau_T: float) -> str:
    return Setting("psd_a", 0.0, tau_T).key


def _column(runs: Sequence[PaperRun], name: str) -> np.ndarray:
    return np.array([getattr(run, name) for run in runs], float)


def _speeds(decodings: PaperRuns, key: str) -> np.ndarray:
    """Speed over `ar`, per question."""
    own, ar = decodings.runs(key), decodings.runs("ar")
    return np.array([(a.seconds / a.tokens) / (b.seconds / b.tokens) for a, b in zip(ar, own)])


def _merged(settings: Sequence[Sequence[PaperRun]]) -> list[PaperRun]:
    """Several settings as one: sums per question (the mean of scores)."""
    return [
        PaperRun(
            sum(run.seconds for run in runs),
            sum(run.tokens for run in runs),
            sum(run.drift for run in runs),
            sum(run.score for run in runs) / len(runs),
            sum(run.refused for run in runs),
            sum(run.lost for run in runs),
        )
        for runs in zip(*settings)
    ]


def _ratio(slow: Sequence[PaperRun], fast: Sequence[PaperRun]) -> tuple[float, float, float]:
    """Speed of `fast` over that of `slow`, with its interval."""
    a, b = ([_column(runs, name) for name in ("seconds", "tokens")] for runs in (slow, fast))
    return bootstrap(lambda drawn: (a[0] @ drawn / (a[1] @ drawn)) / (b[0] @ drawn / (b[1] @ drawn)), len(slow))


def _difference(
    more: Sequence[PaperRun], less: Sequence[PaperRun], value: Callable[[PaperRun], float]
) -> tuple[float, float, float]:
    """Mean over questions of value(more) - value(less), with its interval."""
    differences = np.array([value(a) - value(b) for a, b in zip(more, less)])
    return bootstrap(lambda drawn: differences @ drawn / drawn.sum(), len(differences))


def _mean_deviation(columns: Sequence[np.ndarray], drawn: np.ndarray) -> float:
    """Standard deviation over the drawn questions, averaged over settings."""
    weights = drawn / drawn.sum()
    table = np.array(columns)
    means = table @ weights
    return float(np.sqrt(np.maximum(0.0, ((table - means[:, None]) ** 2) @ weights)).mean())


def _mean_spread(columns: Sequence[np.ndarray], drawn: np.ndarray) -> float:
    """Standard deviation over mean, averaged over settings."""
    table = np.array(columns)
    means = table @ (drawn / drawn.sum())
    return _mean_deviation(list(table / means[:, None]), drawn)
