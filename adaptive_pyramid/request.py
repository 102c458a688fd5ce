"""Hugging Face generation keywords, read once into one frozen request."""

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

from .errors import check_int, check_number, shown, unknown_name
from .prompts import Prompt
from .stateful_processors import declared
from .wrappers import execution_device

# Keywords of `generate` that ask for another algorithm, with what to say about each.
_UNSUPPORTED = {
    "num_beams": (1, "beam search"),
    "num_beam_groups": (1, "group beam search"),
    "penalty_alpha": (None, "contrastive search"),
    "dola_layers": (None, "DoLa decoding"),
    "constraints": (None, "constrained beam search"),
    "force_words_ids": (None, "constrained beam search"),
    "num_return_sequences": (1, "several sequences per prompt"),
    "prompt_lookup_num_tokens": (None, "its own lookup: put PromptLookup() among the tiers instead"),
    "assistant_early_exit": (None, "early exit: put truncate(model, ...) among the tiers instead"),
    "guidance_scale": (None, "classifier-free guidance"),
    "token_healing": (False, "token healing"),
    "cache_implementation": (None, "another cache"),
    "output_attentions": (False, "attentions"),
    "output_hidden_states": (False, "hidden states"),
    "prefill_chunk_size": (None, "chunked prefill"),
}
# Keywords that steer machinery which does not exist here: taken in silence, they would look as if they did something.
_WITHOUT_EFFECT = {
    **dict.fromkeys(
        (
            "num_assistant_tokens",
            "num_assistant_tokens_schedule",
            "assistant_confidence_threshold",
            "is_assistant",
            "max_matching_ngram_size",
            "assistant_lookbehind",
            "target_lookbehind",
            "assistant_ensemble_weight",
            "speculation_type",
            "use_mtp",
        ),
        "lengths and early stops of drafting are those of config= and control=",
    ),
    **dict.fromkeys(
        ("early_stopping", "length_penalty", "diversity_penalty", "low_memory"), "it belongs to beam search"
    ),
    **dict.fromkeys(
        ("cache_config", "max_cache_len", "compile_config", "continuous_batching_config"),
        "the pyramid keeps its own caches and compiles nothing",
    ),
    "decoder_start_token_id": "it belongs to encoder-decoder models",
}
_REFUSED_ARGUMENTS = (
    "assistant_model",
    "synced_gpus",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
    "custom_generate",
    "inputs_embeds",
    "past_key_values",
    "cache",
    "position_ids",
    "use_model_defaults",
)
_OUR_KEYWORDS = (
    "stop_strings",
    "seed",
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "tokenizer",
    "return_dict_in_generate",
    "max_time",
)


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt and everything about how its continuation is drawn and stopped.

    Args:
        prompt_ids: token ids, without padding. padding: what stood before them: only processors and criteria see it.
        max_new_tokens: hard limit, never overshot.
        do_sample: False = greedy. processors: in the order `generate` applies them. eos: ids that end the text.
        pad_token_id: fills shorter rows of a batch. seed: of sampling; drawn afresh if the caller gave none (`seeded`).
        stop_text: says after every token whether the new ids end in a stop string. criteria: Hugging Face stopping criteria.
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
    stop_text: Callable[[Sequence[int]], bool] | None = None
    criteria: StoppingCriteriaList | None = None
    output_scores: bool = False
    output_logits: bool = False

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids must hold at least one token, got none")
        check_int("max_new_tokens", self.max_new_tokens, 0)

    @property
    def checks_every_token(self) -> bool:
        return bool(self.criteria) or self.stop_text is not None

    def stop_reason(self, ids: Sequence[int], scores: torch.Tensor) -> str | None:
        """Why generation ends with `ids` (prompt and output so far), if it does; EOS and length are the decoder's."""
        if self.stop_text is not None and self.stop_text(ids[len(self.prompt_ids) :]):
            return "stop_string"
        if self.criteria and bool(
            self.criteria(torch.tensor([[*self.padding, *ids]], device=scores.device), (scores,)).all()
        ):
            return "stopping_criteria"
        return None


