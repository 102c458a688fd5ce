"""Does a tuned profile beat the untuned default on prompts that its study never saw?

    python -m benchmarks.profile_check csqa.yaml [--data FILE] [--questions 12] [--tokens 48]

The profile's config, the default config (both fixed), and the pyramid as it comes (control, cold for every prompt) take turns
with target-only decoding on questions outside the study's. Prints tokens/s over target-only decoding with 95 %
intervals over prompts, and of the profile over each of the others. Ends with exit code 1 if the profile did not beat the
pyramid as it comes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from adaptive_pyramid import AdaptivePyramid, Profile, families
from adaptive_pyramid.control.factory import default_config
from adaptive_pyramid.decoding.method import resolve
from adaptive_pyramid.prompts import prompt_ids
from tuning.statistics import time_ratio
from tuning.study.benchmark import Bench, in_rotation
from tuning.study.settings import CALIBRATION_QUESTIONS, CHOICE_QUESTIONS, STATED_QUESTIONS
from tuning.tasks.task import load_task

NAMES = ("target only", "profile", "default config", "control, cold")


def unseen(profile: Profile, data: str | None, questions: int) -> list:
    """Examples that the profile's study did not look at: those that follow in its own random order.

    In the order of the file they would be of another kind where that is sorted by kind, as Spec-Bench's is.
    """
    study = profile.study
    seen = study["questions"] + CALIBRATION_QUESTIONS + STATED_QUESTIONS + CHOICE_QUESTIONS
    fresh = load_task(profile.task, data=data, limit=seen + questions, seed=study["seed"]).examples[seen:]
    if not fresh:
        raise SystemExit(f"every question of task {profile.task!r} was in the study; expected --data with more of them")
    return fresh


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--data", help="the task's public file, if the study used one")
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args(arguments)
    profile = Profile.load(options.profile)
    family = families.load(profile.family, target=profile.target)
    method = resolve(profile.method)
    bench = Bench(AdaptivePyramid(family), method, options.tokens)
    default = default_config(len(family.models))
    examples = unseen(profile, options.data, options.questions)
    seconds = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("unseen prompts", total=len(examples))
        for turn, example in enumerate(examples):
            prompt = prompt_ids(family.tokenizer, example.messages())
            cold = Bench(AdaptivePyramid(family), method, options.tokens)  # a pyramid that has learned nothing
            runs = [
                lambda: bench.ar(prompt),
                lambda: bench.run(prompt, profile.config),
                lambda: bench.run(prompt, default),
                lambda: cold.adaptive(prompt),
            ]
            seconds.append([timed.seconds for timed in in_rotation(runs, turn)])
            progress.advance(bar)
    columns = dict(zip(NAMES, np.array(seconds).T))
    table = Table(
        "",
        "over target only",
        "profile over it",
        title=f"{profile.task}: {profile.config.label}, {len(examples)} unseen prompts",
    )
    for name in NAMES[1:]:
        cells = [time_ratio(columns["target only"], columns[name])]
        if name != "profile":
            cells.append(time_ratio(columns[name], columns["profile"]))
        table.add_row(name, *("{:.3f} ({:.3f} to {:.3f})".format(*cell) for cell in cells))
    Console().print(table)
    return int(columns["profile"].sum() >= columns[NAMES[-1]].sum())


if __name__ == "__main__":
    sys.exit(main())
