"""What a study measures once, before its trials: cost table, traces, overhead."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from tuning import measure
from tuning.console import Steps, progress_bar
from tuning.costs import CostTable
from tuning.examples import Example
from tuning.measure import Bench
from tuning.objective import prompt_ids
from tuning.recording import record_answers


def calibrate(bench: Bench, examples: Sequence[Example], what_if: CostTable | None, steps: Steps) -> dict[str, Any]:
    """-> what `Prior.from_dict` reads. `what_if`: costs instead of this machine's."""
    decoder = bench.pyramid.decoder
    prompts = [prompt_ids(bench.pyramid.tokenizer, example.messages()) for example in examples]
    if what_if is None:
        with steps.step("cost table"), progress_bar("cost table", measure.cost_forwards(decoder)) as advance:
            costs = measure.cost_table(decoder, [token for prompt in prompts for token in prompt], progress=advance)
    with steps.step("calibration"), progress_bar("calibration", 2 * len(prompts)) as advance:
        runs: list[measure.Timed] = []

        def answers() -> Iterator[list[int]]:
            for prompt in prompts:
                runs.append(bench.ar(prompt))
                advance()
                yield runs[-1].ids  # recorded at once, while the target's cache holds the prompt

        recorded = record_answers(decoder, prompts, answers(), advance)
    outside = sorted(block.seconds - block.model_seconds for run in runs for block in run.stats.blocks)
    overhead = max(0.0, outside[len(outside) // 2])
    if what_if is not None:
        costs, overhead = what_if.model(recorded.header), 0.0  # nothing measured here beside what is modelled
    return {"costs": costs.to_dict(), "overhead": overhead, "traces": base64.b64encode(recorded.to_bytes()).decode()}
