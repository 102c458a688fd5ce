"""What every config should give before any was tried: replayed traces, priced with the measured cost table.

The closed formula (`throughput.ThroughputModel`) stands beside the replay. It assumes that acceptance is independent from
position to position; the replay knows better, since agreement comes in runs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.stats import BlockStats
from adaptive_pyramid.throughput import CostModel, ThroughputModel
from tuning.replay.acceptance_model import fitting
from tuning.replay.engine import Replay
from tuning.traces.format import TraceSet


@dataclass(frozen=True)
class Prediction:
    """Expected tokens/s over those of target-only decoding, by replay (`ratio`) and by the formula."""

    ratio: float
    formula_ratio: float


@dataclass
class Prior:
    """Predictions for one method on one machine.

    Args:
        overhead: seconds per verification outside the models.
    """

    traces: TraceSet
    costs: CostModel
    method: Method
    overhead: float = 0.0
    _known: dict[PyramidConfig, Prediction] = field(default_factory=dict, repr=False)
    _alone: float = field(default=0.0, repr=False)  # tokens/s of target-only decoding, once it was needed

    def __post_init__(self) -> None:
        self.replay = self.replay_of(self.method)

    def replay_of(self, method: Method) -> Replay:
        """The traces under another method; what they only estimate, an acceptance model learned from them says."""
        return Replay(self.traces, self.costs, method, self.overhead, acceptance=fitting(self.traces, method))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], method: Method) -> Prior:
        """From what a study stores of its calibration: traces (base64 of a trace file), costs (tier -> width -> seconds), overhead."""
        if not isinstance(data["traces"], str):
            raise ValueError("the study holds traces as an older version of this library wrote them; start a new study")
        costs = {
            int(tier): {int(width): seconds for width, seconds in row.items()} for tier, row in data["costs"].items()
        }
        return cls(TraceSet.from_bytes(base64.b64decode(data["traces"])), CostModel(costs), method, data["overhead"])

    def predict(self, config: PyramidConfig) -> Prediction:
        config = config.normalized()
        if config not in self._known:
            own = self.replay.play(config)
            if not self._alone:
                self._alone = self.replay.play(config.with_route((config.target,))).tokens_per_second
            self._known[config] = Prediction(own.tokens_per_second / self._alone, self._formula(config))
        return self._known[config]

    def block_seconds(self, block: BlockStats) -> float:
        """What a real block should have taken, by its forwards and the cost table: the clock `model`."""
        forwards = sum(self.costs.seconds(forward.tier, forward.width) for forward in block.forwards)
        return forwards + self.overhead * len(block.verifications)

    def ranked(
        self, candidates: Sequence[PyramidConfig], progress: Callable[[], None] = lambda: None
    ) -> list[PyramidConfig]:
        """Best first; of equally good ones the shorter route, the smaller taus and lengths first.

        `progress` is called after each candidate's prediction.
        """
        keys = {}
        for config in candidates:
            keys[config] = (
                -round(self.predict(config).ratio, 9),
                len(config.route),
                sum(stage.tau for stage in config.stages),
                sum(stage.length for stage in config.stages),
            )
            progress()
        return sorted(candidates, key=keys.__getitem__)

    def picks(
        self, candidates: Sequence[PyramidConfig], n: int, progress: Callable[[], None] = lambda: None
    ) -> list[PyramidConfig]:
        """n promising and different configs: the best of each route, then the best of what is left.

        Later picks of a route differ from its earlier ones by a factor of 1.5 in some length, or by a tau that changes
        the prediction: the prior is surer of an optimum's neighbourhood than of its exact place.
        """
        ranked = self.ranked(candidates, progress)
        picked: list[PyramidConfig] = []
        for config in ranked:
            if all(config.route != other.route for other in picked):
                picked.append(config)
        for config in ranked:
            if len(picked) >= n:
                break
            if all(config.route != other.route or self._differ(config, other) for other in picked):
                picked.append(config)
        return picked[:n]

    def _differ(self, one: PyramidConfig, other: PyramidConfig) -> bool:
        lengths = [sorted((one.stage(tier).length, other.stage(tier).length)) for tier in one.route[1:]]
        if any(high >= 1.5 * low for low, high in lengths):
            return True
        return (
            all(low == high for low, high in lengths)
            and abs(self.predict(one).ratio - self.predict(other).ratio) > 0.005
        )

    def _formula(self, config: PyramidConfig) -> float:
        """The formula's ratio, with the prompts' forwards added on both sides."""
        model = ThroughputModel(self.costs, self.replay.acceptance(config), self.overhead)
        tokens = self.traces.tokens
        prompts = {
            tier: sum(self.costs.seconds(tier, len(trace.prompt)) for trace in self.traces)
            for tier in (*config.tiers, config.target)
        }
        alone = prompts[config.target] + tokens * (self.costs.seconds(config.target, 1) + self.overhead)
        together = sum(prompts[tier] for tier in config.tiers) + tokens / model.predict(config).tokens_per_second
        return alone / together
