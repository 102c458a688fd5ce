"""Faults that come with the model itself: its wrappers, where its weights rest, and weights that change between calls."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref

import peft
import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from transformers import GenerationConfig

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.models.quantize import quantize
from adaptive_pyramid.models.truncate import truncate
from adaptive_pyramid.pyramid import AdaptivePyramid
from tests.engine import reference_ids
from tests.tiny import graded_family, tiny_model

torch.set_num_threads(1)
PROMPT = [1, 10, 11, 12, 30]
NEW = 24
CONFIG = PyramidConfig.simple([3, 8])


def pyramid_of(models_, **keywords) -> AdaptivePyramid:
    return AdaptivePyramid(
        models_, **{"config": PyramidConfig.simple([4] * (len(models_) - 1)), "control": "fixed"} | keywords
    )


def assert_equals_generate(pyramid: AdaptivePyramid, target, prompt=PROMPT) -> list[int]:
    """The ids that `ar`, `sd` and `pyramid` give, all equal to those of `target.generate`."""
    expected = reference_ids(target, prompt, max_new_tokens=NEW, eos_token_id=None)
    for method in ("pyramid", "sd", "ar"):
        assert pyramid.generate(prompt, max_new_tokens=NEW, eos_token_id=None, method=method).ids == expected, method
    return expected


def with_lora(model, names=("default",), kind=peft.LoraConfig):
    """`model` within a PeftModel that has an adapter per name, each with random weights that change what is said."""
    wrapped = None
    for seed, name in enumerate(names):
        config = kind(r=4, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
        if wrapped is None:
            wrapped = peft.get_peft_model(model, config, adapter_name=name)
        else:
            wrapped.add_adapter(name, config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter_name, weight in wrapped.named_parameters():
                if "lora_" in parameter_name and name in parameter_name:
                    weight.copy_(0.3 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return wrapped.eval()


# Wrapped models


def test_a_compiled_model_is_decoded_with_as_generate_does():
    draft, target = graded_family("llama", 2)
    compiled = torch.compile(target)  # (compiled at the first call of its forward, which `generate` never makes)
    assert_equals_generate(pyramid_of([torch.compile(draft), compiled]), target)


def test_a_model_within_peft_is_decoded_with_its_adapter_active():
    draft, target = graded_family("llama", 2)
    plain = reference_ids(target, PROMPT, max_new_tokens=NEW, eos_token_id=None)
    wrapped = with_lora(target)
    pyramid = pyramid_of([PromptLookup(), with_lora(draft), wrapped])
    assert assert_equals_generate(pyramid, wrapped) != plain
    assert_equals_generate(pyramid_of([draft, torch.compile(wrapped)]), wrapped)
    with wrapped.disable_adapter():
        assert reference_ids(wrapped, PROMPT, max_new_tokens=NEW, eos_token_id=None) == plain


def test_custom_generate_knows_the_target_in_its_wrapper():
    draft, target = graded_family("llama", 2)
    wrapped = with_lora(target)
    ids = torch.tensor([PROMPT])
    keywords = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "eos_token_id": None}
    for outer in (wrapped, torch.compile(wrapped)):
        pyramid = pyramid_of([draft, outer])
        expected = wrapped.generate(ids, **keywords)
        assert torch.equal(outer.generate(ids, custom_generate=pyramid.custom_generate, **keywords), expected)
        assert torch.equal(
            target.generate(ids, custom_generate=pyramid.custom_generate, **keywords), expected
        )  # the adapter works in place
    with pytest.raises(ValueError, match="own target"):
        draft.generate(ids, custom_generate=pyramid.custom_generate, **keywords)


def test_an_adapter_outside_the_layers_is_refused():
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, num_layers=2, token_dim=32)
    wrapped = peft.get_peft_model(tiny_model("llama"), config)
    with pytest.raises(ValueError, match=r"'default' \(PromptTuningConfig\) works outside the layers"):
        pyramid_of([wrapped])


def test_no_message_prints_a_module():
    model = tiny_model("llama")
    mistakes = [
        lambda: AdaptivePyramid([torch.nn.Sequential(model)]),
        lambda: AdaptivePyramid([torch.nn.Sequential(model), model]),
        lambda: AdaptivePyramid(model),
        lambda: AdaptivePyramid([model], config=model),
        lambda: AdaptivePyramid([model], control=model),
        lambda: AdaptivePyramid([model], profile=model),
        lambda: AdaptivePyramid([model], method=model),
        lambda: AdaptivePyramid([model]).generate(PROMPT, on_block=[model, 3]),
        lambda: AdaptivePyramid([model]).generate(model),
        lambda: AdaptivePyramid([model]).generate(PROMPT, generation_config=model),
        lambda: AdaptivePyramid([model]).generate(PROMPT, config=model),
    ]
    for mistake in mistakes:
        with pytest.raises(TypeError) as raised:
            mistake()
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 250
    with pytest.raises(TypeError, match="got Sequential"):
        AdaptivePyramid([torch.nn.Sequential(model)])


# use_cache


@pytest.mark.parametrize("place", ["config", "generation_config", "both"])
def test_a_checkpoint_without_caches_is_decoded_with_them(place):
    draft, target = graded_family("llama", 2)
    if place != "generation_config":
        target.config.use_cache = False
    if place != "config":
        target.generation_config.use_cache = False
    pyramid = pyramid_of([draft, target])
    assert_equals_generate(pyramid, target)
    given = copy.deepcopy(target.generation_config)  # the checkpoint's settings, passed on
    assert len(pyramid.generate(PROMPT, generation_config=given, max_new_tokens=4, eos_token_id=None).ids) == 4
    with pytest.raises(ValueError, match="use_cache=False"):
        pyramid.generate(PROMPT, max_new_tokens=4, use_cache=False)


def test_a_call_without_caches_is_refused():
    pyramid = pyramid_of(graded_family("llama", 2))
    with pytest.raises(ValueError, match="use_cache=False"):
        pyramid.generate(PROMPT, max_new_tokens=4, use_cache=False)
    with pytest.raises(ValueError, match="use_cache=False"):
        pyramid.generate(PROMPT, generation_config=GenerationConfig(use_cache=False, max_new_tokens=4))


# Offloaded models


def _by_device_map(model, folder):
    modules = {"model.embed_tokens": "disk", "model.layers.0": "cpu", "model.layers.1": "disk"}
    modules |= {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}
    return dispatch_model(model, modules, main_device="cpu", offload_dir=str(folder), force_hooks=True)


OFFLOADS = {
    "cpu_offload": lambda model, folder: cpu_offload(model, execution_device=torch.device("cpu")),
    "disk_offload": lambda model, folder: disk_offload(model, str(folder), execution_device=torch.device("cpu")),
    "device_map": _by_device_map,
}


@pytest.mark.parametrize("how", OFFLOADS)
def test_an_offloaded_target_is_decoded_with_as_generate_does(how, tmp_path):
    draft, target = graded_family("llama", 2)
    expected = reference_ids(target, PROMPT, max_new_tokens=NEW, eos_token_id=None)
    offloaded = OFFLOADS[how](copy.deepcopy(target), tmp_path)
    assert offloaded.get_input_embeddings().weight.device.type == "meta"
    pyramid = pyramid_of([draft, offloaded])
    assert assert_equals_generate(pyramid, offloaded) == expected
    sampled = pyramid.generate(PROMPT, max_new_tokens=NEW, eos_token_id=None, do_sample=True, seed=3, top_k=5)
    plain = pyramid_of([target]).generate(
        PROMPT, max_new_tokens=NEW, eos_token_id=None, do_sample=True, seed=3, top_k=5
    )
    assert sampled.ids == plain.ids
    assert pyramid.description()["device"] == "cpu"
    pyramid = pyramid_of([OFFLOADS[how](copy.deepcopy(draft), tmp_path / "draft"), target])
    assert_equals_generate(pyramid, target)


def test_weights_that_nothing_loads_are_named():
    model = tiny_model("llama").to("meta")
    with pytest.raises(ValueError, match="LlamaForCausalLM are on the meta device"):
        pyramid_of([model])


# Weights that change between calls


def _noisy_(model, sigma: float = 0.3, seed: int = 5) -> dict[str, torch.Tensor]:
    """New weights for `model`, by name."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: weight + sigma * weight.std() * torch.randn(weight.shape, generator=generator).to(weight)
        for name, weight in model.state_dict().items()
    }


