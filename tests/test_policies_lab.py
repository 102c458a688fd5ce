"""The policy laboratory and the policy benchmark run, small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from policies import POLICIES


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    from benchmarks import policy_lab

    return policy_lab


def test_lab_prints_and_writes(lab, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lab.main(["--seeds", "2", "--horizon", "80", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*POLICIES, *lab.TOYS))
    report = json.loads((tmp_path / "out" / "policy_lab.json").read_text())
    assert report["horizon"] == 80 and set(report["regret"]) == set(lab.TOYS)
    assert (tmp_path / "out" / "policy_lab.png").read_bytes().startswith(b"\x89PNG")
    for rows in report["regret"].values():
        for row in rows.values():
            assert row["seeds"] == 2 and row["oracle"] >= max(0.0, row["best_fixed"]) and row["oracle_se"] >= 0.0


@pytest.mark.parametrize("toy", ["stationary", "drifting", "switching", "adversarial", "contextual"])
def test_toys_have_rewards_in_range_and_the_optimum_they_claim(lab, toy: str) -> None:
    world = lab.TOYS[toy](100, np.random.default_rng(0), "thompson")
    assert world.means.shape == world.rewards.shape == (100, lab.N_ARMS)
    assert world.rewards.min() >= 0.0 and world.rewards.max() <= 1.0
    leaders = set(world.means.argmax(axis=1).tolist())
    assert (len(leaders) == 1) == (toy == "stationary")


def test_adversary_beats_every_policy_without_random_draws(lab) -> None:
    world = lab.adversarial(200, np.random.default_rng(0), "ucb1")
    against_fixed, _ = lab.regret(lab.build("ucb1", 0), world)
    assert against_fixed[-1] > 0.25 * 200
    world = lab.adversarial(200, np.random.default_rng(0), "exp3")
    against_fixed, _ = lab.regret(lab.build("exp3", 0), world)
    assert against_fixed[-1] < 0.1 * 200


def test_interrupted_lab_prints_what_is_done(
    lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    whole, calls = lab.regret, iter(range(10**6))

    def interrupted(*args):
        if next(calls) == len(lab.NAMES) + 3:  # in the second toy of the first seed
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(lab, "regret", interrupted)
    lab.main(["--seeds", "3", "--horizon", "20"])
    printed = capsys.readouterr().out
    assert "Interrupted" in printed and "stationary (1 seeds)" in printed and "drifting" not in printed


def test_lab_with_many_arms_prints_a_row_per_policy(
    lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    lab.main(["--arms", "3", "4", "--seeds", "1", "--horizon", "64"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in POLICIES) and "refused" in printed and "4 arms" in printed


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "exp3"])
def test_32_arms_are_learned(lab, name: str) -> None:
    """The best arm is .15 above the next and rewards vary by .12: the papers' worst-case bonuses never got this far."""
    world = lab.many_arms(32, 4000, np.random.default_rng(0), stretches=1)
    last, _ = lab.share_of_best(lab.build(name, 0, 32), world, full_information=False)
    assert last > 0.75


@pytest.mark.parametrize("name", ["ucb1", "ucb_v", "discounted_ucb", "sliding_window_ucb", "thompson"])
def test_a_new_best_of_32_arms_is_found(lab, name: str) -> None:
    world = lab.many_arms(32, 4000, np.random.default_rng(1), stretches=5)
    last, whole = lab.share_of_best(lab.build(name, 0, 32), world, full_information=False)
    assert last > 0.7 and whole > 0.5


def test_lab_refuses_zero_seeds(lab, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        lab.main(["--seeds", "0"])
    assert "--seeds must be at least 1, got 0" in capsys.readouterr().err


def test_speed_prints_a_row_per_policy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    from benchmarks import policy_speed

    policy_speed.main(["--arms", "4", "--rounds", "20"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in POLICIES)
