"""A bandit policy of your own, choosing the config of every block.

    python examples/own_policy.py [--family smollm2-135m] [--tokens 200]

The policy here is softmax exploration (Boltzmann, as in chapter 2 of Sutton and Barto): arm i with probability proportional to
exp(mean_i / temperature). Whatever a policy chooses, the output stays the target's: control only decides how it is computed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import numpy as np

from adaptive_pyramid import AdaptivePyramid
from adaptive_pyramid.control.arms import candidate_configs, guessed_acceptance
from adaptive_pyramid.control.bandit import BanditController
from adaptive_pyramid.control.reward import SpeedReward
from adaptive_pyramid.throughput import ThroughputModel
from policies import Policy


class Softmax(Policy):
    """Plays arms with probabilities softmax(means / temperature)."""

    name = "softmax"

    def __init__(self, n_arms: int, *, temperature: float = 0.05, **common: Any) -> None:
        super().__init__(n_arms, **common)
        self._temperature = temperature

    def _scores(self, weights: np.ndarray, means: np.ndarray, features: np.ndarray | None) -> np.ndarray:
        # The largest of log-probabilities plus Gumbel noise is a draw from the softmax. `self._rng` is the seeded generator.
        return means / self._temperature + self._rng.gumbel(size=self.n_arms)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--family", default="smollm2-135m", help="a family's name or YAML file")
parser.add_argument("--tokens", type=int, default=200, help="longest answer (default: %(default)s)")
options = parser.parse_args()

pyramid = AdaptivePyramid.from_family(options.family)
pool = pyramid.pool()
arms = candidate_configs(pyramid.config, pool)
# Rewards are speeds divided by what a fast block reaches; the policy starts from what the throughput formula expects.
model = ThroughputModel(pool.costs, guessed_acceptance(pool))
speeds = [model.predict(arm).tokens_per_second for arm in arms]
reference = 1.5 * max(speeds)
policy = Softmax(len(arms), prior_means=[speed / reference for speed in speeds], prior_weights=2.0, seed=0)
controller = BanditController(arms, policy, SpeedReward(reference), pool)

chat = [{"role": "user", "content": "List the days of the week, then list them again in reverse order."}]
out = pyramid.generate(chat, max_new_tokens=options.tokens, control=controller)
print(out.text)
print(out.stats)
for label, blocks in Counter(block.config.label for block in out.stats.blocks).most_common():
    print(f"{blocks:4d} blocks  {label}")
