"""A profile as options of other engines, each checked against the engine's own parser."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from adaptive_pyramid.config import route_label
from adaptive_pyramid.errors import unknown_name
from adaptive_pyramid.profile import Profile

# The published packages whose own parsers the options were checked against.
CHECKED = {
    "hf": "transformers 5.24.0",
    "vllm": "vllm 0.33.0",
    "llamacpp": "llama.cpp build 11434",
    "sglang": "sglang 0.5.23",
}


@dataclass(frozen=True)
class ExportedDraft:
    """What drafts for the target, in terms another engine knows.

    Args:
        name: the tier's. length: tokens per verification. ngram: (longest, shortest) match of a lookup; None = a model.
        source: a model's name on the hub or its directory; None for one that only exists as derived from another.
    """

    name: str
    length: int
    ngram: tuple[int, int] | None = None
    source: str | None = None
    revision: str | None = None

    @property
    def usable(self) -> bool:
        return self.ngram is not None or self.source is not None


@dataclass
class Export:
    """Options for one engine: `options` is what its parser reads; `comments` say the rest."""

    engine: str
    options: str = ""
    comments: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        head = [f"option names as in {CHECKED[self.engine]}", *self.comments]
        return "\n".join([*(f"# {line}" for line in head), *([self.options] if self.options else [])])


def export(profile: Profile, engine: str) -> Export:
    """The profile's decoding in `engine`'s options.

    Raises:
        ValueError: an unknown engine.
    """
    if engine not in ENGINES:
        raise ValueError(unknown_name("engine", engine, ENGINES))
    result = Export(
        engine,
        comments=[
            f"task {profile.task}, family {profile.family}, method {profile.method}, route "
            f"{' > '.join(_names(profile, entry) for entry in profile.config.route)}"
        ],
    )
    if len(profile.config.route) == 1:
        result.comments.append("this profile decodes with the target alone: no speculative options")
        return result
    proposers = _proposers(profile, result.comments)
    if not proposers:
        result.comments.append("nothing of this profile can be expressed: no options")
        return result
    if profile.drift_budget or any(stage.tau for stage in profile.config.stages):
        result.comments.append("thresholds (tau) and drift budgets have no counterpart: these options verify exactly")
    if any(stage.stop is not None for stage in profile.config.stages):
        result.comments.append("early stop by entropy has no counterpart")
    ENGINES[engine](result, proposers, profile)
    return result


def _proposers(profile: Profile, comments: list[str]) -> list[ExportedDraft]:
    """Who can draft for the target elsewhere, best placed first: two only where the profile itself falls through."""
    route = profile.config.route
    length = profile.config.stage(route[-1]).length
    below = [tier for entry in reversed(route[:-1]) for tier in (entry if isinstance(entry, tuple) else (entry,))]
    chain = [_proposer(profile, tier, length) for tier in below]
    if len(route) > 2:
        comments.append(f"no engine verifies in several stages: of route {route_label(route)} one proposer is left")
    for proposer in chain:
        if not proposer.usable:
            source = profile.revisions.get(proposer.name, "source unknown")
            comments.append(
                f"tier {proposer.name!r} is derived from another ({source}): make it with the engine's own "
                "tools, then name it as the draft model"
            )
    usable = [proposer for proposer in chain if proposer.usable]
    return usable if len(route) == 2 else usable[:1]


def _proposer(profile: Profile, tier: int, length: int) -> ExportedDraft:
    name = profile.tiers[tier]
    source = profile.revisions.get(name, "")
    if found := re.fullmatch(r"lookup: max_ngram (\d+), min_ngram (\d+)", source):
        return ExportedDraft(name, length, ngram=(int(found[1]), int(found[2])))
    if found := re.fullmatch(r"repo: ([^,]+)(?:, revision: (.+))?", source):
        return ExportedDraft(name, length, source=found[1], revision=found[2])
    return ExportedDraft(name, length)


def _one(result: Export, proposers: Sequence[ExportedDraft]) -> ExportedDraft:
    if len(proposers) > 1:
        result.comments.append(
            f"this engine takes one proposer: {proposers[1].name!r} is left out, which the profile "
            f"asks where {proposers[0].name!r} abstains"
        )
    return proposers[0]


def _hugging_face(result: Export, proposers: Sequence[ExportedDraft], profile: Profile) -> None:
    proposer = _one(result, proposers)
    result.comments.append("keys of a GenerationConfig, or keywords of generate()")
    if proposer.ngram:
        options = {"prompt_lookup_num_tokens": proposer.length, "max_matching_ngram_size": proposer.ngram[0]}
        if proposer.ngram[1] > 1:
            result.comments.append(f"matches shorter than {proposer.ngram[1]} tokens cannot be ruled out")
    else:
        result.comments.append(f"pass assistant_model={_model(proposer)} to generate()")
        options = {
            "num_assistant_tokens": proposer.length,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
    result.options = json.dumps({"do_sample": profile.do_sample, **options})


def _vllm(result: Export, proposers: Sequence[ExportedDraft], profile: Profile) -> None:
    proposer = _one(result, proposers)
    if proposer.ngram:
        options = {
            "method": "ngram",
            "num_speculative_tokens": proposer.length,
            "prompt_lookup_max": proposer.ngram[0],
            "prompt_lookup_min": proposer.ngram[1],
        }
    else:
        options = {"method": "draft_model", "model": proposer.source, "num_speculative_tokens": proposer.length}
        if proposer.revision:
            options["revision"] = proposer.revision
    result.options = f"--speculative-config {shlex.quote(json.dumps(options))}"


def _llama_cpp(result: Export, proposers: Sequence[ExportedDraft], profile: Profile) -> None:
    kinds, flags = [], []
    for proposer in proposers:
        if proposer.ngram:
            kinds.append("ngram-simple")
            flags += ["--spec-ngram-simple-size-n", proposer.ngram[1], "--spec-ngram-simple-size-m", proposer.length]
            result.comments.append(
                f"ngram-simple matches exactly {proposer.ngram[1]} tokens; the profile tried up to "
                f"{proposer.ngram[0]} first"
            )
        else:
            kinds.append("draft-simple")
            flags += [
                "--spec-draft-hf",
                proposer.source,
                "--spec-draft-n-max",
                proposer.length,
                "--spec-draft-p-min",
                0,
            ]
            result.comments.append(
                f"--spec-draft-hf wants a GGUF repository: put the converted {_model(proposer)} "
                "there, or a file after -md"
            )
    result.options = shlex.join(["--spec-type", ",".join(kinds), *map(str, flags)])


def _sglang(result: Export, proposers: Sequence[ExportedDraft], profile: Profile) -> None:
    proposer = _one(result, proposers)
    # Its draft tokens are counted with the one that the target itself gave.
    if proposer.ngram:
        flags = [
            "--speculative-algorithm",
            "NGRAM",
            "--speculative-num-draft-tokens",
            proposer.length + 1,
            "--speculative-ngram-max-bfs-breadth",
            1,
        ]
        result.comments.append(
            f"the shortest and longest match ({proposer.ngram[1]} and {proposer.ngram[0]} tokens) have no counterpart"
        )
    else:
        flags = [
            "--speculative-algorithm",
            "STANDALONE",
            "--speculative-draft-model-path",
            proposer.source,
            "--speculative-num-steps",
            proposer.length,
            "--speculative-eagle-topk",
            1,
            "--speculative-num-draft-tokens",
            proposer.length + 1,
        ]
        if proposer.revision:
            flags += ["--speculative-draft-model-revision", proposer.revision]
    result.options = shlex.join(map(str, flags))


ENGINES = {"hf": _hugging_face, "vllm": _vllm, "llamacpp": _llama_cpp, "sglang": _sglang}


def _model(proposer: ExportedDraft) -> str:
    return f"{proposer.source!r}" + (f" at revision {proposer.revision!r}" if proposer.revision else "")


def _names(profile: Profile, entry: int | tuple[int, ...]) -> str:
    return " or ".join(profile.tiers[tier] for tier in (entry if isinstance(entry, tuple) else (entry,)))
