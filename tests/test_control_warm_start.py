"""What control starts from: a profile, a saved state, or nothing; and what it keeps apart."""

import json

import pytest

from adaptive_pyramid import AdaptivePyramid
from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.factory import make_controller
from adaptive_pyramid.control.pool import Pool
from adaptive_pyramid.control.warm_start import WarmStart
from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.models import calibration
from adaptive_pyramid.models.families import Family, TierReport
from adaptive_pyramid.profile import Profile
from adaptive_pyramid.throughput import Acceptance, CostModel, expected_tokens
from tests.simulated import Regime, SimulatedEnvironment, run
from tests.tiny import graded_family

CONFIG = PyramidConfig.simple([2, 4])
COSTS = CostModel({0: {1: 0.001, 8: 0.002}, 1: {1: 0.004, 8: 0.006}, 2: {1: 0.04, 8: 0.05}})
SETTINGS = {"max_new_tokens": 40, "eos_token_id": None}
PROMPT = [1, 10, 11, 12]


@pytest.fixture(scope="module")
def family():
    return graded_family("llama", 3)


def profile(**changes) -> Profile:
    measured = {
        "speed_ratio": 1.6,
        "tokens_per_second": 40.0,
        "prompts": 12,
        "acceptance": {1: 0.8, 2: 0.9},
        "acceptance_length": {1: 2.4, 2: 4.1},
    }
    fields = {
        "task": "mine",
        "family": "toys",
        "tiers": ("a", "b", "c"),
        "method": "pyramid",
        "config": CONFIG,
        "costs": COSTS,
        "rules": ("relaxed", "exact"),
        "measured": measured,
        "study": {"max_new_tokens": 48},
    }
    return Profile(**fields | changes)


def tuned(family, **changes) -> AdaptivePyramid:
    with pytest.warns(UserWarning, match="the profile was measured with"):  # tiny models are not what it names
        return AdaptivePyramid(family, profile=profile(**changes))


def test_a_profile_is_where_control_starts(family):
    first = tuned(family).generate(PROMPT, **SETTINGS).stats.blocks[0]
    assert first.config.route == CONFIG.route and first.config.l_Q >= CONFIG.l_Q, (
        "control did not start where tuning ended"
    )
    cold = AdaptivePyramid(family, config=CONFIG).generate(PROMPT, **SETTINGS).stats.blocks[0]
    assert cold.config.route == (2,), "without a profile target-only decoding has to be measured first"


@pytest.mark.parametrize(
    "changes", [{"do_sample": True, "seed": 0}, {"drift_budget": 0.1}, {"config": PyramidConfig.simple([3, 3])}]
)
def test_a_profile_says_nothing_of_other_decoding(family, changes):
    pyramid = tuned(family)
    pyramid.generate(PROMPT, control="planner", **SETTINGS, **changes)
    (controller,) = pyramid._controllers.values()
    assert controller.pool.warm_start is None


def test_warm_start_that_is_wrong_about_this_text_is_left():
    costs = {tier: {1: first, 8: first, 64: first} for tier, first in {0: 0.004, 1: 0.012, 2: 0.040}.items()}
    warm_start = WarmStart({(0, 1): Acceptance(0.8), (1, 2): Acceptance(0.9)}, 60.0, CONFIG)
    controller = make_controller("planner", None, CONFIG, Pool(3, (0, 1, 2), CostModel(costs), True, warm_start))
    blocks = run(SimulatedEnvironment(costs, [Regime({0: 0.02, 1: 0.02})], seed=0), controller, 400).blocks
    assert blocks[0].config.route == CONFIG.route
    alone = sum(block.config.route == (2,) for block in blocks[-100:])
    assert alone >= 97, "a useless route was kept because it had been tuned"  # now and then it looks again


def test_warm_start_tells_how_often_a_lookup_answers():
    config = PyramidConfig.simple([2, 4])
    length = 1 + 0.25 * (expected_tokens(0.8, 2) - 1)
    known = WarmStart.tuned(config, {1: 0.8, 2: 0.9}, {1: length, 2: 3.0}, 1.0, model_tiers=(1, 2)).acceptance
    assert known[0, 1].hit == pytest.approx(0.25) and known[0, 1].rate == 0.8
    assert known[1, 2].hit == 1.0 and known[1, 2].rate == 0.9
    mixed = WarmStart.tuned(config.with_route(((0, 1), 2)), {2: 0.7}, {2: 2.0}, 1.0, model_tiers=(1, 2)).acceptance
    assert set(mixed) == {(1, 2)} and mixed[1, 2].rate == 0.7
    assert WarmStart.tuned(config.with_route((2,)), {}, {}, 1.0, (1, 2)).acceptance == {}


