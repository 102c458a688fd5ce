"""A plant for controllers: a text whose tiers agree as often as told, and forwards that cost what they are told. No torch.

    plant = Plant(costs, [Regime({0: .6, 1: .8})], seed=3)
    stats = run(plant, controller, max_new_tokens=400)

What every tier would say at every position is fixed by the seed, whatever decoding does, as in greedy decoding of a
real text: so all configs can be compared on the same text, and what one config shows of another can be checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.controller import Controller, RequestInfo
from adaptive_pyramid.stats import BlockStats, Forward, GenerationStats, Verification
from adaptive_pyramid.throughput import CostModel

CHUNK = 4096


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


class Plant:
    """A pyramid that is only numbers.

    A tier is right at a position where the position's difficulty, uniform on [0, 1], is below the tier's agreement:
    what a weaker tier gets right, a stronger one does too. Entropies rise with difficulty. Two tiers that are both wrong say the same with
    probability `same_error`. A wrong token's regret (nats, under any verifier) is exponential with mean 1.

    Args:
        costs: tier -> width -> seconds; tiers without an entry are lookups, which cost nothing.
        noise: relative standard deviation of a forward's time. overhead: seconds per verification outside the models.
    """

    def __init__(self, costs: Mapping[int, Mapping[int, float]], regimes: Sequence[Regime], *, seed: int = 0,
                 noise: float = 0.03, overhead: float = 0.0, same_error: float = 0.3, drift_budget: float | None = None) -> None:
        self.costs = CostModel(costs)
        self.target = max(costs)
        self.regimes = list(regimes)
        self.noise, self.overhead, self.same_error, self.drift_budget = noise, overhead, same_error, drift_budget
        self._text = np.random.default_rng([seed, 0])
        self._clock = np.random.default_rng([seed, 1])
        self._difficulty: list[float] = []
        self._rows: list[dict[int, tuple[bool, int, float]]] = []
        self._hits: list[dict[int, bool]] = []
        self._entropies: list[float] = []
        self.start(prompt_length=1, max_new_tokens=0)

    def start(self, prompt_length: int, max_new_tokens: int) -> RequestInfo:
        """Begin another request: the text goes on, every cache is cold."""
        self.prompt_length, self.max_new_tokens = prompt_length, max_new_tokens
        self.offset = getattr(self, "offset", 0) + getattr(self, "position", 0)
        self.position = 0
        self.spent = 0.0
        self._cached: dict[int, int] = {}
        return RequestInfo(prompt_length, max_new_tokens, lossless=self.drift_budget is None, drift_budget=self.drift_budget)

    @property
    def finished(self) -> bool:
        return self.position >= self.max_new_tokens

    def step(self, config: PyramidConfig) -> BlockStats:
        """One block, as `Decoding.step` would report it."""
        self._forwards: list[Forward] = []
        self._verifications: list[Verification] = []
        emitted, drift = self._round(config, len(config.route) - 1, 0, self.max_new_tokens - self.position, [])
        overhead = self.overhead * len(self._verifications)
        if self.drift_budget is not None:
            self.spent += sum(drift)
        block = BlockStats(
            config, self.position, self.prompt_length + self.position, len(emitted),
            sum(f.seconds for f in self._forwards) + overhead, tuple(self._verifications), tuple(self._forwards),
            drift=tuple(drift), budget_left=None if self.drift_budget is None else
            self.drift_budget * (self.position + len(emitted)) - self.spent)
        self.position += len(emitted)
        return block

    # ------------------------------------------------------------------ the text

    def says(self, tier: int, position: int) -> tuple[int, float]:
        """(token, its regret) of `tier` at a position of the output; token 0 is what the target says."""
        index = self.offset + position
        self._extend(index)
        if tier == self.target:
            return 0, 0.0
        right, wrong_token, regret = self._rows[index][tier]
        return (0, 0.0) if right else (wrong_token, regret)

    def finds(self, tier: int, position: int) -> bool:
        index = self.offset + position
        self._extend(index)
        return self._hits[index].get(tier, True)

    def _extend(self, index: int) -> None:
        while len(self._rows) <= index:
            regime = self._regime(len(self._rows))
            z = self._text.normal()
            if self._difficulty:
                z = regime.burstiness * self._difficulty[-1] + math.sqrt(1 - regime.burstiness**2) * z
            self._difficulty.append(z)
            u = 0.5 * math.erfc(-z / math.sqrt(2))
            shared = self._text.random() < self.same_error
            regret = float(self._text.exponential())
            self._rows.append({tier: (u < rate, 1 if shared else 2 + tier, regret) for tier, rate in regime.agreement.items()})
            self._entropies.append(0.5 * math.exp(0.8 * z + 0.4 * self._text.normal()))
            self._hits.append({tier: bool(self._text.random() < rate) for tier, rate in regime.hit.items()})

    def _regime(self, index: int) -> Regime:
        for regime in self.regimes:
            if index < regime.tokens:
                return regime
            index -= int(regime.tokens)
        return self.regimes[-1]

    # ------------------------------------------------------------------ decoding

    def _forward(self, tier: int, end: int, needed: int) -> None:
        """`tier` reads up to `end` tokens behind the block's start; its last `needed` outputs are used."""
        total = self.prompt_length + self.position + end
        cached = min(self._cached.get(tier, 0), total - needed)
        width = total - cached
        seconds = self.costs.seconds(tier, width) * math.exp(self._clock.normal(0, self.noise))
        self._forwards.append(Forward(tier, width, needed, cached, seconds))
        self._cached[tier] = total

    def _propose(self, config: PyramidConfig, depth: int, at: int, n: int, cap: int, prefix: list[int]) -> tuple[int | None, list[tuple[int, float]]]:
        """(proposer, [(token, regret)]), about n of them and never more than cap."""
        entry = config.route[depth]
        if depth > 0:
            said: list[tuple[int, float]] = []
            while len(said) < n:
                said += self._round(config, depth, at + len(said), cap - len(said), said)[0]
            return entry, said
        for tier in entry if isinstance(entry, tuple) else (entry,):
            if tier not in self.costs.table:
                if self.finds(tier, self.position + at):
                    return tier, [self.says(tier, self.position + at + i) for i in range(min(n, cap))]
                continue
            drafted = []
            for i in range(min(n, cap)):
                self._forward(tier, at + i, 1)
                drafted.append(self.says(tier, self.position + at + i))
            return tier, drafted
        return None, []

    def _round(self, config: PyramidConfig, depth: int, at: int, cap: int, prefix: list) -> tuple[list[tuple[int, float]], list[float]]:
        """One verification: what it emits as (token, regret under the target), and the drift it books."""
        tier = config.route[depth]
        is_target = tier == self.target
        proposer, proposal, tau = None, [], 0.0
        if depth > 0 and cap > 1:
            stage = config.stage(tier)
            tau = stage.tau
            proposer, proposal = self._propose(config, depth - 1, at, min(stage.length, cap - 1), cap - 1, prefix)
        self._forward(tier, at + len(proposal), len(proposal) + 1)
        own = [self.says(tier, self.position + at + i) for i in range(len(proposal) + 1)]
        regrets = [0.0 if said[0] == mine[0] else max(said[1], 1e-6) for said, mine in zip(proposal, own)]
        emitted: list[tuple[int, float]] = []
        drift: list[float] = []
        relaxed = 0
        for i, regret in enumerate(regrets):
            loose = 0 < regret <= tau
            if loose and is_target and self.drift_budget is not None:
                allowance = self.drift_budget * (self.position + i + 1)
                loose = self.spent + sum(drift) + regret <= allowance
            if regret and not loose:
                break
            relaxed += loose
            emitted.append(proposal[i])
            drift.append(regret if loose else 0.0)
        accepted = len(emitted)
        emitted.append(own[accepted])
        drift.append(0.0)
        first = self.offset + self.position + at
        self._verifications.append(Verification(
            tier, proposer, len(proposal), accepted, int(accepted < len(proposal)), len(emitted), relaxed,
            entropy=self._entropies[first : first + len(proposal) + 1],
            proposal_entropy=self._entropies[first : first + len(proposal)],
            divergence=tuple(regrets), distance=tuple(regrets)))
        # Wide of the accepted prefix, what was read is stale and read again.
        for k in list(self._cached):
            if k == tier or (k in config.tiers and k < tier):
                self._cached[k] = min(self._cached[k], self.prompt_length + self.position + at + accepted)
        return emitted, drift


def run(plant: Plant, controller: Controller, max_new_tokens: int, prompt_length: int = 32,
        on_block: Callable[[BlockStats], None] = lambda block: None) -> GenerationStats:
    """One request under control, as `Generation.run` does it."""
    stats = GenerationStats(control_name=controller.name, drift_budget=plant.drift_budget)
    config = controller.start(plant.start(prompt_length, max_new_tokens))
    while not plant.finished:
        decision = controller.decision
        block = plant.step(config)
        block.decision = decision
        config = controller.step(block)
        stats.blocks.append(block)
        on_block(block)
    stats.notes += controller.notes
    return stats
