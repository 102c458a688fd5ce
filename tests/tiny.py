"""Tiny models, graded families and a tokenizer for the tests: built in milliseconds, from seeds, offline.

from tests.tiny import tiny_model, perturbed, graded_family, tiny_tokenizer, greedy_text, agreement
"""

from __future__ import annotations

import copy
from itertools import product

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

PAD, BOS, EOS, UNK = range(4)  # the first ids of `tiny_tokenizer`, and the special ids in every tiny config
WINDOW = 6  # sliding window of the mistral and gemma3 models
GPT2_POSITIONS = 64
VOCAB = 64

_ROPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
_CONFIGS = {
    "llama": lambda **kw: LlamaConfig(**{**_ROPE, "num_hidden_layers": 2, **kw}),
    "qwen2": lambda **kw: Qwen2Config(**{**_ROPE, "num_hidden_layers": 2, **kw}),
    "gpt2": lambda **kw: GPT2Config(**{"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": GPT2_POSITIONS, **kw}),
    "mistral": lambda **kw: MistralConfig(**{**_ROPE, "num_hidden_layers": 2, "sliding_window": WINDOW, **kw}),
    "gemma3": lambda **kw: Gemma3TextConfig(
        **{
            **_ROPE,
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            **kw,
        }
    ),
    "mamba": lambda **kw: MambaConfig(**{"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, **kw}),
}
ARCHITECTURES = tuple(name for name in _CONFIGS if name != "mamba")  # mamba is recurrent: there to be refused
# Standard deviation of the initial weights. Much above the usual .02, where greedy output collapses into one token.
_STD = {"llama": 0.4, "qwen2": 0.4, "gpt2": 0.4, "mistral": 0.4, "gemma3": 0.2, "mamba": 0.4}
# Noise between neighbouring tiers (`perturbed`) at which they agree on some .5 to .8 of the tokens.
_SIGMA = {"llama": 0.03, "qwen2": 0.03, "gpt2": 0.05, "mistral": 0.04, "gemma3": 0.06, "mamba": 0.05}


def tiny_model(
    arch: str = "llama",
    *,
    vocab_size: int = VOCAB,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    attn_implementation: str = "sdpa",
    **overrides,
) -> PreTrainedModel:
    """A random causal LM of `arch` (llama, qwen2, gpt2, mistral, gemma3, mamba) in eval mode, some 30,000 weights.

    Special ids are those of `tiny_tokenizer`; `eos_token_id=None` among the overrides gives a model that never stops.
    `overrides` are fields of the architecture's configuration. The global random state is left as it was.
    """
    fields = {
        "vocab_size": vocab_size,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
        "initializer_range": _STD[arch],
        **overrides,
    }
    config = _CONFIGS[arch](**fields)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):  # the same weights whatever the default device
        torch.manual_seed(seed)
        how = {} if arch == "mamba" else {"attn_implementation": attn_implementation}
        model = AutoModelForCausalLM.from_config(config, **how)
    return model.to(device=torch.get_default_device(), dtype=dtype).eval()


def perturbed(model: PreTrainedModel, sigma: float, seed: int = 0) -> PreTrainedModel:
    """A deep copy with W + sigma * std(W) * noise in every weight: the larger sigma, the rarer the agreement."""
    generator = torch.Generator("cpu").manual_seed(seed)
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for weight in noisy.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64, device="cpu").to(weight)
            weight.add_(sigma * weight.std(correction=0) * noise)
    return noisy


def graded_family(
    arch: str = "llama", n: int = 3, sigmas: tuple[float, ...] | None = None, seed: int = 0, **model_keywords
) -> list[PreTrainedModel]:
    """n models, draft first and target last; each is the one above it, perturbed by its sigma (n - 1, draft first).

    With the default sigmas neighbours agree on between .2 and .95 of the target's greedy tokens (tested).
    """
    sigmas = (_SIGMA[arch],) * (n - 1) if sigmas is None else sigmas
    if len(sigmas) != n - 1:
        raise ValueError(f"{n} models need {n - 1} sigmas, got {sigmas}")
    family = [tiny_model(arch, seed=seed, **model_keywords)]
    for step, sigma in enumerate(reversed(sigmas)):
        family.insert(0, perturbed(family[0], sigma, seed=1000 * seed + step + 1))
    return family


def greedy_text(model: PreTrainedModel, new: int = 40, prompt: tuple[int, ...] = (BOS, 10, 11, 12)) -> torch.Tensor:
    """Prompt and `new` greedy tokens of the model, int64[1, len(prompt) + new]; no cache, and EOS does not stop it."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(new):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return ids


def agreement(one: PreTrainedModel, other: PreTrainedModel, ids: torch.Tensor, prompt: int = 4) -> float:
    """Share of positions after the prompt of ids (int64[B, T]) at which both models have the same best token."""
    with torch.no_grad():
        best = [model(ids, use_cache=False).logits[:, prompt - 1 : -1].argmax(-1) for model in (one, other)]
    return (best[0] == best[1]).double().mean().item()


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def tiny_tokenizer(vocab_size: int = VOCAB) -> PreTrainedTokenizerFast:
    """A real fast tokenizer of exactly `vocab_size` (52 to 728) entries: 4 special, 48 characters, then letter pairs.

    Text is lowercased, other characters become <unk>, and every id decodes to its own text, spaces included.
    """
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    characters = [*letters, *" \n.,?!:'-;()", *"0123456789"]
    pairs = [a + b for a, b in product(letters, letters)]
    entries = ["<pad>", "<bos>", "<eos>", "<unk>", *characters, *pairs]
    if not 4 + len(characters) <= vocab_size <= len(entries):
        raise ValueError(f"vocab_size must be in [{4 + len(characters)}, {len(entries)}], got {vocab_size}")
    entries = entries[:vocab_size]
    merges = [(entry[0], entry[1]) for entry in entries[4 + len(characters) :]]
    backend = Tokenizer(models.BPE({text: i for i, text in enumerate(entries)}, merges, unk_token="<unk>"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[a-z]+"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
