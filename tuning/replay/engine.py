"""Decoding without models: what any config would do on recorded traces, in counters and modelled time.

For greedy lossless methods, tokens and target passes are exactly the decoder's, and for two-tier routes every counter
is. One proviso: whether a draft model would have written EOS behind a token already refused is not recorded; it is taken
not to, and `unseen_passes` says how many passes that concerns. What deeper routes spend after a mid tier left the
target's text within a block is estimated, and so is everything under sampling and under rules that let the output drift.
Every result says which it is.

Modelled time is counters priced with a cost table: measured where the traces were recorded, or what-if (`what_if_costs.py`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.method import Method, resolve
from adaptive_pyramid.errors import check_number
from adaptive_pyramid.throughput import Acceptance, CostModel
from tuning.replay.block_simulation import block_table, block_tokens, compares_copies
from tuning.replay.block_table import COUNTS, BlockTable, Prices
from tuning.replay.environment import ReplayEnvironment
from tuning.replay.position_index import FAR, AcceptanceEstimate, PositionIndex, compared_below_target, next_true
from tuning.replay.trace_transforms import drifted, sampled
from tuning.replay.what_if_costs import CostTable
from tuning.traces.format import TraceSet

_WIDEST_BLOCK = 1024
_KEPT_DETAILS = 64  # a controller has at most some dozens of arms


@dataclass(frozen=True)
class StageCounts:
    """Sums over one tier's verifications."""

    rounds: int
    proposed: int
    accepted: int
    rejected: int
    emitted: int

    @property
    def acceptance_rate(self) -> float:
        """accepted / (accepted + rejected); NaN if nothing was tested."""
        tested = self.accepted + self.rejected
        return self.accepted / tested if tested else float("nan")

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification; NaN without one."""
        return self.emitted / self.rounds if self.rounds else float("nan")


@dataclass(frozen=True)
class ReplayResult:
    """What a config does on some traces.

    Args:
        tokens, blocks: sums. forwards: tier -> passes. stages: verifying tier -> counts.
        seconds: modelled, prompts included. prefill_seconds: the prompts' part. ar_seconds: target-only decoding's.
        drift: sum over emitted tokens (nats in greedy decoding, total variation in sampling); 0 for lossless methods.
        exact: whether every counter equals the decoder's, but for what `unseen_passes` says: draft passes behind a
            refused token, which the decoder would not make had the draft written EOS there.
        labels: sentences on what is estimated or modelled, and how.
        by_trace: tokens, blocks, seconds, prefill_seconds, ar_seconds as arrays [traces].
    """

    config: PyramidConfig
    tokens: int
    blocks: int
    forwards: dict[int, int]
    stages: dict[int, StageCounts]
    seconds: float
    prefill_seconds: float
    ar_seconds: float
    drift: float
    exact: bool
    unseen_passes: int
    labels: tuple[str, ...]
    by_trace: dict[str, np.ndarray]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else float("inf")

    @property
    def ratio_to_ar(self) -> float:
        """Speed over target-only decoding of the same tokens."""
        return self.ar_seconds / self.seconds if self.seconds else float("nan")

    @property
    def ratios(self) -> np.ndarray:
        """`ratio_to_ar` of every trace."""
        return self.by_trace["ar_seconds"] / self.by_trace["seconds"]


class Replay:
    """Plays configs over traces.

    Args:
        traces: what to replay. costs: a CostModel (taken as measured), a what-if CostTable, or None for
            the costs stored with the traces.
        method: its rules say how stages accept. overhead: seconds per verification outside the models.
        prefill: count the prompts' forwards. do_sample: estimate sampling at temperature 1; seed: of its draws and of
            those off the recorded text. acceptance: probabilities off the recorded text (default: means).

    Raises:
        ValueError: no traces, no costs, or a tier without any; an acceptance model of another rule than the method's.
    """

    def __init__(
        self,
        traces: TraceSet,
        costs: CostModel | CostTable | None = None,
        method: str | Method = "pyramid",
        overhead: float = 0.0,
        *,
        prefill: bool = True,
        do_sample: bool = False,
        seed: int = 0,
        acceptance: AcceptanceEstimate | None = None,
    ) -> None:
        if not len(traces):
            raise ValueError("there is nothing to replay: the trace set is empty")
        self.traces = traces
        self.header = traces.header
        self.method = resolve(method)
        self.overhead = check_number("overhead", overhead, minimum=0.0)
        self.prefill = prefill
        self.do_sample = do_sample
        self.costs, self.costs_label = _costs(costs, traces)
        widest = max(len(trace.prompt) + trace.max_new_tokens for trace in traces) + _WIDEST_BLOCK
        self.prices = Prices(self.costs, self.header, widest)
        _check_acceptance(acceptance, self.method, do_sample)
        divergence = self.method.divergence if "fuzzy" in (self.method.lower, self.method.top) else "js"
        self.flat = PositionIndex(traces, divergence, seed, acceptance)
        if do_sample:
            self.flat = sampled(self.flat, self.method.coupled, seed)
        self._details: dict[PyramidConfig, tuple[BlockTable, np.ndarray]] = {}
        self._counts = np.array([len(trace) for trace in traces])
        self._rows = np.concatenate([[0], np.cumsum(self._counts)])  # rows of a table that belong to each trace
        target = self.header.target
        self._ar = self._counts * (self.prices(target, 1) + self.overhead)
        if prefill:
            self._ar = self._ar + self.prices(target, self.flat.prompt) - self.prices(target, 1)

    def table(self, config: PyramidConfig) -> BlockTable:
        """Every block that `config` can run on these traces, one row per token of theirs."""
        return block_table(drifted(self.flat, config, self.method)[0], config, self.method, self.prices, self.overhead)

    def details(self, config: PyramidConfig) -> tuple[BlockTable, np.ndarray]:
        """(`table` with the events of every block, drift of a token accepted at each slot); the last few are kept."""
        if config not in self._details:
            flat, drift = drifted(self.flat, config, self.method)
            self._details[config] = (
                block_table(flat, config, self.method, self.prices, self.overhead, details=True),
                drift,
            )
            if len(self._details) > _KEPT_DETAILS:
                self._details.pop(next(iter(self._details)))
        return self._details[config]

    def play(self, config: PyramidConfig) -> ReplayResult:
        """`config` over all traces, from their first token to their last."""
        flat, drift = drifted(self.flat, config, self.method)
        starts = flat.positions[self._chain(block_tokens(flat, config, self.method))]
        table = block_table(flat, config, self.method, self.prices, self.overhead, starts=starts)
        trace = flat.trace[starts]
        late, prefill = self._catching_up(table, trace)
        seconds = table.seconds + late + prefill
        unseen = int(table.unseen.sum()) if self.header.eos else 0
        by_trace = {
            "tokens": self._counts,
            "blocks": np.bincount(trace, minlength=len(self.traces)),
            "ar_seconds": self._ar,
            "seconds": np.bincount(trace, seconds, len(self.traces)),
            "prefill_seconds": np.bincount(trace, prefill, len(self.traces)),
        }
        lossless = self.method.lossless and not self.do_sample
        exact = lossless and not bool(table.estimated.any())
        # The last token of a block is the target's own; of the others, those that only tau let pass drift.
        own = starts + table.tokens - 1
        return ReplayResult(
            config,
            tokens=int(self._counts.sum()),
            blocks=len(starts),
            forwards={tier: int(passes.sum()) for tier, passes in table.forwards.items()},
            stages={
                tier: StageCounts(**{name: int(counts[name].sum()) for name in COUNTS})
                for tier, counts in table.counts.items()
                if counts["rounds"].any()
            },
            seconds=float(seconds.sum()),
            prefill_seconds=float(prefill.sum()),
            ar_seconds=float(self._ar.sum()),
            drift=float(drift[flat.positions].sum() - drift[own].sum()),
            exact=exact,
            unseen_passes=unseen,
            labels=self._labels(config, table, exact, unseen),
            by_trace=by_trace,
        )

    def acceptance(self, config: PyramidConfig) -> dict[tuple[int, int], Acceptance]:
        """What the closed formula (`throughput.ThroughputModel`) needs: (proposer, verifier) -> Acceptance in `config`.

        Each pair by itself along the text, from every position: what a mid tier's tau lets through is not modelled.
        """
        pairs: dict[tuple[int, int], Acceptance] = {}
        for below, verifier in zip(config.route, config.route[1:]):
            for proposer in below if isinstance(below, tuple) else (below,):
                pairs[proposer, verifier] = self._pair(config, proposer, verifier)
        return pairs

    def _pair(self, config: PyramidConfig, proposer: int, verifier: int) -> Acceptance:
        stage = config.stage(verifier)
        asked, length, kept = self._offers(
            proposer, verifier, self.method.rule(verifier == config.target), stage.tau, stage.length
        )
        tested = int((kept + (kept < length)).sum())
        hit = length > 0
        # How much of what was asked for a lookup finds; models always draft it all.
        fill = 1.0 if proposer in self.header.models else float(length.sum() / max(1, asked[hit].sum()))
        return Acceptance(int(kept.sum()) / tested if tested else 0.0, float(hit.mean()), fill)

    def by_offset(self, proposer: int, verifier: int, rule: str, tau: float, length: int) -> list[tuple[int, int]]:
        """(accepted, tested) at each place of proposals of `length` tokens, one made before every token of the text."""
        _, offered, kept = self._offers(proposer, verifier, rule, tau, length)
        return [(int((kept > i).sum()), int(((offered > i) & (kept >= i)).sum())) for i in range(length)]

    def _offers(
        self, proposer: int, verifier: int, rule: str, tau: float, length: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(tokens asked for, proposed, accepted) from every position along the text, no further than its end."""
        flat = self.flat
        starts = flat.positions
        asked = np.minimum(length, flat.end[flat.trace[starts]] - starts)
        if proposer in self.header.models:
            refused_at = flat.cached(
                ("disagreement", proposer, verifier, rule, tau),
                lambda: next_true(flat.agreement(proposer, verifier, rule, tau) != 1),
            )
            return asked, asked, np.minimum(refused_at[starts] - starts, asked)
        available, match, _ = flat.copy(proposer, starts, starts)
        offered = np.minimum(asked, available)
        refused_at = flat.refusal(verifier, proposer, rule, tau)[starts]
        return asked, offered, np.minimum(np.minimum(refused_at - starts, match), offered)

    def environment(self, trace: int = 0) -> ReplayEnvironment:
        """One trace, to be stepped block by block under changing configs."""
        return ReplayEnvironment(self, trace)

    def plant(self, trace: int = 0) -> ReplayEnvironment:
        """The old name of `environment`."""
        warnings.warn("Replay.plant is now Replay.environment", DeprecationWarning, stacklevel=2)
        return self.environment(trace)

    def _chain(self, tokens: np.ndarray) -> np.ndarray:
        """Rows of the blocks that are really run, in order."""
        steps = tokens.tolist()
        rows = []
        for row, end in zip(self._rows[:-1].tolist(), self._rows[1:].tolist()):
            while row < end:
                rows.append(row)
                row += steps[row]
        return np.array(rows, np.int64)

    def _catching_up(self, table: BlockTable, trace: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds that each block's first forwards cost more where caches lag: (behind new text, behind the prompt)."""
        late_seconds, prefill_seconds = np.zeros(len(trace)), np.zeros(len(trace))
        start = table.starts - self.flat.first[trace]
        is_first = np.r_[True, trace[1:] != trace[:-1]]
        for tier, first in table.first.items():
            used = first > 0
            nothing = -self.flat.prompt[trace]
            # How far each cache reached after the last block that used it. Reach only grows, so a running maximum
            # carries it over blocks that did not; traces are kept apart by an offset.
            apart = trace << 40
            reach = apart + np.where(used, table.cached[tier] - self.flat.first[trace], nothing)
            before = np.maximum.accumulate(np.r_[-FAR, reach[:-1]])
            before = np.where(is_first, nothing, np.maximum(before - apart, nothing))
            lag = np.where(used, start - 1 - before, 0)
            text_lag = np.minimum(lag, start)
            plain, caught_up = self.prices(tier, first), self.prices(tier, first + text_lag)
            late_seconds += np.where(used, caught_up - plain, 0.0)
            if self.prefill:
                prefill_seconds += np.where(used, self.prices(tier, first + lag) - caught_up, 0.0)
        return late_seconds, prefill_seconds

    def _labels(self, config: PyramidConfig, table: BlockTable, exact: bool, unseen: int) -> tuple[str, ...]:
        labels = [f"modelled time: {self.costs_label}"]
        if self.do_sample:
            labels.append(
                "estimated: sampling at temperature 1, from distances between the tiers along the target's greedy text"
            )
        elif not self.method.lossless:
            labels.append("estimated: behind a drifting token the text is taken to go on as recorded")
        elif compares_copies(config, self.method, self.header):
            labels.append("estimated: a fuzzy stage above a lookup, whose distances are recorded in part")
        elif not exact:
            source = "mean acceptance rates" if self.flat.acceptance is None else "an acceptance model"
            labels.append(
                f"tokens and target passes exact; passes of lower tiers estimated, from {source}, in "
                f"{table.estimated.mean():.0%} of the blocks, where a mid tier left the target's text"
            )
        if unseen:
            labels.append(f"{unseen} draft passes behind a refused token, taken not to have written an end of text")
        return tuple(labels)


def replay(
    traces: TraceSet,
    config: PyramidConfig,
    costs: CostModel | CostTable | None = None,
    method: str | Method = "pyramid",
    **keywords: Any,
) -> ReplayResult:
    """One config over a trace set; for many configs, make one `Replay` and `play` them. Keywords as in `Replay`."""
    return Replay(traces, costs, method, **keywords).play(config)


def _check_acceptance(acceptance: AcceptanceEstimate | None, method: Method, do_sample: bool) -> None:
    if acceptance is None:
        return
    if do_sample:
        raise ValueError("an acceptance model describes greedy decoding; expected acceptance=None with do_sample=True")
    compared = compared_below_target(method)
    if compared is not None and acceptance.divergence != compared:
        raise ValueError(
            f"the acceptance model compares {acceptance.divergence!r} with tau, stages of method {method.name!r} below "
            f"the target compare {compared!r}: fit one with divergence={compared!r}"
        )


def _costs(costs: CostModel | CostTable | None, traces: TraceSet) -> tuple[CostModel, str]:
    if isinstance(costs, CostTable):
        return costs.model(traces.header.model_names), costs.label
    if costs is not None:
        return costs, "the cost table that was passed"
    if traces.header.costs is None:
        raise ValueError("these traces hold no measured costs: pass costs=, or record them with costs")
    return (
        traces.header.costs,
        f"costs measured where the traces were recorded ({traces.header.device or 'device unknown'})",
    )