@pytest.mark.parametrize(("do_sample", "rate"), [(False, 0.9), (True, 0.8)])
def test_a_family_that_knows_its_agreement_need_not_find_out(family, do_sample, rate):
    """Derived tiers were measured against their target when they were loaded."""
    reports = (
        TierReport("a", 1, 1, 0, 0.9, 0.8, 0.001),
        TierReport("b", 1, 1, 0, 0.95, 0.9, 0.01),
        TierReport("c", 1, 1, 0, None, None, 0.04),
    )
    known = Family("toys", tuple(family), ("a", "b", "c"), None, reports, {}, family[-1].dtype)
    pyramid = AdaptivePyramid(known)
    pyramid.generate(PROMPT, do_sample=do_sample, seed=0 if do_sample else None, **SETTINGS)
    (controller,) = pyramid._controllers.values()
    warm_start = controller.pool.warm_start
    assert (
        warm_start.acceptance[0, 2].rate == rate
        and warm_start.config is None
        and set(warm_start.acceptance) == {(0, 2), (1, 2)}
    )
    assert warm_start.seconds == calibration.TOKENS * 0.04
    config = next(arm for arm in controller.arms if arm.route == (0, 2))
    assert controller.caps[config.route] > 16, "a route whose acceptance is known starts at any length"


def test_a_state_saved_in_a_profile_is_taken_up(family, tmp_path):
    pyramid = tuned(family)
    pyramid.generate(PROMPT, **SETTINGS)
    saved = profile(control=json.loads(json.dumps(pyramid.state_dict())))
    saved.save(tmp_path / "p.yaml")
    with pytest.warns(UserWarning, match="the profile was measured with"):
        second = AdaptivePyramid(family, profile=tmp_path / "p.yaml")
    second.generate(PROMPT, max_new_tokens=1, eos_token_id=None)
    assert second.state_dict().keys() == pyramid.state_dict().keys()
    ((_, mine),), ((_, theirs),) = pyramid._controllers.items(), second._controllers.items()
    assert theirs.budget.elapsed >= mine.budget.elapsed


def test_a_state_that_was_not_used_is_not_lost(family):
    pyramid = AdaptivePyramid(family)
    pyramid.generate(PROMPT, **SETTINGS)
    other = AdaptivePyramid(family)
    other.load_state_dict(pyramid.state_dict())
    assert other.state_dict() == pyramid.state_dict()


def test_a_state_for_other_arms_is_a_warning_and_a_cold_start(family):
    pyramid = AdaptivePyramid(family, config=CONFIG)
    pyramid.generate(PROMPT, **SETTINGS)
    ((key, state),) = pyramid.state_dict().items()
    other = AdaptivePyramid(family, config=CONFIG)
    other.load_state_dict({key: {**state, "arms": state["arms"][:-1]}})
    with pytest.warns(UserWarning, match="control starts without what was saved.*other arms"):
        out = other.generate(PROMPT, **SETTINGS)
    assert out.ids == pyramid.generate(PROMPT, **SETTINGS).ids


def test_calls_that_start_from_different_configs_learn_apart(family):
    pyramid = AdaptivePyramid(family)
    for config in (CONFIG, PyramidConfig.simple([7, 7])):
        pyramid.generate(PROMPT, config=config, control="planner", **SETTINGS)
    first, second = pyramid._controllers.values()
    assert CONFIG in first.arms and PyramidConfig.simple([7, 7]) in second.arms and first.arms != second.arms


def test_thresholds_are_free_only_below_an_exact_target(family):
    for top, free in (("exact", True), ("fuzzy", False)):
        pyramid = AdaptivePyramid(family, method=Method("mine", "relaxed", top, "tv"), config=CONFIG, control="planner")
        pyramid.generate(PROMPT, **SETTINGS)
        (controller,) = pyramid._controllers.values()
        assert any(stage.tau for arm in controller.arms for stage in arm.stages) is free


def test_the_credit_of_tuning_is_counted_once():
    pool = Pool.of(3, {0: 1, 1: 4, 2: 40}, COSTS, WarmStart({(1, 2): Acceptance(0.9)}, 100.0, CONFIG))
    controller = make_controller("planner", None, CONFIG, pool)
    assert controller.budget.elapsed == 100.0 and controller.budget.excess == -2.0
    assert make_controller("planner", None, CONFIG, Pool.of(3, {0: 1, 1: 4, 2: 40}, COSTS)).budget.elapsed == 0.0


@pytest.mark.parametrize("name", ["planner", "thompson"])
def test_states_saved_under_the_old_key_names_still_load(name):
    def controller():
        return make_controller(name, None, CONFIG, Pool.of(3, {0: 1, 1: 4, 2: 40}, COSTS))

    learned = controller()
    run(SimulatedEnvironment(COSTS.table, [Regime({0: 0.8, 1: 0.9})], seed=5), learned, 60)
    state = learned.state_dict()
    old = {{"cost_tracker": "meter", "exploration_budget": "account"}.get(key, key): state[key] for key in state}
    if name == "planner":
        old["learned"]["estimates"]["mood"] = [1, 1]
    loaded = controller()
    loaded.load_state_dict(json.loads(json.dumps(old)))
    expected = controller()
    expected.load_state_dict(learned.state_dict())
    assert loaded.state_dict() == expected.state_dict() != controller().state_dict()
