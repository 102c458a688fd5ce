"""Record what every tier of a family would have said along the target's answers, for the control laboratory.

    python examples/record_traces.py --family smollm2-135m --tasks csqa gsm8k humaneval spec_bench --prompts 4 --out traces.json
    python examples/control_lab.py --recorded traces.json

One greedy answer of the target per prompt, then one forward of every tier over it. The file also holds this machine's
cost table; `--data` reads a task's public file (task=path) instead of its sample.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402

from adaptive_pyramid import AdaptivePyramid  # noqa: E402
from tuning.measure import cost_forwards, cost_table  # noqa: E402
from tuning.objective import prompt_ids  # noqa: E402
from tuning.tasks import load_task, task_names  # noqa: E402
from tuning.copying import Copies  # noqa: E402
from tuning.recording import record_answers  # noqa: E402
from tuning.traces import DIVERGENCES, NOTHING, Header, Trace  # noqa: E402

LONGEST_PROPOSAL = 24   # ids kept per position of a lookup


def plain(trace: Trace, header: Header) -> dict:
    """A trace as the laboratory reads it: best ids, what lookups find, and regrets of the ids that lower tiers propose."""
    text, gaps = trace.ids.tolist(), trace.divergence[DIVERGENCES.index("logit_gap")]
    found = {}
    for tier, info in enumerate(header.tiers):
        if info.lookup is not None:
            copies = Copies([*trace.prompt.tolist(), *text], len(trace.prompt), *info.lookup, info.usable_ids)
            found[tier] = [copies.tokens(i, int(source), LONGEST_PROPOSAL) for i, source in enumerate(trace.source[tier])]
    regret = {tier: [[[token, round(float(trace.gap[tier, i]), 5)]] for i, token in enumerate(text)] for tier in header.models}
    for column, (low, high) in enumerate(header.pairs):
        for i, token in enumerate(trace.top[low].tolist()):
            if token != NOTHING:
                regret[high][i].append([token, round(float(gaps[column, i]), 5)])
    best = {tier: trace.top[tier].tolist() for tier in header.models} | {header.target: text}
    return {"prompt_length": len(trace.prompt), "text": text, "best": best, "found": found, "regret": regret}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="smollm2-135m", help="family to load (default: smollm2-135m)")
    parser.add_argument("--tasks", nargs="+", default=["csqa", "gsm8k", "humaneval", "spec_bench"], choices=task_names(), metavar="TASK",
                        help=", ".join(task_names()))
    parser.add_argument("--data", nargs="*", default=[], metavar="TASK=PATH", help="public data files")
    parser.add_argument("--prompts", type=int, default=4, help="prompts per task (default: 4)")
    parser.add_argument("--tokens", type=int, default=200, help="longest answer, in tokens (default: 200)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)
    files = dict(entry.split("=", 1) for entry in options.data)
    console = Console()
    pyramid = AdaptivePyramid.from_family(options.family)
    prompts, kinds = [], []
    for task in options.tasks:
        for example in load_task(task, data=files.get(task), limit=options.prompts).examples:
            prompts.append(prompt_ids(pyramid.tokenizer, example.messages()))
            kinds.append(task)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("cost table", total=cost_forwards(pyramid.decoder) + 2 * len(prompts))
        costs = cost_table(pyramid.decoder, [token for prompt in prompts for token in prompt],
                           progress=lambda: progress.update(bar, advance=1))
        progress.update(bar, description="answers")
        outputs = []
        for prompt in prompts:
            outputs.append(pyramid.generate(prompt, method="ar", max_new_tokens=options.tokens))
            progress.update(bar, advance=1)
        progress.update(bar, description="tiers")
        traces = record_answers(pyramid.decoder, prompts, [output.ids for output in outputs], lambda: progress.update(bar, advance=1))
    outside = sorted(block.seconds - block.model_seconds for output in outputs for block in output.stats.blocks)
    recorded = {"family": options.family, "costs": costs.to_dict(), "overhead": max(0.0, outside[len(outside) // 2]),
                "kinds": kinds, "traces": [plain(trace, traces.header) for trace in traces]}
    options.out.write_text(json.dumps(recorded) + "\n")
    console.print(f"written: {options.out} ({len(traces)} answers, {traces.tokens} tokens)")


if __name__ == "__main__":
    main()
