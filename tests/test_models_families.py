"""Families by name and from files of one's own: validation, loading, derived tiers and their recorded figures."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import yaml

from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.models import calibration, families
from adaptive_pyramid.models.families import FamilyUnavailable, load, names
from adaptive_pyramid.models.quantize import QuantizedLinear
from tests.tiny import BOS, graded_family, perturbed, tiny_model, tiny_tokenizer


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, request):
    if "embedded_family" not in request.fixturenames:
        monkeypatch.setenv("ADAPTIVE_PYRAMID_CACHE", str(tmp_path / "cache"))


def _saved(folder, name, model):
    model.save_pretrained(folder / name)
    tiny_tokenizer().save_pretrained(folder / name)


def _file(folder, **spec):
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def _one_model(folder, *derived, **model_keywords):
    _saved(folder, "big", tiny_model("llama", dtype=torch.float32, **model_keywords))
    return _file(folder, name="mine", tiers=[*derived, {"name": "big", "repo": "big"}])


def test_shipped_families_are_valid_and_known():
    assert names() == ["llama3", "qwen2.5", "smollm2", "smollm2-135m"]
    for name in names():
        spec = families._read(families._find(name))
        assert spec["name"] == name and len(spec["tiers"]) == 3
    llama = families._read(families._find("llama3"))["tiers"]
    assert [tier["repo"].split("/")[1] for tier in llama] == [
        "Llama-3.2-1B-Instruct",
        "Llama-3.2-3B-Instruct",
        "Llama-3.1-8B-Instruct",
    ]


def test_unknown_names_get_a_suggestion(tmp_path):
    with pytest.raises(ValueError, match="unknown family 'lama3'; did you mean 'llama3'"):
        load("lama3")
    with pytest.raises(ValueError, match="no family file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(TypeError, match="a family is a name or the path"):
        load(3)
    with pytest.raises(ValueError, match="unknown target of family 'smollm2-135m' 'int3'; did you mean 'int4'"):
        load("smollm2-135m", target="int3")
    with pytest.raises(ValueError, match="unknown dtype 'bf16'"):
        load("smollm2-135m", dtype="bf16")
    for device in ("gpu", "cuda:99"):
        with pytest.raises(
            ValueError, match=f"device must be one that this machine has, 'cpu' for instance, got '{device}'"
        ):
            load("smollm2-135m", device=device)


def test_a_family_of_local_directories_is_loaded_in_order(tmp_path):
    models = graded_family("llama", dtype=torch.float32)
    for name, model in zip("dqt", models):
        _saved(tmp_path, name, model)
    family = load(
        _file(tmp_path, name="mine", tiers=[{"name": n, "repo": n} for n in "dqt"]), dtype="float32", progress=False
    )
    assert family.name == "mine" and family.tier_names == ("d", "q", "t") and family.dtype == torch.float32
    ids = torch.tensor([[BOS, 9, 4]])
    for model, source in zip(family.models, models):
        assert torch.equal(model(ids).logits, source(ids).logits) and not model.training
    assert family.tokenizer("tea").input_ids == tiny_tokenizer()("tea").input_ids
    assert [tier.bytes for tier in family.tiers] == [4 * tier.parameters + 16 * 2 for tier in family.tiers]
    assert all(tier.agreement is None and tier.seconds_per_token is None for tier in family.tiers)
    assert family.sources["q"] == {"repo": "q"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        family.name = "other"


def test_one_model_is_a_family_with_derived_tiers(tmp_path):
    path = _one_model(
        tmp_path,
        {"name": "lookup", "lookup": True},
        {"name": "small", "from": "big", "quantize": {"body": "int8", "head": "int8"}},
    )
    family = load(path, dtype="float32", progress=False)
    lookup, small, big = family.models
    assert isinstance(lookup, PromptLookup) and isinstance(small.lm_head, QuantizedLinear)
    assert small.model.embed_tokens.weight is big.model.embed_tokens.weight
    first, middle, last = family.tiers
    assert first == families.TierReport("lookup", 0, 0, 0)
    assert middle.parameters == last.parameters and middle.bytes < last.shared_bytes / 2 and last.bytes == 0
    assert middle.shared_bytes == last.shared_bytes > 0
    assert 0.8 < middle.agreement <= 1 and 0.8 < middle.overlap < 1
    assert middle.seconds_per_token > 0 and last.seconds_per_token > 0 and last.agreement is None


def test_figures_are_measured_once_and_again_when_something_changed(tmp_path, monkeypatch):
    path = _one_model(tmp_path, {"name": "small", "from": "big", "quantize": {"body": "int8"}})
    texts, original = [], calibration.own_text
    monkeypatch.setattr(calibration, "own_text", lambda *args: texts.append(1) or original(*args))
    first = load(path, dtype="float32", progress=False)
    assert load(path, dtype="float32", progress=False).tiers == first.tiers and len(texts) == 1
    load(path, dtype="float64", progress=False)
    assert len(texts) == 2
    _saved(tmp_path, "big", perturbed(tiny_model("llama", dtype=torch.float32), 0.1))
    load(path, dtype="float32", progress=False)
    assert len(texts) == 3
    (tmp_path / "cache" / calibration.RECORD).write_text("{damaged")
    load(path, dtype="float32", progress=False)
    assert len(texts) == 4
    assert len(json.loads((tmp_path / "cache" / calibration.RECORD).read_text())) == 3


def test_agreement_is_that_of_the_definition(tmp_path):
    target, other = tiny_model("llama", dtype=torch.float32), perturbed(tiny_model("llama", dtype=torch.float32), 0.05)
    rows = calibration.own_text(target, tiny_tokenizer())
    assert len(rows) == len(calibration.PROMPTS)
    hits, overlap, count = 0, 0.0, 0
    for ids, prompt in rows:
        for i in range(prompt, len(ids)):  # one position after the other
            p, q = (one(ids[None, :i]).logits[0, -1].softmax(-1) for one in (target, other))
            assert p.argmax() == ids[i], "not the target's own greedy text"
            hits += int(q.argmax() == p.argmax())
            overlap += torch.minimum(p, q).sum().item()
            count += 1
    agreement, mean_overlap = calibration.fidelity(other, target, rows)
    assert 0.2 < agreement < 0.95
    assert agreement == pytest.approx(hits / count) and mean_overlap == pytest.approx(overlap / count, abs=1e-4)
    assert calibration.fidelity(target, target, rows) == pytest.approx((1, 1), abs=1e-5)


def test_a_poor_derived_tier_is_warned_of(tmp_path):
    path = _one_model(tmp_path, {"name": "cut", "from": "big", "layers": [0]}, num_hidden_layers=3)
    with pytest.warns(UserWarning, match="tier 'cut' agrees with the target on only"):
        family = load(path, dtype="float32", progress=False)
    assert family.models[0].config.num_hidden_layers == 1 and family.tiers[0].bytes == 0
    assert family.tiers[0].parameters < family.tiers[1].parameters


def test_quantised_tiers_are_left_out_on_another_device_and_said_so():
    tiers = [{"name": "q", "from": "t", "quantize": {"body": "int4"}}, {"name": "t", "repo": "x"}]
    with pytest.warns(UserWarning, match="tier 'q' is quantised for the CPU and left out on 'cuda'"):
        assert families._without_quantised("mine", tiers, torch.device("cuda")) == tiers[1:]
    with pytest.raises(ValueError, match="the target 'target' is quantised and runs on device 'cpu' only"):
        load("smollm2-135m", target="int4", device="meta")


def test_other_targets_of_a_file(tmp_path):
    _saved(tmp_path, "big", tiny_model("llama", dtype=torch.float32))
    path = _file(
        tmp_path,
        name="mine",
        tiers=[{"name": "big", "repo": "big"}],
        targets={"int4": [{"name": "fast", "repo": "big", "quantize": {"body": "int4"}}]},
    )
    assert not any(isinstance(m, QuantizedLinear) for m in load(path, progress=False).models[0].modules())
    assert families.other_targets(path) == ["int4"] and families.other_targets(path, "int4") == ["auto"]
    (fast,) = load(path, target="int4", progress=False).models
    assert isinstance(fast.model.layers[0].mlp.up_proj, QuantizedLinear)
    assert not isinstance(fast.lm_head, QuantizedLinear)


def test_weights_that_cannot_be_had_are_one_sentence(tmp_path):
    path = _file(tmp_path, name="mine", tiers=[{"name": "big", "repo": "nobody/nothing"}])
    with pytest.raises(FamilyUnavailable, match=r"tier 'big' \(nobody/nothing\) cannot be loaded: ") as caught:
        load(path, local_files_only=True, progress=False)
    assert "\n" not in str(caught.value)


BIG = {"name": "big", "repo": "x"}


@pytest.mark.parametrize(
    "spec, message",
    [
        ({"tiers": [BIG]}, "lacks 'name'"),
        ({"name": "a", "tiers": [BIG], "tokeniser": 1}, "unknown key in mine.yaml 'tokeniser'"),
        ({"name": "a", "tiers": []}, "must be a list of tiers"),
        ({"name": "a", "tiers": [{**BIG, "revison": "main"}]}, "did you mean 'revision'"),
        ({"name": "a", "tiers": [{"name": "big"}]}, "exactly one of repo, wheel, from, lookup, got none"),
        ({"name": "a", "tiers": [{"name": "s", "from": "huge", "layers": [0]}, BIG]}, "must name the last tier, 'big'"),
        ({"name": "a", "tiers": [{"name": "s", "from": "big"}, BIG]}, "neither quantize nor layers"),
        (
            {"name": "a", "tiers": [{"name": "s", "from": "big", "quantize": {"body": "int3"}}, BIG]},
            "did you mean 'int",
        ),
        ({"name": "a", "tiers": [{"name": "s", "from": "big", "quantize": {"tail": "int4"}}, BIG]}, "unknown key"),
        ({"name": "a", "tiers": [{"name": "s", "lookup": False}, BIG]}, "a lookup is"),
        ({"name": "a", "tiers": [{"name": "s", "lookup": True}]}, "a lookup is"),
        ({"name": "a", "tiers": [BIG, BIG]}, "tier names must differ"),
        ({"name": "a", "tiers": [{"name": "w", "wheel": {"package": "p"}}]}, "wheel lacks 'version'"),
        ({"name": "a", "tiers": [{**BIG, "lookup": True}]}, "exactly one of"),
        (
            {"name": "a", "tiers": [{"name": "s", "from": "big", "revision": "x", "layers": [0]}, BIG]},
            "revision belongs",
        ),
        ({"name": "a", "tiers": [BIG], "targets": {"auto": [BIG]}}, "other than 'auto'"),
        (["a"], "must be a mapping"),
        ({"name": "a", "tiers": [{"name": "w", "wheel": ["p"]}]}, r"wheel must be a mapping with"),
    ],
)
def test_bad_files(tmp_path, spec, message):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(spec))
    with pytest.raises(ValueError, match=message):
        load(path)


@pytest.mark.embedded
def test_embedded_family(embedded_family):
    lookup, int4, target = embedded_family.models
    assert isinstance(lookup, PromptLookup) and embedded_family.dtype == torch.float32
    report = dict(zip(embedded_family.tier_names, embedded_family.tiers))
    assert report["target"].parameters == report["int4"].parameters == 134_515_008
    assert report["int4"].agreement > 0.9 and report["int4"].overlap > 0.95
    assert report["int4"].bytes < 100e6 and int4.model.embed_tokens.weight is target.model.embed_tokens.weight
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = embedded_family.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = target.generate(**ids, max_new_tokens=16, do_sample=False)
    assert "Paris" in embedded_family.tokenizer.decode(out[0, ids["input_ids"].shape[1] :])


@pytest.mark.embedded
def test_int4_body_reproduces_the_wheels_weights(embedded_family):
    _, int4, target = embedded_family.models
    for name in ("self_attn.q_proj", "mlp.down_proj"):
        for layer in (0, 29):
            exact = target.model.layers[layer].get_submodule(name).weight
            restored = int4.model.layers[layer].get_submodule(name).dequantized().float()
            rounded = exact.bfloat16().float()
            error, floor = (restored - exact).norm() / exact.norm(), (rounded - exact).norm() / exact.norm()
            assert error < 3 * floor, (name, layer, float(error), float(floor))
