"""The planner's tuned constants: where each comes from. docs/control.md has what half and double of each cost."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import cast

from ..errors import check_int, check_number


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """Constants of `PlannerController` and `Estimates`.

    All were set by hand while the planner was written; no search chose them and no record says what else was tried. What
    half and double cost is in docs/control.md. Weights are in tested positions of a proposal unless another unit is named: a value w of something known with
    weight w counts as much as w observations.

    Args:
        optimism: standard deviations of its acceptance that are added to an arm's estimate when arms are ranked, as in
            an upper confidence bound. Small, because counterfactual learning makes most looks unnecessary.
        unseen_optimism: this many times `optimism` more for a pair never seen, falling as 1 / (1 + seen / 4).
        min_horizon: tokens still expected of a request are as many as there have been, and at least this many; what a
            cache needs to catch up is spread over them.
        residual_weight: blocks of an arm before what the formula misses of it counts as much as the formula.
        residual_memory: blocks of an arm after which a residual counts 1 / e; at least 1.
        tuned_factor: share of its predicted time that the tuned config of a profile is ranked at: it was measured to be
            the best, the others are only predicted.
        replan_every: blocks a forecast is used for, after `early_blocks`. More than one to save control's own time.
        early_blocks: blocks with a new forecast each.
        prior_weight: weight of a guess about a pair (`Estimates._priors`).
        neighbour_weight: weight of the acceptance at earlier positions in that at later ones.
        context_weight: weight of a pair's overall acceptance in that within a context bucket.
        context_fade: share of a context bucket's shift that applies to each bucket of positions, six numbers.
        entropy_edges: nats of the target's entropy between sure, middling and unsure text.
        hit_weight: requests to a lookup that its overall hit rate is worth in a context bucket.
        indirect_weight: what a chain shows of a pair it does not run, relative to a direct observation.
        warm_start_weight: weight of a warm start. Less than tuning has seen, since this text is another one.
        memory: verifications of a pair after which an observation counts 1 / e.
        idle_memory: the same in blocks, for every pair, whether it runs or not.
        change_slack: drift of the mean, in standard deviations of a verification, that Page-Hinkley tolerates.
        change_threshold: sum of surprises beyond the slack that means a change.
        change_min_seen: tested positions of a pair before its changes are looked for.
        changed_keep: share of its memory that a pair keeps when its text has changed; `changed_keep_others`: and the others.
    """

    optimism: float = 0.1
    unseen_optimism: float = 2.0
    min_horizon: int = 64
    residual_weight: float = 30.0
    residual_memory: float = 50.0
    tuned_factor: float = 0.9
    replan_every: int = 4
    early_blocks: int = 16
    prior_weight: float = 3.0
    neighbour_weight: float = 20.0
    context_weight: float = 30.0
    context_fade: tuple[float, ...] = (1.0, 0.8, 0.5, 0.25, 0.0, 0.0)
    entropy_edges: tuple[float, float] = (0.3, 1.0)
    hit_weight: float = 5.0
    indirect_weight: float = 0.5
    warm_start_weight: float = 60.0
    memory: float = 200.0
    idle_memory: float = 1000.0
    change_slack: float = 0.3
    change_threshold: float = 10.0
    change_min_seen: float = 20.0
    changed_keep: float = 0.2
    changed_keep_others: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            where = f"PlannerSettings.{field.name}"
            if field.name in ("min_horizon", "replan_every", "early_blocks"):
                check_int(where, value, 1)
            elif field.name in ("tuned_factor", "indirect_weight", "changed_keep", "changed_keep_others"):
                check_number(where, value, 0.0, 1.0)
            elif field.name in ("context_fade", "entropy_edges"):
                expected = len(cast(tuple[float, ...], field.default))
                if not isinstance(value, tuple) or len(value) != expected:
                    raise ValueError(f"{where} must be a tuple of {expected} numbers, got {value!r}")
                for number in value:
                    check_number(where, number, minimum=0.0)
            else:
                check_number(where, value, minimum=0.0)
        check_number("PlannerSettings.residual_memory", self.residual_memory, minimum=1.0)
        for name in ("memory", "idle_memory", "change_threshold", "tuned_factor", "prior_weight"):
            check_number(f"PlannerSettings.{name}", getattr(self, name), minimum=1e-9)


DEFAULT_SETTINGS = PlannerSettings()
