"""Estimates with 95 % intervals: time saved, shares, paired differences; and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95


class Interval(NamedTuple):
    """A value and its 95 % interval [low, high]; arrays where the samples came in an array."""

    value: Any
    low: Any
    high: Any


def time_ratio(reference: Any, seconds: Any) -> Interval:
    """sum(reference) / sum(seconds): how many times faster the whole task is done, the same prompts in pairs.

    This is the time that a user saves: a prompt counts by the time that it takes, and none is left out. The interval is
    for other prompts of the same kind: Student's t on the logarithm of the ratio, with the jackknife's standard error.
    Its degrees of freedom are one less than Kish's effective number of prompts, (sum w)^2 / sum w^2 with w each
    prompt's share of the time: many short prompts beside a few long ones tell little more than the long ones. A
    bootstrap of so few prompts is too narrow: at 6 to 12 of them percentiles and BCa cover 80 to 90 %, this interval
    93 to 96 % (benchmarks/interval_coverage.py). No interval knows of a kind of prompts that its sample lacks.

    Args:
        reference, seconds: above 0, of shape [prompts] or [..., prompts].

    Returns:
        Floats, or arrays of shape [...]. One prompt has no interval: NaN.

    Raises:
        ValueError: different shapes, no prompts, or times that are not finite and above 0.
    """
    a, b = np.asarray(reference, dtype=float), np.asarray(seconds, dtype=float)
    if a.shape != b.shape or not a.ndim or not a.shape[-1]:
        raise ValueError(f"reference and seconds must be times of the same prompts, got shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)).all():
        raise ValueError("reference and seconds must be finite and above 0")
    n = a.shape[-1]
    all_a, all_b = a.sum(-1, keepdims=True), b.sum(-1, keepdims=True)
    value = (all_a / all_b)[..., 0]
    if n == 1:
        low = high = np.full_like(value, np.nan)
    else:
        without = np.log((all_a - a) / (all_b - b))
        error = np.sqrt((n - 1) * without.var(-1))
        share = (a / all_a + b / all_b) / 2
        freedom = np.maximum(1 / (share**2).sum(-1) - 1, 1.0)
        reach = np.exp(stats.t.ppf((1 + LEVEL) / 2, freedom) * error)
        low, high = value / reach, value * reach
    return Interval(value, low, high) if a.ndim > 1 else Interval(float(value), float(low), float(high))


def standing_apart(values: Sequence[float]) -> list[int]:
    """Indices of the values that lie more than five robust standard deviations, and more than 0.1, from the median.

    One robust standard deviation is 1.4826 times the median absolute deviation (Hampel's identifier). Five, where 3.5
    is customary: timing again what chance alone sets apart makes intervals too narrow.
    """
    distance = np.abs(np.asarray(values, dtype=float) - np.median(values))
    return np.flatnonzero(distance > max(5 * 1.4826 * float(np.median(distance)), 0.1)).tolist()


def share(mean: float, n: int) -> Interval:
    """The mean of `n` independent values in [0, 1], with Wilson's score interval.

    `scipy.stats.binomtest(...).proportion_ci("wilson")`, but for fractions, too (it takes whole successes only). For
    those it is conservative, since values in [0, 1] of mean m vary by at most m (1 - m). Unlike the normal interval it
    stays within [0, 1] and keeps a width at 0 and 1. NaN of nothing (n = 0).
    """
    if not n:
        return Interval(math.nan, math.nan, math.nan)
    z = float(stats.norm.ppf((1 + LEVEL) / 2))
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(0.0, mean * (1 - mean)) / n + z * z / (4 * n * n))
    low = 0.0 if mean == 0.0 else max(0.0, centre - half)
    return Interval(mean, low, 1.0 if mean == 1.0 else min(1.0, centre + half))


def paired_bootstrap(
    a: Sequence[float], b: Sequence[float], *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """(mean of a - b, low, high): 95 % percentile interval over examples drawn with replacement, in pairs.

    `a[i]` and `b[i]` belong to the same example. Raises ValueError for different or zero lengths and for values that
    are not finite.
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.ndim != 1 or first.shape != second.shape or not first.size:
        raise ValueError(f"a and b must be non-empty and of one length, got shapes {first.shape} and {second.shape}")
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 1:
        raise ValueError(f"resamples must be an int of at least 1, got {resamples!r}")
    if not (np.isfinite(first) & np.isfinite(second)).all():
        raise ValueError("a and b must be finite numbers")

    def difference(one: np.ndarray, other: np.ndarray, axis: int = -1) -> np.ndarray:
        return (one - other).mean(axis=axis)

    low, high = _percentiles((first, second), difference, resamples, seed, vectorized=True)
    return float(difference(first, second)), low, high


def bootstrap(
    statistic: Callable[[np.ndarray], float], n: int, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """(value, low, high): `statistic(weights)` on all n prompts, and its 95 % percentile interval over prompts.

    For statistics that have no formula (the best of a grid, spreads). With a dozen prompts it is too narrow.
    `weights` is float64 [n], how often each prompt was drawn.
    """

    def drawn(rows: np.ndarray) -> float:
        return float(statistic(np.bincount(rows.astype(int), minlength=n).astype(float)))

    low, high = _percentiles((np.arange(n),), drawn, resamples, seed, vectorized=False)
    return float(statistic(np.ones(n))), low, high


def _percentiles(
    data: tuple[np.ndarray, ...], statistic: Callable[..., Any], resamples: int, seed: int, vectorized: bool
) -> tuple[float, float]:
    if len(data[0]) == 1:  # scipy refuses to resample one observation: it is all there can be
        only = float(statistic(*data))
        return only, only
    found = stats.bootstrap(
        data,
        statistic,
        n_resamples=resamples,
        batch=max(1, min(resamples, 1_000_000 // len(data[0]))),  # memory stays flat for long inputs
        vectorized=vectorized,
        paired=True,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def pareto_front(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """For each point (more is better in every number) whether no other is as good in all and better in one."""
    values = np.asarray(points, dtype=float)
    return [not ((values >= point).all(1) & (values > point).any(1)).any() for point in values]
