"""How much each tier accepts of what another proposes: estimates that every block improves, also for what it did not run.

Exact, given the block's own text (greedy decoding, and sampling up to the first refusal):
- lookups that the target did not ask (`Shadow`);
- any shorter length, because acceptance is kept by position: the start of a longer proposal is the shorter one;
- other thresholds at the same verifier: position i passes at tau' if its distance is at most tau', else as it did; with a
  drift budget, as far as a bucket of its own pays for it.
Estimated, and held with less weight:
- thresholds whose refusal would have come later than the real one while sampling: chances 1 - distance stand for draws;
- pairs of a chain that it does not run itself (`_through`);
- pairs never seen: `_priors`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import PyramidConfig
from ..stats import BlockStats, Shadow, Verification, nanmean
from .arms import LOOKUP, MODEL_PAIR
from .change_detection import PageHinkley
from .forecast import Forecast, Pair, Rates, pairs_of
from .planner_settings import DEFAULT_SETTINGS, PlannerSettings
from .positions import N_BUCKETS, at_threshold, bucket_of, by_bucket, by_bucket_sums
from .warm_start import WarmStart

_CONTEXTS = 3  # values of each of the two context features
_WARM_START_LENGTH = 8  # positions of a proposal that a warm start's rate is spread over


@dataclass
class TextState:
    """Where one text stands, in view of its last block.

    Args:
        buckets: per pair, what would be left in the drift bucket, had this pair and threshold spent it alone.
        context: how sure the target is, and how the last proposal to it fared (see `Estimates`).
    """

    buckets: list[float]
    context: tuple[int, int] = (1, 1)

    def update_context(self, top: Verification, entropy_edges: tuple[float, float]) -> None:
        """Take in the target's verdict on the last block."""
        sure = self.context[0]
        level = nanmean(top.entropy[: top.accepted + 1])
        if not math.isnan(level):
            sure = int(level > entropy_edges[0]) + int(level > entropy_edges[1])
        fared = 1 if not top.proposed else 0 if not top.accepted else 1 + (top.accepted == top.proposed)
        self.context = (sure, fared)


