"""Multi-armed bandits in plain numpy: ints in, ints out, nothing known about what an arm is.

>>> policy = make_policy("thompson", 3, seed=1)
>>> for _ in range(200):
...     arm = policy.select()
...     policy.update(arm, (0.2, 0.9, 0.4)[arm])
>>> policy.select()
1
"""

from __future__ import annotations

from policies.base import Policy
from policies.discounted_ucb import DiscountedUCB
from policies.epsilon_greedy import EpsilonGreedy
from policies.exp3 import Exp3
from policies.lin_ucb import LinUCB
from policies.registry import POLICIES, make_policy
from policies.sliding_window_ucb import SlidingWindowUCB
from policies.thompson import ThompsonSampling
from policies.ucb1 import UCB1
from policies.ucb_v import UCBV

__all__ = [
    "POLICIES",
    "DiscountedUCB",
    "EpsilonGreedy",
    "Exp3",
    "LinUCB",
    "Policy",
    "SlidingWindowUCB",
    "ThompsonSampling",
    "UCB1",
    "UCBV",
    "make_policy",
]
