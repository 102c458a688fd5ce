"""Recording traces with real models: the target's greedy answer first, then every tier along it, 16 ids a forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adaptive_pyramid.config import PyramidConfig, StageConfig
from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.decoding.divergence import divergence, entropy
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.decoding.sampling import best
from adaptive_pyramid.decoding.scorer import Scorer
from adaptive_pyramid.decoding.verify import point_logits
from adaptive_pyramid.errors import check_int
from adaptive_pyramid.models.families import Family, source_text
from adaptive_pyramid.prompts import prompt_ids
from adaptive_pyramid.request import GenerationRequest
from tuning.tasks.task import Task
from tuning.traces.format import DIVERGENCES, NOTHING, Header, TierInfo, Trace, TraceSet
from tuning.traces.measured_costs import cost_table
from tuning.traces.ngram_index import NgramIndex

# Positions per forward, as many as a verification has. Not more: half precision rounds differently in wide forwards,
# and quantised tiers use their source's weights there (one agreed with its target on .997 of the tokens, not .97).
_ROWS = 16
_SAVE_EVERY = 20.0  # seconds of work that a killed process can lose


def tier_infos(decoder: PyramidDecoder, family: Family | None = None) -> tuple[TierInfo, ...]:
    """What a header says of a decoder's tiers; TypeError for a foreign candidate generator: it cannot be replayed.

    family: gives the tiers' names and sources.
    """
    infos = []
    for tier, member in enumerate(decoder.tiers):
        name = family.tier_names[tier] if family is not None else f"tier{tier}"
        source = source_text(family.sources[name], member) if family is not None else ""
        if tier in decoder.scorers:
            infos.append(TierInfo(name, source, max_context=decoder.scorers[tier].max_context))
        elif isinstance(member, PromptLookup):
            size = (member.max_ngram, member.min_ngram)
            infos.append(TierInfo(name, source, size, decoder._drafters[tier].usable_ids))
        else:
            raise TypeError(
                f"tier {tier} ({type(member).__name__}) cannot be recorded; expected a model or a PromptLookup"
            )
    return tuple(infos)


def record(
    decoder: PyramidDecoder,
    prompt: Sequence[int],
    max_new_tokens: int,
    eos: Sequence[int] = (),
    *,
    answer: Sequence[int] | None = None,
    task: str = "",
    example: str = "",
    turn: int = 0,
) -> Trace:
    """Decode greedily with the target alone, then score the answer with every tier.

    Args:
        prompt: token ids. eos: ids that end the answer. answer: the target's output, if it was decoded already.
        task, example, turn: the trace's name within its set.
    """
    check_int("max_new_tokens", max_new_tokens, 1)
    prompt = [int(token) for token in prompt]
    ids = _decoded(decoder, prompt, max_new_tokens, eos) if answer is None else [int(token) for token in answer]
    if not 0 < len(ids) <= max_new_tokens:
        raise ValueError(f"the answer must have between 1 and max_new_tokens={max_new_tokens} ids, got {len(ids)}")
    infos = tier_infos(decoder)
    n = len(ids)
    copies = {
        tier: NgramIndex(prompt + ids, len(prompt), *info.lookup, info.usable_ids)
        for tier, info in enumerate(infos)
        if info.lookup is not None
    }
    readable = {tier: _readable(scorer, prompt, ids) for tier, scorer in decoder.scorers.items()}
    pairs = Header(infos).pairs
    top = np.full((len(infos), n), NOTHING, np.int32)
    source = np.full((len(infos), n), NOTHING, np.int32)
    logprob, gap, entropies = (np.full((len(infos), n), np.nan, np.float32) for _ in range(3))
    distances = np.full((len(DIVERGENCES), len(pairs), n), np.nan, np.float32)
    for tier, copy in copies.items():
        for i in range(n):
            source[tier, i] = copy.source(i, i)
            top[tier, i] = (copy.tokens(i, source[tier, i], 1) or [NOTHING])[0]
    departures = np.array(
        [(tier, *where) for tier, copy in copies.items() for where in copy.departures()], np.int32
    ).reshape(-1, 3)
    departure_regret = np.full((len(departures), len(infos)), np.nan, np.float32)
    with torch.inference_mode():
        # The first token comes with the prompt, as in decoding; alone, so that no other shares that wide forward.
        for start in (0, *range(1, n, _ROWS)):
            stop = min(start + _ROWS, n) if start else 1
            logits = {
                tier: _logits(scorer, prompt, ids, start, min(stop, readable[tier]))
                for tier, scorer in decoder.scorers.items()
            }
            for tier, scores in logits.items():
                rows = slice(start, start + len(scores))
                log_p = scores - scores.logsumexp(-1, keepdim=True)
                own = log_p.gather(-1, torch.tensor(ids[rows], device="cpu")[:, None])[:, 0]
                top[tier, rows], logprob[tier, rows], gap[tier, rows] = best(scores), own, log_p.amax(-1) - own
                entropies[tier, rows] = entropy(scores)
                leaving = np.flatnonzero((departures[:, 1] >= rows.start) & (departures[:, 1] < rows.stop))
                at = torch.from_numpy(departures[leaving, 1:].astype(np.int64)) - torch.tensor([start, 0], device="cpu")
                departure_regret[leaving, tier] = (scores.amax(-1)[at[:, 0]] - scores[at[:, 0], at[:, 1]]).numpy()
            for column, (low, high) in enumerate(pairs):
                p, q = logits[high], logits.get(low)
                here = np.flatnonzero(top[low, start : start + len(p)] != NOTHING)
                if not len(here):
                    continue
                q = point_logits(torch.from_numpy(top[low, start + here]).long(), p.shape[-1]) if q is None else q[here]
                for row, name in enumerate(DIVERGENCES):
                    distances[row, column, start + here] = divergence(name)(p[here], q)
    return Trace(
        task,
        example,
        turn,
        max_new_tokens,
        ids[-1] in set(eos),
        np.array(prompt, np.int32),
        np.array(ids, np.int32),
        top,
        logprob,
        gap,
        entropies,
        distances,
        source,
        departures,
        departure_regret,
    )


def record_answers(
    decoder: PyramidDecoder,
    prompts: Sequence[Sequence[int]],
    answers: Iterable[Sequence[int]],
    progress: Callable[[], None] = lambda: None,
) -> TraceSet:
    """Traces of answers that the target has written already, or writes when asked for the next one.

    `progress` is called after each; caches end up empty.
    """
    traces = TraceSet(Header(tier_infos(decoder)))
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        traces.traces.append(record(decoder, prompt, len(answer), answer=answer, example=str(index)))
        progress()
    decoder.clear_caches()
    return traces


def _readable(scorer: Scorer, prompt: list[int], ids: list[int]) -> int:
    """How many leading positions of the answer a tier can be asked about (a shorter context, a smaller vocabulary)."""
    n = len(ids)
    if scorer.max_context is not None:
        n = min(n, scorer.max_context - len(prompt) + 1)
    if not scorer.is_target:
        unknown = next((i for i, token in enumerate(prompt + ids) if token >= scorer.embeddings), None)
        if unknown is not None:
            n = min(n, unknown - len(prompt) + 1)
    return max(n, 0)


def _logits(scorer: Scorer, prompt: list[int], ids: list[int], start: int, stop: int) -> torch.Tensor:
    """Logits that chose ids[start:stop], float32 [stop - start, V] on the CPU."""
    if stop <= start:
        return torch.empty(0, scorer.vocab_size, device="cpu")
    return scorer.along(prompt + ids[:stop], len(prompt) + start, width=_ROWS).cpu()


def _decoded(decoder: PyramidDecoder, prompt: list[int], max_new_tokens: int, eos: Sequence[int]) -> list[int]:
    request = GenerationRequest(tuple(prompt), max_new_tokens, eos=frozenset(eos))
    target_only = PyramidConfig((StageConfig(1),) * decoder.target, (decoder.target,))
    return [token for block in decoder.blocks(request, target_only, "ar") for token in block.tokens]


def header_of(
    family: Family, decoder: PyramidDecoder, costs: bool = True, progress: Callable[[], None] = lambda: None
) -> Header:
    """The header for traces of a family. costs: measure them, calling `progress` after every forward."""
    import transformers

    target = decoder.tiers[-1]
    ends = target.generation_config.eos_token_id
    table = None
    if costs:
        table = cost_table(
            decoder, family.tokenizer("Once upon a time there was a lighthouse.").input_ids, progress=progress
        )
    return Header(
        tier_infos(decoder, family),
        () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends),
        family=family.name,
        tokenizer=str(family.tokenizer.name_or_path or type(family.tokenizer).__name__).rstrip("/").split("/")[-1],
        dtype=str(target.dtype).removeprefix("torch."),
        device=str(target.device),
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
        costs=table,
    )


def record_task(
    traces: TraceSet,
    decoder: PyramidDecoder,
    tokenizer: Any,
    task: Task,
    max_new_tokens: int | None = None,
    path: Path | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Add to `traces` every turn of every example of `task` that is not there yet.

    Later turns follow the target's own replies.

    Args:
        max_new_tokens: default: the task's. path: where to save now and then, and at the end, even an interrupted one.
        progress: called after every turn.

    Raises:
        ValueError: traces of the same names that were recorded from other prompts or with another length.
    """
    limit = task.max_new_tokens if max_new_tokens is None else max_new_tokens
    traces.header = replace(traces.header, labels={**traces.header.labels, task.name: task.label})
    known = {trace.key: trace for trace in traces}
    saved, written = time.monotonic(), len(traces)
    try:
        for example in task.examples:
            replies: list[str] = []
            for turn in range(len(example.turns)):
                prompt = prompt_ids(tokenizer, example.messages(replies))
                trace = known.get((task.name, example.id, turn))
                if trace is None:
                    trace = record(
                        decoder, prompt, limit, traces.header.eos, task=task.name, example=example.id, turn=turn
                    )
                    traces.traces.append(trace)
                else:
                    _check_same(trace, prompt, limit)
                replies.append(tokenizer.decode(trace.ids.tolist(), skip_special_tokens=True))
                progress()
                if path is not None and time.monotonic() - saved > _SAVE_EVERY:
                    traces.save(path)
                    saved, written = time.monotonic(), len(traces)
    finally:
        if path is not None and len(traces) > written:
            traces.save(path)


def _check_same(trace: Trace, prompt: list[int], max_new_tokens: int) -> None:
    name = f"the trace of {trace.task}, example {trace.example!r}, turn {trace.turn}"
    if trace.prompt.tolist() != list(prompt):
        raise ValueError(
            f"{name} was recorded from another prompt (other data, or another template); record into a new file"
        )
    if trace.max_new_tokens != max_new_tokens:
        raise ValueError(
            f"{name} was recorded with max_new_tokens={trace.max_new_tokens}, now {max_new_tokens} is asked for; "
            "record into a new file"
        )