def _optimiser_step(model, **keywords):
    for weight in model.parameters():
        weight.grad = torch.randn(
            weight.shape, generator=torch.Generator().manual_seed(len(weight)), dtype=weight.dtype
        )
    torch.optim.AdamW(model.parameters(), lr=0.05, **keywords).step()


def _assign_data(model):
    for name, weight in model.named_parameters():
        weight.data = _noisy_(model)[name] if name.endswith("v_proj.weight") else weight.data


def _write_data(model):
    new = _noisy_(model)
    for name, weight in model.named_parameters():
        weight.data.copy_(new[name])  # which no version counter sees


def _replace_a_layer(model):
    layer = model.model.layers[0].mlp
    new = copy.deepcopy(layer.down_proj)
    with torch.no_grad():
        new.weight.mul_(-1)
    layer.down_proj = new


def _in_inference_mode(model):
    with torch.inference_mode(), torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[3] += 1.0


CHANGES = {
    "optimiser step": _optimiser_step,
    "fused optimiser step": lambda model: _optimiser_step(model, fused=True),
    "load_state_dict": lambda model: model.load_state_dict(_noisy_(model)),
    "load_state_dict, assigned": lambda model: model.load_state_dict(_noisy_(model), assign=True),
    "data assigned": _assign_data,
    "data written": _write_data,
    "layer replaced": _replace_a_layer,
    "one row, in inference mode": _in_inference_mode,
}