class Estimates:
    """Discounted acceptance counts per pair, by position and by context bucket.

    Easy and hard stretches of text come in runs, so what the last block showed tells something about the next one. Two
    context features of three values each: the target's entropy (sure, middling, unsure) and how the last proposal to it
    fared (refused at once; in part, or there was none; not at all); a pair of values is a context bucket. Acceptance in a
    context bucket shifts the estimate, the less the further into the proposal.

    Args:
        forecast: names the pairs. model_tiers: tiers with a model. greedy: whether a distance above 0 means refusal.
        drift_budget: per token, or None. settings: weights and memories. counterfactual: see `PlannerController`.
    """

    def __init__(
        self,
        forecast: Forecast,
        model_tiers: Sequence[int],
        drift_budget: float | None = None,
        settings: PlannerSettings = DEFAULT_SETTINGS,
        counterfactual: bool = True,
    ) -> None:
        self.n_tiers = forecast.n_tiers
        self.target = self.n_tiers - 1
        self.drift_budget = drift_budget
        self.counterfactual = counterfactual
        self.settings = settings
        self._keep, self._keep_idle = math.exp(-1 / settings.memory), math.exp(-1 / settings.idle_memory)
        self._fade = np.array(settings.context_fade)  # how far into a proposal what came before it tells anything
        self.pairs = forecast.pairs
        self._index = {pair: i for i, pair in enumerate(self.pairs)}
        self._siblings: dict[Pair, list[int]] = {}  # pairs that differ in tau alone, under the one of tau 0
        for i, pair in enumerate(self.pairs):
            self._siblings.setdefault(pair._replace(tau=0.0), []).append(i)
        # One row per pair, so that learning and forgetting are one operation; the names are views of its columns.
        n = len(self.pairs)
        self.counts = np.zeros((n, 2 * N_BUCKETS + 4 * _CONTEXTS))
        self.accepted, self.tested = self.counts[:, :N_BUCKETS], self.counts[:, N_BUCKETS : 2 * N_BUCKETS]
        # [pair, accepted or tested, context feature, its value]
        self.by_context = self.counts[:, 2 * N_BUCKETS :].reshape(n, 2, 2, _CONTEXTS)
        self.asked = np.full((2, self.n_tiers, _CONTEXTS), 1e-9)  # lookups: hits, requests, by how the last one fared
        self.filled = np.full((2, self.n_tiers), 1e-9)  # tokens found, tokens asked for
        self._position_bucket = np.array([bucket_of(i) for i in range(forecast.longest)])
        self._is_lookup = np.array([pair.proposer not in model_tiers for pair in self.pairs])
        self._guess = np.where(self._is_lookup, LOOKUP.rate, MODEL_PAIR.rate)
        self._lookup_tiers = np.array([tier not in model_tiers for tier in range(self.n_tiers)])
        self._family = self._relatives()
        self._alarms: dict[int, PageHinkley] = {}
        self.changes = 0

    # ------------------------------------------------------------------ learning

    def assume(self, warm_start: WarmStart) -> None:
        """Begin with what is known, worth `warm_start_weight` tested positions or requests per pair.

        Of pairs that differ in thresholds alone it is told to the one that it was seen at: the tuned config's, else the
        one without thresholds; the others lean on it.
        """
        config = warm_start.config
        for i, pair in enumerate(self.pairs):
            known = warm_start.acceptance.get(pair[:2])
            seen_at = Pair(*pair[:2], owner=pair.owner)
            if config is not None and pair.verifier in config.route[1:]:
                depth = config.route.index(pair.verifier)
                seen_at = next((p for p in pairs_of(config, depth, pair.owner) if p[:2] == pair[:2]), seen_at)
            if known is None or pair != seen_at:
                continue
            reached = by_bucket_sums(known.rate**position for position in range(_WARM_START_LENGTH))
            tested = self.settings.warm_start_weight * reached / reached.sum()
            self.tested[i] += tested
            self.accepted[i] += known.rate * tested
            if self._lookup_tiers[pair.proposer]:
                self.asked[:, pair.proposer] += (
                    self.settings.warm_start_weight / _CONTEXTS * np.array([[known.hit], [1.0]])
                )

    def begin(self) -> TextState:
        """Another text begins: its context is unknown and its drift bucket empty."""
        return TextState(
            [0.0 if self.drift_budget and pair.verifier == self.target else math.inf for pair in self.pairs]
        )

    def observe(self, block: BlockStats, greedy: bool, arm: int, text: TextState) -> None:
        """Learn from every verification of a block of `text` that ran `arm`; `text` moves on."""
        owner = -1 if self.counterfactual else arm
        self.counts *= self._keep_idle
        config = block.config
        depth_of = {tier: depth for depth, tier in enumerate(config.route) if depth}
        for verification in block.verifications:
            depth = depth_of.get(verification.tier)
            if depth is None:
                continue
            if depth == 1:
                self._observe_bottom(config, verification, text)
            if verification.proposed:
                pair = next((p for p in pairs_of(config, depth, owner) if p.proposer == verification.proposer), None)
                if pair is not None:
                    self._observe_pair(pair, verification, greedy, text)
        if self.counterfactual:
            for shadow in block.shadows:
                self._observe_shadow(shadow, text)
            if len(config.route) > 2 and not isinstance(config.route[0], tuple):
                self._through(config, block, text)
        if block.verifications:
            text.update_context(block.verifications[-1], self.settings.entropy_edges)

    def context_bucket(self, text: TextState) -> int:
        """Number of the context bucket that `text` is in."""
        return text.context[0] * _CONTEXTS + text.context[1] if self.counterfactual else 0

    def _observe_bottom(self, config: PyramidConfig, v: Verification, text: TextState) -> None:
        """Who answered: hits and fill of the bottom tiers that were asked."""
        bottom = config.route[0] if isinstance(config.route[0], tuple) else (config.route[0],)
        for tier in bottom:
            if self._lookup_tiers[tier]:
                self.asked[:, tier] *= self._keep
                self.asked[1, tier, text.context[1]] += 1
                self.asked[0, tier, text.context[1]] += v.proposer == tier
                if v.proposer == tier:
                    self.filled[:, tier] = self.filled[:, tier] * self._keep + (v.proposed, config.stage(v.tier).length)
            if v.proposer == tier:
                break

    def _observe_shadow(self, shadow: Shadow, text: TextState) -> None:
        """A lookup that the target did not ask is as well known as one that it did, up to the end of the block."""
        self.asked[:, shadow.tier] *= self._keep
        self.asked[1, shadow.tier, text.context[1]] += 1
        self.asked[0, shadow.tier, text.context[1]] += shadow.proposed > 0
        i = self._index.get(Pair(shadow.tier, self.target))
        if i is not None and shadow.tested:
            self._add(i, by_bucket(shadow.accepted), by_bucket(shadow.tested), text)

    def _observe_pair(self, pair: Pair, v: Verification, greedy: bool, text: TextState) -> None:
        self._watch(pair, v)
        for i in self._siblings[pair._replace(tau=0.0)]:
            own = self.pairs[i].tau
            accepted: Sequence[float]
            tested: Sequence[float]
            if own != pair.tau and not self.counterfactual:
                continue
            if own == pair.tau and text.buckets[i] == math.inf:
                accepted, tested = by_bucket(v.accepted), by_bucket(v.tested)
            else:
                accepted, tested, text.buckets[i] = at_threshold(
                    v, pair.tau, own, greedy, text.buckets[i], self.drift_budget or 0.0
                )
            self._add(i, accepted, tested, text)

    def _add(
        self, i: int, accepted: Sequence[float], tested: Sequence[float], text: TextState, weight: float = 1.0
    ) -> None:
        by_context = [0.0] * (4 * _CONTEXTS)
        for kind, value in enumerate((sum(accepted), sum(tested))):
            for which, value_now in enumerate(text.context):
                by_context[(2 * kind + which) * _CONTEXTS + value_now] = value
        row = self.counts[i]
        row *= self._keep**weight
        row += weight * np.array([*accepted, *tested, *by_context])

    def _through(self, config: PyramidConfig, block: BlockStats, text: TextState) -> None:
        """What a chain of three shows of pairs that it does not run.

        The target's proposal is the middle tier's rounds in a row; a refused one ends with the middle tier's own token.
        (bottom, target): where the middle tier put its own token, the target would have refused the bottom's, for sure if
        it took that token, most likely if it refused both. (middle, target) without thresholds below: the target's verdicts on the middle tier's own choices.
        """
        if len(config.route) != 3 or not block.verifications or block.verifications[-1].tier != self.target:
            return
        bottom, (middle, target) = config.route[0], config.verifiers
        ran, relaxes = config.stage(target).tau, config.stage(middle).tau
        top = block.verifications[-1]
        told = (
            self._siblings.get(Pair(bottom, target), [])
            if isinstance(bottom, int) and bottom not in {shadow.tier for shadow in block.shadows}
            else []
        )
        for i in told + (self._siblings.get(Pair(middle, target), []) if relaxes else []):
            pair = self.pairs[i]
            accepted = tested = 0
            position = 0
            for v in block.verifications[:-1]:
                for offset in range(v.emitted):
                    if position >= top.tested:
                        break
                    distance, kept = top.distance[position], position < top.accepted
                    passes = distance <= pair.tau or (kept and not 0 < distance <= ran)
                    if pair.proposer == bottom:
                        counts = offset < v.accepted or v.rejected
                        passes = passes and offset < v.accepted
                    else:
                        counts = offset >= v.accepted or not 0 < v.distance[offset] <= relaxes
                    if counts:
                        accepted, tested = accepted + passes, tested + 1
                    position += 1
            if tested:
                rest = [0.0] * (N_BUCKETS - 1)  # its place in a proposal of its own is not known: counted as the first
                self._add(i, [accepted, *rest], [tested, *rest], text, self.settings.indirect_weight)

    def _watch(self, pair: Pair, v: Verification) -> None:
        """Forget faster where acceptance is not what it was."""
        row = self.counts[self._index[pair]].tolist()
        known = sum(row[N_BUCKETS : 2 * N_BUCKETS])
        if known < self.settings.change_min_seen:
            return
        rate = min(0.99, sum(row[:N_BUCKETS]) / known)
        # Tests stop at a refusal, so their number depends on the outcome; only a fixed scale leaves the mean at 0.
        usual = (1 - rate**v.proposed) / (1 - rate)
        surprise = (v.accepted - v.tested * rate) / math.sqrt(usual * max(0.05, rate * (1 - rate)))
        alarm = self._alarms.setdefault(
            self._index[pair], PageHinkley(self.settings.change_slack, self.settings.change_threshold)
        )
        if alarm.observe(min(3.0, max(-3.0, surprise))):
            self.changes += 1
            # Another kind of text for one pair most likely is one for all, less surely so.
            self.counts *= np.array(
                [
                    [self.settings.changed_keep if other[:2] == pair[:2] else self.settings.changed_keep_others]
                    for other in self.pairs
                ]
            )

    # ------------------------------------------------------------------ what is believed

    def rates(self, optimism: float) -> Rates:
        """Opinions for every context bucket: the mean at row 2 * bucket, some standard deviations above it at the next.

        Some: `optimism`, and up to twice that more for what was hardly ever seen.
        """
        total = self.counts[:, : 2 * N_BUCKETS].reshape(-1, 2, N_BUCKETS).sum(axis=2)
        known = total[:, 1]
        prior = self._priors(total[:, 0], known)
        pooled = (total[:, 0] + self.settings.prior_weight * prior) / (known + self.settings.prior_weight)
        # Each bucket leans on the one before it, the first one on all.
        weight = 1 / (self.tested + self.settings.neighbour_weight).T
        own, leaning = self.accepted.T * weight, self.settings.neighbour_weight * weight
        mean = np.empty_like(own)
        lean = pooled
        for bucket in range(N_BUCKETS):
            lean = mean[bucket] = own[bucket] + leaning[bucket] * lean
        mean = mean.T[None]
        if self.counterfactual:
            mean = mean + self._shifts(prior)[:, :, None] * self._fade
        deviation = np.sqrt(np.maximum(0.1, pooled * (1 - pooled)) / (known + 1))
        hit, spread = self._hits()
        fill = np.where(self._lookup_tiers, (self.filled[0] + 4) / (self.filled[1] + 4), 1.0)
        contexts = len(mean)
        opinions = np.empty((contexts, 2, *mean.shape[1:]))
        opinions[:, 0] = mean
        # More optimism for what was hardly ever seen: trying it costs little, and may pay for the rest of the text.
        extra = optimism * (1 + self.settings.unseen_optimism / (1 + known / 4))
        opinions[:, 1] = mean + (extra * deviation)[:, None]
        opinions = opinions.clip(0.001, 0.995).reshape(2 * contexts, *mean.shape[1:])
        if contexts == 1:
            hit, spread = hit[1:2], spread[1:2]
        else:
            hit, spread = np.tile(hit, (_CONTEXTS, 1)), np.tile(spread, (_CONTEXTS, 1))
        hits = np.stack([hit, np.minimum(1.0, hit + optimism * spread)], axis=1).reshape(2 * contexts, -1)
        return Rates(opinions.take(self._position_bucket, axis=2), hits, np.minimum(1.0, fill))

    def _hits(self) -> tuple[np.ndarray, np.ndarray]:
        """Share of requests that bottom tiers answer, and its standard deviation, each [how the last one fared, tier]."""
        hits, requests = self.asked
        overall = (hits.sum(axis=1) + 2 * LOOKUP.hit) / (requests.sum(axis=1) + 2)
        hit = (hits.T + self.settings.hit_weight * overall) / (requests.T + self.settings.hit_weight)
        spread = np.sqrt(hit * (1 - hit) / (requests.sum(axis=1) + 2))
        return np.where(self._lookup_tiers, hit, 1.0), np.where(self._lookup_tiers, spread, 0.0)

    def _shifts(self, prior: np.ndarray) -> np.ndarray:
        """How much acceptance differs from its overall rate in every context bucket, [contexts, pairs]."""
        total = self.by_context.sum(axis=3, keepdims=True)
        overall = (total[:, 0] + self.settings.prior_weight * prior[:, None, None]) / (
            total[:, 1] + self.settings.prior_weight
        )
        accepted, tested = self.by_context[:, 0], self.by_context[:, 1]
        shift = (accepted + self.settings.context_weight * overall) / (tested + self.settings.context_weight) - overall
        return (shift[:, 0, :, None] + shift[:, 1, None, :]).reshape(len(prior), -1).T

    def _relatives(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Per pair the number of its (proposer, verifier); per such name those of (proposer, target) and (verifier, target),
        whether both exist, and which names have a smaller model for a proposer, at the same target."""
        names = list(dict.fromkeys(pair[:2] for pair in self.pairs))
        number = {name: i for i, name in enumerate(names)}
        below = np.array([number.get((p, self.target), -1) if v != self.target else -1 for p, v in names])
        above = np.array([number.get((v, self.target), -1) if v != self.target else -1 for p, v in names])
        smaller = np.array(
            [[v == w == self.target and q < p and not self._lookup_tiers[q] for q, w in names] for p, v in names]
        )
        return np.array([number[pair[:2]] for pair in self.pairs]), below, above, (below >= 0) & (above >= 0), smaller

    def _priors(self, own_accepted: np.ndarray, own_tested: np.ndarray) -> np.ndarray:
        """A guess per pair, from its relatives where they are known.

        Pairs that differ in thresholds alone lean on each other. A larger model is expected to agree with the target at
        least as often as a smaller one. Two tiers agree where both agree with the target, and on some of their common
        errors: a(D, Q) is about a(D, T) + .3 (1 - a(Q, T)).
        """
        if not self.counterfactual:
            return self._guess
        name, below, above, related, smaller = self._family
        guess = np.zeros(len(below))
        guess[name] = self._guess
        accepted, tested = np.bincount(name, own_accepted), np.bincount(name, own_tested)
        rate = (accepted + self.settings.prior_weight * guess) / (tested + self.settings.prior_weight)
        guess = np.maximum(guess, np.where(smaller, rate, 0.0).max(axis=1))
        rate = (accepted + self.settings.prior_weight * guess) / (tested + self.settings.prior_weight)
        guess = np.where(related, np.minimum(0.98, rate[below] + 0.3 * (1 - rate[above])), guess)
        # Its own counts come in later: here they would count twice.
        return (accepted[name] - own_accepted + self.settings.prior_weight * guess[name]) / (
            tested[name] - own_tested + self.settings.prior_weight
        )

    # ------------------------------------------------------------------ saved state

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in _SAVED}
        return {
            **arrays,
            "pairs": [[*pair[:3], list(pair.lower), pair.owner] for pair in self.pairs],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pairs = [Pair(p, v, tau, tuple(lower), owner) for p, v, tau, lower, owner in state["pairs"]]
        if pairs != self.pairs:
            raise ValueError(f"this state has estimates for {pairs}, expected {self.pairs}")
        arrays = {name: np.array(state[name], dtype=float) for name in _SAVED}
        for name, array in arrays.items():
            if array.shape != getattr(self, name).shape or not np.isfinite(array).all():
                raise ValueError(
                    f"{name} in the state must be finite numbers of shape {getattr(self, name).shape}, got {array.shape}"
                )
        for name, array in arrays.items():
            getattr(self, name)[:] = array


_SAVED = ("counts", "asked", "filled")
