"""Every causal LM that transformers knows, tiny and random, against Hugging Face `generate`.

    python -m tests.sweep [--kinds llama gemma3_text ...] [--new-tokens 48] [--prompts 3] [--table]

A kind is *equal* if `ar`, `sd` with a draft that is right part of the time, a lookup and a chain of three tiers all give the
ids of `target.generate`; *refused* if the pyramid says at construction that it cannot decode it, and why; else it *differs* or
*fails*. *not built*: transformers itself cannot make or run it alone. `--table` prints the outcomes as `KINDS` of
`sweep_table.py` has them.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from adaptive_pyramid import AdaptivePyramid, PromptLookup, PyramidConfig
from tests.tiny import perturbed
from tests.tiny_kinds import kinds, quiet, tiny_of_kind

PROMPTS = (
    [5, 9, 12, 9, 12, 30, 7],
    [40, 41, 42, 40, 41, 42, 40, 41, 13, 8, 25, 26, 27],
    [17],
)


@dataclass(frozen=True)
class Outcome:
    """What became of a kind: one of `equal`, `refused`, `differs`, `fails`, `not built`, and the reason."""

    result: str
    reason: str = ""
    accepted: int = 0
    rejected: int = 0
    distinct: int = 0
    seconds: float = 0.0


class PlantedDraft(CandidateGenerator):
    """Knows the text to come and gets every third of its proposals wrong, at a position that wanders."""

    requires_model_outputs = False

    def __init__(self, width: int = 4) -> None:
        self.text: list[int] = []
        self.width = width
        self.calls = 0

    def get_candidates(self, input_ids: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, None]:
        known = input_ids.shape[1]
        found = self.text[known : known + self.width]
        self.calls += 1
        if found and self.calls % 3 == 0:
            place = (self.calls // 3) % len(found)
            found[place] = 4 + (found[place] + 1) % 40
        return torch.cat([input_ids, torch.tensor([found], dtype=torch.long)], dim=1), None

    def update_candidate_strategy(self, *args, **kwargs) -> None:
        pass


def outcome(kind: str, new_tokens: int = 16, prompts: int = 2) -> Outcome:
    """Build `kind`, decode it in every way, and compare."""
    started = time.perf_counter()
    keywords = {"max_new_tokens": new_tokens, "do_sample": False, "repetition_penalty": 1.2}
    with quiet():
        try:
            target = tiny_of_kind(kind)
            texts = [reference(target, prompt, keywords) for prompt in PROMPTS[:prompts]]
        except Exception as error:
            return Outcome("not built", f"{type(error).__name__}: {_first_line(error)}")
        draft = PlantedDraft()
        try:
            pyramids = {
                "ar": AdaptivePyramid([target]),
                "sd": AdaptivePyramid([draft, target]),
                "lookup": AdaptivePyramid([PromptLookup(3, 1), target]),
                "chain": AdaptivePyramid([draft, perturbed(target, 0.05), target]),
            }
        except ValueError as error:
            return Outcome("refused", _first_line(error))
        except Exception as error:
            return Outcome("fails", f"construction: {type(error).__name__}: {_first_line(error)}")
        counts: Counter[str] = Counter()
        wrong = []
        for way, pyramid in pyramids.items():
            for prompt, text in zip(PROMPTS, texts):
                draft.text = prompt + text
                lengths = {"ar": [], "chain": [2, 5]}.get(way, [4])
                try:
                    out = pyramid.generate(prompt, config=PyramidConfig.simple(lengths), method="polybasic", **keywords)
                except Exception as error:
                    place = traceback.extract_tb(error.__traceback__)[-1]
                    where = f"{Path(place.filename).name}:{place.lineno}"
                    return Outcome("fails", f"{way}: {type(error).__name__}: {_first_line(error)} ({where})")
                for verification in (v for block in out.stats.blocks for v in block.verifications):
                    counts["accepted"] += verification.accepted
                    counts["rejected"] += verification.rejected
                if out.ids != text:
                    same = next((i for i, pair in enumerate(zip(out.ids, text)) if pair[0] != pair[1]), -1)
                    wrong.append(f"{way} after a prompt of {len(prompt)} from token {same}")
    distinct = len(set(texts[0]))
    result, reason = ("differs", "; ".join(wrong)) if wrong else ("equal", "")
    return Outcome(result, reason, counts["accepted"], counts["rejected"], distinct, time.perf_counter() - started)


def reference(target: PreTrainedModel, prompt: list[int], keywords: dict) -> list[int]:
    """New ids of `target.generate`."""
    ids = torch.tensor([prompt])
    return target.generate(ids, attention_mask=torch.ones_like(ids), **keywords)[0, len(prompt) :].tolist()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=None)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.time()
    results: dict[str, Outcome] = {}
    for kind in arguments.kinds or kinds():
        found = results[kind] = outcome(kind, arguments.new_tokens, arguments.prompts)
        print(
            f"{kind:26s} {found.result:10s} {found.accepted:4d} {found.rejected:4d} {found.distinct:3d} {found.seconds:5.1f} {found.reason}",
            flush=True,
        )
    print(dict(Counter(found.result for found in results.values())), f"{time.time() - started:.0f} s")
    return any(found.result in ("differs", "fails") for found in results.values())


if __name__ == "__main__":
    raise SystemExit(main())
