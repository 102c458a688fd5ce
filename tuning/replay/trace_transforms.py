"""Estimates for decoding that leaves the recorded text: the text is kept, and what tiers say along it is changed.

Both are estimates, and replay labels them so: the recorded text is the target's greedy one, at temperature 1.
"""

from __future__ import annotations

import numpy as np

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.method import Method
from tuning.replay.position_index import PositionIndex, next_true


def drifted(flat: PositionIndex, config: PyramidConfig, method: Method) -> tuple[PositionIndex, np.ndarray]:
    """A target stage that accepts within tau, as if the text went on alike behind a drifting token.

    Returns:
        The traces in which the tier below the target is right wherever tau lets it pass, and the drift of that token at
        every slot (nats of regret; 0 where it is the target's own). A lookup's further tokens are left strict.
    """
    target = config.target
    rule, tau = method.rule(True), config.stages[-1].tau if config.stages else 0.0
    drift = np.zeros(flat.size)
    if rule not in ("fuzzy", "relaxed") or tau <= 0 or len(config.route) < 2:
        return flat, drift
    below = config.route[-2]
    proposer = below[-1] if isinstance(below, tuple) else below
    name = flat.divergence_name if rule == "fuzzy" else "tv" if flat.sampling else "logit_gap"
    best = flat.top[proposer]
    loose = (flat.divergence(name, proposer, target) <= tau) & (best != flat.ids)
    top = {tier: np.where(loose & (ids == best), flat.ids, ids) for tier, ids in flat.top.items()}
    drift[loose] = flat.divergence("tv" if flat.sampling else "logit_gap", proposer, target)[loose]
    return flat.transformed(top=top), drift


def sampled(flat: PositionIndex, coupled: bool, seed: int = 0) -> PositionIndex:
    """Sampling: tiers agree with the probability that their recorded distributions allow, drawn once per position.

    Two tiers agree with probability 1 - TV under an exact test (arXiv 2211.17192) and at least (1 - TV) / (1 + TV) when
    both draw with the same keyed noise (arXiv 2408.07978). One uniform per position decides for every tier whether it
    agrees with the target; two tiers that both do not agree with each other as often as their own TV then requires. A
    copied token passes with the probability that the target gives it.
    """
    header = flat.header
    rng = np.random.default_rng(seed)

    def agreement(low: int, high: int) -> np.ndarray:
        tv = np.nan_to_num(flat.divergence("tv", low, high), nan=1.0)
        return (1 - tv) / (1 + tv) if coupled else 1 - tv

    uniform = rng.random(flat.size)
    top = dict(flat.top)
    above: int | None = None
    for tier in reversed(header.models[:-1]):
        rate = agreement(tier, header.target)
        # Ids below -9 stand for tokens other than the text's; two tiers with the same one agree.
        top[tier] = np.where(uniform < rate, flat.ids, -10 - tier)
        top[tier] = np.where(flat.top[tier] < 0, flat.top[tier], top[tier])
        if above is not None:
            both_on = np.minimum(rate, agreement(above, header.target))
            both_off = 1 - np.maximum(rate, agreement(above, header.target))
            equal = (agreement(tier, above) - both_on) / np.maximum(both_off, 1e-12)
            same = (top[tier] != flat.ids) & (top[above] != flat.ids) & (rng.random(flat.size) < equal)
            top[tier] = np.where(same, top[above], top[tier])
        above = tier
    written = np.nan_to_num(np.exp(flat.logprob_of_text()), nan=0.0)
    return flat.transformed(top=top, sampling=True, copy_end=next_true(rng.random(flat.size) >= written))
