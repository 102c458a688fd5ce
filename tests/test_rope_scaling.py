"""Rotary frequencies that change with the length of the text: equal to `generate` below, across and beyond the change."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PreTrainedModel

from adaptive_pyramid import AdaptivePyramid, PromptLookup, PyramidConfig
from adaptive_pyramid.decoding.rope import length_dependence
from tests.sweep import PlantedDraft
from tests.tiny import perturbed, tiny_model

torch.set_num_threads(1)

LENGTH = 24
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "initializer_range": 0.4,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [3.0, 7.0, 15.0, 30.0],
    "original_max_position_embeddings": LENGTH,
}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 8.0}


def longrope_model(kind: str) -> PreTrainedModel:
    """`phi3` reads the whole text again where its frequencies change, `llama` keeps its keys; `dynamic`: at every length."""
    if kind == "phi3":
        config = Phi3Config(
            **_SIZES, max_position_embeddings=256, original_max_position_embeddings=LENGTH, rope_parameters=_LONGROPE
        )
    elif kind == "llama":
        config = LlamaConfig(**_SIZES, max_position_embeddings=256, rope_parameters=_LONGROPE)
    else:
        config = LlamaConfig(**_SIZES, max_position_embeddings=LENGTH, rope_parameters=_DYNAMIC)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).double().eval()


def expected(model: PreTrainedModel, prompt: list[int], new: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
    return out[0, len(prompt) :].tolist()


def prompt_of(length: int) -> list[int]:
    return [4 + (7 * i + i * i) % 50 for i in range(length)]


KINDS = ("phi3", "llama", "dynamic")
LENGTHS = {"ar": [], "sd": [4], "lookup": [4], "chain": [2, 5]}


def pyramid_of(way: str, model: PreTrainedModel, draft: PlantedDraft) -> AdaptivePyramid:
    tiers = {"ar": [], "sd": [draft], "lookup": [PromptLookup(3, 1)], "chain": [draft, perturbed(model, 0.03)]}[way]
    return AdaptivePyramid([*tiers, model])


@pytest.mark.parametrize("way", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_text_equals_generate_around_the_change(kind, way):
    """One pyramid, cold and warm: each prompt meets the cache of the one before, which may hold the other frequencies."""
    ours, reference, draft = longrope_model(kind), longrope_model(kind), PlantedDraft()
    pyramid = pyramid_of(way, ours, draft)
    accepted = rejected = 0
    # Longer, then shorter, then one that begins like the one before; at, one below and one above the change.
    for length in (10, 30, 10, 23, 24, 25, 26, 24, 40, 12):
        prompt = prompt_of(length)
        text = expected(reference, prompt, 24)
        draft.text = prompt + text
        out = pyramid.generate(prompt, max_new_tokens=24, do_sample=False, config=PyramidConfig.simple(LENGTHS[way]))
        assert out.ids == text, length
        accepted += sum(v.accepted for block in out.stats.blocks for v in block.verifications if v.tier == 1)
        rejected += sum(v.rejected for block in out.stats.blocks for v in block.verifications if v.tier == 1)
    if way == "sd":
        assert accepted > 20 and rejected > 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_change_changes_the_text(kind):
    """Else the tests here could not fail: the first frequencies for ever give another text."""
    before = expected(longrope_model(kind), prompt_of(10), 40)
    model = longrope_model(kind)
    for module in model.modules():
        if hasattr(module, "rope_type"):
            module.rope_type = "default"
    after = expected(model, prompt_of(10), 40)
    assert before[: LENGTH - 10] == after[: LENGTH - 10] and before != after


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_with_prompts_on_both_sides(kind):
    ours, reference, draft = longrope_model(kind), longrope_model(kind), PlantedDraft()
    prompts = [prompt_of(8), prompt_of(30), prompt_of(23)]
    out = pyramid_of("lookup", ours, draft).generate(
        prompts, max_new_tokens=20, do_sample=False, config=PyramidConfig.simple([4])
    )
    assert [one.ids for one in out] == [expected(reference, prompt, 20) for prompt in prompts]


def test_beyond_the_change_a_longrope_target_is_drafted_for_again_and_a_dynamic_one_is_not():
    for kind, drafted in (("phi3", True), ("llama", True), ("dynamic", False)):
        model, draft = longrope_model(kind), PlantedDraft()
        prompt = prompt_of(10)
        draft.text = prompt + expected(longrope_model(kind), prompt, 40)
        out = pyramid_of("sd", model, draft).generate(
            prompt, max_new_tokens=40, do_sample=False, config=PyramidConfig.simple([4])
        )
        late = [block.verifications[-1].proposed for block in out.stats.blocks if block.context > LENGTH]
        assert late and any(late) == drafted
        assert all(b.context + b.verifications[-1].proposed <= LENGTH for b in out.stats.blocks if b.context <= LENGTH)
        assert any("decodes alone" in note for note in out.stats.notes) != drafted


def test_a_draft_whose_frequencies_change_still_drafts_well():
    """Its cache is rebuilt at the crossing, so a draft with the target's weights is right in every block."""
    model = longrope_model("phi3")
    out = AdaptivePyramid([longrope_model("phi3"), model]).generate(
        prompt_of(10), max_new_tokens=40, do_sample=False, config=PyramidConfig.simple([4])
    )
    assert out.ids == expected(longrope_model("phi3"), prompt_of(10), 40)
    assert sum(v.rejected for block in out.stats.blocks for v in block.verifications) == 0


def test_what_is_read_from_the_model():
    assert length_dependence(tiny_model("llama")) is None
    phi3, llama, dynamic = (length_dependence(longrope_model(kind)) for kind in KINDS)
    assert (phi3.length, phi3.at_every_length, phi3.rereads) == (LENGTH, False, True)
    assert (llama.length, llama.at_every_length, llama.rereads) == (LENGTH, False, False)
    assert (dynamic.length, dynamic.at_every_length, dynamic.rereads) == (LENGTH - 1, True, False)
