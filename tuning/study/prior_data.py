"""What a study measures once, before its trials: cost table, traces, overhead."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from adaptive_pyramid.prompts import prompt_ids
from tuning.replay.what_if_costs import CostTable
from tuning.study.benchmark import Bench, Timed
from tuning.tasks.formats import Example
from tuning.terminal.progress import Steps, progress_bar
from tuning.traces.measured_costs import cost_forwards, cost_table
from tuning.traces.recording import record_answers


def calibrate(bench: Bench, examples: Sequence[Example], what_if: CostTable | None, steps: Steps) -> dict[str, Any]:
    """-> what `Prior.from_dict` reads. `what_if`: costs instead of this machine's."""
    decoder = bench.pyramid.decoder
    prompts = [prompt_ids(bench.pyramid.tokenizer, example.messages()) for example in examples]
    if what_if is None:
        with steps.step("cost table"), progress_bar("cost table", cost_forwards(decoder)) as advance:
            costs = cost_table(decoder, [token for prompt in prompts for token in prompt], progress=advance)
    with steps.step("calibration"), progress_bar("calibration", 2 * len(prompts)) as advance:
        runs: list[Timed] = []

        def answers() -> Iterator[list[int]]:
            for prompt in prompts:
                runs.append(bench.ar(prompt))
                advance()
                yield runs[-1].ids  # recorded at once, while the target's cache holds the prompt

        recorded = record_answers(decoder, prompts, answers(), advance)
    outside = sorted(block.seconds - block.model_seconds for run in runs for block in run.stats.blocks)
    overhead = max(0.0, outside[len(outside) // 2])
    if what_if is not None:
        costs, overhead = (
            what_if.model(recorded.header.model_names),
            0.0,
        )  # nothing measured here beside what is modelled
    return {"costs": costs.to_dict(), "overhead": overhead, "traces": base64.b64encode(recorded.to_bytes()).decode()}
