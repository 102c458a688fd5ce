"""Acceptance by position in a proposal: buckets of positions, and what another threshold would have accepted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cache

import numpy as np

from ..stats import Verification

_BUCKETS = (1, 2, 4, 8, 16)  # last position of each bucket; one more behind them
N_BUCKETS = len(_BUCKETS) + 1


def bucket_of(position: int) -> int:
    """Number of the bucket of a position, counted from 0."""
    return bisect_left(_BUCKETS, position + 1)


def by_bucket_sums(by_position: Iterable[float]) -> np.ndarray:
    """Sums per bucket."""
    sums = np.zeros(N_BUCKETS)
    for position, value in enumerate(by_position):
        sums[bucket_of(position)] += value
    return sums


@cache
def by_bucket(m: int) -> tuple[float, ...]:
    """Of the first m positions of a proposal, how many fall into each bucket."""
    return tuple(by_bucket_sums([1.0] * m).tolist())


def at_threshold(
    v: Verification, ran: float, tau: float, greedy: bool, balance: float, budget: float
) -> tuple[list[float], list[float], float]:
    """What `tau` would have accepted of a proposal that was verified at `ran`, and tested, by bucket of positions.

    `balance` is what the drift bucket holds before (infinite without one), `budget` what every token adds; what would be
    left is returned, too.
    """
    accepted, tested = [0.0] * N_BUCKETS, [0.0] * N_BUCKETS
    weight = 1.0  # chance that this position is reached
    for i, distance in enumerate(v.distance):
        balance += weight * budget
        if distance <= min(tau, balance):
            chance = 1.0
            balance -= weight * distance
        elif i < v.accepted and not 0 < distance <= ran:
            chance = 1.0  # it passed the plain test
        elif greedy or (i < v.tested and distance > ran):
            chance = 0.0  # it fails, or failed, the plain test
        else:
            chance = 1.0 - distance
        bucket = bucket_of(i)
        tested[bucket] += weight
        accepted[bucket] += weight * chance
        weight *= chance
        if weight < 0.01:
            break
    return accepted, tested, balance + weight * budget
