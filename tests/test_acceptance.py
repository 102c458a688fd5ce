"""The acceptance model finds a known distribution, is calibrated on unseen traces, and is what replay asks off the text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptive_pyramid.config import PyramidConfig
from tests.recorded import agreement, synthetic
from tuning.replay.acceptance_model import AcceptanceModel, calibration_error, model_pairs, outcomes, reliability_table
from tuning.replay.engine import Replay
from tuning.traces.format import DIVERGENCES, NOTHING, TraceSet

GAP = DIVERGENCES.index("logit_gap")


@pytest.fixture(scope="module")
def model() -> AcceptanceModel:
    return AcceptanceModel.fit(synthetic(90))


def test_it_finds_the_distribution(model) -> None:
    entropy = np.linspace(0.1, 3.0, 12)
    x = np.column_stack([np.zeros(12), entropy, np.full(12, 60), np.full(12, 2)])
    assert np.sqrt(np.mean((model.predict(x, 0, 1) - agreement(entropy)) ** 2)) < 0.07
    loose = x.copy()
    loose[:, 0] = 1.0  # of those that differ, 1 - exp(-1 / .8) have a regret of at most 1
    expected = agreement(entropy) + (1 - agreement(entropy)) * (1 - np.exp(-1.0 / 0.8))
    assert np.sqrt(np.mean((model.predict(loose, 0, 1) - expected) ** 2)) < 0.07


def test_acceptance_never_falls_with_tau() -> None:
    # Few traces: trees that were free to would fit their accidents.
    model = AcceptanceModel.fit(synthetic(8, n=60, seed=5), taus=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    rng = np.random.default_rng(1)
    x = np.column_stack([np.zeros(500), rng.gamma(1.0, 1.2, 500), rng.integers(0, 60, 500), rng.integers(0, 8, 500)])
    before = np.zeros(500)
    for tau in np.linspace(0, 1.2, 25):
        x[:, 0] = tau
        now = model.predict(x, 0, 1)
        assert (now >= before - 1e-12).all()
        before = now


def test_it_is_calibrated_on_traces_it_never_saw(model) -> None:
    bins = model.reliability(synthetic(60, seed=9), 0, 1)
    assert len(bins) >= 5 and calibration_error(bins) < 0.02
    assert sum(one.n for one in bins) == 60 * 120 * len(model.taus)
    assert bins[0].predicted < bins[-1].predicted
    table = reliability_table(bins).splitlines()
    assert len(table) == len(bins) + 2 and table[2].startswith(f"| {bins[0].predicted:.3f} |")


def test_a_model_of_something_else_is_not_calibrated_here(model) -> None:
    other = synthetic(40, seed=3)
    for trace in other:  # agreement now rises with entropy
        trace.entropy[0] = 3.0 - trace.entropy[0]
    assert calibration_error(model.reliability(other, 0, 1)) > 0.1


def test_outcomes_follow_the_rule_position_by_position() -> None:
    traces = synthetic(1, n=6)
    trace = traces[0]
    trace.top[0] = np.where([True, True, False, True, False, True], trace.ids, 60)
    trace.divergence[GAP, 0] = [0, 0, 0.3, 0, 2.0, 0]
    x, y = outcomes(traces, 0, 1, "logit_gap", (0.0, 0.5))
    assert y[:6].tolist() == [True, True, False, True, False, True] and y[6:].tolist() == [True] * 4 + [False, True]
    assert x[:6, 3].tolist() == [0, 1, 2, 0, 1, 0]  # tokens since the last refusal, before this one
    assert x[6:, 3].tolist() == [0, 1, 2, 3, 4, 0] and x[:, 0].tolist() == [0.0] * 6 + [0.5] * 6
    assert x[:6, 2].tolist() == list(range(6)) and x[:6, 1] == pytest.approx(trace.entropy[0])


class Constant:
    """An estimate that is always the same."""

    divergence = "logit_gap"

    def __init__(self, value: float) -> None:
        self.value = value

    def probabilities(self, traces, proposer, verifier, tau):
        return [np.full(len(trace), self.value) for trace in traces]


def test_replay_asks_it_off_the_text_and_nowhere_else() -> None:
    traces = synthetic(20, tiers=3)
    deep, two = PyramidConfig.simple((3, 12)), PyramidConfig.simple((3, 12), route=(0, 2))
    never, always, learned = (
        Replay(traces, acceptance=one) for one in (Constant(0.0), Constant(1.0), AcceptanceModel.fit(traces))
    )
    plain = Replay(traces)
    assert never.play(two).forwards == always.play(two).forwards == plain.play(two).forwards
    few, mean, many = (player.play(deep) for player in (always, plain, never))
    assert few.blocks == mean.blocks == many.blocks and few.tokens == many.tokens
    assert few.forwards[1] < mean.forwards[1] < many.forwards[1]
    assert few.forwards[1] < learned.play(deep).forwards[1] < many.forwards[1]


def test_mistakes_are_named(model) -> None:
    assert model_pairs(synthetic(1, tiers=3)) == [(0, 1), (0, 2), (1, 2)]
    with pytest.raises(ValueError, match="at least 4 traces, got 3"):
        AcceptanceModel.fit(synthetic(3))
    with pytest.raises(ValueError, match="needs two tiers"):
        AcceptanceModel.fit(synthetic(5, tiers=1))
    with pytest.raises(ValueError, match="unknown divergence 'jss'; did you mean 'js'"):
        AcceptanceModel.fit(synthetic(5), "jss")
    with pytest.raises(ValueError, match=r"no acceptance was learned for the tiers \(0, 2\)"):
        model.predict(np.zeros((1, 4)), 0, 2)


def test_a_pair_that_always_agrees_is_learned_as_such() -> None:
    traces = synthetic(6)
    for trace in traces:
        trace.top[0] = trace.ids
        trace.divergence[:, 0] = 0.0
    model = AcceptanceModel.fit(traces)
    assert model.predict(np.zeros((2, 4)), 0, 1).tolist() == [1.0, 1.0]


def test_a_lookup_is_learned_from_what_it_proposes_and_how_sure_its_verifier_is() -> None:
    traces = synthetic(60, tiers=3)
    header = replace(traces.header, tiers=(replace(traces.header.tiers[0], lookup=(3, 1)), *traces.header.tiers[1:]))
    rng = np.random.default_rng(0)
    for trace in traces:
        trace.top[0] = np.where(rng.random(len(trace)) < agreement(trace.entropy[2]), trace.ids, 60)
        trace.top[0, ::3] = NOTHING
        trace.entropy[0] = np.nan
    copying = TraceSet(header, traces.traces)
    model = AcceptanceModel.fit(copying)
    found = model.probabilities(copying, 0, 2, 0.0)
    assert all(np.isnan(row[::3]).all() and not np.isnan(row[1::3]).any() for row in found)
    sure, unsure = model.predict(np.array([[0, 0.2, 60, 2], [0, 2.5, 60, 2]]), 0, 2)
    assert sure > unsure + 0.3
    for trace in traces:
        trace.top[0] = NOTHING  # nothing to learn: replay takes its own means
    silent = AcceptanceModel.fit(copying)
    assert all(np.isnan(row).all() for row in silent.probabilities(copying, 0, 2, 0.0))
    deep = PyramidConfig.simple((3, 12))
    assert Replay(copying, acceptance=silent).play(deep).tokens == copying.tokens


def test_a_model_of_another_rule_is_refused(model) -> None:
    traces = synthetic(5, tiers=3)
    assert Replay(traces, method="polybasic", acceptance=model)  # strict: no tau, so no divergence
    with pytest.raises(
        ValueError, match="compares 'logit_gap' with tau, stages of method 'psd_f' below the target compare 'js'"
    ):
        Replay(traces, method="psd_f", acceptance=model)
    with pytest.raises(ValueError, match="describes greedy decoding"):
        Replay(traces, do_sample=True, acceptance=model)
