"""What every adaptive controller shares: arms, costs, the exploration budget, a start at short lengths, and explanations.

Conservative in the sense of conservative bandits (arXiv 1602.04282): the total is kept close to a baseline policy's, here
target-only decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..config import PyramidConfig, Route, route_label
from ..errors import check_keys
from ..stats import BlockStats, Decision
from .arms import shortened
from .controller import RequestInfo
from .cost_tracker import CostTracker
from .exploration_budget import ExplorationBudget
from .pool import Pool

_STATE = ("name", "arms", "cost_tracker", "exploration_budget", "caps", "learned")
_OLD_KEYS = {"meter": "cost_tracker", "account": "exploration_budget"}  # of states saved by versions before 0.2
LENGTH_STEPS = (1, 2, 4, 8, 16)  # a route whose cap has passed the last may use any length


class ConservativeController:
    """Base of the adaptive controllers: arms, and what all requests have taught. `ConservativeRequest` chooses among them.

    Where target-only decoding is among the arms,
    - nothing is tried before its price is known: without a measured cost table, target-only decoding comes first;
    - a block may run only if the exploration budget can pay for all of it being refused (`ExplorationBudget`), its caches'
      catching up included; else a shorter version of the arm, the next best arm, or target-only decoding runs;
    - a route starts at length 1 and doubles after every block in which something was accepted, so that a useless draft
      costs little before it is known to be useless.
    A route that the user or the method has pinned leaves nothing to fall back to, and runs without all this.

    Args:
        arms: configs of the same pyramid, at least one. pool: its tiers, and forward times to start from.
    """

    name = "conservative"

    def __init__(self, arms: Sequence[PyramidConfig], pool: Pool) -> None:
        if not arms:
            raise ValueError("a controller needs at least one arm, got none")
        self.arms = list(arms)
        self.pool = pool
        self.target = pool.n_tiers - 1
        self.tracker = CostTracker(pool)
        self.budget = ExplorationBudget()
        self.fallback = next((i for i, arm in enumerate(self.arms) if len(arm.route) == 1), None)
        # Configs take time to build and to check, so every version `LENGTH_STEPS` may ask for is built once.
        self.versions = [{cap: shortened(arm, cap) for cap in LENGTH_STEPS} for arm in self.arms]
        self.routes = list(dict.fromkeys(arm.route for arm in self.arms if len(arm.route) > 1))
        first = {arm.route: i for i, arm in reversed(list(enumerate(self.arms)))}
        self.probes = {route: self.versions[first[route]][1] for route in self.routes}
        self.caps: dict[Route, int] = {
            route: 2 * LENGTH_STEPS[-1] for route in self.routes if self._skips_length_steps(route)
        }
        if pool.warm_start is not None:
            self.budget.grant(pool.warm_start.seconds)

    def _skips_length_steps(self, route: Route) -> bool:
        """Whether the warm start covers every model that proposes to the target on `route` (lookups are nearly free)."""
        proposers = route[-2] if isinstance(route[-2], tuple) else (route[-2],)
        known = self.pool.warm_start.acceptance if self.pool.warm_start is not None else {}
        return all((tier, self.target) in known for tier in proposers if tier in self.pool.model_tiers)

    # ------------------------------------------------------------------ what subclasses fill in

    def begin(self, request: RequestInfo) -> ConservativeRequest:
        raise NotImplementedError

    def _learned(self) -> dict[str, Any]:
        raise NotImplementedError

    def _load_learned(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ saved state

    def state_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "arms": [arm.to_dict() for arm in self.arms],
            "cost_tracker": self.tracker.state_dict(),
            "exploration_budget": self.budget.state_dict(),
            "caps": {route_label(route): cap for route, cap in self.caps.items()},
            "learned": self._learned(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("name") != self.name:
            raise ValueError(f"this state belongs to controller {state.get('name')!r}; expected {self.name!r}")
        state = {_OLD_KEYS.get(key, key): value for key, value in state.items()}
        check_keys(f"state of {self.name!r}", state, _STATE, required=_STATE)
        if [PyramidConfig.from_dict(arm) for arm in state["arms"]] != self.arms:
            raise ValueError(
                f"this state of {self.name!r} belongs to other arms: it was saved with another family, route, "
                "starting config or drift budget"
            )
        self._load_learned(state["learned"])
        self.tracker.load_state_dict(state["cost_tracker"])
        self.budget.load_state_dict(state["exploration_budget"])
        self.caps = {
            route: state["caps"][route_label(route)] for route in self.routes if route_label(route) in state["caps"]
        }


class ConservativeRequest:
    """One request under a `ConservativeController`: a subclass ranks arms and learns from blocks; this class pays for it.

    Args:
        controller: what all requests share. request: what is known of this one.
    """

    def __init__(self, controller: ConservativeController, request: RequestInfo) -> None:
        self.controller = controller
        self.request = request
        self.tracker = controller.tracker
        self.request_costs = self.tracker.begin(request)
        controller.budget.start()
        self.blocks: dict[Route, int] = {}  # how many ran each route
        self._position = 0
        self._lost: set[int] = set()  # tiers that can no longer read this text
        # Per route, the price of its shortest probe, where the exploration budget could not pay for it last time.
        self._refused: dict[Route, float] = {}
        self._arm = 0
        self._config = controller.arms[0]

    # ------------------------------------------------------------------ what subclasses fill in

    def _rank(self) -> Iterable[int]:
        """Arms, the preferred first."""
        raise NotImplementedError

    def _reason(self, arm: int) -> str:
        """Why `arm` stands where `_rank` put it last."""
        raise NotImplementedError

    def _learn(self, block: BlockStats, arm: int) -> None:
        """Take in a block that ran `arm` (or a shortened version of it)."""
        raise NotImplementedError

    def _optimistic(self, config: PyramidConfig) -> float:
        """Seconds per token at best, caches catching up included. Without a forecast all are alike."""
        return 0.0

    def _expect(self, config: PyramidConfig) -> tuple[float | None, float | None]:
        """Predicted (seconds, tokens) of one block, if this controller predicts."""
        return None, None

    def _outlook(self, route: Route) -> float | None:
        """Tokens/s expected of the best arm of `route`, if this controller predicts."""
        return None

    # ------------------------------------------------------------------ the protocol

    def choose(self) -> Decision:
        self._arm, self._config, reason = self._pick()
        return Decision(self._config, reason, *self._expect(self._config))

    def observe(self, block: BlockStats) -> None:
        self._position = block.position + block.tokens
        self.request_costs.observe(block)
        self.controller.budget.book(block.seconds + block.control_seconds, self.tracker.target_only_seconds(block))
        self.blocks[block.config.route] = self.blocks.get(block.config.route, 0) + 1
        if block.config == self._config:
            self._raise_cap(block)
            self._learn(block, self._arm)
        else:
            # The decoder ran without some tier: it can no longer read this text.
            self._lost |= set(self._config.tiers) - set(block.config.tiers)

    @property
    def notes(self) -> list[str]:
        total = sum(self.blocks.values())
        alone = self.blocks.get((self.controller.target,), 0)
        if self.controller.fallback is None or not self.controller.routes or 2 * alone < total or not total:
            return []
        found = [sentence for route in self.controller.routes if (sentence := self._why_not(route))]
        return [
            f"the target worked alone in {alone} of {total} blocks ({1 / self.tracker.target_only:.1f} tokens/s): "
            + "; ".join(found)
        ]

    def _why_not(self, route: Route) -> str:
        """Why the target was preferred to `route` (said of two-tier routes and of what ran)."""
        ran = self.blocks.get(route, 0)
        if len(route) > 2 and not ran:
            return ""
        outlook = self._outlook(route)
        text = f"{route_label(route)} ran {ran} blocks" if ran else f"{route_label(route)} was not tried"
        if outlook is not None:
            text += f", {outlook:.1f} tokens/s expected"
        if route in self._refused:
            text += (
                f", a first look of {1000 * self._refused[route]:.1f} ms is more than the exploration budget has left "
                f"({100 * self.controller.budget.share:g} % of elapsed time)"
            )
        return text

    # ------------------------------------------------------------------ choosing

    def _pick(self) -> tuple[int, PyramidConfig, str]:
        arms, fallback, budget = self.controller.arms, self.controller.fallback, self.controller.budget
        if fallback is None:
            arm = next(iter(self._rank()))
            return arm, arms[arm], self._reason(arm)
        if not self.tracker.calibrated:
            return fallback, arms[fallback], "measuring target-only decoding"
        # The advance does not shrink once it is spent, on a cache that caught up, say: the same one goes on being owed.
        budget.advance = max(budget.advance, self._shortest_probe())
        left = budget.left((self.request.max_new_tokens - self._position) * self.tracker.target_only)
        # The shortest version decides for all arms of a route, so that a long list is not priced arm by arm.
        prices = {route: self._price(config) for route, config in self.controller.probes.items()}
        self._refused = {route: price for route, price in prices.items() if price > left}
        first_refused: PyramidConfig | None = None
        # Versions that only the budget keeps from being longer.
        cut: dict[PyramidConfig, tuple[int, PyramidConfig, str]] = {}
        choice = fallback, arms[fallback], ""
        for arm in self._rank():
            config = arms[arm]
            if arm == fallback:
                reason = (
                    self._reason(arm)
                    if first_refused is None
                    else f"the exploration budget cannot pay for a look at {first_refused.label}"
                )
                choice = arm, config, reason
                break
            if self._lost and self._lost & set(config.tiers):
                continue
            if config.route in self._refused:
                first_refused = first_refused or config
                continue
            cap = self.controller.caps.get(config.route, 1)
            version = self.controller.versions[arm][cap] if cap in LENGTH_STEPS else config
            if self._price(version) <= left:
                choice = arm, version, self._reason(arm) + ("" if version == config else f", at length {cap}")
                break
            shortest = self.controller.versions[arm][1]
            if shortest not in cut:
                cut[shortest] = (
                    arm,
                    shortest,
                    self._reason(arm) + ", at length 1, the exploration budget allows no more",
                )
        # A version cut short by the budget may be worth less than what comes after its arm.
        return min([*cut.values(), choice], key=lambda option: self._optimistic(option[1])) if cut else choice

    def _price(self, config: PyramidConfig) -> float:
        """Seconds lost if everything is refused: the block emits one token all the same."""
        return self.request_costs.worst_case(config) - self.tracker.target_only

    def _shortest_probe(self) -> float:
        """The cheapest block that runs a draft model (without one: any draft): what the exploration budget advances."""
        probes = [
            (route, config)
            for route, config in self.controller.probes.items()
            if len(route) == 2 and isinstance(route[0], int) and route[0] not in self._lost
        ]
        with_model = [config for route, config in probes if route[0] in self.controller.pool.model_tiers]
        return min(map(self._price, with_model or [config for _, config in probes]), default=0.0)

    def _raise_cap(self, block: BlockStats) -> None:
        """Raise the route's cap after a block in which the target accepted something."""
        route = block.config.route
        cap = self.controller.caps.get(route, 1)
        if len(route) == 1 or cap > LENGTH_STEPS[-1] or not block.verifications or not block.verifications[-1].proposed:
            return
        if block.verifications[-1].accepted:
            self.controller.caps[route] = 2 * cap
