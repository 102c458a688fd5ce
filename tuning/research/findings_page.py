"""The page of findings, section by section: Markdown and pictures (see `tuning.findings`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from adaptive_pyramid.config import PyramidConfig, Route
from adaptive_pyramid.control.pool import Pool
from adaptive_pyramid.decoding.method import METHODS
from tuning.replay.acceptance_model import (
    TAUS,
    AcceptanceModel,
    calibration_error,
    fitting,
    model_pairs,
    reliability_table,
)
from tuning.replay.engine import Replay
from tuning.replay.what_if_costs import CostTable
from tuning.research import findings_plots, trace_statistics
from tuning.research.oracle import Oracle, oracle_speeds
from tuning.terminal.progress import note, progress_bar
from tuning.traces.format import TraceSet

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24)
MAP_LENGTHS = (1, 2, 4, 6, 8, 12, 16)


def grid(traces: TraceSet) -> list[PyramidConfig]:
    """Every route of the pool with every length of LENGTHS at every stage."""
    header = traces.header
    pool = Pool(len(header.tiers), header.models, header.costs, measured=True)
    found = []
    for route in pool.routes():
        combinations: list[dict[int, int]] = [{}]
        for tier in route[1:]:
            combinations = [{**lengths, tier: length} for lengths in combinations for length in LENGTHS]
        found += [
            PyramidConfig.simple([lengths.get(k, 1) for k in range(1, len(header.tiers))], route=route)
            for lengths in combinations
        ]
    return found


class Page:
    """Markdown, section by section."""

    def __init__(self, traces: TraceSet, folder: Path) -> None:
        self.traces, self.folder = traces, folder
        self.names = [tier.name for tier in traces.header.tiers]
        self.target = traces.header.target
        self.by_task = {task: traces.select(task) for task in traces.tasks}
        self.learned = fitting(traces, METHODS["pyramid"])
        self.parts: list[str] = []

    def write(self, *paragraphs: str) -> None:
        self.parts += [paragraph for paragraph in paragraphs if paragraph]

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
        self.write("\n".join(f"| {' | '.join(line)} |" for line in lines))

    def picture(self, name: str, alt: str) -> Path:
        self.write(f"![{alt}]({name})")
        return self.folder / name

    def save(self) -> Path:
        path = self.folder / "findings.md"
        path.write_text("\n\n".join(self.parts) + "\n", encoding="utf-8")
        return path

    # --- sections

    def introduction(self, command: str) -> None:
        header = self.traces.header
        self.write(
            "# First findings",
            f"Made by `{command}`. Family {header.family}: {' < '.join(self.names)} ({header.dtype}, {header.device}). "
            "Greedy decoding. Speeds are modelled time "
            "(counters from replay, priced with a cost table), prompts included, over target-only decoding. Tokens and "
            "target passes are exact, and so is everything on routes of two tiers; what lower tiers spend behind a token "
            "that is not the target's is estimated"
            + (", by an acceptance model of these traces." if self.learned is not None else ", from mean rates."),
        )
        self.table(
            ["task", "data", "answers", "tokens", "ended by themselves"],
            [
                [
                    task,
                    header.labels.get(task, ""),
                    str(len(one)),
                    str(one.tokens),
                    f"{np.mean([trace.ended for trace in one]):.0%}",
                ]
                for task, one in self.by_task.items()
            ],
        )

    def entropy(self) -> None:
        self.write(
            "## Entropy by tier",
            "Of each model's own distribution along the target's text, nats: mean, and the values below which half "
            "and nine tenths of the positions lie.",
        )
        models = self.traces.header.models
        rows = []
        for task, one in self.by_task.items():
            cells = []
            for tier in models:
                mean, (_, median, _, tenth) = trace_statistics.quantiles(one, tier)
                cells.append(f"{mean:.2f} ({median:.2f}, {tenth:.2f})")
            rows.append([task, *cells])
        self.table(["task", *(self.names[tier] for tier in models)], rows)
        means = {tier: trace_statistics.quantiles(self.traces, tier)[0] for tier in models}
        falls = all(means[a] > means[b] for a, b in zip(models, models[1:]))
        if len(models) > 1:
            self.write(
                f"Over all tasks the mean {'falls' if falls else 'does not fall'} from draft to target at every step "
                f"({', '.join(f'{self.names[tier]} {means[tier]:.3f}' for tier in models)})."
            )
        values = {
            task: {self.names[tier]: np.concatenate([trace.entropy[tier] for trace in one]) for tier in models}
            for task, one in self.by_task.items()
        }
        findings_plots.entropies(self.picture("findings-entropy.png", "entropy by tier and task"), values)

    def acceptance(self) -> None:
        self.write(
            "## Acceptance by position and entropy",
            "Share of positions where the proposer's best token is the target's own. Of a lookup, "
            "the first token that it proposes, where it proposes one; its entropy bins are the target's.",
        )
        lines = {
            self.names[low]: (
                trace_statistics.by_position(self.traces, low, self.target),
                trace_statistics.by_entropy(self.traces, low, self.target),
            )
            for low in range(self.target)
        }
        for index, what in enumerate(("position in the answer", "entropy (nats)")):
            labels = list(dict.fromkeys(share.label for row in lines.values() for share in row[index]))
            self.table(
                [what, *lines],
                [
                    [
                        label,
                        *(
                            next((f"{s.value:.2f} (n={s.n})" for s in row[index] if s.label == label), "")
                            for row in lines.values()
                        ),
                    ]
                    for label in labels
                ],
            )
        findings_plots.shares(
            self.picture("findings-acceptance.png", "acceptance by position and by entropy"),
            {
                "by position": {name: row[0] for name, row in lines.items()},
                "by entropy": {name: row[1] for name, row in lines.items()},
            },
            ("position in the answer", "entropy (nats)"),
        )

    def thresholds(self) -> None:
        pairs = [pair for pair in model_pairs(self.traces) if pair[1] == self.target]
        if not pairs:
            return
        pair = pairs[-1]
        self.write(
            "## Acceptance against tau",
            f"Tier {self.names[pair[0]]} at the target: acceptance, and in brackets the regret that the threshold "
            "lets through (nats per position). Thresholds of different divergences are not comparable; acceptance at "
            "equal regret is.",
        )
        curves = {name: trace_statistics.by_tau(self.traces, *pair, name) for name in TAUS}
        for name, points in curves.items():
            self.write(
                f"- `{name}`: " + ", ".join(f"tau {p.tau:g}: {p.acceptance:.3f} ({p.regret:.4f})" for p in points)
            )
        findings_plots.thresholds(
            self.picture("findings-tau.png", "acceptance against tau, and against the regret let through"), curves
        )

    def lengths(self) -> None:
        models = self.traces.header.models
        chains = [(low, middle, self.target) for middle in models[:-1] for low in range(middle)]
        self.write("## Speed over (l_D, l_Q)")
        if not chains:
            self.write("No route here has two lengths: that takes three tiers, two of them models.")
            return
        maps = {chain: {task: self._map(one, chain) for task, one in self.by_task.items()} for chain in chains}
        rows = []
        for chain, by_task in maps.items():
            for task, ratios in by_task.items():
                i, j = np.unravel_index(ratios.argmax(), ratios.shape)
                best = f"{MAP_LENGTHS[i]}, {MAP_LENGTHS[j]}"
                rows.append([self._chain(chain), task, best, f"{ratios.max():.2f}", f"{ratios.min():.2f}"])
        self.table(["route", "task", "best l_D, l_Q", "ratio there", "worst ratio on the grid"], rows)
        shown = max(chains, key=lambda chain: np.mean([ratios.max() for ratios in maps[chain].values()]))
        self.write(f"The map is of {self._chain(shown)}.")
        findings_plots.heat_maps(
            self.picture("findings-lengths.png", "speed over l_D and l_Q"),
            maps[shown],
            MAP_LENGTHS,
            MAP_LENGTHS,
            ("l_D", "l_Q"),
        )

    def _chain(self, chain: tuple[int, int, int]) -> str:
        return " > ".join(self.names[tier] for tier in chain)

    def _map(self, traces: TraceSet, chain: tuple[int, int, int]) -> np.ndarray:
        """Ratio by (l_D, l_Q), both of MAP_LENGTHS."""
        replay = Replay(traces, acceptance=self.learned)
        plain = PyramidConfig.simple([1] * self.target, route=chain)

        def ratio(l_d: int, l_q: int) -> float:
            return replay.play(plain.with_stage(chain[1], length=l_d).with_stage(chain[2], length=l_q)).ratio_to_ar

        return np.array([[ratio(l_d, l_q) for l_q in MAP_LENGTHS] for l_d in MAP_LENGTHS])

    def adapting(
        self, configs: Sequence[PyramidConfig], costs: CostTable | None, progress: Callable[[], None] = lambda: None
    ) -> None:
        label = "costs measured where the traces were recorded" if costs is None else costs.label
        self.write(
            f"## What adapting could be worth ({'measured costs' if costs is None else costs.name})",
            f"The best of {len(configs)} configs (all routes), chosen afterwards: one for a task, one per prompt, one "
            "per block. The last takes every cache to be up to date and knows the tokens beforehand: no controller "
            f"reaches it. Modelled time; {label}.",
            (
                ""
                if costs is None
                else "Acceptance stays that of the recorded family, whose tiers only stand for the table's: "
                + ", ".join(f"{self.names[tier]} for {row}" for tier, row in zip(self.traces.header.models, costs.rows))
                + "."
            ),
        )
        found: dict[str, Oracle] = {}
        for task, one in {**self.by_task, "all": self.traces}.items():
            found[task] = oracle_speeds(Replay(one, costs, acceptance=self.learned), configs)
            progress()
        overall = found["all"].static
        rows, bars = [], {}
        for task, one in found.items():
            rows.append(
                [
                    task,
                    one.static.label,
                    f"{one.static_ratio:.2f}",
                    f"{one.ratios[overall]:.2f}",
                    f"{one.by_trace:.2f}",
                    f"{one.by_block:.2f}",
                ]
            )
            bars[task] = {
                "best overall": one.ratios[overall],
                "best for the task": one.static_ratio,
                "best per prompt": one.by_trace,
                "best per block": one.by_block,
            }
        self.table(
            ["task", "best config", "ratio", f"ratio of {overall.label}", "best per prompt", "best per block"], rows
        )
        whole = found["all"]
        self.write(
            f"Over everything, choosing per prompt is worth {whole.by_trace / whole.static_ratio - 1:.1%} over the "
            "best static config, and "
            f"the bound per block is {whole.by_block / whole.static_ratio - 1:.1%}."
        )
        routes: dict[Route, tuple[str, float]] = {}
        for config, ratio in whole.ratios.items():
            routes.setdefault(config.route, (config.label, ratio))
        self.write(
            "Best config of every route, over all tasks: "
            + "; ".join(f"`{label}` {ratio:.2f}" for label, ratio in routes.values())
            + "."
        )
        suffix = "" if costs is None else f"-{costs.name}"
        findings_plots.oracle_bars(
            self.picture(f"findings-hindsight{suffix}.png", "speed by how often the config may change"), bars
        )

    def calibration(self) -> None:
        pairs = model_pairs(self.traces)
        if not pairs or len(self.traces) < 8:
            return
        half = len(self.traces) // 2
        order = np.random.default_rng(0).permutation(len(self.traces))
        model = AcceptanceModel.fit(self.traces.select(indices=order[:half]))
        pair = pairs[-1]
        bins = model.reliability(self.traces.select(indices=order[half:]), *pair)
        self.write(
            "## How well acceptance can be predicted",
            f"Tier {self.names[pair[0]]} at {self.names[pair[1]]}: a model of acceptance by tau (regret), "
            f"entropy and position, learned from {half} answers, on the "
            f"{len(self.traces) - half} others. Mean calibration error {calibration_error(bins):.3f}.",
            reliability_table(bins),
        )


def write_page(traces: TraceSet, folder: Path, costs: CostTable | None = None) -> Path:
    """Write findings.md and its pictures into `folder`. Raises ImportError without matplotlib."""
    if costs is not None:
        costs.model(traces.header.model_names)  # a table that does not fit is an error now, not after a minute
    page = Page(traces, folder)
    page.introduction(
        "python -m tuning.findings" + (f" --costs {costs.name} --cost-rows {','.join(costs.rows)}" if costs else "")
    )
    page.entropy()
    page.acceptance()
    page.thresholds()
    page.lengths()
    configs = grid(traces)
    tables = [None, costs] if costs is not None else [None]
    with progress_bar("oracle", len(tables) * (len(page.by_task) + 1)) as advance:
        for table in tables:
            page.adapting(configs, table, advance)
    page.calibration()
    path = page.save()
    note(f"{path}")
    return path
