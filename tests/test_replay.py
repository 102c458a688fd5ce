"""Replay must count what the real decoder counts: in fp64, block by block, forward by forward."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from adaptive_pyramid.config import PyramidConfig, StageConfig, all_routes
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.throughput import CostModel
from tests.recorded import Pool, costs, repetitive, synthetic
from tests.tiny import BOS, EOS, graded_family, perturbed, tiny_model
from tuning.replay.engine import Replay, StageCounts, replay
from tuning.research.oracle import oracle_speeds
from tuning.traces.format import TraceSet

PROMPTS = [[BOS, 10, 11, 12], [BOS, 20, 5, 9, 7]]
NEW = 26
LENGTHS = [(1, 1), (3, 2), (2, 7), (8, 12)]
ROUTES = all_routes(3)


def configs(routes=ROUTES, lengths=LENGTHS, taus=(0.0, 0.0)) -> list[PyramidConfig]:
    found = {PyramidConfig.simple(pair, taus, route).normalized() for pair in lengths for route in routes}
    return sorted(found, key=lambda config: config.label)


@pytest.fixture(scope="module")
def plain() -> Pool:
    """Three models, a text that never ends by itself."""
    return Pool.of(graded_family("llama", 3, eos_token_id=None), PROMPTS, NEW)


@pytest.fixture(scope="module")
def ending() -> Pool:
    """Three models and several ids that end a text."""
    return Pool.of(graded_family("qwen2", 3, seed=1), [*PROMPTS, [BOS, 33, 40]], NEW, eos=(EOS, 9, 17, 33, 22, 41, 50))


@pytest.fixture(scope="module")
def copying() -> Pool:
    """A lookup below two models."""
    tiers = [PromptLookup(3, 1), *graded_family("llama", 2, seed=2, eos_token_id=None)]
    return Pool.of(tiers, repetitive(tiers, PROMPTS), NEW)


def known(ours: tuple[float, ...], theirs: tuple[float, ...]) -> bool:
    """Equal where replay knows a value at all."""
    return len(ours) == len(theirs) and all(
        math.isnan(a) or a == pytest.approx(b, abs=1e-4) for a, b in zip(ours, theirs)
    )


def compare(pool: Pool, config, method="pyramid") -> Counter:
    """Step the decoder and the environment side by side; every block that is not estimated must be equal in everything."""
    player = Replay(pool.traces, method=method)
    seen: Counter = Counter()
    for trace in range(len(pool.traces)):
        environment = player.environment(trace)
        cold = True  # whether the caches before this block are what the decoder's are
        for theirs in pool.blocks(trace, config, method):
            table, _ = player.details(theirs.config)
            row = int(np.searchsorted(table.starts, player.flat.first[trace] + theirs.position))
            ours = environment.step(theirs.config)
            assert (ours.position, ours.context, ours.tokens, ours.origins) == (
                theirs.position,
                theirs.context,
                theirs.tokens,
                theirs.origins,
            )
            assert ours.shadows == theirs.shadows
            certain = not table.estimated[row] and not (table.unseen[row] and pool.traces.header.eos)
            seen["certain" if certain else "estimated"] += 1
            if certain and cold:

                def by_tier(block):
                    rows = [(f.tier, f.width, f.needed, f.context) for f in block.forwards]
                    return sorted(rows, key=lambda forward: forward[0])  # stable: order within a tier counts

                assert by_tier(ours) == by_tier(theirs)
            if certain:
                assert len(ours.verifications) == len(theirs.verifications)
                for mine, real in zip(ours.verifications, theirs.verifications):
                    for name in ("tier", "proposer", "proposed", "accepted", "rejected", "emitted", "relaxed"):
                        assert getattr(mine, name) == getattr(real, name), (name, mine, real)
                    for name in ("entropy", "proposal_entropy", "divergence", "distance"):
                        assert known(getattr(mine, name), getattr(real, name)), (name, mine, real)
                    seen["accepted"] += mine.accepted
                    seen["rejected"] += mine.rejected
                    seen["bonus"] += mine.emitted > mine.accepted == mine.proposed
                    seen["relaxed"] += mine.relaxed
            cold = certain
        assert environment.finished and environment.ids == pool.traces[trace].ids.tolist()
    return seen


@pytest.mark.parametrize("name", ["plain", "ending", "copying"])
def test_every_block_on_the_recorded_path_equals_the_decoders(name, request) -> None:
    pool = request.getfixturevalue(name)
    routes = [*ROUTES, ((0, 1), 2)] if name == "copying" else ROUTES
    seen: Counter = Counter()
    for config in configs(routes):
        seen += compare(pool, config)
    assert seen["accepted"] > 100 and seen["rejected"] > 50 and seen["bonus"] > 20
    assert seen["certain"] > 100 and seen["estimated"] > 0
    if name == "ending":
        assert sum(trace.ended for trace in pool.traces) >= 2


def test_relaxed_and_fuzzy_lower_stages_are_exact_along_the_text(plain, copying) -> None:
    # Short lengths: a stage that leaves the text with its last round leaves nothing to estimate.
    for pool, method in ((plain, "pyramid"), (copying, "pyramid"), (plain, Method("m", "fuzzy", "match"))):
        seen: Counter = Counter()
        for tau in (0.1, 0.3, 2.5):
            seen += compare(pool, PyramidConfig.simple((1, 1), (tau, 0.0)), method)
        assert seen["relaxed"] > 5 and seen["certain"] > 50


def test_early_stops_are_exact_along_the_text(plain) -> None:
    seen: Counter = Counter()
    for stops in ((1.0, None), (None, 1.5), (1.5, 1.0)):
        for route in ((0, 1, 2), (0, 2), (1, 2)):
            seen += compare(plain, PyramidConfig((StageConfig(4, stop=stops[0]), StageConfig(6, stop=stops[1])), route))
    assert seen["certain"] > 50


def test_a_lookup_knows_of_its_block_only_what_was_verified_before() -> None:
    """Text that repeats itself: the latest source of a copy lies inside the block that is being proposed."""
    target = tiny_model("llama", eos_token_id=None, initializer_range=0.02)
    tiers = [PromptLookup(3, 1), perturbed(target, 0.01), target]
    pool = Pool.of(tiers, PROMPTS, NEW)
    assert any(len(set(trace.ids[-10:].tolist())) < 5 for trace in pool.traces)
    seen: Counter = Counter()
    for lengths in ((1, 8), (2, 12), (3, 7)):
        seen += compare(pool, PyramidConfig.simple(lengths))
    assert seen["accepted"] > 20 and seen["certain"] > 5


def test_a_mid_tier_that_accepts_an_end_of_text_proposes_nothing_behind_it() -> None:
    """Draft and qualifier write EOS where the target does not: the stage ends there, without a token of its own."""
    traces = synthetic(1, tiers=3, n=8)
    trace = traces[0]
    trace.top[:] = trace.ids
    trace.top[:2, 2] = EOS
    played = Replay(TraceSet(replace(traces.header, eos=(EOS,)), traces.traces)).table(PyramidConfig.simple((4, 6)))
    middle, last = ({name: int(values[0]) for name, values in played.counts[tier].items()} for tier in (1, 2))
    assert middle == {"rounds": 1, "proposed": 3, "accepted": 3, "rejected": 0, "emitted": 3}
    assert last == {"rounds": 1, "proposed": 3, "accepted": 2, "rejected": 1, "emitted": 3}
    assert played.forwards[0][0] == 3 and not played.estimated[0] and played.unseen[0] == 0


def test_four_tiers() -> None:
    pool = Pool.of(graded_family("llama", 4, eos_token_id=None), PROMPTS[:1], 24)
    seen: Counter = Counter()
    for lengths in ((3, 2, 5), (2, 4, 9)):
        for route in all_routes(4):
            seen += compare(pool, PyramidConfig.simple(lengths, (0.3, 0.3, 0.0), route))
    assert seen["certain"] > seen["estimated"] > 0


def test_caches_are_followed_when_routes_change_every_block(plain, copying) -> None:
    for pool, routes in ((plain, [(0, 2), (2,), (1, 2), (2,), (2,)]), (copying, [(0, 2), (1, 2), (2,), ((0, 1), 2)])):
        compare(pool, [PyramidConfig.simple((4, 4), route=route) for route in routes])


def test_tiers_leave_the_route_where_their_context_or_vocabulary_ends() -> None:
    target = tiny_model("llama", vocab_size=64, eos_token_id=None)
    short = tiny_model("gpt2", vocab_size=64, eos_token_id=None, n_positions=20)
    narrow = tiny_model("llama", vocab_size=60, seed=3, eos_token_id=None)
    pool = Pool.of([narrow, short, target], PROMPTS, NEW)
    assert any((trace.ids >= 60).any() for trace in pool.traces)  # an id that the narrow tier cannot embed
    for config in configs(lengths=[(2, 3), (3, 9)]):
        player = Replay(pool.traces)
        for trace in range(len(pool.traces)):
            table, _ = player.details(config)
            for theirs in pool.blocks(trace, config):
                row = int(np.searchsorted(table.starts, player.flat.first[trace] + theirs.position))
                assert table.tokens[row] == theirs.tokens
                if not table.estimated[row]:
                    used = Counter(f.tier for f in theirs.forwards)
                    assert {tier: passes[row] for tier, passes in table.forwards.items() if passes[row]} == used


def test_sums_are_those_of_the_blocks(plain, copying) -> None:
    for pool, routes in ((plain, ROUTES), (copying, [((0, 1), 2), (0, 1, 2)])):
        player = Replay(pool.traces, overhead=0.25)
        for config in configs(routes, [(3, 5)]):
            played = player.play(config)
            blocks = [[] for _ in pool.traces]
            for trace, found in enumerate(blocks):
                environment = player.environment(trace)
                while not environment.finished:
                    found.append(environment.step(config))
            flat = [block for found in blocks for block in found]
            assert (
                played.blocks == len(flat)
                and played.tokens == sum(block.tokens for block in flat) == pool.traces.tokens
            )
            assert played.forwards == {
                tier: sum(f.tier == tier for block in flat for f in block.forwards) for tier in played.forwards
            }
            assert played.by_trace["seconds"] == pytest.approx(
                [sum(block.seconds for block in found) for found in blocks]
            )
            assert played.seconds == pytest.approx(played.by_trace["seconds"].sum())
            for tier, stage in played.stages.items():
                mine = [v for block in flat for v in block.verifications if v.tier == tier]
                assert (stage.rounds, stage.accepted, stage.emitted) == (
                    len(mine),
                    sum(v.accepted for v in mine),
                    sum(v.emitted for v in mine),
                )


@pytest.mark.parametrize("name", ["plain", "ending", "copying"])
def test_totals_of_dozens_of_configs_equal_the_decoders(name, request) -> None:
    """Every counter where a result says that it is exact; tokens and target passes always."""
    pool = request.getfixturevalue(name)
    player, table = Replay(pool.traces), pool.traces.header.costs
    chosen = configs(
        [(2,), (0, 2), (1, 2), (0, 1, 2), *([((0, 1), 2)] if name == "copying" else [])],
        [(1, 1), (2, 3), (3, 5), (5, 8), (1, 12), (9, 2)],
        (0.3, 0.0),
    )
    exact = 0
    for config in chosen:
        played = player.play(config)
        blocks = [block for trace in range(len(pool.traces)) for block in pool.blocks(trace, config)]
        passes = Counter(f.tier for block in blocks for f in block.forwards)
        assert (played.blocks, played.forwards[2]) == (len(blocks), passes[2])
        assert played.exact or len(config.route) == 3
        if not played.exact or played.unseen_passes:
            assert len(played.labels) >= 2  # it says why
            continue
        exact += 1
        assert {tier: count for tier, count in played.forwards.items() if count} == passes
        assert played.seconds == pytest.approx(sum(table.seconds(f.tier, f.width) for b in blocks for f in b.forwards))
        for tier, stage in played.stages.items():
            real = [verdict for block in blocks for verdict in block.verifications if verdict.tier == tier]
            assert stage == StageCounts(
                len(real),
                *(
                    sum(getattr(verdict, what) for verdict in real)
                    for what in ("proposed", "accepted", "rejected", "emitted")
                ),
            )
    assert len(chosen) >= 19 and exact >= (4 if name == "ending" else 9)  # a draft may end where nothing tells
    stage = player.play(PyramidConfig.simple((3, 3), route=(1, 2))).stages[2]
    assert 0.2 < stage.acceptance_rate < 0.95


def test_deeper_routes_keep_tokens_and_target_passes_exact_and_estimate_the_rest_well(plain) -> None:
    errors = []
    for config in configs([(0, 1, 2)]):
        played = replay(plain.traces, config)
        blocks = [block for trace in range(len(plain.traces)) for block in plain.blocks(trace, config)]
        real = Counter(f.tier for block in blocks for f in block.forwards)
        assert played.blocks == len(blocks) and played.forwards[2] == real[2]
        errors += [played.forwards[tier] / real[tier] - 1 for tier in (0, 1)]
        if not played.exact:
            assert any("estimated, from mean acceptance rates, in" in label for label in played.labels)
    assert abs(np.mean(errors)) < 0.1 and np.abs(errors).max() < 0.35


def test_target_only_is_the_reference(plain) -> None:
    played = replay(plain.traces, PyramidConfig.simple((3, 5), route=(2,)))
    assert played.ratio_to_ar == pytest.approx(1.0) and played.ratios == pytest.approx(1.0)
    assert played.blocks == played.tokens and played.exact
    warm = replay(plain.traces, PyramidConfig.simple((3, 5), route=(2,)), prefill=False)
    assert warm.prefill_seconds == 0 and played.seconds == pytest.approx(warm.seconds + played.prefill_seconds)
    assert played.prefill_seconds == pytest.approx(
        sum(
            plain.traces.header.costs.seconds(2, len(prompt)) - plain.traces.header.costs.seconds(2, 1)
            for prompt in PROMPTS
        )
    )


def test_a_trace_replays_alone_as_in_its_set(plain) -> None:
    config = PyramidConfig.simple((4, 7))
    whole = Replay(plain.traces).play(config).by_trace
    for index in range(len(plain.traces)):
        alone = Replay(plain.traces.select(indices=[index])).play(config)
        assert alone.blocks == whole["blocks"][index]
        assert alone.seconds == pytest.approx(
            whole["seconds"][index], rel=0.1
        )  # off the text, rates lean on the set's mean


def test_a_drifting_target_stage_is_estimated_and_its_drift_counted(plain) -> None:
    strict, loose = (
        replay(plain.traces, PyramidConfig.simple((3, 5), (0.0, tau), (1, 2)), method="fsd") for tau in (0.0, 0.3)
    )
    assert strict.drift == 0 and not strict.exact and "drifting" in " ".join(strict.labels)
    assert (
        loose.drift > 0
        and loose.blocks < strict.blocks
        and loose.stages[2].acceptance_rate > strict.stages[2].acceptance_rate
    )
    ours = Replay(plain.traces, method="fsd").environment(0)
    drift = 0.0
    while not ours.finished:
        drift += sum(ours.step(PyramidConfig.simple((3, 5), (0.0, 0.3), (1, 2))).drift)
    alone = replay(plain.traces.select(indices=[0]), PyramidConfig.simple((3, 5), (0.0, 0.3), (1, 2)), method="fsd")
    assert drift == pytest.approx(alone.drift)


def test_sampling_agrees_as_often_as_the_distributions_overlap() -> None:
    pool = Pool.of(
        graded_family("llama", 3, sigmas=(0.1, 0.05), eos_token_id=None), [[BOS, i, i + 1] for i in range(5, 17)], 64
    )
    pairs = {route: pool.traces.pair(*route) for route in ((0, 2), (1, 2))}
    for route, pair in pairs.items():
        expected = np.mean([1 - trace.divergence[1, pair].mean() for trace in pool.traces])
        played = replay(pool.traces, PyramidConfig.simple((1, 1), route=route), do_sample=True, method="polybasic")
        assert played.stages[2].acceptance_rate == pytest.approx(expected, abs=0.06)
        assert not played.exact and any("sampling" in label for label in played.labels)
    coupled, exact = (
        replay(pool.traces, PyramidConfig.simple((1, 4), route=(0, 2)), do_sample=True, method=method).blocks
        for method in (Method("keyed", "match", "match"), "polybasic")
    )
    assert coupled > exact  # (1 - TV) / (1 + TV) accepts less than 1 - TV


def test_the_oracle_orders_what_may_change_and_finds_the_best_path(plain) -> None:
    player = Replay(plain.traces, prefill=False)
    chosen = configs([(2,), (0, 2), (1, 2)], [(2, 2), (4, 4), (8, 8)])
    found = oracle_speeds(player, chosen)
    assert found.static_ratio == max(player.play(config).ratio_to_ar for config in chosen) == max(found.ratios.values())
    assert found.static_ratio <= found.by_trace <= found.by_block
    tables = [player.table(config) for config in chosen]

    def least(trace: int, row: int) -> float:
        """By trying everything, from the last token back."""
        memo = {}
        end = sum(len(t) for t in plain.traces.traces[: trace + 1])
        for at in reversed(range(row, end)):
            memo[at] = min(t.seconds[at] + memo.get(at + t.tokens[at], 0.0) for t in tables)
        return memo[row]

    best = least(0, 0) + least(1, len(plain.traces[0]))
    assert found.by_block == pytest.approx(player.play(chosen[0]).ar_seconds / best)


def test_mistakes_are_named(plain, copying) -> None:
    config = PyramidConfig.simple((3, 5))
    with pytest.raises(ValueError, match="no row for tier1"):
        Replay(plain.traces, CostModel({0: {1: 1.0}, 2: {1: 1.0}}))
    with pytest.raises(ValueError, match="no measured costs"):
        Replay(TraceSet(replace(plain.traces.header, costs=None), plain.traces.traces))
    with pytest.raises(ValueError, match="empty"):
        Replay(plain.traces.select(indices=[]))
    with pytest.raises(ValueError, match="for 2 tiers, these traces have 3"):
        replay(plain.traces, PyramidConfig.simple((3,)))
    with pytest.raises(ValueError, match="unknown method 'pyramyd'; did you mean 'pyramid'"):
        replay(plain.traces, config, method="pyramyd")
    with pytest.raises(ValueError, match="no trace 9|trace must be in"):
        Replay(plain.traces).environment(9)
    four = Pool.of(
        [*graded_family("llama", 2, eos_token_id=None)[:1], PromptLookup(), tiny_model(eos_token_id=None)],
        PROMPTS[:1],
        8,
    )
    with pytest.raises(ValueError, match="only stand at the bottom"):
        replay(four.traces, config)
    environment = Replay(plain.traces).environment()
    while not environment.finished:
        environment.step(config)
    with pytest.raises(RuntimeError, match="finished"):
        environment.step(config)
    assert costs((0, 1)).table
