"""Prompts and studies whose truth is known: what intervals and claims are tested on."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np

from adaptive_pyramid.config import PyramidConfig
from tuning.study.benchmark import Timed
from tuning.study.objective import Question
from tuning.study.rerun import FINALISTS, Rerun, rerun_best
from tuning.study.settings import CHOICE_QUESTIONS, STATED_QUESTIONS


def simulated_prompts(n: int, sigma: float, tail: float, samples: int = 4000, threefold: str = "", seed: int = 0):
    """-> (target-only seconds, seconds) float64[samples, n], and the true ratio of the totals of infinitely many prompts.

    Times have a log-normal spread of `tail`, speed-ups one of `sigma` around 1.3. `threefold`: or one prompt in twelve
    gains threefold and the others nothing, give or take `sigma`; "each" dozen holds one, or as "chance" has it.
    """
    rng = np.random.default_rng([seed, n, round(100 * sigma), round(100 * tail)])
    reference = np.exp(tail * rng.standard_normal((samples, n)))
    base, slowness = np.full(n, 1.3), 1 / 1.3
    if threefold:
        rare = np.arange(n) % 12 == 0 if threefold == "each" else rng.random((samples, n)) < 1 / 12
        base, slowness = np.where(rare, 3.0, 1.0), 11 / 12 + 1 / 36
    gains = base * np.exp(sigma * rng.standard_normal((samples, n)))
    return reference, reference / gains, 1 / (slowness * math.exp(sigma**2 / 2))


def trimmed_bootstrap(reference: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Without the largest and smallest eighth of the ratios, then resampled as if nothing had been left out: wrong."""
    n = reference.shape[-1]
    order = np.argsort(reference / seconds, axis=-1)[..., n // 8 : n - n // 8]
    a, b = (np.take_along_axis(times, order, -1) for times in (reference, seconds))
    kept = a.shape[-1]
    weights = np.random.default_rng(0).multinomial(kept, np.full(kept, 1 / kept), size=300)
    return a.sum(-1) / b.sum(-1), *np.percentile((a @ weights.T) / (b @ weights.T), [2.5, 97.5], axis=-1)


class NoGainBench:
    """Every run takes one second give or take `noise` (log-normal); one in `disturbed` takes two to eight times as long."""

    price = None

    def __init__(self, noise: float, disturbed: float, seed: int) -> None:
        self.noise, self.disturbed, self.rng = noise, disturbed, np.random.default_rng([seed, 7])

    def ar(self, prompt: object, config: object = None) -> Timed:
        seconds = math.exp(self.noise * self.rng.standard_normal())
        if self.rng.random() < self.disturbed:
            seconds *= self.rng.uniform(2, 8)
        return Timed([1], seconds, blocks=[(seconds, 1)])

    ar_at_its_pace = run = hugging_face = ar


def stated_where_nothing_helps(noise: float, seed: int, disturbed: float = 0.0) -> Rerun:
    """A rerun after a study in which no config gains anything."""
    finalists = [
        SimpleNamespace(user_attrs={"config": PyramidConfig.simple((4,)).to_dict(), "predicted_ratio": 1.0})
    ] * FINALISTS
    questions = [Question(None, [[5]], [[0]])] * (CHOICE_QUESTIONS + STATED_QUESTIONS)
    choice, stated = questions[:CHOICE_QUESTIONS], questions[CHOICE_QUESTIONS:]
    return rerun_best(NoGainBench(noise, disturbed, seed), choice, stated, finalists)


def best_of_trials(noise: float, studies: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What a study says that states its best of 3 on the 6 questions that chose it: wrong. -> (ratio, low) [studies]"""
    rng = np.random.default_rng([seed, round(1000 * noise)])
    ar = np.exp(noise * rng.standard_normal((studies, 1, 6)))
    own = np.exp(noise * rng.standard_normal((studies, FINALISTS, 6)))
    ratio, low, _ = trimmed_bootstrap(np.broadcast_to(ar, own.shape), own)
    best = ratio.argmax(1)[:, None]
    return np.take_along_axis(ratio, best, 1)[:, 0], np.take_along_axis(low, best, 1)[:, 0]