def assert_starts_cold(pyramid: AdaptivePyramid, target, before: list[int]) -> list[int]:
    """After a change of weights: another text than before, `generate`'s own, and the prompt read anew."""
    out = pyramid.generate(PROMPT, max_new_tokens=NEW, eos_token_id=None, method="ar")
    first = out.stats.blocks[0].forwards[0]
    assert (first.context, first.width) == (0, len(PROMPT))
    assert out.ids != before
    return assert_equals_generate(pyramid, target)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_start_cold(change):
    draft, target = graded_family("llama", 2)
    pyramid = pyramid_of([draft, target])
    before = assert_equals_generate(pyramid, target)
    again = pyramid.generate(PROMPT, max_new_tokens=2, eos_token_id=None)
    assert all(forward.context > 0 for forward in again.stats.blocks[0].forwards)  # nothing changed: the caches stay
    CHANGES[change](target)
    assert_starts_cold(pyramid, target, before)


def test_inference_tensors_start_cold_every_time():
    with torch.inference_mode():
        target = tiny_model("llama")
        pyramid = pyramid_of([target])
        before = assert_equals_generate(pyramid, target)
        target.model.layers[0].self_attn.v_proj.weight[5] += 2.0
        assert_starts_cold(pyramid, target, before)


def _scale(wrapped, adapter: str) -> None:
    for module in wrapped.modules():
        if hasattr(module, "set_scale"):
            module.set_scale(adapter, 0.5)


def test_another_adapter_or_none_starts_cold():
    draft, target = graded_family("llama", 2)
    wrapped = with_lora(target, ("one", "two"))
    wrapped.set_adapter("one")
    pyramid = pyramid_of([draft, wrapped])
    one = assert_equals_generate(pyramid, wrapped)
    wrapped.set_adapter("two")
    two = assert_starts_cold(pyramid, wrapped, one)
    with wrapped.disable_adapter():
        plain = assert_starts_cold(pyramid, wrapped, two)
    assert assert_starts_cold(pyramid, wrapped, plain) == two
    _scale(wrapped, "two")
    scaled = assert_starts_cold(pyramid, wrapped, two)
    wrapped.set_adapter("one")
    wrapped.merge_adapter(["one"])
    assert_equals_generate(pyramid, wrapped)
    wrapped.unmerge_adapter()
    wrapped.set_adapter("two")
    _scale(wrapped, "two")
    assert assert_equals_generate(pyramid, wrapped) == scaled


