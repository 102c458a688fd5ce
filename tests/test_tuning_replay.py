"""A replay must count what real decoding counts: on tiny graded families, forward by forward."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.decoding.drafters import Lookup
from adaptive_pyramid.decoding.method import METHODS
from adaptive_pyramid.request import GenerationRequest
from adaptive_pyramid.throughput import CostModel
from tiny import BOS, graded_family, tiny_model
from tuning.prior import Prior, acceptance
from tuning.replay import Replay
from tuning.traces import Trace, record

NEW = 60
PROMPTS = [[BOS, 10, 11, 12], [BOS, 20, 21, 20, 21, 20], [BOS, *range(5, 40)]]
COSTS = CostModel({tier: {1: 1.0 + tier, 64: 2.0 + tier} for tier in range(4)})


@pytest.fixture(scope="module")
def decoder() -> PyramidDecoder:
    return PyramidDecoder([Lookup(), *graded_family("llama", 3)])


@pytest.fixture(scope="module")
def traces(decoder: PyramidDecoder) -> list[Trace]:
    answers = [decode(decoder, prompt, config((3,)))[0] for prompt in PROMPTS]
    return record(decoder, PROMPTS, answers)


def config(route: tuple, lengths: tuple[int, int, int] = (3, 4, 5), taus: tuple[float, float, float] = (0, 0, 0)) -> PyramidConfig:
    return PyramidConfig.simple(lengths, taus, route)


def decode(decoder: PyramidDecoder, prompt: list[int], settings: PyramidConfig, method: str = "pyramid") -> tuple[list[int], Counter, Counter]:
    """-> (new ids, forwards by (tier, width), accepted and tested tokens by tier), by the real decoder from a cold start"""
    decoder.clear_caches()
    ids: list[int] = []
    forwards: Counter = Counter()
    accepted: Counter = Counter()
    for block in decoder.blocks(GenerationRequest(tuple(prompt), max_new_tokens=NEW), settings, method):
        ids += block.tokens
        forwards.update((forward.tier, forward.width) for forward in block.stats.forwards)
        accepted.update({("accepted", stage.tier): stage.accepted for stage in block.stats.stages})
        accepted.update({("tested", stage.tier): stage.accepted + stage.rejected for stage in block.stats.stages})
    return ids, forwards, accepted


def real(decoder: PyramidDecoder, settings: PyramidConfig, method: str = "pyramid") -> tuple[int, Counter, Counter]:
    total, forwards, accepted = 0, Counter(), Counter()
    for prompt in PROMPTS:
        ids, some, kept = decode(decoder, prompt, settings, method)
        total += len(ids)
        forwards.update(some)
        accepted.update(kept)
    return total, forwards, accepted


@pytest.mark.parametrize("route", [(3,), (0, 3), (1, 3), (2, 3), ((0, 1), 3), ((0, 2), 3)], ids=str)
@pytest.mark.parametrize("length", [1, 4, 9])
def test_two_tier_routes_replay_exactly(decoder, traces, route, length) -> None:
    settings = config(route, (1, 1, length))
    tokens, forwards, accepted = real(decoder, settings)
    played = Replay(traces, COSTS, METHODS["pyramid"]).play(settings)
    assert played.tokens == tokens == NEW * len(PROMPTS)
    assert played.forwards == forwards
    assert {**{("accepted", tier): n for tier, n in played.accepted.items()}, **{("tested", tier): n for tier, n in played.tested.items()}} == accepted
    assert played.seconds == pytest.approx(sum(count * COSTS.seconds(*key) for key, count in forwards.items()))
    if len(route) > 1:
        assert 0 < accepted["accepted", 3] < accepted["tested", 3]


@pytest.mark.parametrize("route", [(0, 2, 3), (1, 2, 3), (0, 1, 3), ((0, 1), 2, 3), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("taus", [(0, 0, 0), (0.3, 0.3, 0)], ids=str)
def test_deeper_routes_are_close(decoder, traces, route, taus) -> None:
    settings = config(route, (3, 3, 7), taus)
    _, forwards, _ = real(decoder, settings)
    played = Replay(traces, COSTS, METHODS["pyramid"]).play(settings)
    measured = sum(count * COSTS.seconds(*key) for key, count in forwards.items())
    assert played.seconds == pytest.approx(measured, rel=0.1)

    for tier in range(4):
        real_passes, passes = (sum(count for (one, _), count in counted.items() if one == tier) for counted in (forwards, played.forwards))
        real_fed, fed = (sum(count * width for (one, width), count in counted.items() if one == tier) for counted in (forwards, played.forwards))
        assert passes == pytest.approx(real_passes, rel=0.15) and fed == pytest.approx(real_fed, rel=0.1)


def test_a_relaxed_middle_tier_accepts_more(traces) -> None:
    replay = Replay(traces, COSTS, METHODS["pyramid"])
    plain, loose = (replay.play(config((1, 2, 3), (3, 4, 7), (0, tau, 0))) for tau in (0.0, 1.0))
    assert loose.accepted[2] / loose.tested[2] > plain.accepted[2] / plain.tested[2]


@pytest.mark.parametrize("method", ["fsd", "psd_f"])
def test_fuzzy_stages_replay_closely(decoder, traces, method) -> None:
    settings = config((2, 3) if method == "fsd" else (1, 2, 3), (3, 3, 5), (0.1, 0.1, 0.1))
    _, forwards, _ = real(decoder, settings, method)
    played = Replay(traces, COSTS, METHODS[method]).play(settings)
    measured = sum(count * COSTS.seconds(*key) for key, count in forwards.items())
    # The text drifts off the recorded one, so the positions are others; that tau helps at all must show.
    assert played.seconds == pytest.approx(measured, rel=0.35)
    assert played.seconds < 0.95 * Replay(traces, COSTS, METHODS[method]).play(config(settings.route, (3, 3, 5))).seconds


def test_the_targets_text_stands_even_where_a_wide_forward_says_otherwise(decoder) -> None:
    answer = [17] * 9   # in half precision near-ties do this; here every token does
    trace, = record(decoder, PROMPTS[:1], [answer])
    assert trace.best[3] == trace.text == answer
    assert Replay([trace], COSTS, METHODS["pyramid"]).play(config((2, 3))).tokens == 9


def test_traces_survive_json(traces) -> None:
    import json

    again = [Trace.from_dict(json.loads(json.dumps(trace.to_dict()))) for trace in traces]
    settings = config((1, 2, 3), (3, 3, 7), (0.3, 0.3, 0))
    assert Replay(again, COSTS, METHODS["pyramid"]).play(settings) == Replay(traces, COSTS, METHODS["pyramid"]).play(settings)


def test_a_perfect_draft_is_always_accepted() -> None:
    model = tiny_model()
    decoder = PyramidDecoder([model, tiny_model(), model])
    answer = decode(decoder, PROMPTS[0], PyramidConfig.simple((3, 4), route=(2,)))[0]
    traces = record(decoder, PROMPTS[:1], [answer])
    pairs = acceptance(traces, PyramidConfig.simple((3, 4)), METHODS["pyramid"])
    assert all(pair.rate == 1.0 and pair.hit == 1.0 and pair.fill == 1.0 for pair in pairs.values()) and set(pairs) == {(0, 1), (1, 2)}
    played = Replay(traces, COSTS, METHODS["pyramid"]).play(PyramidConfig.simple((3, 4)))
    assert played.accepted == played.tested


def test_prior_ranks_by_cost_and_agreement(traces) -> None:
    prior = Prior(traces, COSTS, METHODS["pyramid"])
    assert prior.predict(config((3,))).ratio == pytest.approx(1.0) == prior.predict(config((3,))).formula_ratio
    candidates = [config(route, (length, length, length)) for route in ((0, 3), (1, 3), (2, 3)) for length in (1, 3, 6, 20)]
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
    generator = torch.Generator().manual_seed(0)
    n = 4000
    agree = (torch.rand(n, generator=generator) < 0.7).tolist()
    text = [i % 50 for i in range(n)]
    trace = Trace(4, text, {0: [token if same else 99 for token, same in zip(text, agree)], 1: text}, {}, {}, {})
    prior = Prior([trace], CostModel({0: {1: 1.0, 64: 1.0}, 1: {1: 10.0, 64: 10.0}}), METHODS["sd"])
    for length in (1, 3, 6):
        prediction = prior.predict(PyramidConfig.simple((length,)))
        assert prediction.formula_ratio == pytest.approx(prediction.ratio, rel=0.05)
