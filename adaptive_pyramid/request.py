"""One prompt and all that its continuation depends on, as one frozen request."""

from __future__ import annotations

import copy
import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)

from .call_options import CallOptions
from .errors import check_int
from .prompts import Prompt
from .stateful_processors import declared
from .wrappers import execution_device


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt and everything about how its continuation is drawn and stopped.

    Args:
        prompt_ids: token ids, without padding. padding: what stood before them: only processors and criteria see it.
        max_new_tokens: hard limit, never overshot.
        do_sample: False = greedy. processors: in the order `generate` applies them. eos: ids that end the text.
        pad_token_id: fills shorter rows of a batch. seed: of sampling; drawn afresh if the caller gave none (`seeded`).
        criteria: Hugging Face stopping criteria.
        output_scores, output_logits: keep the target's processed / unprocessed scores.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int = 20
    padding: tuple[int, ...] = ()
    do_sample: bool = False
    processors: LogitsProcessorList | None = None
    eos: frozenset[int] = frozenset()
    pad_token_id: int = 0
    seed: int = 0
    seeded: bool = False
    criteria: StoppingCriteriaList | None = None
    output_scores: bool = False
    output_logits: bool = False

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids must hold at least one token, got none")
        check_int("max_new_tokens", self.max_new_tokens, 0)

    def meets_criteria(self, ids: Sequence[int], scores: torch.Tensor) -> bool:
        """Whether the stopping criteria end generation with `ids` (prompt and output so far); scores: [1, V]."""
        if not self.criteria:
            return False
        return bool(self.criteria(torch.tensor([[*self.padding, *ids]], device=scores.device), (scores,)).all())


def build_request(
    model: PreTrainedModel, prompt: Prompt, options: CallOptions, row: int, limit: int | None
) -> GenerationRequest:
    """The request for one prompt, with processors and limits as `model.generate` would set them.

    Args:
        row: the prompt's place in the call. limit: the target's hard context limit, or None.
    """
    config = copy.deepcopy(options.config)
    device = execution_device(model)
    ids = torch.tensor([[*prompt.padding, *prompt.ids]], dtype=torch.long, device=device)
    mask = torch.tensor([[0] * len(prompt.padding) + [1] * len(prompt.ids)], device=device)
    model._prepare_special_tokens(config, True, device=device, batch_size=1)
    config = model._prepare_generated_length(
        config, options.default_max_length, options.default_min_length, "input_ids", ids.shape[1], ids
    )
    length, max_new = len(prompt.ids), config.max_length - ids.shape[1]
    if max_new < 0 or (max_new == 0 and config.max_new_tokens != 0):
        raise ValueError(
            f"max_length={config.max_length} leaves no room after a prompt of {ids.shape[1]} tokens; "
            "expected a larger max_length, or max_new_tokens"
        )
    if limit is not None and length > limit:
        raise ValueError(f"the prompt has {length} tokens, but {type(model).__name__} has only {limit} positions")
    if limit is not None and length + max_new - 1 > limit:
        warnings.warn(
            f"max_new_tokens={max_new} would pass the {limit} positions of {type(model).__name__}; "
            f"generating at most {limit - length + 1}",
            stacklevel=4,
        )
        max_new = limit - length + 1
    allowed = options.prefix_allowed_tokens_fn
    processors = model._get_logits_processor(
        config,
        input_ids_seq_length=ids.shape[1],
        encoder_input_ids=ids,
        # Rows run one by one, as batches of one.
        prefix_allowed_tokens_fn=None if allowed is None else lambda _, row_ids: allowed(row, row_ids),
        logits_processor=LogitsProcessorList(options.logits_processor),
        device=device,
        model_kwargs={"attention_mask": mask},
    )
    criteria = StoppingCriteriaList(options.stopping_criteria)
    if options.max_time is not None:
        criteria.append(MaxTimeCriteria(max_time=options.max_time))
    seed = options.seed
    return GenerationRequest(
        prompt_ids=tuple(prompt.ids),
        max_new_tokens=max_new,
        padding=tuple(prompt.padding),
        processors=processors,
        criteria=criteria,
        seed=secrets.randbits(62) if seed is None else seed + row,
        seeded=seed is not None,
        output_scores=bool(config.output_scores),
        output_logits=bool(config.output_logits),
        **_from_prepared(config),
    )


def prepared_requests(
    prompts: Sequence[Prompt], processors: LogitsProcessorList, criteria: StoppingCriteriaList, config: GenerationConfig
) -> list[GenerationRequest]:
    """One request per row of a `generate` call that has already prepared everything (its `custom_generate` hook)."""
    return [
        GenerationRequest(
            prompt_ids=tuple(prompt.ids),
            max_new_tokens=config.max_length - len(prompt.padding) - len(prompt.ids),
            padding=tuple(prompt.padding),
            processors=LogitsProcessorList(_of_row(p, row, len(prompts)) for p in processors),
            criteria=criteria,
            seed=secrets.randbits(62),
            **_from_prepared(config),
        )
        for row, prompt in enumerate(prompts)
    ]


def _of_row(processor: LogitsProcessor, row: int, rows: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A processor of a whole batch, usable on its row alone: some keep a state per row (where the padding ends, say)."""
    return processor if rows == 1 else _OfRow(processor, row, rows)


@dataclass
class _OfRow:
    """A processor of a whole batch on one of its rows."""

    processor: LogitsProcessor
    row: int
    rows: int

    @property
    def stateful(self) -> bool | None:
        return declared(self.processor)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self.processor(ids.expand(self.rows, -1), scores.repeat(self.rows, 1))[self.row : self.row + 1]


def _from_prepared(config: GenerationConfig) -> dict[str, Any]:
    eos, pad = config._eos_token_tensor, config._pad_token_tensor
    return {
        "do_sample": bool(config.do_sample),
        "eos": frozenset() if eos is None else frozenset(eos.tolist()),
        "pad_token_id": 0 if pad is None else int(pad),
    }