def test_an_adapter_added_to_a_pyramids_model_starts_cold():
    draft, target = graded_family("llama", 2)
    pyramid = pyramid_of([draft, target])
    before = assert_equals_generate(pyramid, target)
    assert_starts_cold(pyramid, with_lora(target), before)


def test_a_derived_tier_says_when_its_source_has_changed():
    target = tiny_model("llama", dtype=torch.float32)
    cut, rounded = truncate(target, [0]), quantize(target)
    pyramid = pyramid_of([cut, rounded, target])

    def notes() -> list[int]:
        out = pyramid.generate(PROMPT, max_new_tokens=4)
        return [tier for tier in range(3) if any(f"tier {tier} was derived" in note for note in out.stats.notes)]

    assert notes() == []
    _optimiser_step(target)
    assert notes() == notes() == [1]  # the cut layers are the source's own
    cached = copy.deepcopy(cut)
    assert torch.equal(cached(torch.tensor([PROMPT])).logits, truncate(target, [0])(torch.tensor([PROMPT])).logits)
    with_lora(target)
    assert notes() == [0, 1]


def test_a_derived_tier_does_not_keep_its_source_alive():
    target = tiny_model("llama", dtype=torch.float32)
    cut, alive = truncate(target, [0]), weakref.ref(target.model.layers[1])
    del target
    gc.collect()
    assert alive() is None and len(pyramid_of([cut]).generate(PROMPT, max_new_tokens=4).ids) == 4


# Numbers that depend on the width of a forward


def _dynamically_quantised(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still what users load
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)


def test_a_target_whose_logits_depend_on_the_width_is_named_and_counted():
    draft, target = graded_family("llama", 2, dtype=torch.float32)
    with pytest.warns(
        UserWarning, match=r"tier 1 \(LlamaForCausalLM\), the target: its logits differ .* by up to 0\.\d+ of"
    ):
        pyramid = pyramid_of([draft, _dynamically_quantised(target)])
    out = pyramid.generate(PROMPT, max_new_tokens=NEW, eos_token_id=None, method="sd")
    assert any("the target: its logits differ" in note for note in out.stats.notes)
    assert 0 < out.stats.near_ties == out.stats.to_dict()["near_ties"] <= NEW
    assert str(out.stats.near_ties) + " near-ties" in out.stats.summary()


@pytest.mark.parametrize("arch", ["llama", "gpt2", "gemma3", "mistral"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rounding_alone_is_no_width_dependence(arch, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        pyramid = pyramid_of([PromptLookup(), tiny_model(arch, dtype=dtype)])
    assert not pyramid.decoder.width_difference.significant
    assert pyramid.generate(PROMPT, max_new_tokens=2).stats.notes == []


def test_an_int4_target_decodes_as_generate_does_at_every_length_of_prompt():
    """Its layers take another kernel from 33 tokens on: a prompt and a proposal may not pass that in one forward."""
    draft, source = graded_family("llama", 2, dtype=torch.float32)
    target = quantize(source)
    with pytest.warns(UserWarning, match="its logits differ"):
        pyramid = pyramid_of([draft, target], config=PyramidConfig.simple([8]))
    long = PyramidConfig.simple([40])
    for length in (8, 20, 26, 29, 32, 33, 40, 53):
        prompt = [1, *((7919 * i + length) % 60 + 4 for i in range(length - 1))]
        expected = reference_ids(target, prompt, max_new_tokens=NEW, eos_token_id=None)
        for keywords in ({"method": "ar"}, {"method": "sd"}, {"method": "sd", "config": long}):
            pyramid.clear_caches()
            assert pyramid.generate(prompt, max_new_tokens=NEW, eos_token_id=None, **keywords).ids == expected
