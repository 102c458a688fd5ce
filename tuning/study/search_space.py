"""What a study may choose: the route, and for every stage of that route its length and, where its rule uses one, tau.

A knob that cannot matter does not exist: no length for a tier outside the route, no tau for `exact` and `match`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from adaptive_pyramid.config import PyramidConfig, Route, StageConfig, route_label
from adaptive_pyramid.decoding.method import Method

MAX_LENGTH = 24
MAX_TAU = 1.0  # js is at most log 2 = .69 nats; a log-prob regret of 1 nat is already a coarse draft
_TAU_STEP = 0.05

# Grids of the prior, finer for short routes: every route stays within some hundred candidates.
_LENGTHS = {1: (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24), 2: (1, 2, 3, 4, 6, 8, 12, 16), 3: (2, 4, 8, 16)}
_FEW_LENGTHS = (2, 6, 12)
_TAUS = {1: (0.0, 0.1, 0.2, 0.3, 0.5), 2: (0.0, 0.1, 0.3, 0.6)}
_FEW_TAUS = (0.0, 0.3)


@dataclass(frozen=True)
class SearchSpace:
    """All configs that a study of `method` may try.

    Args:
        method: its rules say which stages have a tau. n_tiers: of the family. routes: to choose from, none of them
            target only (that is what every config is measured against).
    """

    method: Method
    n_tiers: int
    routes: tuple[Route, ...]

    @classmethod
    def of(cls, method: Method, n_tiers: int, routes: Sequence[Route]) -> SearchSpace:
        """The space of `method` on a pool that can run `routes`.

        Raises:
            ValueError: nothing is left to tune.
        """
        routes = tuple(route for route in routes if len(route) > 1 and method.shape != "target")
        if method.shape == "two":
            routes = tuple(route for route in routes if len(route) == 2)
        elif method.shape == "all" and any(len(route) > 2 for route in routes):
            routes = tuple(route for route in routes if len(route) > 2)
        if not routes:
            raise ValueError(
                f"method {method.name!r} has nothing to tune on a family of {n_tiers} tier(s): it only "
                "decodes with the target"
            )
        return cls(method, n_tiers, routes)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Every parameter of the study, whatever the route."""
        labels = [route_label(route) for route in self.routes]
        found: dict[str, BaseDistribution] = {"route": CategoricalDistribution(labels)}
        for tier in sorted({tier for route in self.routes for tier in route[1:]}):
            found[f"length_{tier}"] = IntDistribution(1, MAX_LENGTH, log=True)
            if self._has_tau(tier):
                found[f"tau_{tier}"] = FloatDistribution(0.0, MAX_TAU, step=_TAU_STEP)
        return found

    def suggest(self, trial: Trial) -> PyramidConfig:
        """The config that the study's sampler chooses for `trial`."""
        known = self.distributions()
        label = trial.suggest_categorical("route", known["route"].choices)
        route = next(route for route in self.routes if route_label(route) == label)
        values: dict[str, Any] = {}
        for tier in route[1:]:
            values[f"length_{tier}"] = trial.suggest_int(f"length_{tier}", 1, MAX_LENGTH, log=True)
            if self._has_tau(tier):
                values[f"tau_{tier}"] = trial.suggest_float(f"tau_{tier}", 0.0, MAX_TAU, step=_TAU_STEP)
        return self.config(route, values)

    def config(self, route: Route, values: Mapping[str, Any]) -> PyramidConfig:
        """The config of `route` with parameters named as in `distributions`; stages outside the route are plain."""
        stages = [StageConfig(1)] * (self.n_tiers - 1)
        for tier in route[1:]:
            stages[tier - 1] = StageConfig(values[f"length_{tier}"], values.get(f"tau_{tier}", 0.0))
        return PyramidConfig(tuple(stages), route)

    def params(self, config: PyramidConfig) -> dict[str, Any]:
        """The parameters that `suggest` would have to draw for `config`."""
        found: dict[str, Any] = {"route": route_label(config.route)}
        for tier in config.route[1:]:
            found[f"length_{tier}"] = config.stage(tier).length
            if self._has_tau(tier):
                found[f"tau_{tier}"] = config.stage(tier).tau
        return found

    def candidates(self) -> list[PyramidConfig]:
        """The grid that the prior ranks."""
        found = []
        for route in self.routes:
            tiers = route[1:]
            lengths = _LENGTHS.get(len(tiers), _FEW_LENGTHS)
            taus = _TAUS.get(len(tiers), _FEW_TAUS)
            axes = [[(f"length_{tier}", length) for length in lengths] for tier in tiers]
            axes += [[(f"tau_{tier}", tau) for tau in taus] for tier in tiers if self._has_tau(tier)]
            found += [self.config(route, dict(values)) for values in product(*axes)]
        return found

    def _has_tau(self, tier: int) -> bool:
        return self.method.rule(tier == self.n_tiers - 1) in ("fuzzy", "relaxed")