def read_keywords(
    model: PreTrainedModel,
    generation_config: GenerationConfig | None,
    keywords: dict[str, Any],
    extra: Sequence[str] = (),
) -> tuple[GenerationConfig, dict[str, Any]]:
    """Generation keywords -> (a private GenerationConfig, our own keywords).

    Neither the model's generation_config nor the caller's is modified. `extra` are further valid names, for the hint.

    Raises:
        TypeError: an unknown keyword, with the nearest valid one. ValueError: a keyword that asks for an algorithm
            this library does not run (beams and the like), or an impossible value.
    """
    fields = {name for name in GenerationConfig().to_dict() if not name.startswith("_")} | set(_UNSUPPORTED)
    fields -= {"transformers_version", "generation_kwargs"}
    for name, value in keywords.items():
        if name in _REFUSED_ARGUMENTS:
            if value is None:
                continue
            raise ValueError(f"{name} is not supported here; expected it to be left out")
        if name not in fields and name not in _OUR_KEYWORDS:
            raise TypeError(unknown_name("generate keyword", name, fields | set(_OUR_KEYWORDS) | set(extra)))
        if name in _UNSUPPORTED:
            _check_supported(name, value)
        if name in _WITHOUT_EFFECT and value not in (None, False):
            raise ValueError(
                f"{name}={value!r} has no effect here ({_WITHOUT_EFFECT[name]}); expected it to be left out"
            )
    ours = {name: keywords[name] for name in _OUR_KEYWORDS if name in keywords}
    if generation_config is not None and not isinstance(generation_config, GenerationConfig):
        raise TypeError(f"generation_config must be a GenerationConfig, got {shown(generation_config)}")
    config, unused = model._prepare_generation_config(
        generation_config, **{k: v for k, v in keywords.items() if k in fields and k not in ours}
    )
    for name in unused:
        raise TypeError(unknown_name("generate keyword", name, fields))
    for name in _UNSUPPORTED:
        # A checkpoint's own preference for a kind of cache is no request: every kind gives the same text.
        if name != "cache_implementation" or getattr(generation_config, name, None) is not None:
            _check_supported(name, getattr(config, name, None))
    # A checkpoint's own use_cache=False (left over from training, or MPT's default) is no request: the text is the same.
    configured = generation_config is not None and model.generation_config.use_cache is not False
    if keywords.get("use_cache") is False or (configured and generation_config.use_cache is False):
        raise ValueError("use_cache=False cannot be honoured: speculative decoding needs its caches")
    if config.do_sample and config.temperature is not None and not config.temperature > 0:
        raise ValueError(
            f"temperature must be above 0 with do_sample=True, got {config.temperature}; "
            "for greedy decoding pass do_sample=False"
        )
    if not config.do_sample and keywords.get("temperature") == 0:
        warnings.warn("temperature=0 with do_sample=False: greedy decoding, as asked", stacklevel=3)
    for name, low, high in (("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0), ("repetition_penalty", 1e-9, float("inf"))):
        value = getattr(config, name)
        if value is not None and value != high:
            check_number(name, value, low, min(high, 1e30))
    for name in ("max_time", "stop_strings"):
        ours.setdefault(name, getattr(config, name, None))
    return config, ours


def padding_id(model: PreTrainedModel, given: GenerationConfig | None, keywords: dict[str, Any]) -> int | None:
    """The pad token, if it can mean nothing else: an EOS token in a prompt may be text (a chat's turns end with one)."""

    def setting(name: str) -> Any:
        places = (keywords.get(name), getattr(given, name, None), getattr(model.generation_config, name, None))
        return next((value for value in places if value is not None), None)

    pad, eos = setting("pad_token_id"), setting("eos_token_id")
    return None if pad is None or pad in (eos if isinstance(eos, (list, tuple)) else [eos]) else int(pad)


def _check_supported(name: str, value: Any) -> None:
    default, what = _UNSUPPORTED[name]
    if value is not None and value != default and not (name == "guidance_scale" and value == 1):
        raise ValueError(
            f"{name}={value!r} asks for {what}, which speculative decoding does not run; expected {default}"
        )


def build_request(
    model: PreTrainedModel,
    prompt: Prompt,
    given: GenerationConfig | None,
    config: GenerationConfig,
    ours: dict[str, Any],
    keywords: dict[str, Any],
    stop_text: Callable[[Sequence[int]], bool] | None,
    limit: int | None,
) -> GenerationRequest:
    """The request for one prompt, with processors and limits as `model.generate` would set them.

    Args:
        given: the caller's generation_config. config, ours: from `read_keywords` on `keywords`.
        limit: the target's hard context limit, or None.
    """
    config = copy.deepcopy(config)
    device = execution_device(model)
    row = torch.tensor([[*prompt.padding, *prompt.ids]], dtype=torch.long, device=device)
    mask = torch.tensor([[0] * len(prompt.padding) + [1] * len(prompt.ids)], device=device)
    defaults = {
        name: all(source is None or getattr(source, name, None) is None for source in (given, model.generation_config))
        and keywords.get(name) is None
        for name in ("max_length", "min_length")
    }
    model._prepare_special_tokens(config, True, device=device, batch_size=1)
    config = model._prepare_generated_length(
        config, defaults["max_length"], defaults["min_length"], "input_ids", row.shape[1], row
    )
    length, max_new = len(prompt.ids), config.max_length - row.shape[1]
    if max_new < 0 or (max_new == 0 and config.max_new_tokens != 0):
        raise ValueError(
            f"max_length={config.max_length} leaves no room after a prompt of {row.shape[1]} tokens; "
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
    processors = model._get_logits_processor(
        config,
        input_ids_seq_length=row.shape[1],
        encoder_input_ids=row,
        prefix_allowed_tokens_fn=ours.get("prefix_allowed_tokens_fn"),
        logits_processor=LogitsProcessorList(ours.get("logits_processor") or []),
        device=device,
        model_kwargs={"attention_mask": mask},
    )
    criteria = StoppingCriteriaList(ours.get("stopping_criteria") or [])
    if ours.get("max_time") is not None:
        criteria.append(MaxTimeCriteria(max_time=check_number("max_time", ours["max_time"], 0.0)))
    seed = ours.get("seed")
    return GenerationRequest(
        prompt_ids=tuple(prompt.ids),
        max_new_tokens=max_new,
        padding=tuple(prompt.padding),
        processors=processors,
        stop_text=stop_text,
        criteria=criteria,
        seed=secrets.randbits(62) if seed is None else seed,
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
