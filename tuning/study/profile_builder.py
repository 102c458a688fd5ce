"""The profile of a study's best trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from optuna.trial import FrozenTrial

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.factory import default_config
from adaptive_pyramid.models.families import source_text
from adaptive_pyramid.profile import Profile
from tuning.study.benchmark import Bench
from tuning.study.prior import Prior
from tuning.study.rerun import Rerun
from tuning.study.trial_record import ScoreSummary, TrialRecord


def make_profile(
    task: str,
    family: Any,
    bench: Bench,
    prior: Prior,
    trial: FrozenTrial,
    rerun: Rerun | None,
    ar_score: ScoreSummary,
    study: Mapping[str, Any],
) -> Profile:
    """The profile of a trial's config; of target-only decoding if the config turned out no faster.

    `rerun` None: the trial's own numbers are all there is. Of a study on what-if costs the profile says in place of a
    device which; it holds no cost table, because control would take that for this machine's.
    """
    record = TrialRecord.of(trial)
    config = record.config
    if rerun is None:
        seen, ratio_hf, ratios = record.speed, None, {}
    else:
        seen, ratio_hf = rerun.tallies[rerun.winner].summary(), rerun.over_hugging_face(rerun.winner)
        ratios = rerun.over_other_targets(rerun.winner)
    measured: dict[str, Any] = {
        "speed_ratio": seen.ratio,
        "speed_ratio_interval": list(seen.ratio_interval),
        "answer_speed_ratio": seen.answer_ratio,
        "tokens_per_second": seen.tokens_per_second,
        "acceptance": dict(seen.acceptance),
        "acceptance_length": dict(seen.acceptance_length),
        "agreement": seen.agreement,
        "mean_drift": seen.mean_drift,
        "score": asdict(record.score),
        "prompts": seen.prompts,
        "predicted_ratio": record.predicted_ratio,
    }
    shipped = max(1.0, 1.0 / seen.ratio)  # tokens/s of what is shipped over the finalist's
    if seen.ratio <= 1.0:
        # Never slower: what did not pay is not shipped. `ar` is what the ratio is measured against.
        measured = {
            "speed_ratio": 1.0,
            "tokens_per_second": seen.ar_tokens_per_second,
            "mean_drift": 0.0,
            "agreement": 1.0,
            "score": asdict(ar_score),
            "prompts": seen.prompts,
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
