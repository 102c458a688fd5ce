"""An environment for controllers: a text whose tiers agree as often as told, and forwards that cost what they are told. No torch.

    environment = SimulatedEnvironment(costs, [Regime({0: .6, 1: .8})], seed=3)
    stats = run(environment, controller, max_new_tokens=400)

What every tier would say at every position is fixed by the seed, whatever decoding does, as in greedy decoding of a
real text: so all configs can be compared on the same text, and what one config shows of another can be checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.controller import Controller, RequestInfo
from adaptive_pyramid.stats import SHADOW_LENGTH, BlockStats, Forward, GenerationStats, Shadow, Verification
from adaptive_pyramid.throughput import CostModel


@dataclass(frozen=True)
class Regime:
    """A stretch of text.

    Args:
        agreement: tier below the target -> share of positions where it says what the target says.
        hit: lookup tier -> share of positions where it finds something at all.
        tokens: length of the stretch; the last one goes on for ever.
        burstiness: 0 = positions are independent; towards 1, easy and hard positions come in runs.
    """

    agreement: Mapping[int, float]
    hit: Mapping[int, float] = field(default_factory=dict)
    tokens: float = math.inf
    burstiness: float = 0.0


class DrawnText:
    """What the tiers say along the target's text, drawn from regimes as it grows, without end; off it they go on as on it.

    A tier is right at a position where the position's difficulty, uniform on [0, 1], is below the tier's agreement:
    what a weaker tier gets right, a stronger one does too. Entropies rise with difficulty. Two tiers that are both wrong
    say the same with probability `same_error`. A wrong token's regret is exponential with mean 1, under any verifier.
    """

    def __init__(self, regimes: Sequence[Regime], target: int, seed: int = 0, same_error: float = 0.3) -> None:
        self.regimes, self.target, self.same_error = list(regimes), target, same_error
        self._random = np.random.default_rng([seed, 0])
        self._difficulty: list[float] = []
        self._ids: list[dict[int, int]] = []  # 0 is the target's
        self._regrets: list[float] = []
        self._hits: list[dict[int, bool]] = []
        self._entropies: list[float] = []

    def says(self, tier: int, position: int) -> int:
        self._extend(position)
        return self._ids[position][tier]

    def finds(self, tier: int, position: int, n: int) -> list[int]:
        self._extend(position + n)
        return [self._ids[position + i][tier] for i in range(n)] if self._hits[position].get(tier, True) else []

    def regret(self, verifier: int, position: int, token: int) -> float:
        return 0.0 if self.says(verifier, position) == token else max(self._regrets[position], 1e-6)

    def entropy(self, position: int) -> float:
        self._extend(position)
        return self._entropies[position]

    def _extend(self, position: int) -> None:
        while len(self._ids) <= position:
            regime = self._regime(len(self._ids))
            z = self._random.normal()
            if self._difficulty:
                z = regime.burstiness * self._difficulty[-1] + math.sqrt(1 - regime.burstiness**2) * z
            self._difficulty.append(z)
            u = 0.5 * math.erfc(-z / math.sqrt(2))
            shared = self._random.random() < self.same_error
            self._regrets.append(float(self._random.exponential()))
            ids = {tier: 0 if u < rate else 1 if shared else 2 + tier for tier, rate in regime.agreement.items()}
            self._ids.append({**ids, self.target: 0})
            self._entropies.append(0.5 * math.exp(0.8 * z + 0.4 * self._random.normal()))
            self._hits.append({tier: bool(self._random.random() < rate) for tier, rate in regime.hit.items()})

    def _regime(self, index: int) -> Regime:
        for regime in self.regimes:
            if index < regime.tokens:
                return regime
            index -= int(regime.tokens)
        return self.regimes[-1]


class SimulatedEnvironment:
    """A pyramid that is only numbers, decoding greedily.

    Args:
        costs: tier -> width -> seconds; tiers without an entry are lookups, which cost nothing.
        regimes: to draw a text from. Requests take it one after another.
        noise: relative standard deviation of a forward's time. overhead: seconds per verification outside the models.
    """

    def __init__(
        self,
        costs: Mapping[int, Mapping[int, float]],
        regimes: Sequence[Regime],
        *,
        seed: int = 0,
        noise: float = 0.03,
        overhead: float = 0.0,
        same_error: float = 0.3,
        drift_budget: float | None = None,
    ) -> None:
        self.costs = CostModel(costs)
        self.target = max(costs)
        self.text = DrawnText(regimes, self.target, seed, same_error)
        self.noise, self.overhead, self.drift_budget = noise, overhead, drift_budget
        self._clock = np.random.default_rng([seed, 1])
        self.offset = self.position = 0

    def start(self, prompt_length: int, max_new_tokens: int) -> RequestInfo:
        """Begin another request: the text goes on, every cache is cold."""
        self.prompt_length, self.max_new_tokens = prompt_length, max_new_tokens
        self.offset += self.position
        self.position = 0
        self.spent = 0.0
        self._cached: dict[int, int] = {}
        return RequestInfo(
            prompt_length, max_new_tokens, lossless=self.drift_budget is None, drift_budget=self.drift_budget
        )

    @property
    def finished(self) -> bool:
        return self.position >= self.max_new_tokens

    def step(self, config: PyramidConfig) -> BlockStats:
        """One block, as `Decoding.step` would report it."""
        self._forwards: list[Forward] = []
        self._verifications: list[Verification] = []
        found = self._overlooked(config)
        emitted, drift = self._round(config, len(config.route) - 1, 0, self.max_new_tokens - self.position)
        overhead = self.overhead * len(self._verifications)
        if self.drift_budget is not None:
            self.spent += sum(drift)
        block = BlockStats(
            config,
            self.position,
            self.prompt_length + self.position,
            len(emitted),
            sum(f.seconds for f in self._forwards) + overhead,
            tuple(self._verifications),
            tuple(self._forwards),
            drift=tuple(drift),
            budget_left=None
            if self.drift_budget is None
            else self.drift_budget * (self.position + len(emitted)) - self.spent,
            shadows=tuple(Shadow.of(tier, ids, emitted) for tier, ids in found),
        )
        self.position += len(emitted)
        return block

    def _overlooked(self, config: PyramidConfig) -> list[tuple[int, list[int]]]:
        """What lookups find that the target does not ask."""
        asked = config.route[-2] if len(config.route) > 1 else ()
        lookups = [tier for tier in range(self.target) if tier not in self.costs.table]
        return [
            (tier, self.text.finds(tier, self.offset + self.position, SHADOW_LENGTH))
            for tier in lookups
            if tier != asked and not (isinstance(asked, tuple) and tier in asked)
        ]

    # ------------------------------------------------------------------ decoding

    def _forward(self, tier: int, end: int, needed: int) -> None:
        """`tier` reads up to `end` tokens behind the block's start; its last `needed` outputs are used."""
        total = self.prompt_length + self.position + end
        cached = min(self._cached.get(tier, 0), total - needed)
        width = total - cached
        seconds = self.costs.seconds(tier, width) * math.exp(self._clock.normal(0, self.noise))
        self._forwards.append(Forward(tier, width, needed, cached, seconds))
        self._cached[tier] = total

    def _propose(self, config: PyramidConfig, depth: int, at: int, n: int, cap: int) -> tuple[int | None, list[int]]:
        """(proposer, ids), about n of them and never more than cap."""
        entry, here = config.route[depth], self.offset + self.position + at
        if depth > 0:
            said: list[int] = []
            while len(said) < n:
                said += self._round(config, depth, at + len(said), cap - len(said))[0]
            return entry, said
        for tier in entry if isinstance(entry, tuple) else (entry,):
            if tier in self.costs.table:
                for i in range(n):
                    self._forward(tier, at + i, 1)
                return tier, [self.text.says(tier, here + i) for i in range(n)]
            if found := self.text.finds(tier, here, n):
                return tier, found
        return None, []

    def _round(self, config: PyramidConfig, depth: int, at: int, cap: int) -> tuple[list[int], list[float]]:
        """One verification: the ids it emits, and the drift of each."""
        tier, here = config.route[depth], self.offset + self.position + at
        proposer, proposal, tau = None, [], 0.0
        if depth > 0 and cap > 1:
            stage = config.stage(tier)
            tau = stage.tau
            proposer, proposal = self._propose(config, depth - 1, at, min(stage.length, cap - 1), cap - 1)
        self._forward(tier, at + len(proposal), len(proposal) + 1)
        regrets = [self.text.regret(tier, here + i, token) for i, token in enumerate(proposal)]
        drift: list[float] = []
        for i, regret in enumerate(regrets):
            loose = 0 < regret <= tau
            if loose and tier == self.target and self.drift_budget is not None:
                loose = self.spent + sum(drift) + regret <= self.drift_budget * (self.position + i + 1)
            if regret and not loose:
                break
            drift.append(regret if loose else 0.0)
        accepted = len(drift)
        emitted = [*proposal[:accepted], self.text.says(tier, here + accepted)]
        entropies = tuple(self.text.entropy(here + i) for i in range(len(proposal) + 1))
        self._verifications.append(
            Verification(
                tier,
                proposer,
                len(proposal),
                accepted,
                int(accepted < len(proposal)),
                len(emitted),
                sum(map(bool, drift)),
                entropy=entropies,
                proposal_entropy=entropies[:-1],
                divergence=tuple(regrets),
                distance=tuple(regrets),
            )
        )
        # Behind the accepted prefix, what was read is stale and will be read again.
        for k in list(self._cached):
            if k == tier or (k in config.tiers and k < tier):
                self._cached[k] = min(self._cached[k], self.prompt_length + self.position + at + accepted)
        return emitted, [*drift, 0.0]


def run(
    environment: SimulatedEnvironment,
    controller: Controller,
    max_new_tokens: int,
    prompt_length: int = 32,
    on_block: Callable[[BlockStats], None] = lambda block: None,
) -> GenerationStats:
    """One request under control, as `Generation.run` does it."""
    stats = GenerationStats(control_name=controller.name, drift_budget=environment.drift_budget)
    control = controller.begin(environment.start(prompt_length, max_new_tokens))
    while not environment.finished:
        decision = control.choose()
        block = replace(environment.step(decision.config), decision=decision)
        control.observe(block)
        stats.blocks.append(block)
        on_block(block)
    stats.notes += control.notes
    return stats
