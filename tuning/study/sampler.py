"""Where to look next: a Gaussian process learns where the prior errs, and expected improvement does the rest.

An Optuna sampler over the candidates of a `SearchSpace`. It models log(measured / predicted), which is close to constant
where the cost table and the traces tell the truth, so a handful of trials is enough to correct a whole grid.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from adaptive_pyramid.config import PyramidConfig, StageConfig
from tuning.study.prior import Prior
from tuning.study.search_space import MAX_LENGTH, SearchSpace
from tuning.study.trial_record import TrialRecord, is_measured

_NOISE = (0.003, 0.01, 0.08)  # standard error of a trial's log ratio: least, expected, most
_COMMON = 0.3  # variance common to all candidates, per unit of what varies between them
_FIRST_SPREAD = 0.15  # how far the prior is taken to err, as a standard deviation of the log ratio, until trials tell


class PriorSampler(BaseSampler):
    """Chooses the candidate with the largest expected improvement in speed ratio over the best usable trial.

    log(measured / predicted) gets a Gaussian process with a Matern 5/2 kernel over route, log lengths and taus, and
    fitted noise. (A trial's interval is no measure of that noise: prompts differ, but they differ alike for
    all.) Every limit of the study gets another process on its excess, and the improvement is weighted with the
    probability of keeping all limits (Gardner et al., 2014). Without any finished trial the prior's best is chosen.
    Candidates that were tried or are running are not tried again.

    `candidates` are the grid, so that sampling never leaves what the prior has priced.

    Args:
        space, prior: of the study. candidates: default `space.candidates()`. seed: for what follows once every
            candidate was tried.
    """

    def __init__(
        self, space: SearchSpace, prior: Prior, candidates: Sequence[PyramidConfig] | None = None, seed: int = 0
    ) -> None:
        self._space = space
        self._prior = prior
        self._candidates = list(space.candidates() if candidates is None else candidates)
        self._log_predicted = np.log([prior.predict(config).ratio for config in self._candidates])
        self._features = np.array([self._vector(config) for config in self._candidates])
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._space.distributions()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        gains = self.expected_gains(study)
        if gains is None or not np.isfinite(gains).any():
            return {}
        return self._space.params(self._candidates[int(np.nanargmax(gains))])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        self._random.reseed_rng()

    def expected_gain(self, study: Study) -> float:
        """The best candidate's expected improvement as a share of the best ratio so far; infinite before any trial."""
        best = _best(_measured(study))
        gains = self.expected_gains(study)
        if best is None:
            return math.inf
        return 0.0 if gains is None else float(np.nanmax(gains, initial=0.0)) / best

    def expected_gains(self, study: Study) -> np.ndarray | None:
        """float64 [candidates]: expected improvement in ratio, NaN where one was tried; None if all were.

        Without a usable trial the predicted ratios themselves.
        """
        begun = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING))
        taken = {_key(self._space, trial.params) for trial in begun if "route" in trial.params}
        fresh = np.array([_key(self._space, self._space.params(config)) not in taken for config in self._candidates])
        if not fresh.any():
            return None
        trials = _measured(study)
        mean, spread = self._log_ratios(trials)
        best = _best(trials)
        gains = np.exp(mean) if best is None else expected_improvement(mean, spread, best)
        return np.where(fresh, gains * self._probability_of_keeping_limits(trials), np.nan)

    def _log_ratios(self, trials: Sequence[FrozenTrial]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every candidate's log ratio."""
        if not trials:
            return self._log_predicted, np.full(len(self._candidates), _FIRST_SPREAD)
        records = [TrialRecord.of(trial) for trial in trials]
        features = np.array([self._vector(record.config) for record in records])
        errors = np.array([math.log(record.speed.ratio / record.predicted_ratio) for record in records])
        mean, spread = _regress(features, errors, self._features, _FIRST_SPREAD)
        return self._log_predicted + mean, spread

    def _probability_of_keeping_limits(self, trials: Sequence[FrozenTrial]) -> np.ndarray:
        chance = np.ones(len(self._candidates))
        for name in {name for trial in trials for name in trial.constraints}:
            known = [trial for trial in trials if name in trial.constraints]
            features = np.array([self._vector(TrialRecord.of(trial).config) for trial in known])
            excess = np.array([trial.constraints[name] for trial in known])
            scale = float(np.abs(excess).max()) or 1.0
            mean, spread = _regress(features, excess / scale, self._features, 1.0)
            chance *= norm.cdf(-mean / np.maximum(spread, 1e-9))
        return chance

    def _vector(self, config: PyramidConfig) -> list[float]:
        """One-hot route, then per verifying tier log length and tau (0 for what the route does not use)."""
        route = [float(config.route == other) for other in self._space.routes]
        for tier in range(1, config.n_tiers):
            stage = config.stage(tier) if tier in config.route[1:] else StageConfig(1)
            route += [math.log(stage.length) / math.log(MAX_LENGTH), stage.tau]
        return route


def expected_improvement(mean: np.ndarray, spread: np.ndarray, best: float) -> np.ndarray:
    """E[max(0, r - best)] for log r ~ N(mean, spread^2), elementwise."""
    spread = np.maximum(spread, 1e-9)
    distance = (mean - math.log(best)) / spread
    return np.maximum(0.0, np.exp(mean + spread**2 / 2) * norm.cdf(distance + spread) - best * norm.cdf(distance))


def _regress(features: np.ndarray, values: np.ndarray, at: np.ndarray, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian-process mean and standard deviation at `at`; `spread`: the standard deviation expected before any data.

    A share of the variance is common to all candidates (what the machine does to every config alike), the rest fades
    with distance; one-hot routes are far apart, so what is learned of one says little about another.
    """
    least, expected, most = (level**2 for level in _NOISE)
    # Bounds keep the fit sane with three points: the spread stays within a factor of four of what was expected.
    kernel = ConstantKernel(spread**2, (spread**2 / 16, spread**2 * 16)) * (
        ConstantKernel(_COMMON, "fixed") + Matern(0.7, (0.3, 3.0), nu=2.5)
    ) + WhiteKernel(expected, (least, most))
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a parameter at its bound is what the bounds are for
        process.fit(features, values)
    mean, deviation = process.predict(at, return_std=True)
    own_noise = process.kernel_.k2.noise_level  # part of what predict returns, and no reason to hope
    return mean, np.sqrt(np.maximum(deviation**2 - own_noise, 1e-12))


def _measured(study: Study) -> list[FrozenTrial]:
    """Trials with a ratio: finished and pruned ones."""
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return [trial for trial in ended if is_measured(trial)]


def _best(trials: Sequence[FrozenTrial]) -> float | None:
    """The best ratio among trials measured to their end within all limits."""
    ratios = [
        TrialRecord.of(trial).speed.ratio
        for trial in trials
        if trial.state == TrialState.COMPLETE and all(excess <= 0 for excess in trial.constraints.values())
    ]
    return max(ratios, default=None)


def _key(space: SearchSpace, params: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(params.get(name) for name in space.distributions())
