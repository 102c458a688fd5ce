"""The sampler: what it is told it must use, and what was tried it must not try again."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.method import METHODS
from tuning.study.prior import Prediction
from tuning.study.sampler import PriorSampler, _regress, expected_improvement
from tuning.study.search_space import SearchSpace
from tuning.study.trial_record import SpeedSummary, TrialRecord

ROUTES = ((2,), (0, 2), (1, 2), (0, 1, 2))
SPACE = SearchSpace.of(METHODS["pyramid"], 3, ROUTES)
CANDIDATES = SPACE.candidates()


def predicted(config: PyramidConfig) -> float:
    """A smooth speed surface with its best at route (0, 1, 2)."""
    base = {(0, 2): 1.3, (1, 2): 1.4, (0, 1, 2): 1.6}[config.route]
    return base * math.exp(
        -sum((math.log(config.stage(tier).length / 6)) ** 2 for tier in config.route[1:]) / 8
        - 0.05 * config.stage(1).tau
    )


class FakePrior:
    def predict(self, config: PyramidConfig) -> Prediction:
        return Prediction(predicted(config), predicted(config))


def measured(config: PyramidConfig) -> float:
    """Reality: the three-tier route pays far less than predicted, and long lengths of (1, 2) more."""
    bias = {(0, 2): 1.0, (1, 2): 0.9 + 0.02 * config.stage(2).length, (0, 1, 2): 0.6}[config.route]
    return predicted(config) * bias


def objective(trial: optuna.Trial) -> float:
    config = SPACE.suggest(trial)
    TrialRecord(config, predicted(config), speed=SpeedSummary(measured(config))).store(trial)
    return measured(config)


def run(trials: int, seed: int = 0, objective=objective) -> tuple[optuna.Study, PriorSampler]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = PriorSampler(SPACE, FakePrior(), seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=trials)
    return study, sampler


BEST = max(measured(config) for config in CANDIDATES)


def test_the_first_trial_is_the_priors_best() -> None:
    study, _ = run(1)
    assert SPACE.params(max(CANDIDATES, key=predicted)) == study.trials[0].params


def test_a_wrong_prior_is_corrected_in_a_few_trials() -> None:
    study, _ = run(7)
    assert study.best_value > 0.97 * BEST
    routes = [trial.params["route"] for trial in study.trials]
    assert routes[0] == "0>1>2" and study.best_trial.params["route"] == "1>2"


def test_nothing_is_tried_twice_until_everything_was() -> None:
    small = SearchSpace.of(METHODS["sd"], 2, ((1,), (0, 1)))
    grid = small.candidates()

    class Flat:
        def predict(self, config: PyramidConfig) -> Prediction:
            return Prediction(1.0, 1.0)

    def flat(trial: optuna.Trial) -> float:
        config = small.suggest(trial)
        TrialRecord(config, 1.0, speed=SpeedSummary(1.0)).store(trial)
        return 1.0

    study = optuna.create_study(direction="maximize", sampler=PriorSampler(small, Flat()))
    study.optimize(flat, n_trials=len(grid) + 3)
    lengths = [trial.params["length_1"] for trial in study.trials]
    assert sorted(lengths[: len(grid)]) == sorted(config.stage(1).length for config in grid)


def test_the_expected_gain_shrinks_to_nothing() -> None:
    study, sampler = run(1)
    first = sampler.expected_gain(study)
    study.optimize(objective, n_trials=14)
    assert first > 0.02 and sampler.expected_gain(study) < 0.01
    empty = optuna.create_study(direction="maximize")
    assert sampler.expected_gain(empty) == math.inf


def test_limits_steer_it_away() -> None:
    def limited(trial: optuna.Trial) -> float:
        value = objective(trial)
        trial.set_constraint("max_drift", 1.0 if trial.params["route"] == "1>2" else -1.0)
        return value

    study, _ = run(12, objective=limited)
    usable = [trial for trial in study.trials if trial.constraints["max_drift"] <= 0]
    allowed = max(measured(config) for config in CANDIDATES if config.route != (1, 2))
    assert max(trial.value for trial in usable) > 0.97 * allowed
    assert sum(trial.params["route"] == "1>2" for trial in study.trials) <= 4


def test_pruned_trials_teach_too_and_failed_ones_do_not() -> None:
    sampler = PriorSampler(SPACE, FakePrior())
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def pruned(trial: optuna.Trial) -> float:
        objective(trial)
        raise optuna.TrialPruned

    study.optimize(pruned, n_trials=4)
    routes = {trial.params["route"] for trial in study.trials}
    assert len(routes) > 1  # learned that the prior's favourite disappoints
    assert sampler.expected_gain(study) == math.inf  # but nothing usable was measured
    assert len({str(trial.params) for trial in study.trials}) == 4  # and none of them is tried again


def test_the_same_history_gives_the_same_choice() -> None:
    assert [trial.params for trial in run(6)[0].trials] == [trial.params for trial in run(6)[0].trials]


def test_noise_is_no_reason_to_hope() -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.05, 40)
    mean, spread = _regress(np.zeros((40, 2)), 0.2 + noise, np.array([[0.0, 0.0], [9.0, 9.0]]), 0.15)
    assert (
        mean[0] == pytest.approx(0.2, abs=0.03) and spread[0] < 0.02
    )  # the mean of 40 is known better than any one of them
    assert spread[1] > 0.05


@pytest.mark.parametrize("mean, spread, best", [(0.1, 0.2, 1.2), (-0.5, 0.1, 1.0), (0.3, 0.0, 1.0), (0.0, 0.5, 2.0)])
def test_expected_improvement_is_the_mean_of_what_is_gained(mean, spread, best) -> None:
    draws = np.exp(np.random.default_rng(0).normal(mean, spread, 400_000))
    expected = np.maximum(0.0, draws - best).mean()
    found = expected_improvement(np.array([mean]), np.array([spread]), best)[0]
    assert found == pytest.approx(expected, abs=0.002)
