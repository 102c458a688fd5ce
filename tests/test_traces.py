"""Traces hold what the models say, survive the disk, and are recorded piece by piece."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.decoding.divergence import DIVERGENCES as FUNCTIONS
from adaptive_pyramid.decoding.drafters import PromptLookup, PromptLookupDrafter
from adaptive_pyramid.decoding.tokens import TokenSequence
from adaptive_pyramid.throughput import CostModel
from tests.recorded import Pool, repetitive
from tests.tiny import BOS, graded_family, perturbed, tiny_model, tiny_tokenizer
from tuning.tasks.task import load_task
from tuning.traces import __main__ as traces_command
from tuning.traces import format as trace_format
from tuning.traces import recording
from tuning.traces.format import DIVERGENCES, Header, TraceSet
from tuning.traces.ngram_index import NgramIndex
from tuning.traces.recording import record, record_task, tier_infos

PROMPTS = [[BOS, 10, 11, 12], [BOS, 20, 5, 9, 7]]
NEW = 20


@pytest.fixture(scope="module")
def pool() -> Pool:
    tiers = [PromptLookup(3, 1), *graded_family("llama", 2, seed=2, eos_token_id=None)]
    return Pool.of(tiers, repetitive(tiers, PROMPTS), NEW)


def rows(model, trace) -> torch.Tensor:
    """Logits at every position of the answer, by one plain forward without a cache."""
    ids = torch.tensor([[*trace.prompt.tolist(), *trace.ids.tolist()]])
    with torch.no_grad():
        return model(ids[:, :-1], use_cache=False).logits[0, -len(trace) :].float().cpu()


def test_a_trace_says_what_the_models_say(pool) -> None:
    lookup, draft, target = pool.decoder.tiers
    for trace in pool.traces:
        ids = torch.tensor(trace.ids.tolist(), device="cpu")
        own, theirs = rows(target, trace), rows(draft, trace)
        assert trace.ids.tolist() == own.argmax(-1).tolist() and not trace.ended and len(trace) == NEW
        for tier, logits in ((1, theirs), (2, own)):
            log_p = logits.log_softmax(-1)
            assert trace.top[tier].tolist() == logits.argmax(-1).tolist()
            assert trace.logprob[tier] == pytest.approx(log_p.gather(1, ids[:, None])[:, 0].numpy(), abs=1e-4)
            assert trace.gap[tier] == pytest.approx(
                (log_p.max(-1).values - log_p.gather(1, ids[:, None])[:, 0]).numpy(), abs=1e-4
            )
            assert trace.entropy[tier] == pytest.approx(-(log_p.exp() * log_p).sum(-1).numpy(), abs=1e-4)
        pair = pool.traces.pair(1, 2)
        for row, name in enumerate(DIVERGENCES):
            assert trace.divergence[row, pair] == pytest.approx(FUNCTIONS[name](own, theirs).numpy(), abs=1e-4)
        regret = own.log_softmax(-1).max(-1).values - own.log_softmax(-1).gather(1, theirs.argmax(-1)[:, None])[:, 0]
        assert trace.regret[1] == pytest.approx(regret.numpy(), abs=1e-4) and not trace.regret[2].any()
        for lookup_tier, position, token in trace.departures:
            assert lookup_tier == 0 and token != trace.ids[position]
        regrets = [own[i].max() - own[i, token] for _, i, token in trace.departures]
        assert trace.departure_regret[:, 2] == pytest.approx(np.array(regrets), abs=1e-4)
    assert pool.traces.width_flips == 0


def test_chunks_change_nothing(pool, monkeypatch) -> None:
    monkeypatch.setattr(recording, "_ROWS", 7)
    whole = pool.traces[0]
    again = record(pool.decoder, whole.prompt, NEW, example="0")
    for name in ("ids", "top", "source", "departures"):
        assert np.array_equal(getattr(again, name), getattr(whole, name))
    for name in ("logprob", "gap", "entropy", "divergence", "departure_regret"):
        assert np.allclose(getattr(again, name), getattr(whole, name), atol=1e-5, equal_nan=True)


def test_only_the_prompt_is_read_in_a_wide_forward(pool) -> None:
    """Where quantised tiers take other weights, and where decoding, too, is wide."""
    whole = pool.traces[0]
    prompt = [BOS, *range(5, 45)]
    pool.decoder.clear_caches()
    for scorer in pool.decoder.scorers.values():
        scorer.drain()
    record(pool.decoder, prompt, 30, answer=whole.ids)
    for scorer in pool.decoder.scorers.values():
        forwards = scorer.drain()
        assert [(f.width, f.needed) for f in forwards if f.width > 16] == [(len(prompt), 1)]
        assert sum(f.needed for f in forwards) == len(whole)


def test_an_answer_that_is_known_is_not_decoded_again(pool) -> None:
    whole = pool.traces[0]
    again = record(pool.decoder, whole.prompt, 30, answer=whole.ids[:9])
    assert again.ids.tolist() == whole.ids[:9].tolist() and np.array_equal(again.top, whole.top[:, :9])
    with pytest.raises(ValueError, match="between 1 and max_new_tokens=5 ids, got 9"):
        record(pool.decoder, whole.prompt, 5, answer=whole.ids[:9])


@pytest.mark.parametrize("sizes", [(3, 1), (2, 2), (4, 2)])
def test_copies_are_what_the_lookup_finds_from_every_block_start(sizes) -> None:
    rng = np.random.default_rng(0)
    found = departed = 0
    for _ in range(6):
        text = rng.integers(0, 4, 40).tolist()
        copies = NgramIndex(text, 8, *sizes, usable_ids=3)
        departures = set(copies.departures())
        for verified in range(33):
            drafter = PromptLookupDrafter(PromptLookup(*sizes), 0, 3)
            sequence = TokenSequence(text[: 8 + verified])
            for position in range(verified, min(verified + 12, 32)):
                expected = drafter.find(sequence, 10)
                source = copies.source(position, verified)
                assert copies.tokens(position, source, 10) == expected
                found += bool(expected)
                if expected:
                    length, token = copies.match(position, source)
                    rest = text[8 + position :]
                    agree = next(
                        (i for i, (a, b) in enumerate(zip(expected, rest)) if a != b), min(len(expected), len(rest))
                    )
                    assert min(length, 10) == agree and min(copies.available(position, source), 10) == len(expected)
                    if token >= 0:
                        departed += 1
                        assert (position + length, token) in departures
                sequence.ids.append(text[8 + position])  # a mid tier's own token: not verified, so not indexed
    assert found > 500 and departed > 100


def test_a_set_survives_the_disk(pool, tmp_path) -> None:
    ending = replace(pool.traces[1], task="other", ended=True)
    given = TraceSet(
        replace(pool.traces.header, costs=CostModel({1: {1: 0.5, 8: 0.75}, 2: {1: 2.0}}), versions={"torch": "2"}),
        [pool.traces[0], ending],
    )
    given.save(tmp_path / "traces.npz")
    read = TraceSet.load(tmp_path / "traces.npz")
    assert read.header.to_dict() == given.header.to_dict() and read.header.differences(given.header) == []
    assert (
        [trace.key for trace in read] == [trace.key for trace in given]
        and read[1].ended
        and read.tasks == ["", "other"]
    )
    for mine, theirs in zip(given, read):
        for name in (*trace_format._BY_TOKEN, *trace_format._BY_ROW):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name), equal_nan=name not in ("ids", "prompt"))
    assert len(read.select("other")) == 1 and len(read.select(indices=[1])) == 1
    assert not list(tmp_path.glob("*.partial"))


def test_files_that_are_no_traces_are_refused(pool, tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no traces at"):
        TraceSet.load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", ids=np.arange(3))
    pool.traces.save(tmp_path / "old.npz")
    for name in ("text.npz", "other.npz"):
        with pytest.raises(ValueError, match="not a trace set"):
            TraceSet.load(tmp_path / name)
    arrays = dict(np.load(tmp_path / "old.npz"))
    newer = bytes(arrays["json"]).replace(b'"version": 1', b'"version": 9')
    np.savez(tmp_path / "new.npz", **{**arrays, "json": np.frombuffer(newer, np.uint8)})
    with pytest.raises(ValueError, match="format version 9; this library reads 1"):
        TraceSet.load(tmp_path / "new.npz")
    with pytest.raises(ValueError, match="unknown task 'gsm8'"):
        pool.traces.select("gsm8")
    with pytest.raises(ValueError, match="no such pair"):
        pool.traces.pair(2, 1)


def test_only_models_and_lookups_can_be_recorded(pool) -> None:
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    foreign = PyramidDecoder([PromptLookupCandidateGenerator(num_output_tokens=3, max_length=99), tiny_model()])
    with pytest.raises(TypeError, match="cannot be recorded"):
        tier_infos(foreign)


def test_tasks_are_recorded_turn_by_turn_and_once(pool) -> None:
    model = tiny_model(max_position_embeddings=4096)
    decoder = PyramidDecoder([perturbed(model, 0.02), model])
    task = replace(
        load_task("spec_bench"), examples=[e for e in load_task("spec_bench").examples if len(e.turns) > 1][:2]
    )
    found = TraceSet(Header(tier_infos(decoder)))
    tokenizer = tiny_tokenizer()
    record_task(found, decoder, tokenizer, task, 6)
    assert [trace.turn for trace in found] == [0, 1, 0, 1] and found.tokens == 24
    reply = tokenizer.decode(found[0].ids.tolist(), skip_special_tokens=True)
    assert reply in tokenizer.decode(found[1].prompt.tolist())
    before = list(found)
    record_task(found, decoder, tokenizer, task, 6)
    assert all(a is b for a, b in zip(before, found)) and len(found) == 4
    assert "not the benchmark" in found.header.labels["spec_bench"]
    with pytest.raises(ValueError, match="max_new_tokens=6, now 7"):
        record_task(found, decoder, tokenizer, task, 7)
    other = replace(task, examples=[replace(task.examples[0], turns=("something else", "and more"))])
    with pytest.raises(ValueError, match="another prompt"):
        record_task(found, decoder, tokenizer, other, 6)


@pytest.fixture(scope="module")
def family_file(tmp_path_factory) -> Path:
    """A family on the disk: two models, a tokenizer, a YAML file."""
    folder = tmp_path_factory.mktemp("family")
    target = tiny_model(max_position_embeddings=4096, dtype=torch.float32)
    for name, model in (("draft", perturbed(target, 0.02)), ("target", target)):
        model.save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    tiers = [
        {"name": "lookup", "lookup": True},
        {"name": "draft", "repo": "draft"},
        {"name": "target", "repo": "target"},
    ]
    (folder / "tiny.yaml").write_text(yaml.safe_dump({"name": "tiny", "tiers": tiers}))
    return folder / "tiny.yaml"


def command(family_file: Path, out: Path, *more: str) -> list[str]:
    return [
        "--task",
        "prompts",
        "--family",
        str(family_file),
        "--dtype",
        "float32",
        "--max-new-tokens",
        "8",
        "--out",
        str(out),
        *more,
    ]


def test_the_command_resumes_and_adds(family_file, tmp_path, capsys) -> None:
    out = tmp_path / "traces.npz"
    assert traces_command.main(command(family_file, out, "--limit", "2")) == 0
    first = TraceSet.load(out)
    assert first.tasks == ["prompts"] and [tier.name for tier in first.header.tiers] == ["lookup", "draft", "target"]
    assert set(first.header.costs.table) == {1, 2} and first.header.family == "tiny" and first.header.dtype == "float32"
    assert f"{len(first)} traces" in capsys.readouterr().err
    assert traces_command.main(command(family_file, out, "--limit", "4", "--no-costs")) == 0
    again = TraceSet.load(out)
    assert len(again) > len(first) and [trace.key for trace in again][: len(first)] == [trace.key for trace in first]
    assert again.header.costs.to_dict() == first.header.costs.to_dict()  # measured once


@pytest.mark.parametrize(
    "change, sentence",
    [
        (["--dtype", "float64"], "recorded otherwise (dtype: 'float32' there, 'float64' here)"),
        (["--max-new-tokens", "9"], "max_new_tokens=8, now 9 is asked for"),
        (["--task", "prompts", "csqa", "--data", "x.jsonl"], "--data belongs to one task, got 2"),
        (["--task", "prompz"], "did you mean 'prompts'"),
        (["--tusk", "csqa"], "did you mean '--task'"),
        (["--out", "traces.txt"], "--out must be a file that ends in .npz"),
    ],
)
def test_mistakes_on_the_command_line_are_one_sentence(family_file, tmp_path, capsys, change, sentence) -> None:
    out = tmp_path / "traces.npz"
    if sentence.startswith(("recorded", "max_new")):
        assert traces_command.main(command(family_file, out, "--limit", "1", "--no-costs")) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        traces_command.main([*command(family_file, out, "--limit", "1", "--no-costs"), *change])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and sentence in " ".join(said.split())


def test_ctrl_c_keeps_what_is_recorded(family_file, tmp_path, capsys, monkeypatch) -> None:
    out = tmp_path / "traces.npz"
    real, calls = recording.record, []

    def interrupted(*args, **keywords):
        calls.append(keywords)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **keywords)

    monkeypatch.setattr(recording, "record", interrupted)
    assert traces_command.main(command(family_file, out, "--no-costs")) == 130
    assert "the same command goes on from there" in capsys.readouterr().err
    kept = TraceSet.load(out)
    assert len(kept) == 2
    monkeypatch.setattr(recording, "record", real)
    assert traces_command.main(command(family_file, out, "--no-costs")) == 0
    assert [trace.key for trace in TraceSet.load(out)][:2] == [trace.key for trace in kept]


def benchmark(monkeypatch, capsys, name: str, *arguments: object) -> list[str]:
    """Lines that a script of benchmarks/ prints."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_the_benchmark_of_replay_runs(monkeypatch, capsys) -> None:
    lines = benchmark(monkeypatch, capsys, "replay_speed", "--configs", 3)
    assert sum("50 │   6400 │" in line for line in lines) == 2


def test_the_benchmark_of_the_estimates_finds_exact_counters_exact(family_file, tmp_path, capsys, monkeypatch) -> None:
    out = tmp_path / "traces.npz"
    assert traces_command.main(command(family_file, out, "--limit", "6")) == 0
    lines = benchmark(monkeypatch, capsys, "replay_error", "--traces", out, "--family", family_file, "--answers", 2)
    exact = [line for line in lines if "exact" in line.split("│")[-2:][0]]
    assert len(exact) == 3 and all("target +0.0%" in line and "-" not in line for line in exact)
    assert any("error, model" in line for line in lines)
