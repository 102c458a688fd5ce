"""Policies by name."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from policies.base import Policy
from policies.discounted_ucb import DiscountedUCB
from policies.epsilon_greedy import EpsilonGreedy
from policies.exp3 import Exp3
from policies.lin_ucb import LinUCB
from policies.sliding_window_ucb import SlidingWindowUCB
from policies.thompson import ThompsonSampling
from policies.ucb1 import UCB1
from policies.ucb_v import UCBV

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (EpsilonGreedy, UCB1, UCBV, DiscountedUCB, SlidingWindowUCB, ThompsonSampling, Exp3, LinUCB)
}


def make_policy(name: str, n_arms: int, **options: Any) -> Policy:
    """The policy called `name` (a key of `POLICIES`) over `n_arms` arms.

    `options` are the policy's own keywords and those common to all: `prior_means`, `prior_weights`, `seed`.
    Raises ValueError for an unknown name, TypeError for an unknown keyword; both offer the nearest valid one.

    >>> make_policy("ucb1", 3, prior_means=[0.2, 0.9, 0.4], prior_weights=20).select()
    1
    """
    if name not in POLICIES:
        raise ValueError(_unknown("policy", name, list(POLICIES)))
    own = list(inspect.signature(POLICIES[name]).parameters.values())
    common = list(inspect.signature(Policy).parameters.values())
    known = sorted({p.name for p in own + common if p.kind is p.KEYWORD_ONLY})
    for option in options:
        if option not in known:
            raise TypeError(_unknown(f"option of policy {name!r}:", option, known))
    return POLICIES[name](n_arms, **options)


def _unknown(kind: str, name: object, known: list[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}{hint} (known: {', '.join(known)})"
