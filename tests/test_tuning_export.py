"""Exported options: only what the engines' own parsers know, and what cannot be expressed is said."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.profile import Profile
from tests.tiny import graded_family
from tuning.study.engine_export import CHECKED, export

LOOKUP, SMALL, DERIVED = (
    "lookup: max_ngram 4, min_ngram 2",
    "repo: org/small, revision: abc123",
    "from: target, quantize: {'body': 'int4'}",
)
# Read from the published packages named in CHECKED: SpeculativeConfig's fields, llama.cpp's common/arg.cpp, SGLang's `spec` namespace.
VLLM = {"method", "model", "num_speculative_tokens", "revision", "prompt_lookup_max", "prompt_lookup_min"}
LLAMA_CPP = {
    "--spec-type",
    "--spec-ngram-simple-size-n",
    "--spec-ngram-simple-size-m",
    "--spec-draft-hf",
    "--spec-draft-n-max",
    "--spec-draft-p-min",
}
SGLANG = {
    "--speculative-algorithm",
    "--speculative-num-draft-tokens",
    "--speculative-ngram-max-bfs-breadth",
    "--speculative-draft-model-path",
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-draft-model-revision",
}


def profile(
    route: tuple, sources: tuple[str, str] = (LOOKUP, SMALL), lengths: tuple[int, int] = (3, 8), **fields
) -> Profile:
    return Profile(
        "csqa",
        "some-family",
        ("bottom", "middle", "target"),
        "pyramid",
        PyramidConfig.simple(lengths, fields.pop("taus", None), route),
        revisions={"bottom": sources[0], "middle": sources[1], "target": "repo: org/big"},
        **fields,
    )


def options(given: Profile, engine: str) -> list[str]:
    return shlex.split(export(given, engine).options)


def comments(given: Profile, engine: str) -> str:
    return " ".join(export(given, engine).comments)


def test_a_lookup() -> None:
    given = profile((0, 2))
    assert json.loads(export(given, "hf").options) == {
        "do_sample": False,
        "prompt_lookup_num_tokens": 8,
        "max_matching_ngram_size": 4,
    }
    assert options(given, "vllm")[0] == "--speculative-config"
    assert json.loads(options(given, "vllm")[1]) == {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
    assert options(given, "llamacpp") == [
        "--spec-type",
        "ngram-simple",
        "--spec-ngram-simple-size-n",
        "2",
        "--spec-ngram-simple-size-m",
        "8",
    ]
    assert options(given, "sglang") == [
        "--speculative-algorithm",
        "NGRAM",
        "--speculative-num-draft-tokens",
        "9",
        "--speculative-ngram-max-bfs-breadth",
        "1",
    ]


def test_a_draft_model() -> None:
    given = profile((1, 2))
    assert json.loads(export(given, "hf").options) == {
        "do_sample": False,
        "num_assistant_tokens": 8,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    assert "assistant_model='org/small' at revision 'abc123'" in comments(given, "hf")
    assert json.loads(options(given, "vllm")[1]) == {
        "method": "draft_model",
        "model": "org/small",
        "num_speculative_tokens": 8,
        "revision": "abc123",
    }
    assert options(given, "llamacpp") == [
        "--spec-type",
        "draft-simple",
        "--spec-draft-hf",
        "org/small",
        "--spec-draft-n-max",
        "8",
        "--spec-draft-p-min",
        "0",
    ]
    assert options(given, "sglang") == [
        "--speculative-algorithm",
        "STANDALONE",
        "--speculative-draft-model-path",
        "org/small",
        "--speculative-num-steps",
        "8",
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        "9",
        "--speculative-draft-model-revision",
        "abc123",
    ]


def test_a_fall_through_is_two_types_in_llama_cpp_and_one_elsewhere() -> None:
    given = profile(((0, 1), 2))
    assert options(given, "llamacpp")[:2] == ["--spec-type", "ngram-simple,draft-simple"]
    for engine in ("hf", "vllm", "sglang"):
        assert "'middle' is left out" in comments(given, engine)
    assert json.loads(options(given, "vllm")[1])["method"] == "ngram"


def test_a_pyramid_becomes_its_uppermost_usable_proposer() -> None:
    given = profile((0, 1, 2))
    assert json.loads(options(given, "vllm")[1])["model"] == "org/small"
    assert "no engine verifies in several stages" in comments(given, "vllm")
    derived = profile((0, 1, 2), sources=(LOOKUP, DERIVED))
    assert json.loads(options(derived, "vllm")[1])["method"] == "ngram"
    assert "tier 'middle' is derived" in comments(derived, "vllm")


@pytest.mark.parametrize("engine", CHECKED)
def test_what_cannot_be_expressed_gives_no_options(engine) -> None:
    assert export(profile((2,)), engine).options == "" and "target alone" in comments(profile((2,)), engine)
    derived = profile((1, 2), sources=(LOOKUP, DERIVED))
    assert export(derived, engine).options == "" and "derived from another" in comments(derived, engine)
    assert "thresholds" in comments(profile((0, 1, 2), taus=(0.3, 0.0)), engine)
    assert "thresholds" not in comments(profile((0, 1, 2)), engine)


@pytest.mark.parametrize("route", [(0, 2), (1, 2), ((0, 1), 2), (0, 1, 2)], ids=str)
def test_only_known_options(route) -> None:
    given = profile(route)
    assert set(json.loads(options(given, "vllm")[1])) <= VLLM
    assert {flag for flag in options(given, "llamacpp") if flag.startswith("--")} <= LLAMA_CPP
    assert {flag for flag in options(given, "sglang") if flag.startswith("--")} <= SGLANG
    for engine in CHECKED:
        *head, last = str(export(given, engine)).splitlines()
        assert head and all(line.startswith("# ") for line in head) and not last.startswith("#")
        assert CHECKED[engine] in head[0]


@pytest.mark.parametrize("route", [(0, 2), (1, 2)], ids=str)
def test_hugging_face_runs_them(route) -> None:
    draft, target = graded_family("llama", 2, eos_token_id=None)
    ids = torch.tensor([[1, 10, 11, 12, 10, 11, 12]])
    keywords = json.loads(export(profile(route), "hf").options)
    assistant = {"assistant_model": draft} if route == (1, 2) else {}
    expected = target.generate(ids, max_new_tokens=20, do_sample=False)
    assert torch.equal(target.generate(ids, max_new_tokens=20, **keywords, **assistant), expected)


def test_vllm_accepts_them_where_it_is_installed() -> None:
    vllm_config = pytest.importorskip("vllm.config")
    known = {field.name for field in fields(vllm_config.SpeculativeConfig)}
    for route in ((0, 2), (1, 2)):
        assert set(json.loads(options(profile(route), "vllm")[1])) <= known


def test_sglang_accepts_them_where_it_is_installed() -> None:
    import argparse

    server_args = pytest.importorskip("sglang.srt.server_args")
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    for route in ((0, 2), (1, 2)):
        parser.parse_args(["--model-path", "org/big", *options(profile(route), "sglang")])


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tuning.export", *arguments],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )


def test_the_command(tmp_path) -> None:
    profile((0, 2)).save(tmp_path / "p.yaml")
    done = run(str(tmp_path / "p.yaml"), "--to", "vllm")
    assert done.returncode == 0 and done.stdout == f"{export(profile((0, 2)), 'vllm')}\n"


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["p.yaml", "--to", "vlm"], "unknown engine 'vlm'; did you mean 'vllm'?"),
        (["missing.yaml", "--to", "hf"], "no profile at"),
        (["broken.yaml", "--to", "hf"], "is not valid YAML"),
        (["p.yaml"], "the following arguments are required: --to"),
        (["p.yaml", "--too", "hf"], "--to"),
    ],
    ids=str,
)
def test_mistakes_give_one_sentence(tmp_path, arguments, expected) -> None:
    profile((0, 2)).save(tmp_path / "p.yaml")
    (tmp_path / "broken.yaml").write_text("a: [b")
    done = run(str(tmp_path / arguments[0]), *arguments[1:])
    assert (
        done.returncode == 2
        and len(done.stderr.strip().splitlines()) == 1
        and expected in done.stderr
        and not done.stdout
    )
