"""How faithful a tier is to its target, and what a forward costs: measured once, on the target's own text."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from adaptive_pyramid.atomic_write import write_atomically
from adaptive_pyramid.decoding.scorer import Scorer
from adaptive_pyramid.decoding.tokens import Tokens, TokenSequence
from adaptive_pyramid.models.embedded import cache_dir

NEW_TOKENS = 64  # per prompt
CONTEXT = 128  # tokens in the cache while a forward is timed
RECORD = "calibration.json"
_REPEATS = 9

PROMPTS = (
    "Why do leaves change colour in autumn?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "A shop sells pens at 3 for 2 dollars. How much do 12 pens cost? Explain each step.",
    "Write a Python function that returns the second largest number in a list.",
    "Summarise the plot of Romeo and Juliet in a few sentences.",
    "Give me a recipe for a simple vegetable soup.",
    "What is the difference between a virus and a bacterium?",
    "Write a polite email asking a colleague to move a meeting to Thursday.",
)


TOKENS = NEW_TOKENS * len(PROMPTS)  # at most: an answer may end before


@torch.no_grad()
def own_text(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[tuple[Tensor, int]]:
    """The target's greedy answers to `PROMPTS`: (ids int64[T], length of the prompt within them) for each."""
    if tokenizer.chat_template is None:
        prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    else:
        chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
        prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    room = _context_limit(target) - NEW_TOKENS
    if room < 1:
        raise ValueError(
            f"the target's context of {room + NEW_TOKENS} tokens is too short to calibrate on {NEW_TOKENS} new tokens"
        )
    prompts = [prompt[-room:] for prompt in prompts]
    width = max(map(len, prompts))
    # One batch, padded on the left: some seconds instead of one row after the other.
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=target.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=target.device)
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
    sequences = target.generate(ids, attention_mask=mask, **settings)  # type: ignore[operator]  # typed as a Tensor
    ends = target.generation_config.eos_token_id
    ends = set() if ends is None else {ends} if isinstance(ends, int) else set(ends)
    rows = []
    for prompt, answer in zip(prompts, sequences[:, width:].tolist()):
        stop = next((i + 1 for i, token in enumerate(answer) if token in ends), len(answer))
        rows.append((torch.tensor(prompt + answer[:stop], device=target.device), len(prompt)))
    return rows


@torch.no_grad()
def fidelity(model: PreTrainedModel, target: PreTrainedModel, rows: list[tuple[Tensor, int]]) -> tuple[float, float]:
    """(agreement, overlap) in [0, 1] over the answers: how often the best token is the target's, and mean of 1 - TV."""
    scorers = [Scorer.alone(one) for one in (model, target)]
    agreement, overlap, count = 0.0, 0.0, 0
    for ids, prompt in rows:
        distributions, target_distributions = (scorer.along(ids.tolist(), prompt).softmax(-1) for scorer in scorers)
        agreement += (distributions.argmax(-1) == target_distributions.argmax(-1)).sum().item()
        overlap += torch.minimum(distributions, target_distributions).sum().item()
        count += len(ids) - prompt
    return agreement / count, overlap / count


@torch.no_grad()
def seconds_per_token(model: PreTrainedModel) -> float:
    """Seconds of a forward over one new token with `CONTEXT` tokens cached, on the device the model is on.

    The smallest of nine: what else the machine does only adds to them, and the figure is kept.
    """
    context = max(1, min(CONTEXT, _context_limit(model) - _REPEATS - 1))
    scorer, times = Scorer.alone(model), []
    text = TokenSequence([1] * context)
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        scorer.logits(text, Tokens(), last=1)[0, 0].item()  # waits for the device
        times.append(time.perf_counter() - start)
        text.accept([1])
    return min(times[1:])


def _context_limit(model: PreTrainedModel) -> int:
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20


def figures(
    recipes: Sequence[str | None], models: Sequence[Any], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[float | None, float | None, float | None]]:
    """(agreement, overlap, seconds per token) of every tier, target last.

    `recipes` says how a tier is derived from the target (None: it is not, and has no agreement). A tier that is not a
    torch module (a lookup) has no figures. Read from `calibration.json` in the cache if the same target, recipe and
    dtype (for seconds: and number of threads) were measured before, else measured and written there.
    """
    target = models[-1]
    record = _read_record()
    mark = f"{_fingerprint(target)} {target.dtype} on {target.device.type}"
    rows: list[tuple[Tensor, int]] | None = None
    measured = False
    result: list[tuple[float | None, float | None, float | None]] = []
    for recipe, tier in zip(recipes, models):
        if not isinstance(tier, torch.nn.Module):
            result.append((None, None, None))
            continue
        model = cast(PreTrainedModel, tier)
        agreement = overlap = None
        if recipe is not None:
            key = f"fidelity {mark} {recipe}"
            if key not in record:
                rows = rows or own_text(target, tokenizer)
                record[key], measured = fidelity(model, target, rows), True
            agreement, overlap = record[key]
        key = f"seconds {_fingerprint(model)} {model.dtype} on {model.device}, {torch.get_num_threads()} threads"
        if key not in record:
            record[key], measured = seconds_per_token(model), True
        result.append((agreement, overlap, record[key]))
    if measured:
        _write_record(record)
    return result


def _fingerprint(model: PreTrainedModel) -> str:
    """Changes with names, shapes and a sample of some 64 values of every tensor of the model."""
    digest = hashlib.sha256(repr(PROMPTS).encode())
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().flatten()
        sample = flat[:: max(1, len(flat) // 64)].double().cpu()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def _read_record() -> dict[str, Any]:
    try:
        record = json.loads((cache_dir() / RECORD).read_text())
    except (OSError, ValueError):
        return {}  # missing or damaged: everything is measured again
    return record if isinstance(record, dict) else {}


def _write_record(record: dict[str, Any]) -> None:
    """In one rename; of two processes that write at once the later wins, and the other's figures are measured again."""
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RECORD, json.dumps(record, indent=1))
    except OSError:
        pass  # a read-only cache: the figures hold all the same, they only cost some seconds at every load
