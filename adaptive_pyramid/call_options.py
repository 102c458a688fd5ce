"""The keywords of one `generate` call, checked and read once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel, StoppingCriteria

from .errors import check_int, check_number, shown, unknown_name

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
class CallOptions:
    """What one call asks for, the same for every prompt of it.

    Args:
        config: private to the call, as transformers reads it from the call, its generation_config and the checkpoint.
        default_max_length, default_min_length: nobody has set that length.
        padding_id: what is padding in a tensor of ids without a mask; None = every id is text.
        tokenizer: of this call, for stop_strings. seed: of the first row; row i draws with seed + i.
        max_time: seconds per prompt.
        logits_processor, stopping_criteria, prefix_allowed_tokens_fn: as in Hugging Face.
    """

    config: GenerationConfig
    default_max_length: bool
    default_min_length: bool
    padding_id: int | None
    tokenizer: Any
    stop_strings: tuple[str, ...]
    seed: int | None
    max_time: float | None
    logits_processor: tuple[LogitsProcessor, ...]
    stopping_criteria: tuple[StoppingCriteria, ...]
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None


def read_keywords(
    model: PreTrainedModel,
    generation_config: GenerationConfig | None,
    keywords: Mapping[str, Any],
    extra: Sequence[str] = (),
) -> CallOptions:
    """The generation keywords of one call.

    Neither `keywords` nor the model's generation_config nor the caller's is modified. `extra` are further valid names,
    for the hint.

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
    generator: Any = model  # its `generate` methods come from a mixin that the class itself does not declare
    config, unused = generator._prepare_generation_config(
        generation_config, **{k: v for k, v in keywords.items() if k in fields and k not in ours}
    )
    for name in unused:
        raise TypeError(unknown_name("generate keyword", name, fields))
    for name in _UNSUPPORTED:
        # A checkpoint's own preference for a kind of cache is no request: every kind gives the same text.
        if name != "cache_implementation" or getattr(generation_config, name, None) is not None:
            _check_supported(name, getattr(config, name, None))
    # A checkpoint's own use_cache=False (left over from training, or MPT's default) is no request: the text is the same.
    configured = getattr(generation_config, "use_cache", None) is False
    configured = configured and generator.generation_config.use_cache is not False
    if keywords.get("use_cache") is False or configured:
        raise ValueError("use_cache=False cannot be honoured: speculative decoding needs its caches")
    if config.do_sample and config.temperature is not None and not config.temperature > 0:
        raise ValueError(
            f"temperature must be above 0 with do_sample=True, got {config.temperature}; "
            "for greedy decoding pass do_sample=False"
        )
    if not config.do_sample and keywords.get("temperature") == 0:
        warnings.warn("temperature=0 with do_sample=False: greedy decoding, as asked", stacklevel=4)
    for name, low, high in (("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0), ("repetition_penalty", 1e-9, float("inf"))):
        value = getattr(config, name)
        if value is not None and value != high:
            check_number(name, value, low, min(high, 1e30))
    for name in ("max_time", "stop_strings"):
        ours.setdefault(name, getattr(config, name, None))
    strings, seed, max_time = ours["stop_strings"] or (), ours.get("seed"), ours["max_time"]
    return CallOptions(
        config=config,
        default_max_length=_left_out(model, generation_config, keywords, "max_length"),
        default_min_length=_left_out(model, generation_config, keywords, "min_length"),
        padding_id=_padding_id(model, generation_config, keywords),
        tokenizer=ours.get("tokenizer"),
        stop_strings=(strings,) if isinstance(strings, str) else tuple(strings),
        seed=None if seed is None else check_int("seed", seed, 0),
        max_time=None if max_time is None else check_number("max_time", max_time, 0.0),
        logits_processor=tuple(ours.get("logits_processor") or ()),
        stopping_criteria=tuple(ours.get("stopping_criteria") or ()),
        prefix_allowed_tokens_fn=ours.get("prefix_allowed_tokens_fn"),
    )


def _left_out(model: PreTrainedModel, given: GenerationConfig | None, keywords: Mapping[str, Any], name: str) -> bool:
    """Whether nobody has set `name`: not the call, nor its generation_config, nor the checkpoint."""
    sources = (given, model.generation_config)
    return keywords.get(name) is None and all(getattr(source, name, None) is None for source in sources)


def _padding_id(model: PreTrainedModel, given: GenerationConfig | None, keywords: Mapping[str, Any]) -> int | None:
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
