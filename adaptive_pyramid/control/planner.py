"""Control by a model: what every block shows of acceptance and costs, put through the throughput formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..config import PyramidConfig, Route
from ..stats import BlockStats
from ..throughput import Acceptance, ThroughputModel, insertion_advice
from .conservative import ConservativeController, ConservativeRequest
from .controller import RequestInfo
from .estimates import Estimates, TextState
from .forecast import Forecast
from .planner_settings import DEFAULT_SETTINGS, PlannerSettings
from .pool import Pool


class PlannerController(ConservativeController):
    """Runs the arm that the throughput formula expects to be fastest over the rest of the request.

    A block improves the estimates of most arms, not only of the one that ran (`Estimates`). What the formula misses of
    an arm is learned from its own blocks: discounted measured over predicted tokens and seconds. Caches that have to
    catch up count, spread over the tokens still expected. An arm is explored only while its acceptance is so uncertain
    that `settings.optimism` standard deviations more would make it the best.

    Args:
        arms, pool: as in `ConservativeController`. drift_budget: per token, or None.
        counterfactual: False lets an arm learn from its own blocks only (for comparison). settings: tuned constants.
    """

    name = "planner"

    def __init__(
        self,
        arms: Sequence[PyramidConfig],
        pool: Pool,
        drift_budget: float | None = None,
        counterfactual: bool = True,
        settings: PlannerSettings = DEFAULT_SETTINGS,
    ) -> None:
        super().__init__(arms, pool)
        self.settings = settings
        self._residual_keep = 1 - 1 / settings.residual_memory
        # The shortened versions that `LENGTH_STEPS` allows are forecast too; the arms come first.
        configs, owners = list(self.arms), list(range(len(self.arms)))
        for arm in range(len(self.arms)):
            for version in self.versions[arm].values():
                if version not in configs:
                    configs.append(version)
                    owners.append(arm)
        self.row = {config: row for row, config in reversed(list(enumerate(configs)))}
        self.forecast = Forecast(configs, None if counterfactual else owners)
        self.estimates = Estimates(self.forecast, pool.model_tiers, drift_budget, settings, counterfactual)
        if pool.warm_start is not None:
            self.estimates.assume(pool.warm_start)
        self._residual = np.zeros((2, 2, len(configs)))  # (tokens, seconds) x (measured, predicted), sums per config
        self._seen = 0  # blocks learned from; planned: of these, when the forecast was made
        self._predict()
        self.drafters = list(dict.fromkeys(config.tiers[:-1] for config in self.arms))  # whose caches an arm needs
        self.drafters_of = np.array([self.drafters.index(config.tiers[:-1]) for config in self.arms])

    def begin(self, request: RequestInfo) -> PlannerRequest:
        return PlannerRequest(self, request)

    def learn(self, block: BlockStats, greedy: bool, arm: int, text: TextState) -> None:
        """Take in a block of `text` that ran `arm` or a shorter version of it."""
        row = self.row[block.config]
        residual = self._residual[:, :, row]
        residual *= self._residual_keep
        residual[:, 0] += (block.tokens, self.tracker.steady(block))
        residual[:, 1] += self._formula[self.estimates.context_bucket(text)][:, row]
        self.estimates.observe(block, greedy, arm, text)
        self._seen += 1

    def replan(self) -> None:
        """Make the forecast anew, if it is old."""
        if (
            self._seen >= self._planned + (self.settings.replan_every if self._seen > self.settings.early_blocks else 1)
            or self.estimates.changes != self._changes
        ):
            self._predict()

    def _predict(self) -> None:
        """The formula for every context bucket, corrected by what it missed of each config so far."""
        # Tuning has explored for this text, as long as it is the kind of text that tuning has seen.
        self.tuned = self.pool.warm_start.config if self.pool.warm_start and not self.estimates.changes else None
        rates = self.estimates.rates(self.settings.optimism if self.tuned is None else 0.0)
        self.tuned_factor = np.array([self.settings.tuned_factor if arm == self.tuned else 1.0 for arm in self.arms])
        costs = self.forecast.costs(self.tracker.costs, self.tracker.per_verification, self.tracker.per_draft)
        n = len(self.row)
        both = np.stack(self.forecast.evaluate(rates, costs)).reshape(
            2, -1, 2, n
        )  # tokens or seconds, context, opinion
        measured, formula = self._residual[:, 0], self._residual[:, 1]
        typical = self.settings.residual_weight * both[:, 0, 0]
        ratio = (measured + typical) / (formula + typical)
        corrected = both * ratio[:, None, None]
        self.per_token = corrected[1] / corrected[0]  # seconds, [context bucket, opinion, config]
        self._formula = both[:, :, 0].transpose(1, 0, 2)  # [context bucket, tokens or seconds, config]
        self.expected = corrected[:, :, 0].transpose(1, 0, 2)
        self._planned, self._changes = self._seen, self.estimates.changes

    def _learned(self) -> dict[str, Any]:
        return {"estimates": self.estimates.state_dict(), "residual": self._residual.tolist()}

    def _load_learned(self, state: Mapping[str, Any]) -> None:
        residual = np.array(state["residual"], dtype=float)
        if residual.shape != self._residual.shape:
            raise ValueError(f"residual in the state must have shape {self._residual.shape}, got {residual.shape}")
        self.estimates.load_state_dict(state["estimates"])
        self._residual = residual
        self._predict()


class PlannerRequest(ConservativeRequest):
    """One request under a `PlannerController`."""

    controller: PlannerController

    def __init__(self, controller: PlannerController, request: RequestInfo) -> None:
        super().__init__(controller, request)
        self.text = controller.estimates.begin()

    @property
    def _context(self) -> int:
        return self.controller.estimates.context_bucket(self.text)

    def _learn(self, block: BlockStats, arm: int) -> None:
        if self._position >= self.request.max_new_tokens:
            return  # clipped: it says little about an arm
        self.controller.learn(block, not self.request.do_sample, arm, self.text)

    def _rank(self) -> Iterable[int]:
        shared = self.controller
        shared.replan()
        entry = (
            np.array([self.request_costs.catch_up(tiers) for tiers in shared.drafters])[shared.drafters_of]
            / self._horizon
        )
        self._ranked = shared.per_token[self._context][:, : len(shared.arms)] + entry  # [mean or at best, arm]
        return (self._ranked[1] * shared.tuned_factor).argsort(kind="stable").tolist()

    def _reason(self, arm: int) -> str:
        expected, at_best = self._ranked[:, arm]
        best, fallback = int(self._ranked[0].argmin()), self.controller.fallback
        if arm != best and self.controller.arms[arm] == self.controller.tuned:
            return f"tuned: {1 / expected:.1f} tokens/s expected"
        if arm == best:
            alone = "" if fallback is None else f", target alone {1 / self._ranked[0, fallback]:.1f}"
            return f"fastest: {1 / expected:.1f} tokens/s expected{alone}"
        return f"unsure: {1 / expected:.1f} to {1 / at_best:.1f} tokens/s, best known {1 / self._ranked[0, best]:.1f}"

    @property
    def _horizon(self) -> int:
        """Tokens still expected: as many as there have been, within what is allowed."""
        horizon = self.controller.settings.min_horizon
        return min(max(1, self.request.max_new_tokens - self._position), max(horizon, self._position))

    def _optimistic(self, config: PyramidConfig) -> float:
        entry = self.request_costs.catch_up(config.tiers[:-1]) / self._horizon
        return float(self.controller.per_token[self._context, 1, self.controller.row[config]]) + entry

    def _expect(self, config: PyramidConfig) -> tuple[float | None, float | None]:
        if not self.tracker.calibrated:
            return None, None
        tokens, seconds = self.controller.expected[self._context][:, self.controller.row[config]].tolist()
        return seconds + self.request_costs.catch_up(config.tiers[:-1]), tokens

    # ------------------------------------------------------------------ what it says

    @property
    def notes(self) -> list[str]:
        deep = [route for route, _ in sorted(self.blocks.items(), key=lambda item: -item[1]) if len(route) > 2]
        advice = [self._advice(deep[0])] if deep and self.controller.fallback is not None else []
        return super().notes + [sentence for sentence in advice if sentence]

    def _outlook(self, route: Route) -> float:
        per_token = self.controller.per_token[self._context, 0]
        return 1 / min(per_token[row] for config, row in self.controller.row.items() if config.route == route)

    def _advice(self, route: Route) -> str | None:
        """What dropping the tier above the bottom would do, for the deep route that ran most."""
        shared, estimates, context = self.controller, self.controller.estimates, self._context
        per_token = shared.per_token[context, 0]
        config = min((arm for arm in shared.arms if arm.route == route), key=lambda arm: per_token[shared.row[arm]])
        rates = estimates.rates(0.0)
        acceptance: dict[tuple[int, int], Acceptance] = {}
        for pair, curve in zip(estimates.pairs, rates.accept[2 * context]):
            if pair[:2] not in acceptance or not (pair.tau or pair.lower):
                hit, fill = rates.hit[0, pair.proposer], rates.fill[pair.proposer]
                acceptance[pair[:2]] = Acceptance(float(curve[:4].mean()), float(hit), float(fill))
        model = ThroughputModel(self.tracker.costs, acceptance, self.tracker.per_verification)
        try:
            return str(insertion_advice(model, config, config.verifiers[0]))
        except KeyError:  # without that tier the route has a pair that no arm has
            return None
