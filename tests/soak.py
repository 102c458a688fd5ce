"""Random combinations of everything, in float64, against Hugging Face `generate`.

    python -m tests.soak --runs 2000 --seed 0

Every run is one call of `AdaptivePyramid.generate` on a tiny graded family. Lossless methods must give the ids (and text) of
`target.generate`: greedy, or plain sampling with the same keyed noise. All methods must keep the counters' identities and
the promises on drift. A run is reproduced by its seed alone: `--runs 1 --seed S`.
"""

from __future__ import annotations

import argparse
import random
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

from adaptive_pyramid.config import PyramidConfig, StageConfig, all_routes
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.decoding.method import Method, resolve
from adaptive_pyramid.pyramid import AdaptivePyramid
from tests.engine import ChosenControl, check_identities, counted_forwards, reference_ids
from tests.tiny import ARCHITECTURES, EOS, PAD, VOCAB, graded_family, tiny_tokenizer

VARIANTS = ("plain", "plain", "mixed dtypes", "larger draft vocabulary", "smaller draft vocabulary", "same model")
LOWER = ("exact", "match", "fuzzy", "relaxed")
DIVERGENCES = ("js", "tv", "kl", "kl_rev", "logit_gap", "topk_5")


@cache
def models_of(arch: str, variant: str) -> list[PreTrainedModel]:
    """Five graded models, draft first. "same model": all five are the target."""
    family = graded_family(
        arch, 5, seed=ARCHITECTURES.index(arch), sigmas=(0.03,) * 4 if arch != "gemma3" else (0.06,) * 4
    )
    if variant == "same model":
        return family[-1:] * 5
    if variant == "mixed dtypes":
        return [family[0].float(), family[1].float(), *family[2:]]
    if variant.endswith("vocabulary"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for model in family[:2]:
                model.resize_token_embeddings(
                    VOCAB + 6 if variant.startswith("larger") else VOCAB - 6, mean_resizing=False
                )
    return family


@dataclass
class Case:
    """One run, drawn from its seed."""

    seed: int
    arch: str
    variant: str
    tiers: tuple[int | str, ...]  # indices into the family, "lookup" at the bottom perhaps
    method: Any
    drift_budget: float | None
    prompt: list[int]
    keywords: dict[str, Any]
    stop: str | None = None  # "eos", "string" or None: chosen from the reference text when it runs
    change: bool = True  # another config in every block
    notes: list[str] = field(default_factory=list)

    @property
    def n_tiers(self) -> int:
        return len(self.tiers)


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    arch = rng.choice(ARCHITECTURES)
    n = rng.choice((1, 2, 2, 3, 3, 3, 4, 5))
    tiers: list[int | str] = [*sorted(rng.sample(range(4), n - 1)), 4]
    if rng.random() < 0.3 and n < 5:
        tiers.insert(0, "lookup")
    lossy = rng.random() < 0.2
    budget = None
    if lossy and rng.random() < 0.5:
        method, budget = "pyramid", rng.choice((0.01, 0.05, 0.2, 0.5))
    elif lossy:
        method = rng.choice(
            ("fsd", "psd_a", "psd_f", Method("loose", "relaxed", "relaxed"), Method("mixed", "match", "relaxed"))
        )
    else:
        method = rng.choice(
            (
                "pyramid",
                "pyramid",
                "ar",
                "sd",
                "polybasic",
                Method("any", rng.choice(LOWER), "match", rng.choice(DIVERGENCES)),
                Method("any", rng.choice(LOWER), "exact", rng.choice(DIVERGENCES)),
            )
        )
    prompt = [rng.randrange(4, VOCAB - 6) for _ in range(rng.choice((1, 2, 5, 9, 14)))]
    if rng.random() < 0.3:
        prompt = (prompt[:4] * 5)[: rng.randint(3, 14)]  # something for lookups to find
    keywords: dict[str, Any] = {
        "max_new_tokens": rng.choice((1, 2, 3, 8, 16, 24, 30)),
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    if rng.random() < 0.45:
        keywords |= {
            "do_sample": True,
            "seed": rng.randrange(10**6),
            "temperature": rng.choice((0.7, 1.0, 1.3)),
            "top_k": rng.choice((0, 3, 50)),
            "top_p": rng.choice((1.0, 0.8)),
            "min_p": rng.choice((None, 0.05)),
        }
    if rng.random() < 0.2:
        keywords["repetition_penalty"] = rng.choice((1.1, 1.5, 0.9))
    if rng.random() < 0.15:
        keywords["no_repeat_ngram_size"] = rng.choice((2, 3))
    if rng.random() < 0.2:
        keywords["min_new_tokens"] = rng.randint(0, keywords["max_new_tokens"])
    if rng.random() < 0.1:
        keywords["bad_words_ids"] = [[rng.randrange(4, 50)], [rng.randrange(4, 50), rng.randrange(4, 50)]]
    if rng.random() < 0.1:
        keywords["suppress_tokens"] = rng.sample(range(4, VOCAB), 5)
    return Case(
        seed,
        arch,
        rng.choice(VARIANTS),
        tuple(tiers),
        method,
        budget,
        prompt,
        keywords,
        stop=rng.choice((None, "eos", "eos", "string")),
        change=rng.random() < 0.8,
    )


@cache
def pyramid_of(arch: str, variant: str, tiers: tuple[int | str, ...]) -> AdaptivePyramid:
    """Kept across runs, so that every run but the first meets a warm cache full of another text."""
    family = models_of(arch, variant)
    return AdaptivePyramid(
        [PromptLookup(3, 1) if tier == "lookup" else family[tier] for tier in tiers], tiny_tokenizer()
    )


def random_config(rng: random.Random, case: Case) -> PyramidConfig:
    routes = [route for route in all_routes(case.n_tiers) if "lookup" not in [case.tiers[tier] for tier in route[1:]]]
    route = rng.choice(routes)
    if len(route) > 2 and rng.random() < 0.3:
        route = ((route[0], route[1]), *route[2:])
    stages = tuple(
        StageConfig(
            rng.choice((1, 1, 2, 3, 5, 8)), rng.choice((0.0, 0.05, 0.2, 0.5, 1.5)), rng.choice((None, None, 0.5, 2.0))
        )
        for _ in range(case.n_tiers - 1)
    )
    return PyramidConfig(stages, route)


def with_stop_rule(case: Case, rng: random.Random, reference: list[int]) -> dict[str, Any]:
    """Keywords that end the text somewhere inside the reference, which was made without stopping."""
    keywords = dict(case.keywords)
    if case.stop == "eos" and reference:
        keywords["eos_token_id"] = [rng.choice(reference), *rng.sample(range(4, VOCAB), rng.randint(0, 2))]
    if case.stop == "string" and len(reference) > 1:
        start = rng.randrange(len(reference) - 1)
        text = tiny_tokenizer().decode(reference[start : start + 2], skip_special_tokens=True)
        if text:
            keywords["stop_strings"] = [text, "no such text"]
    return keywords


def run_case(case: Case, happened: Counter[str]) -> None:
    """Decode and compare; AssertionError if anything differs. `happened` counts what the run exercised."""
    rng = random.Random(case.seed + 1)
    pyramid = pyramid_of(case.arch, case.variant, case.tiers)
    tiers = pyramid.decoder.tiers
    target, tokenizer = tiers[-1], tiny_tokenizer()
    sampling = case.keywords.get("do_sample", False)
    resolved = resolve(case.method, seeded=sampling, drift_budget=case.drift_budget)
    comparable = resolved.lossless and (not sampling or resolved.coupled)

    plain = {k: v for k, v in case.keywords.items() if k not in ("seed", "eos_token_id")}
    endless = reference_ids(
        target, case.prompt, case.keywords.get("seed"), eos_token_id=None, **{**plain, "min_new_tokens": None}
    )
    keywords = with_stop_rule(case, rng, endless)

    fixed = random_config(rng, case)
    control = ChosenControl(lambda blocks: random_config(rng, case) if case.change else fixed)
    with counted_forwards(tiers if case.variant != "same model" else []) as (passes, read):
        out = pyramid.generate(
            case.prompt, method=case.method, control=control, drift_budget=case.drift_budget, **keywords
        )
    stats = out.stats

    assert out.sequences.tolist() == [case.prompt + out.ids]
    assert len(out.ids) <= keywords["max_new_tokens"]
    if comparable:
        strings = {"tokenizer": tokenizer} if "stop_strings" in keywords else {}
        expected = reference_ids(
            target,
            case.prompt,
            case.keywords.get("seed"),
            **{k: v for k, v in keywords.items() if k != "seed"},
            **strings,
        )
        if "stop_strings" not in keywords:
            assert out.ids == expected, f"expected {expected}, got {out.ids}"
        else:
            # Hugging Face also matches strings that begin in the prompt; ours may go on, but agrees as far as both go.
            shorter = min(len(expected), len(out.ids))
            assert out.ids[:shorter] == expected[:shorter], f"expected {expected}, got {out.ids}"
            text = tokenizer.decode(out.ids, skip_special_tokens=True)
            assert (
                out.finish_reason != "stop_string"
                or out.text.endswith(keywords["stop_strings"][0])
                and text.startswith(out.text)
            )
            assert keywords["stop_strings"][0] not in out.text[:-1]
        happened["compared sampled" if sampling else "compared greedy"] += 1
        happened[f"compared {case.arch}"] += 1
    if case.variant != "same model":
        check_identities(stats, out.ids, case.n_tiers, passes, read, cut_short=out.finish_reason == "stop_string")
    elif not (resolved.lower == "exact" and sampling) and not case.tiers[0] == "lookup":
        for block in stats.blocks:
            # One text, one noise, one model: nothing may ever be refused.
            assert resolved.coupled is False and sampling or all(v.rejected == 0 for v in block.verifications)
    check_drift(case, stats, target, out.ids, sampling, resolved)

    happened["runs"] += 1
    happened[f"finish {out.finish_reason}"] += 1
    for v in (v for block in stats.blocks for v in block.verifications):
        happened["accepted"] += v.accepted
        happened["rejected"] += v.rejected
        happened["bonus"] += v.emitted == v.proposed + 1 > 1
        happened["relaxed"] += v.relaxed
    happened["overshoot"] += any(v.proposed > v_config(block, v) for block in stats.blocks for v in block.verifications)
    happened["clip"] += out.finish_reason == "length" and any(
        b.verifications[-1].proposed < b.config.stages[-1].length for b in stats.blocks[-1:] if b.config.stages
    )
    happened["left route"] += bool(stats.notes)
    happened["drifted"] += sum(stats.drift) > 0


def v_config(block: Any, verification: Any) -> int:
    return block.config.stage(verification.tier).length if verification.tier else 0


def check_drift(
    case: Case, stats: Any, target: PreTrainedModel, ids: list[int], sampling: bool, method: Method
) -> None:
    drift = stats.drift
    if method.lossless:
        assert not any(drift)
    if case.drift_budget is not None and not method.lossless:
        total = 0.0
        for i, d in enumerate(drift, start=1):
            total += d
            assert total <= case.drift_budget * i, f"prefix of {i} tokens drifted {total}"
    if (
        not sampling
        and drift
        and not any(
            k in case.keywords
            for k in (
                "repetition_penalty",
                "no_repeat_ngram_size",
                "min_new_tokens",
                "bad_words_ids",
                "suppress_tokens",
            )
        )
    ):
        with torch.no_grad():
            logits = (
                target(torch.tensor([case.prompt + ids]), use_cache=False).logits[0, len(case.prompt) - 1 : -1].float()
            )
        regret = logits.max(-1).values - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(drift), regret, atol=1e-5, rtol=0)


def soak(runs: int, seed: int, report: Any = None) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Run seeds seed .. seed + runs - 1. -> (what happened, failures as (seed, traceback))"""
    happened: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    for index in range(seed, seed + runs):
        case = random_case(index)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run_case(case, happened)
        except Exception:
            failures.append((index, f"{case}\n{traceback.format_exc()}"))
            if report is not None:
                report(f"seed {index} FAILED: {case}\n{traceback.format_exc()}")
        if report is not None and (index - seed + 1) % 100 == 0:
            report(f"{index - seed + 1} runs, {len(failures)} failures")
    return happened, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.time()
    happened, failures = soak(arguments.runs, arguments.seed, report=lambda text: print(text, flush=True))
    for what, count in sorted(happened.items()):
        print(f"{what:24s} {count}")
    print(
        f"{arguments.runs} runs, {len(failures)} failures {[index for index, _ in failures]}, {time.time() - started:.0f} s"
    )
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main())
