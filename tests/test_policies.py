"""Each policy against its formula, computed another way; names and keywords; what importing costs."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import policies
from policies import POLICIES, Exp3, LinUCB, SlidingWindowUCB, ThompsonSampling, make_policy
from policies.noise import shared_variance, variances

ROOT = Path(__file__).resolve().parents[1]


def fed(policy: policies.Policy, history: list[tuple[int, float]]) -> policies.Policy:
    """The policy after one round per (arm, reward)."""
    for arm, reward in history:
        policy.select()
        policy.update(arm, reward)
    return policy


def random_history(n_arms: int, rounds: int, seed: int = 0) -> list[tuple[int, float]]:
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(n_arms)), float(rng.random())) for _ in range(rounds)]


def scores(policy: policies.Policy) -> np.ndarray:
    weights = policy._counts + policy._prior_weights
    return policy._scores(weights, policy.means, None)


def test_ucb1_formula() -> None:
    history = random_history(3, 40)
    policy = fed(
        make_policy("ucb1", 3, exploration=1.5, noise=0.5, prior_means=[0.1, 0.5, 0.9], prior_weights=[1, 2, 3]),
        history,
    )
    expected = []
    for arm, (mean, weight) in enumerate(((0.1, 1), (0.5, 2), (0.9, 3))):
        rewards = [reward for played, reward in history if played == arm] + [mean] * weight
        expected.append(np.mean(rewards) + math.sqrt(1.5 * math.log(46) / len(rewards)))
    np.testing.assert_allclose(scores(policy), expected)


def test_ucb_v_formula_and_its_bernoulli_prior() -> None:
    history = random_history(2, 30)
    policy = fed(make_policy("ucb_v", 2, range_weight=1.0, prior_means=0.25, prior_weights=4), history)
    expected = []
    for arm in range(2):
        rewards = [reward for played, reward in history if played == arm] + [1.0, 0.0, 0.0, 0.0]
        width = 1.2 * math.log(38) / len(rewards)
        expected.append(np.mean(rewards) + math.sqrt(2 * np.var(rewards) * width) + 3 * width)
    np.testing.assert_allclose(scores(policy), expected)


def test_discounted_ucb_formula() -> None:
    history = random_history(3, 50)
    policy = fed(make_policy("discounted_ucb", 3, discount=0.9, exploration=2.4, noise=0.5), history)
    ages = 0.9 ** np.arange(len(history))[::-1]
    arms, rewards = np.array([arm for arm, _ in history]), np.array([reward for _, reward in history])
    counts = np.array([ages[arms == arm].sum() for arm in range(3)])
    means = np.array([(ages * rewards)[arms == arm].sum() for arm in range(3)]) / counts
    np.testing.assert_allclose(policy.counts, counts)
    np.testing.assert_allclose(scores(policy), means + 2 * np.sqrt(0.6 * np.log(counts.sum()) / counts))


def test_sliding_window_remembers_exactly_the_window() -> None:
    history = random_history(3, 100)
    policy = fed(SlidingWindowUCB(3, window=20, noise=0.3), history)
    recent = history[-20:]
    assert policy.counts.tolist() == [sum(arm == played for played, _ in recent) for arm in range(3)]
    np.testing.assert_allclose(
        policy.means, [np.mean([reward for played, reward in recent if played == arm]) for arm in range(3)]
    )
    np.testing.assert_allclose(scores(policy) - policy.means, 0.6 * np.sqrt(0.6 * math.log(20) / policy.counts))


def test_sliding_window_plays_an_arm_that_left_it() -> None:
    policy = fed(SlidingWindowUCB(2, window=5), [(0, 0.1)] + [(1, 0.9)] * 5)
    assert policy.counts.tolist() == [0, 5] and math.isnan(policy.means[0])
    assert policy.select() == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [("discounted_ucb", {"discount": 0.8}), ("thompson", {"discount": 0.8}), ("sliding_window_ucb", {"window": 10})],
)
def test_what_is_forgotten_returns_to_the_prior(name: str, options: dict) -> None:
    policy = make_policy(name, 2, prior_means=[0.7, 0.4], prior_weights=2.0, **options)
    fed(policy, [(0, 0.0)] * 20)
    assert policy.means[0] < 0.5
    fed(policy, [(1, 0.4)] * 100)
    np.testing.assert_allclose(policy.means, [0.7, 0.4], atol=1e-6)
    np.testing.assert_allclose(policy.counts[0], 0.0, atol=1e-6)


def test_thompson_draws_from_the_normal_inverse_gamma_posterior() -> None:
    """One Student draw equals a gamma draw of the precision, then a normal draw of the mean."""
    rewards, m0, k0 = np.array([0.2, 0.6, 0.5, 0.9, 0.4]), 0.3, 2.0
    policy = ThompsonSampling(1, discount=1.0, noise=0.2, noise_weight=3.0, prior_means=m0, prior_weights=k0, seed=1)
    fed(policy, [(0, float(reward)) for reward in rewards])
    draws = np.sort([scores(policy)[0] for _ in range(20_000)])
    n, mean = len(rewards), rewards.mean()
    k, a = k0 + n, (3.0 + n) / 2
    b = (3.0 * 0.2**2 + ((rewards - mean) ** 2).sum() + k0 * n * (mean - m0) ** 2 / (k0 + n)) / 2
    rng = np.random.default_rng(2)
    two_steps = rng.normal((k0 * m0 + rewards.sum()) / k, np.sqrt(1 / (rng.gamma(a, 1 / b, 20_000) * k)))
    levels = [0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98]
    np.testing.assert_allclose(np.quantile(draws, levels), np.quantile(two_steps, levels), atol=0.01)


def test_exp3_probabilities_and_step_size() -> None:
    policy = Exp3(3, horizon=500, seed=0)
    gamma = math.sqrt(3 * math.log(3) / ((math.e - 1) * 500))
    weights = np.ones(3)
    for _ in range(100):
        expected = (1 - gamma) * weights / weights.sum() + gamma / 3
        np.testing.assert_allclose(policy.probabilities(), expected)
        arm = policy.select()
        policy.update(arm, 0.8)
        weights[arm] *= math.exp(gamma / 3 * 0.8 / expected[arm])


def test_exp3_s_shares_weight_as_the_paper_does() -> None:
    policy = Exp3(3, horizon=5000, switches=1, seed=0)
    gamma = math.sqrt(3 * (2 * math.log(3 * 5000) + math.e) / ((math.e - 1) * 5000))
    weights = np.ones(3)
    for _ in range(100):
        expected = (1 - gamma) * weights / weights.sum() + gamma / 3
        np.testing.assert_allclose(policy.probabilities(), expected)
        arm = policy.select()
        policy.update(arm, 0.8)
        gains = np.zeros(3)
        gains[arm] = 0.8 / expected[arm]
        weights = weights * np.exp(gamma / 3 * gains) + math.e / 5000 / 3 * weights.sum()


def test_exp3_draws_at_its_probabilities() -> None:
    policy = Exp3(4, horizon=50, prior_means=[0.1, 0.3, 0.9, 0.5], prior_weights=10.0, seed=3)
    expected = policy.probabilities()
    assert expected.sum() == pytest.approx(1.0)
    drawn = np.bincount([policy.select() for _ in range(20_000)], minlength=4) / 20_000
    np.testing.assert_allclose(drawn, expected, atol=0.015)


def test_exp3_anytime_weights_use_the_current_step_for_all_gains() -> None:
    policy = Exp3(2, seed=0)
    for _ in range(400):
        policy.update(policy.select(), 0.5)
    gamma = math.sqrt(2 * math.log(2) / ((math.e - 1) * 401))
    weights = np.exp(gamma / 2 * np.array(policy.state_dict()["gains"]))
    np.testing.assert_allclose(policy.probabilities(), (1 - gamma) * weights / weights.sum() + gamma / 2)


def test_lin_ucb_equals_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    policy = LinUCB(2, context_dim=3, alpha=0.7, ridge=0.5, prior_means=[0.2, 0.8], prior_weights=[4.0, 1.0])
    seen: list[list[tuple[np.ndarray, float]]] = [[], []]
    for _ in range(60):
        context, arm, reward = rng.uniform(-1, 1, 3), int(rng.integers(2)), float(rng.random())
        policy.update(arm, reward, context)
        seen[arm].append((np.append(context, 1.0), reward))
    probe = np.append(rng.uniform(-1, 1, 3), 1.0)
    expected = []
    for observations, mean, weight in zip(seen, (0.2, 0.8), (4.0, 1.0), strict=True):
        x, y = np.array([x for x, _ in observations]), np.array([y for _, y in observations])
        precision = np.diag([0.5, 0.5, 0.5, 0.5 + weight])
        design, centre = precision + x.T @ x, np.array([0.0, 0.0, 0.0, mean])
        theta = np.linalg.solve(design, precision @ centre + x.T @ y)
        expected.append(theta @ probe + 0.7 * math.sqrt(probe @ np.linalg.solve(design, probe)))
    np.testing.assert_allclose(policy._scores(None, None, probe), expected)


def test_epsilon_greedy_explores_as_often_as_it_says() -> None:
    policy = make_policy("epsilon_greedy", 4, epsilon=0.2, prior_means=[0, 1, 0, 0], prior_weights=1e6, seed=0)
    others = np.mean([policy.select() != 1 for _ in range(10_000)])
    assert others == pytest.approx(0.2 * 3 / 4, abs=0.015)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"exp3"}))
def test_unknown_arms_come_first_in_their_order(name: str) -> None:
    options = {"context_dim": 1} if name == "lin_ucb" else {}
    policy = make_policy(name, 4, prior_means=0.9, prior_weights=[0.0, 5.0, 0.0, 0.5], **options)
    np.testing.assert_array_equal(policy.means, [math.nan, 0.9, math.nan, 0.9])
    with np.errstate(all="raise"):
        for unknown in (0, 2):
            assert policy.select([0.0]) == unknown
            policy.update(unknown, 0.5, [0.0])
        policy.select([0.0])
    np.testing.assert_allclose(policy.means, [0.5, 0.9, 0.5, 0.9])


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_make_policy_builds_every_name(name: str) -> None:
    options = {"context_dim": 2} if name == "lin_ucb" else {}
    policy = make_policy(name, 3, seed=1, prior_means=0.5, **options)
    assert (policy.name, policy.n_arms, type(policy)) == (name, 3, POLICIES[name])


def test_make_policy_helps_with_typing_errors() -> None:
    with pytest.raises(ValueError, match=r"unknown policy 'thomson'; did you mean 'thompson'\?"):
        make_policy("thomson", 3)
    with pytest.raises(TypeError, match=r"policy 'thompson': 'discont'; did you mean 'discount'\?"):
        make_policy("thompson", 3, discont=0.9)
    with pytest.raises(TypeError, match=r"did you mean 'prior_means'\?"):
        make_policy("ucb1", 3, prior_mean=0.9)
    with pytest.raises(TypeError, match="context_dim"):
        make_policy("lin_ucb", 3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("epsilon_greedy", {"epsilon": 1.5}),
        ("epsilon_greedy", {"decay": -1.0}),
        ("ucb1", {"exploration": float("nan")}),
        ("ucb_v", {"range_weight": -0.1}),
        ("discounted_ucb", {"discount": 0.0}),
        ("sliding_window_ucb", {"window": 0}),
        ("thompson", {"noise": 0.0}),
        ("thompson", {"discount": 1.01}),
        ("exp3", {"horizon": 0}),
        ("exp3", {"switches": -1}),
        ("lin_ucb", {"context_dim": 0}),
        ("lin_ucb", {"context_dim": 2, "ridge": 0.0}),
    ],
)
def test_options_out_of_range_are_named(name: str, options: dict) -> None:
    with pytest.raises(ValueError, match=list(options)[-1]):
        make_policy(name, 3, **options)


def test_importing_needs_numpy_alone() -> None:
    script = (
        "import sys, policies; heavy = {'torch', 'transformers', 'optuna', 'sklearn', 'adaptive_pyramid', 'tuning'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_variances_pool_the_arms_and_start_at_the_worst_case() -> None:
    rng = np.random.default_rng(0)
    rewards = [rng.normal(0.5, noise, n).clip(0, 1) for noise, n in ((0.05, 400), (0.2, 400), (0.05, 1))]
    counts, sums, squares = (np.array([f(r) for r in rewards]) for f in (len, np.sum, lambda r: (r**2).sum()))
    found = variances(counts.astype(float), sums, squares)
    own = [((r - r.mean()) ** 2).sum() for r in rewards]
    shared = (0.25 + sum(own)) / (1 + 798)
    np.testing.assert_allclose(found, [(4 * shared + s) / (4 + d) for s, d in zip(own, (399, 399, 0))])
    assert found[2] == shared_variance(counts.astype(float), sums, squares)  # seen once: what the arms share
    assert variances(np.ones(3), np.ones(3), np.ones(3)).tolist() == [0.25] * 3


@pytest.mark.parametrize("discount", [1.0, 0.99])
def test_estimated_noise_of_a_steady_arm_is_its_standard_deviation_and_never_less_when_faded(discount: float) -> None:
    rng = np.random.default_rng(1)
    policy = fed(
        make_policy("discounted_ucb", 2, discount=discount),
        [(t % 2, float(x)) for t, x in enumerate(rng.normal(0.5, 0.12, 4000))],
    )
    noise = np.sqrt(variances(policy._counts, policy._sums, policy._squares))
    assert (noise > 0.1).all() and (noise < 0.15).all()


@pytest.mark.parametrize("name", ["ucb1", "discounted_ucb", "sliding_window_ucb"])
def test_states_saved_without_squares_still_load(name: str) -> None:
    policy = fed(make_policy(name, 3), random_history(3, 40))
    state = policy.state_dict()
    del state["squares"]
    other = make_policy(name, 3)
    other.load_state_dict(state)
    assert other.counts.tolist() == policy.counts.tolist() and other.means.tolist() == policy.means.tolist()
    # The sliding window's history holds the rewards; the others assume the largest variance.
    expected = (
        policy._squares if name == "sliding_window_ucb" else policy._sums**2 / policy._counts + policy._counts / 4
    )
    np.testing.assert_allclose(other._squares, expected)


@pytest.mark.parametrize("n_arms", [8, 32, 100])
def test_memory_is_25_observations_an_arm(n_arms: int) -> None:
    """Of the played arm's reward alone 25 rounds an arm; 200 rounds, the least, where all rewards are known."""
    rng = np.random.default_rng(0)
    for name in ("discounted_ucb", "sliding_window_ucb"):
        for known, rounds, expected in ((1, 6000, max(200, 25 * n_arms)), (n_arms, 1500, 200)):
            policy = make_policy(name, n_arms)
            for _ in range(rounds):
                first = policy.select()
                for arm in [first, *(a for a in range(n_arms) if a != first)][:known]:
                    policy.update(arm, float(rng.random()))
            assert policy.counts.sum() / known == pytest.approx(expected, rel=0.1), (name, known)
