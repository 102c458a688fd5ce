"""Named methods: which rule and which divergence each stage uses. What control may not change."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config import PyramidConfig, Route
from ..errors import check_number, shown, unknown_name
from ..names import DIVERGENCE_NAMES, RULE_NAMES


@dataclass(frozen=True, slots=True)
class Method:
    """Which rule each stage verifies with.

    Args:
        name: as in the literature, or any of your own.
        lower: rule of every stage below the target. top: the target's rule. See `verify` for the four rules.
        divergence: what a `fuzzy` rule compares with tau. `relaxed` compares total variation of processed distributions
            (sampling) or log-prob regret in nats (greedy) whatever stands here, because that is what drifts.
        shape: whether the route is part of the method: "target", "two" (draft and target; the config's own pair if it
            names one) or "all" (the config's route, by default every tier); None = control chooses.
    """

    name: str
    lower: str = "exact"
    top: str = "exact"
    divergence: str = "js"
    shape: str | None = None

    def __post_init__(self) -> None:
        for field_name in ("lower", "top"):
            if getattr(self, field_name) not in RULE_NAMES:
                raise ValueError(unknown_name(f"rule in Method.{field_name}", getattr(self, field_name), RULE_NAMES))
        if self.divergence not in DIVERGENCE_NAMES:
            raise ValueError(unknown_name("divergence", self.divergence, DIVERGENCE_NAMES))
        if self.shape not in (None, "target", "two", "all"):
            raise ValueError(unknown_name("method shape", self.shape, ("target", "two", "all")))

    def rule(self, is_target: bool) -> str:
        return self.top if is_target else self.lower

    @property
    def lossless(self) -> bool:
        """Whether the output is distributed exactly as the target's, whatever the thresholds."""
        return self.top in ("exact", "match")

    @property
    def coupled(self) -> bool:
        """Whether sampling shares keyed noise between tiers.

        Only a test against the verifier's own draw may share it; one `exact` stage needs residuals that are
        independent of the proposal, and then every stage draws from an ordinary generator.
        """
        return "exact" not in (self.lower, self.top) and (self.lower, self.top) != ("relaxed", "relaxed")

    def route(self, config: PyramidConfig) -> Route | None:
        """The route this method runs under `config`; None if control chooses it."""
        target = config.target
        if self.shape == "target":
            return (target,)
        if self.shape == "two" and target > 0:
            return config.route if len(config.route) == 2 else (0, target)
        return config.route if self.shape else None


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("ar", "match", "match", shape="target"),  # so that a seed gives the ids that it gives with `pyramid`
        Method("sd", "exact", "exact", shape="two"),
        Method("fsd", "fuzzy", "fuzzy", shape="two"),
        Method("psd_a", "match", "fuzzy", shape="all"),
        Method("psd_f", "fuzzy", "fuzzy", shape="all"),
        Method("polybasic", "exact", "exact", shape="all"),
        Method("pyramid", "relaxed", "exact"),
    )
}


def resolve(method: str | Method, *, seeded: bool = False, drift_budget: float | None = None) -> Method:
    """The method a request really runs.

    `pyramid` with a seed matches the target's own keyed draw (same seed, same ids); with a drift budget above 0 its
    target stage is relaxed within that budget. A budget with any other method is an error.

    Raises:
        ValueError: unknown name, a negative budget, or a budget for a method that cannot keep one.
    """
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(unknown_name("method", method, METHODS))
        method = METHODS[method]
    if not isinstance(method, Method):
        raise TypeError(f"method must be a name or a Method, got {shown(method)}")
    if drift_budget is not None:
        check_number("drift_budget", drift_budget, minimum=0.0)
        if method.top != "relaxed" and method.name != "pyramid":
            raise ValueError(
                f"drift_budget needs method 'pyramid' or a relaxed target stage; {method.name!r} has "
                f"{method.top!r} at the target, which {'does not drift' if method.lossless else 'has no bucket'}"
            )
    if method.name == "pyramid" and method.top == "exact":
        if drift_budget:
            return replace(method, top="relaxed")
        if seeded:
            return replace(method, top="match")
    return method
