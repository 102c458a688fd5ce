"""What a drift budget buys under control: budgets against speed, drift, agreement and task score, greedy and sampling.

    python -m benchmarks.drift_table [--family smollm2-135m] [--tasks csqa gsm8k] [--budgets 0 0.01 0.03 0.1] [--questions 12]

Budgets and target-only decoding take turns question by question; each budget keeps its own controller. A budget is in nats
of regret per token in greedy decoding, in total variation per token while sampling. Columns:

    clock     tokens/s over target-only decoding, all answers together
    modelled  the same, every forward at the price of a cost table measured first
    ceiling   sampling: 1 / (1 - b L), L = tokens per verification at the target without a budget: what b could buy at most
    drift     spent per token
    bound     sampling: its sum per answer, mean over answers, on the distance to the target's own distribution (1 = vacuous)
    same      greedy: share of tokens before the first that differs from the target's own answer
    score     of the task; beside it the mean difference to the target's own, with its paired 95 % interval
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from itertools import product

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from adaptive_pyramid import AdaptivePyramid
from adaptive_pyramid.output import PyramidOutput
from adaptive_pyramid.prompts import prompt_ids
from adaptive_pyramid.throughput import CostModel
from tuning.tasks import Task, load_task, paired_bootstrap
from tuning.traces.measured_costs import cost_forwards, cost_table


@dataclass
class Answers:
    """What one budget (or target-only decoding) gave, question by question."""

    outputs: list[PyramidOutput] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(output.ids) for output in self.outputs)

    def modelled(self, costs: CostModel) -> float:
        """Seconds of all forwards at the table's prices."""
        return sum(
            costs.seconds(forward.tier, forward.width)
            for output in self.outputs
            for block in output.stats.blocks
            for forward in block.forwards
        )


def same_share(ids: list[int], wanted: list[int]) -> float:
    same = next((i for i, (one, other) in enumerate(zip(ids, wanted)) if one != other), min(len(ids), len(wanted)))
    return same / max(1, len(wanted))


def row(
    task: Task, sampling: bool, budget: float, own: Answers, alone: Answers, length: float, costs: CostModel
) -> list[str]:
    speed = (own.tokens / sum(own.seconds)) / (alone.tokens / sum(alone.seconds))
    modelled = (own.tokens / own.modelled(costs)) / (alone.tokens / alone.modelled(costs))
    room = 1 - budget * length
    drift = [sum(output.stats.drift) for output in own.outputs]
    texts, reference = ([output.text for output in answers.outputs] for answers in (own, alone))
    score = task.score(texts)
    loss = paired_bootstrap(task.per_example(texts), task.per_example(reference))
    ceiling = (f"{1 / room:.2f}" if room > 0 else "none") if sampling else ""
    bound = f"{statistics.mean(min(1.0, total) for total in drift):.2f}" if sampling else ""
    same = (
        ""
        if sampling
        else f"{statistics.mean(same_share(a.ids, b.ids) for a, b in zip(own.outputs, alone.outputs)):.2f}"
    )
    return [
        f"{budget:g}",
        f"{speed:.2f}",
        f"{modelled:.2f}",
        ceiling,
        f"{sum(drift) / own.tokens:.4f}",
        bound,
        same,
        f"{score.value:.2f} ({loss[0]:+.2f}, {loss[1]:+.2f} to {loss[2]:+.2f})",
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="smollm2-135m")
    parser.add_argument("--tasks", nargs="+", default=["csqa", "gsm8k"])
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.0, 0.01, 0.03, 0.1])
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96, help="longest answer (default: %(default)s)")
    options = parser.parse_args(arguments)
    pyramid = AdaptivePyramid.from_family(options.family)
    console = Console()
    tasks = [load_task(name, limit=options.questions) for name in options.tasks]
    text = prompt_ids(pyramid.tokenizer, tasks[0].examples[0].messages())
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("cost table", total=cost_forwards(pyramid.decoder))
        costs = cost_table(pyramid.decoder, text, progress=lambda: progress.advance(bar))
        for task, sampling in product(tasks, (False, True)):
            answers = {key: Answers() for key in ("ar", *options.budgets)}
            bar = progress.add_task(
                f"{task.name}, {'sampling' if sampling else 'greedy'}", total=len(task.examples) * len(answers)
            )
            for seed, example in enumerate(task.examples):
                prompt = prompt_ids(pyramid.tokenizer, example.messages())
                for key in (*list(answers)[seed % len(answers) :], *list(answers)[: seed % len(answers)]):
                    how = {"method": "ar"} if key == "ar" else {"drift_budget": key or None}
                    if sampling:
                        how |= {"do_sample": True, "top_k": 0, "seed": seed}
                    pyramid.clear_caches()
                    started = time.perf_counter()
                    output = pyramid.generate(prompt, max_new_tokens=options.tokens, **how)
                    answers[key].seconds.append(time.perf_counter() - started)
                    answers[key].outputs.append(output)
                    progress.advance(bar)
            length = target_length(answers[options.budgets[0]])
            table = Table(
                "b",
                "clock",
                "modelled",
                "ceiling",
                "drift",
                "bound",
                "same",
                "score",
                title=f"{task.label}, {options.family}, {'sampling' if sampling else 'greedy'}, "
                f"{len(task.examples)} questions, L = {length:.2f}",
            )
            for budget in options.budgets:
                table.add_row(*row(task, sampling, budget, answers[budget], answers["ar"], length, costs))
            console.print(table)


def target_length(answers: Answers) -> float:
    """Tokens per verification by the target."""
    stages = [output.stats.stages[-1] for output in answers.outputs]
    return sum(stage.emitted for stage in stages) / sum(stage.rounds for stage in stages)


if __name__ == "__main__":
    main()
