"""The last step: the best trials against each other, `ar` and Hugging Face, and a profile of the winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.trial import FrozenTrial

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.factory import default_config
from adaptive_pyramid.decoding.drafters import Lookup
from adaptive_pyramid.profile import Profile
from tuning.measure import Bench, Timed, in_rotation
from tuning.objective import Question, Tally
from tuning.prior import Prior
from tuning.results import config_of

FINALISTS = 3
FINAL_QUESTIONS = 6  # enough to undo most of the luck, and half a trial's time per finalist


@dataclass
class Finals:
    """Everything timed in turn on the same prompts: fresh numbers, free of the luck that made a trial the best of many.

    Args:
        tallies: one per finalist, in their order. hugging_face: its runs, by prompt. other_targets: those of
            target-only decoding with other targets of the family, by their names.
    """

    finalists: list[FrozenTrial]
    tallies: list[Tally]
    hugging_face: list[Timed] = field(default_factory=list)
    other_targets: dict[str, list[Timed]] = field(default_factory=dict)

    @property
    def winner(self) -> int:
        return max(range(len(self.tallies)), key=lambda index: self.tallies[index].ratio)

    def over_hugging_face(self, index: int) -> float | None:
        """tokens/s of a finalist over those of Hugging Face `generate`; None if that was not timed."""
        return self._over(self.hugging_face, index) if self.hugging_face else None

    def over_other_targets(self, index: int) -> dict[str, float]:
        """tokens/s of a finalist over those of target-only decoding with the family's other targets."""
        return {name: self._over(runs, index) for name, runs in self.other_targets.items()}

    def _over(self, runs: Sequence[Timed], index: int) -> float:
        theirs = sum(run.tokens for run in runs) / sum(run.seconds for run in runs)
        return self.tallies[index].to_dict()["tokens_per_second"] / theirs


def play_finals(
    bench: Bench,
    questions: Sequence[Question],
    finalists: Sequence[FrozenTrial],
    progress: Callable[[], None] = lambda: None,
    others: Mapping[str, Bench] = {},
) -> Finals:
    """Time `ar`, Hugging Face and every finalist on the same questions, each going first in turn.

    `others`: by name, the family with other targets, whose `ar` is timed as well.
    """
    finals = Finals(list(finalists), [Tally() for _ in finalists], other_targets={name: [] for name in others})
    configs = [config_of(trial) for trial in finalists]
    for other in others.values():
        other.ar(questions[0].prompts[0])  # the first run of a model that was just loaded is slower than all others
    turn = 0
    for question in questions:
        for prompt, answer in zip(question.prompts, question.answers):
            runs: list[Callable[[], Timed]] = [lambda: bench.ar(prompt)]
            runs += [lambda config=config: bench.run(prompt, config) for config in configs]
            runs += [lambda other=other: other.ar(prompt) for other in others.values()]
            if bench.price is None:
                runs.append(lambda: bench.hugging_face(prompt))
            ar, *own = in_rotation(runs, turn)
            if bench.price is None:
                finals.hugging_face.append(own.pop())
            for name, timed in zip(others, own[len(configs) :]):
                finals.other_targets[name].append(timed)
            for tally, timed in zip(finals.tallies, own):
                tally.add(ar, timed, len(answer))
            turn += 1
        progress()
    return finals


def make_profile(
    task: str,
    family: Any,
    bench: Bench,
    prior: Prior,
    trial: FrozenTrial,
    finals: Finals | None,
    ar_score: Mapping[str, Any],
    study: Mapping[str, Any],
) -> Profile:
    """The profile of a trial's config; of target-only decoding if the config turned out no faster.

    `finals` None: the trial's own numbers are all there is. Of a study on what-if costs the profile says in place of a
    device which; it holds no cost table, because control would take that for this machine's.
    """
    config = config_of(trial)
    if finals is None:
        seen, ratio_hf, ratios = dict(trial.user_attrs), None, {}
    else:
        seen, ratio_hf = finals.tallies[finals.winner].to_dict(), finals.over_hugging_face(finals.winner)
        ratios = finals.over_other_targets(finals.winner)
    measured: dict[str, Any] = {
        "speed_ratio": seen["ratio"],
        "speed_ratio_interval": list(seen["ratio_interval"]),
        "answer_speed_ratio": seen["answer_ratio"],
        "tokens_per_second": seen["tokens_per_second"],
        "acceptance": _by_tier(seen["acceptance"]),
        "acceptance_length": _by_tier(seen["acceptance_length"]),
        "agreement": seen["agreement"],
        "mean_drift": seen["mean_drift"],
        "score": dict(trial.user_attrs["score"]),
        "prompts": seen["prompts"],
        "predicted_ratio": trial.user_attrs["predicted_ratio"],
    }
    shipped = max(1.0, 1.0 / seen["ratio"])  # tokens/s of what is shipped over the finalist's
    if seen["ratio"] <= 1.0:
        # Never slower: what did not pay is not shipped. `ar` is what the ratio is measured against.
        measured = {
            "speed_ratio": 1.0,
            "tokens_per_second": seen["ar_tokens_per_second"],
            "mean_drift": 0.0,
            "agreement": 1.0,
            "score": dict(ar_score),
            "prompts": seen["prompts"],
        }
        config = config.with_route((config.target,))
    if ratio_hf is not None:
        measured["speed_ratio_hf"] = ratio_hf * shipped
    if ratios:
        measured["speed_ratio_other_targets"] = {name: ratio * shipped for name, ratio in ratios.items()}
    here = bench.pyramid.description()
    method, what_if = bench.method, study.get("costs")
    return Profile(
        task=task,
        family=family.name,
        target=study.get("target", "auto"),
        tiers=tuple(here["tiers"]),
        method=method.name,
        config=with_spare_stages(config),
        rules=(method.lower, method.top),
        divergence=method.divergence,
        do_sample=False,
        measured=measured,
        costs=None if what_if else prior.costs,
        dtype=here["dtype"],
        study=dict(study),
        device=f"what-if {what_if['name']}" if what_if else here["device"],
        versions={name: str(number) for name, number in here["versions"].items()},
        revisions={
            name: source_text(family.sources[name], model) for name, model in zip(family.tier_names, family.models)
        },
    )


def with_spare_stages(config: PyramidConfig) -> PyramidConfig:
    """`config` with a plain length in the stages that its route leaves out.

    They change nothing while the route stands; they are where online control starts when it tries other routes.
    """
    spare = default_config(config.n_tiers)
    used = config.route[1:]
    stages = tuple((config if tier in used else spare).stage(tier) for tier in range(1, config.n_tiers))
    return replace(config, stages=stages)


def source_text(source: Mapping[str, Any], model: Any) -> str:
    """Where a tier came from: `repo: NAME, revision: R`, `lookup: ...`, `from: target, ...` or a wheel's pin."""
    if isinstance(model, Lookup):
        return f"lookup: max_ngram {model.max_ngram}, min_ngram {model.min_ngram}"
    if "wheel" in source:
        wheel = source["wheel"]
        return f"{wheel['package']}=={wheel['version']} sha256:{wheel['sha256']}"
    return ", ".join(f"{key}: {value}" for key, value in source.items())


def _by_tier(values: Mapping[str, float]) -> dict[int, float]:
    return {int(tier): value for tier, value in values.items()}
