"""The insertion theorem's two sides against the nested cost."""

from __future__ import annotations

import random

import pytest

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.throughput import Acceptance, CostModel, ThroughputModel, insertion_advice

CONFIG = PyramidConfig.simple([4, 12])


def model(
    cost_ratio: float, draft: float = 0.6, qualifier: float = 0.95, alone: float = 0.6, drafting: float = 0.0
) -> ThroughputModel:
    """Three tiers of constant forward times, the target's 1 s; without `drafting` seconds the draft is free."""
    costs = CostModel({0: {1: drafting}, 1: {1: cost_ratio}, 2: {1: 1.0}})
    return ThroughputModel(costs, {(0, 1): Acceptance(draft), (1, 2): Acceptance(qualifier), (0, 2): Acceptance(alone)})


def test_new_length_counts_final_tokens_not_what_the_new_tier_lets_through() -> None:
    """A case that tells the two readings of L_new apart: the target refuses much of what the qualifier lets through."""
    found = insertion_advice(model(0.25, draft=0.9, qualifier=0.7, alone=0.5), CONFIG, tier=1)
    tokens = model(0.25, 0.9, 0.7, 0.5).predict(CONFIG).tokens
    per_round = (1 - 0.9**5) / 0.1  # tokens that the qualifier emits per forward of its own
    final = tokens / (12 / per_round)  # of which this many survive: three rounds, nearly, for each target forward
    without = (1 - 0.5**13) / 0.5
    assert per_round > 3 * final
    assert found.bound == pytest.approx(final * (1 / without - 1 / tokens))
    local = per_round * (1 / without - 1 / tokens)
    assert found.bound < found.cost_ratio < local, "the readings disagree here"
    assert not found.pays


def test_the_theorem_is_exact_where_drafting_is_free() -> None:
    """With nothing spent below the new tier, both sides say what the whole chain's time says."""
    rng, verdicts = random.Random(0), set()
    for _ in range(300):
        rates = [rng.uniform(0.2, 0.95) for _ in range(3)]
        config = PyramidConfig.simple([rng.randint(1, 8), rng.randint(8, 24)])
        found = insertion_advice(model(rng.uniform(0.02, 0.6), *rates), config, tier=1)
        if abs(found.cost_ratio / found.bound - 1) > 1e-9:
            assert (found.cost_ratio < found.bound) == found.pays
        verdicts.add(found.pays)
    assert verdicts == {True, False}


def test_a_draft_that_costs_is_the_nested_prediction_s_business() -> None:
    """The qualifier saves target forwards, but needs many more draft tokens, which the theorem does not see."""
    found = insertion_advice(model(0.1, 0.2, 0.9, 0.7, drafting=0.1), CONFIG, tier=1)
    assert found.cost_ratio < found.bound
    assert not found.pays and found.with_tier < 0.9 * found.without_tier and "drop tier 1" in str(found)


def test_inserting_below_a_middle_tier_counts_that_tier_s_forwards() -> None:
    """Four tiers: M_i is the second from the top, whose L is not its tokens per round either."""
    rates = {(0, 1): 0.8, (1, 2): 0.85, (2, 3): 0.7, (0, 2): 0.5}
    acceptance = {pair: Acceptance(rate) for pair, rate in rates.items()}
    rng, verdicts = random.Random(1), set()
    for _ in range(200):
        costs = CostModel({0: {1: 0.0}, 1: {1: rng.uniform(0.01, 0.4)}, 2: {1: rng.uniform(0.2, 0.9)}, 3: {1: 1.0}})
        config = PyramidConfig.simple([rng.randint(1, 4), rng.randint(4, 9), rng.randint(9, 16)])
        found = insertion_advice(ThroughputModel(costs, acceptance), config, tier=1)
        assert (found.cost_ratio < found.bound) == found.pays
        verdicts.add(found.pays)
    assert verdicts == {True, False}


def test_only_middle_tiers_can_be_inserted() -> None:
    for tier in (0, 2):
        with pytest.raises(ValueError, match="is not a middle tier"):
            insertion_advice(model(0.2), CONFIG, tier)
    with pytest.raises(ValueError, match="tier 1 is not a middle tier"):
        insertion_advice(model(0.2), CONFIG.with_route((0, 2)), 1)
