"""The profile of a study's best trial."""

from __future__ import annotations

import math
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

# What `study.measured_on` of a profile says.
FRESH = "fresh questions, which chose nothing"
NOT_FRESH = "the trials' questions, which chose the config: the speeds may be too high"


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
    """The profile of a trial's config; of target-only decoding if no gain of the config was shown.

    A gain is shown where the whole 95 % interval of the speed ratio lies above 1. Without it the profile claims nothing:
    target-only decoding is what the ratio is measured against, so it is never slower. What was found all the same
    stands in `study`. `rerun` None: the trial's own numbers are all there is. Of a study on what-if costs the profile says in place of a
    device which; it holds no cost table, because control would take that for this machine's.
    """
    record = TrialRecord.of(trial)
    config = record.config
    seen = record.speed if rerun is None else rerun.stated.summary()
    low, high = seen.ratio_interval
    shown = low > 1.0  # False of NaN, the interval of a single question
    measured: dict[str, Any] = {"speed_ratio": 1.0, "tokens_per_second": seen.ar_tokens_per_second}
    found = {
        "measured_on": FRESH if rerun is not None and rerun.fresh else NOT_FRESH,
        "gain_shown": shown,
        "best_config": config.to_dict(),
        "best_speed_ratio": seen.ratio,
        "best_speed_ratio_interval": None if math.isnan(low) else [low, high],
    }
    if shown:
        measured = {
            "speed_ratio": seen.ratio,
            "speed_ratio_interval": [low, high],
            "answer_speed_ratio": seen.answer_ratio,
            "tokens_per_second": seen.tokens_per_second,
            "acceptance": dict(seen.acceptance),
            "acceptance_length": dict(seen.acceptance_length),
            "predicted_ratio": record.predicted_ratio,
        }
    else:
        config = config.with_route((config.target,))
    measured["agreement"] = seen.agreement if shown else 1.0
    measured["mean_drift"] = seen.mean_drift if shown else 0.0
    measured["score"] = asdict(record.score if shown else ar_score)
    measured["prompts"] = seen.prompts
    if rerun is not None:
        ours = rerun.stated.own if shown else rerun.stated.ar
        over_hugging_face, over_others = rerun.over_hugging_face(ours), rerun.over_other_targets(ours)
        measured |= {} if over_hugging_face is None else {"speed_ratio_hf": over_hugging_face}
        measured |= {"speed_ratio_other_targets": over_others} if over_others else {}
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
        study={**study, **found},
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
