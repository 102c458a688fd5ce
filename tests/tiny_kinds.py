"""A tiny random causal LM of every kind that transformers knows, made from the defaults of its configuration.

Sizes are set by the name of the field, wherever a configuration or one of its parts has it; what else a kind needs stands in
`OVERRIDES`. Windows and chunks are shorter than the texts that tests write, so that whatever they change happens.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCAB = 64
HIDDEN, HEADS, HEAD_DIM = 32, 4, 8

_BY_NAME: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "unpadded_vocab_size", "vocab_size_per_layer_input"), VOCAB),
    **dict.fromkeys(("pronunciation_vocab_size", "shape_vocab_size"), VOCAB),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "emb_dim", "word_embed_proj_dim", "embedding_dim", "embedding_size"),
        HIDDEN,
    ),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size", "backbone_hidden_size", "lru_width"), HIDDEN),
    **dict.fromkeys(("attention_hidden_size", "projection_dim", "output_dim"), HIDDEN),
    **dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks", "decoder_layers", "encoder_layers"), 2
    ),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "num_layers_per_stack", "depth"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "swa_num_attention_heads"), HEADS
    ),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "kv_n_heads"), 2),
    **dict.fromkeys(("num_query_groups", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_head", "dim_head", "swa_head_dim", "global_head_dim", "kv_channels"), HEAD_DIM),
    **dict.fromkeys(("attention_head_dim", "attention_head_size", "v_head_dim", "qk_nope_head_dim"), HEAD_DIM),
    **dict.fromkeys(("qk_rope_head_dim", "index_head_dim", "linear_head_dim", "swa_v_head_dim"), HEAD_DIM),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "query_pre_attn_scalar"), HEAD_DIM),
    "qk_head_dim": 2 * HEAD_DIM,
    "rotary_dim": 4,
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "gated_norm_rank", "laurel_rank", "hc_lowrank"), 16),
    **dict.fromkeys(("loop_gate_rank", "adapter_rank", "router_hidden_size", "prompt_mid_dim"), 16),
    **dict.fromkeys(
        ("intermediate_size", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_dim", "dff", "dim_ff", "d_inner", "n_inner"),
        48,
    ),
    **dict.fromkeys(("ffn_hidden_size", "intermediate_size_mlp", "dense_intermediate_size", "feed_forward_size"), 48),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size", "block_ff_dim"), 24
    ),
    **dict.fromkeys(("shared_experts_intermediate_size", "moe_shared_expert_intermediate_size"), 24),
    "shared_intermediate_size": 24,
    "moe_latent_size": 24,
    **dict.fromkeys(
        ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_routed_experts"), 4
    ),
    "zero_expert_num": 2,
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "router_topk"), 2
    ),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "n_dense_layers"), 1),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "window_size", "attention_window_size"), 6),
    **dict.fromkeys(("local_attention", "keep_window_size"), 6),
    **dict.fromkeys(("attention_chunk_size", "floor_scale", "log_scaling_n_floor"), 8),
    "rel_extent": 16,
    "d_rel": 8,
    "max_window_layers": 1,
    "index_topk": 4,
    "index_n_heads": 2,
    "index_block_size": 4,
    "index_topk_blocks": 2,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "model_max_length"), 256),
    **dict.fromkeys(("max_target_positions", "max_source_positions", "context_length"), 256),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 16),
    **dict.fromkeys(("mamba_dt_rank", "time_step_rank"), 4),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_groups"), 1),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"), 2),
    **dict.fromkeys(("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"), 0),
    "tie_word_embeddings": False,  # a tied head repeats the last token for ever
    "is_decoder": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SPECIAL_IDS = VOCAB - 1  # ids of images, sounds and the like: the last ones of the vocabulary

# Fields of a kind's configuration that names alone do not say, by kind; "part.field" is a field of a part.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "num_hidden_layers": 2,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "dory": {
        "num_hidden_layers": 4,
        "n_input_layers": 1,
        "n_recurrent_layers": 2,
        "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "dots3_note": {
        "vision_config.adapter_in_dim": HIDDEN,
        "vision_config.adapter_out_dim": HIDDEN,
        "audio_config.adapter_input_size": HIDDEN,
        "audio_config.adapter_out_dim": HIDDEN,
        "text_config.layer_types": ["indexed_attention", "sliding_attention"],
    },
    "dots3_note_text": {
        "swa_num_attention_heads": HEADS,
        "swa_num_key_value_heads": HEADS,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": 2 * HEAD_DIM,
        "swa_qk_nope_head_dim": HEAD_DIM,
        "swa_v_head_dim": HEAD_DIM,
        "layer_types": ["indexed_attention", "sliding_attention"],
    },
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_assistant": {
        # Nothing else makes its text model small: it would have 1.4 billion parameters.
        "text_config.hidden_size": HIDDEN,
        "text_config.intermediate_size": HIDDEN,
        "text_config.vocab_size": VOCAB,
        "text_config.head_dim": HEAD_DIM,
        "text_config.hidden_size_per_layer_input": 0,
        "text_config.vocab_size_per_layer_input": 0,
        "text_config.num_hidden_layers": 2,
        "text_config.layer_types": ["sliding_attention", "full_attention"],
        "text_config.num_kv_shared_layers": 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_hidden_layers": 1, "num_layers_per_stack": None, "H_cycles": 2, "L_cycles": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xmod": {"default_language": "en_XX", "is_decoder": True},
    "zamba": {
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
    },
    "xlstm": {"hidden_size": 64, "embedding_dim": 64, "num_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}
OVERRIDES["qwen4_exp"] = {f"text_config.{name}": value for name, value in OVERRIDES["qwen4_exp_text"].items()}
OVERRIDES["dots3_note"] |= {f"text_config.{name}": value for name, value in OVERRIDES["dots3_note_text"].items()}
# Kinds whose own code mixes in float32, or has a constant that float64 cannot hold.
FLOAT32 = frozenset({"inkling2_loop_text", "inkling2_text", "xglm", "xlnet", "xlstm"})


def kinds() -> list[str]:
    """Every kind of causal LM that the installed transformers has, by its `model_type`."""
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(kind: str) -> PreTrainedConfig:
    """The tiny configuration of `kind`."""
    fields = _tiny_fields(CONFIG_MAPPING[kind])
    for name, value in OVERRIDES.get(kind, {}).items():
        *parts, last = name.split(".")
        place = fields
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return CONFIG_MAPPING[kind](**fields)


def tiny_of_kind(kind: str, seed: int = 0) -> PreTrainedModel:
    """A random causal LM of `kind` in eval mode, special ids as in its configuration, but nothing that ends a text."""
    config = tiny_config(kind)
    dtype = torch.float32 if kind in FLOAT32 else torch.float64
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (
            AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager")
            .to(dtype)
            .eval()
        )
        with torch.no_grad():
            for weight in model.parameters():
                if not weight.is_floating_point():
                    continue
                if weight.dim() > 1:
                    # Wider than any initialisation: greedy text of small weights is one token over and over.
                    weight.normal_(0.0, 2.0 / weight.shape[-1] ** 0.5)
                else:
                    weight.add_(0.2 * torch.randn_like(weight))
    model.generation_config = GenerationConfig(pad_token_id=0, bos_token_id=1, eos_token_id=None)
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers says of odd configurations."""
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _tiny_fields(kind: type[PreTrainedConfig]) -> dict[str, Any]:
    names = _field_names(kind)
    fields = {name: _BY_NAME[name] for name in names if name in _BY_NAME}
    with quiet():
        try:
            default: Any = kind()
        except Exception:
            default = None
    special = _SPECIAL_IDS
    for name in names:
        if name.endswith(("_token_id", "_token_index")) and name not in fields:
            fields[name], special = special, special - 1
    for name, part in vars(default).items() if default is not None else ():
        if isinstance(part, PreTrainedConfig):
            fields[name] = _tiny_fields(type(part))
            if part.model_type:
                fields[name]["model_type"] = part.model_type
    if "kv_lora_rank" in names and "num_key_value_heads" in names:
        fields["num_key_value_heads"] = HEADS  # latent attention has no groups
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types"):
        value = getattr(default, name, None)
        if value and name in names:
            distinct = list(dict.fromkeys(value))
            fields[name] = distinct
    lists = [
        name for name in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types") if name in fields
    ]
    if lists:
        layers = max(2, *(len(fields[name]) for name in lists))
        for name in lists:
            fields[name] = (fields[name] * layers)[:layers]
        for name in ("num_hidden_layers", "n_layer", "num_layers"):
            if name in fields:
                fields[name] = layers
    return fields


def _field_names(kind: type[PreTrainedConfig]) -> list[str]:
    names = list(inspect.signature(kind.__init__).parameters)
    if dataclasses.is_dataclass(kind):
        names += [field.name for field in dataclasses.fields(kind)]
    return [name for name in dict.fromkeys(names) if name not in ("self", "kwargs")]
