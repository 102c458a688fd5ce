"""The prior: replayed traces and the closed formula, ranked."""

from __future__ import annotations

import base64

import pytest

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.decoding.method import METHODS
from adaptive_pyramid.throughput import CostModel
from tests.recorded import Pool, synthetic
from tests.tiny import BOS, graded_family, tiny_model
from tuning.replay.engine import Replay
from tuning.study.prior import Prior
from tuning.traces.format import TraceSet
from tuning.traces.recording import record_answers

NEW = 60
PROMPTS = [[BOS, 10, 11, 12], [BOS, 20, 21, 20, 21, 20], [BOS, *range(5, 40)]]
COSTS = CostModel({tier: {1: 1.0 + tier, 64: 2.0 + tier} for tier in range(4)})


@pytest.fixture(scope="module")
def traces() -> TraceSet:
    return Pool.of([PromptLookup(), *graded_family("llama", 3)], PROMPTS, NEW).traces


def config(
    route: tuple, lengths: tuple[int, int, int] = (3, 4, 5), taus: tuple[float, float, float] = (0, 0, 0)
) -> PyramidConfig:
    return PyramidConfig.simple(lengths, taus, route)


def test_the_targets_text_stands_even_where_a_wide_forward_says_otherwise() -> None:
    answer = [17] * 9  # in half precision near-ties do this; here every token does
    traces = record_answers(PyramidDecoder(graded_family("llama", 2)), PROMPTS[:1], [answer])
    assert traces[0].ids.tolist() == answer and traces.width_flips > 0
    assert Replay(traces, COSTS).play(PyramidConfig.simple((3,))).tokens == 9


def test_a_perfect_draft_is_always_accepted() -> None:
    model = tiny_model(eos_token_id=None)
    traces = Pool.of([model, tiny_model(), model], PROMPTS[:1], 20).traces
    replay = Replay(traces, COSTS)
    pairs = replay.acceptance(PyramidConfig.simple((3, 4)))
    assert all(pair.rate == 1.0 and pair.hit == 1.0 and pair.fill == 1.0 for pair in pairs.values()) and set(pairs) == {
        (0, 1),
        (1, 2),
    }
    assert all(stage.rejected == 0 for stage in replay.play(PyramidConfig.simple((3, 4))).stages.values())


def test_acceptance_is_what_a_walk_from_every_position_counts(traces) -> None:
    found = Replay(traces, COSTS).acceptance(config(((0, 1), 2, 3), (1, 4, 6)))
    assert set(found) == {(0, 2), (1, 2), (2, 3)}
    accepted = tested = 0
    for trace in traces:
        for start in range(len(trace)):
            for i in range(start, min(start + 4, len(trace))):
                tested += 1
                if trace.top[1][i] != trace.top[2][i]:
                    break
                accepted += 1
    assert found[1, 2].rate == pytest.approx(accepted / tested) and found[1, 2].hit == 1.0
    assert found[0, 2].hit == pytest.approx(sum(int((trace.source[0] >= 0).sum()) for trace in traces) / traces.tokens)


def test_a_prior_survives_storage(traces) -> None:
    stored = {
        "traces": base64.b64encode(traces.to_bytes()).decode(),
        "costs": {"1": {"1": 2.0}, "2": {"1": 3.0}, "3": {"1": 4.0, "8": 5.0}},
        "overhead": 0.5,
    }
    again = Prior.from_dict(stored, METHODS["pyramid"])
    direct = Prior(traces, CostModel({1: {1: 2.0}, 2: {1: 3.0}, 3: {1: 4.0, 8: 5.0}}), METHODS["pyramid"], 0.5)
    assert again.predict(config((0, 2, 3))) == direct.predict(config((0, 2, 3)))


def test_prior_ranks_by_cost_and_agreement(traces) -> None:
    prior = Prior(traces, COSTS, METHODS["pyramid"])
    assert prior.predict(config((3,))).ratio == pytest.approx(1.0) == prior.predict(config((3,))).formula_ratio
    candidates = [
        config(route, (length, length, length)) for route in ((0, 3), (1, 3), (2, 3)) for length in (1, 3, 6, 20)
    ]
    ranked = prior.ranked(candidates)
    ratios = [prior.predict(candidate).ratio for candidate in ranked]
    assert ratios == sorted(ratios, reverse=True) and ratios[0] > ratios[-1]
    dear = CostModel({tier: {1: 50.0 if tier in (1, 2) else 4.0, 64: 60.0} for tier in range(4)})
    assert Prior(traces, dear, METHODS["pyramid"]).ranked(candidates)[0].route == (0, 3)


def test_picks_cover_every_route_before_repeating_one(traces) -> None:
    prior = Prior(traces, COSTS, METHODS["pyramid"])
    routes = ((0, 3), (1, 3), (2, 3))
    candidates = [config(route, (length, length, length)) for route in routes for length in (1, 2, 3, 4, 6, 9)]
    picks = prior.picks(candidates, 6)
    assert {pick.route for pick in picks[:3]} == set(routes)
    assert len(set(picks)) == 6
    for one in picks:
        for other in picks:
            if one is not other and one.route == other.route:
                low, high = sorted((one.stage(3).length, other.stage(3).length))
                assert high >= 1.5 * low


def test_the_formula_agrees_with_the_replay_where_acceptance_is_independent() -> None:
    traces = synthetic(40)
    for trace in traces:  # agreement that depends on nothing
        trace.top[0] = [token if (token + i) % 10 < 7 else 60 for i, token in enumerate(trace.ids)]
    prior = Prior(traces, CostModel({0: {1: 1.0, 64: 1.0}, 1: {1: 10.0, 64: 10.0}}), METHODS["sd"])
    for length in (1, 3, 6):
        prediction = prior.predict(PyramidConfig.simple((length,)))
        assert prediction.formula_ratio == pytest.approx(prediction.ratio, rel=0.05)


def test_what_replay_only_estimates_a_learned_model_says() -> None:
    traces = synthetic(12, tiers=3)
    priors = {name: Prior(traces, traces.header.costs, METHODS[name]) for name in ("pyramid", "psd_f", "polybasic")}
    assert [prior.replay.flat.acceptance.divergence for prior in priors.values()] == ["logit_gap", "js", "logit_gap"]
    deep, plain = PyramidConfig.simple((3, 12)), Replay(traces)
    assert priors["pyramid"].replay.play(deep).forwards[1] != plain.play(deep).forwards[1]
    assert any("from an acceptance model, in" in label for label in priors["pyramid"].replay.play(deep).labels)
    few = traces.select(indices=range(3))  # too few to learn from
    assert Prior(few, traces.header.costs, METHODS["pyramid"]).replay.flat.acceptance is None
