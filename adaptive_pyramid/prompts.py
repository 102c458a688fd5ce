"""What users pass as a prompt, turned into token ids; and whether all tiers mean the same by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedModel


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids` are the prompt's tokens; `padding` stands before them in the row that the caller passed."""

    ids: list[int]
    padding: list[int]


def read_prompts(
    inputs: Any, attention_mask: Any, tokenizer: Any, pad_token_id: int | None = None
) -> tuple[list[Prompt], bool]:
    """-> (the prompts, whether the caller passed several)

    Args:
        pad_token_id: in a tensor without a mask this id is padding, as `generate` infers; None = every id is text.

    Raises:
        TypeError: something that is no prompt. ValueError: an empty prompt, text without a tokenizer, a mask of
            another shape or with holes.
    """
    if isinstance(inputs, Mapping) and "input_ids" in inputs:
        attention_mask = inputs.get("attention_mask") if attention_mask is None else attention_mask
        inputs = inputs["input_ids"]
    if isinstance(inputs, np.ndarray):
        inputs = torch.from_numpy(inputs)
    if isinstance(inputs, torch.Tensor):
        if inputs.ndim not in (1, 2) or inputs.is_floating_point() or not len(inputs):
            raise TypeError(
                f"token ids must be an integer tensor of shape [length] or [batch, length], got {tuple(inputs.shape)} {inputs.dtype}"
            )
        inputs = inputs if inputs.ndim == 2 else inputs[None]
        inferred = attention_mask is None and pad_token_id is not None
        if inferred:
            attention_mask = inputs != pad_token_id
        mask_name = f"the attention_mask inferred from pad_token_id={pad_token_id}" if inferred else "attention_mask"
        prompts, batched = unpadded(inputs.tolist(), attention_mask, mask_name), len(inputs) > 1
    elif _is_ids(inputs) or isinstance(inputs, str) or _is_chat(inputs):
        prompts, batched = unpadded([_ids(inputs, tokenizer)], attention_mask), False
    elif isinstance(inputs, Sequence) and not isinstance(inputs, bytes) and inputs:
        prompts, batched = unpadded([_ids(prompt, tokenizer) for prompt in inputs], attention_mask), True
    else:
        raise TypeError(
            "a prompt must be text, a list of chat messages, token ids, or a list of these; "
            f"got {type(inputs).__name__}{' (empty)' if inputs == [] else ''}"
        )
    for index, prompt in enumerate(prompts):
        if not prompt.ids:
            raise ValueError(f"prompt {index} is empty; expected at least one token (a BOS token, say)")
    return prompts, batched


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and bool(value)
        and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
    )


def _is_chat(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)


def _ids(prompt: Any, tokenizer: Any) -> list[int]:
    if _is_ids(prompt):
        return list(prompt)
    if isinstance(prompt, Mapping) and "input_ids" in prompt or isinstance(prompt, (torch.Tensor, np.ndarray)):
        rows, _ = read_prompts(prompt, None, tokenizer)
        if len(rows) > 1:
            raise ValueError(
                f"a prompt within a list must be one text, got {len(rows)} rows of token ids; pass them as a tensor"
            )
        return rows[0].ids
    if not isinstance(prompt, str) and not _is_chat(prompt):
        raise TypeError(f"a prompt must be text, a list of chat messages, or token ids; got {type(prompt).__name__}")
    if tokenizer is None:
        raise ValueError("a text prompt needs a tokenizer: pass tokenizer= to the pyramid, or token ids")
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    encoded = tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True)
    return list(encoded["input_ids"] if isinstance(encoded, Mapping) else encoded)


def with_supported_roles(tokenizer: Any, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """The chat as `tokenizer`'s template takes it: a system message that it refuses (Gemma 2) or drops without a word
    comes before the first user message's text.

    For prompts of a task, which must run on any family. `generate` keeps the template's own error, as Hugging Face does.

    Raises:
        ValueError: the template refuses the chat even so.
    """
    system, *rest = messages
    if system["role"] != "system":
        return messages
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if system["content"].strip() in text:
            return messages
    except TemplateError:
        pass
    first = next(index for index, message in enumerate(rest) if message["role"] == "user")
    folded = [dict(message) for message in rest]
    folded[first]["content"] = f"{system['content']}\n\n{rest[first]['content']}"
    try:
        tokenizer.apply_chat_template(folded, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(f"the tokenizer's chat template refuses a chat of the roles {roles}: {error}") from None
    return folded


def prompt_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """A chat as ids; for a tokenizer without a chat template, its contents as plain text.

    Where the template has no system role, the system message goes into the first user turn.
    """
    if tokenizer.chat_template:
        return read_prompts(with_supported_roles(tokenizer, messages), None, tokenizer)[0][0].ids
    return read_prompts("\n\n".join(message["content"] for message in messages) + "\n\n", None, tokenizer)[0][0].ids


def unpadded(rows: list[list[int]], attention_mask: Any, mask_name: str = "attention_mask") -> list[Prompt]:
    """Rows without what their mask hides on the left. ValueError: a mask of another shape, with holes, or padding on the right."""
    if attention_mask is None:
        return [Prompt(row, []) for row in rows]
    mask = torch.as_tensor(attention_mask)
    mask = (mask if mask.ndim == 2 else mask[None]).tolist()
    if [len(row) for row in rows] != [len(row) for row in mask]:
        raise ValueError(
            f"attention_mask must have the shape of input_ids: rows of {[len(row) for row in rows]}, got {[len(row) for row in mask]}"
        )
    kept = []
    for row, keep in zip(rows, mask):
        used = [i for i, flag in enumerate(keep) if flag]
        if used and used != list(range(used[0], used[-1] + 1)):
            raise ValueError(f"{mask_name} must be one run of ones per row; holes inside a prompt are not supported")
        if used and used[-1] != len(row) - 1:
            raise ValueError(
                f"{mask_name} pads on the right; decoder-only models need left padding (padding_side='left')"
            )
        start = used[0] if used else len(row)
        kept.append(Prompt(row[start:], row[:start]))
    return kept


def matching_tokenizer(tiers: Sequence[Any], tokenizer: Any) -> Any:
    """The tokenizer to use: the given one, else the one saved beside the target; None if there is none.

    Raises:
        ValueError: two tiers whose saved tokenizers differ; their ids would mean different things.
    """
    places = {
        tier: model.config._name_or_path for tier, model in enumerate(tiers) if isinstance(model, PreTrainedModel)
    }
    saved = {place: _saved_tokenizer(place) for place in set(places.values())}  # derived tiers share their source's
    known = {f"tier {tier}": saved[place] for tier, place in places.items() if saved[place] is not None}
    if hasattr(tokenizer, "get_vocab"):
        known["tokenizer="] = tokenizer
    if known:
        last_name, last = list(known.items())[-1]
        for name, other in known.items():
            if other is not last and other.get_vocab() != last.get_vocab():
                raise ValueError(
                    f"{name} and {last_name} have different tokenizers ({len(other)} and {len(last)} entries); "
                    "all tiers of a pyramid must share one"
                )
    return tokenizer if tokenizer is not None else saved[places[len(tiers) - 1]]


def _saved_tokenizer(name: str) -> Any:
    """The tokenizer beside a model's weights (a directory, or a hub name already in the local cache), if there is one."""
    if not name:
        return None
    if Path(name).is_dir() and not any(
        (Path(name) / file).exists() for file in ("tokenizer.json", "tokenizer_config.json")
    ):
        return None
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        return None
