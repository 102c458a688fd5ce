"""Plots of findings, as PNG files. Needs matplotlib (`pip install 'adaptive-pyramid[report]'`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuning.research.trace_statistics import Loosened, Share


def _axes(columns: int, width: float = 4.2, height: float = 3.2) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'adaptive-pyramid[report]'") from error
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    FigureCanvasAgg(figure)  # without pyplot: no display, no global state
    return figure, list(np.atleast_1d(figure.subplots(1, columns)))


def entropies(path: Path, values: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Distribution of entropy by tier. values: task -> tier name -> nats."""
    figure, axes = _axes(len(values))
    for axis, (task, tiers) in zip(axes, values.items()):
        axis.boxplot(list(tiers.values()), tick_labels=list(tiers), showfliers=False, showmeans=True)
        axis.set_title(task)
        axis.set_ylabel("entropy (nats)")
    figure.savefig(path, dpi=110)


def shares(path: Path, panels: Mapping[str, Mapping[str, Sequence[Share]]], what: Sequence[str]) -> None:
    """Lines of acceptance. panels: title -> line -> shares by bin; what: the x label of each panel."""
    figure, axes = _axes(len(panels), 5.2)
    for axis, (title, lines), label in zip(axes, panels.items(), what):
        ticks = list(dict.fromkeys(share.label for line in lines.values() for share in line))
        for name, line in lines.items():
            axis.plot(
                [ticks.index(share.label) for share in line], [share.value for share in line], marker="o", label=name
            )
        axis.set_xticks(range(len(ticks)), ticks, rotation=30, ha="right", fontsize=8)
        axis.set(title=title, xlabel=label, ylabel="acceptance", ylim=(0, 1.03))
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def thresholds(path: Path, curves: Mapping[str, Sequence[Loosened]]) -> None:
    """Acceptance against tau, and against the regret let through. curves: divergence -> points."""
    figure, axes = _axes(2, 5.2)
    for name, points in curves.items():
        axes[0].plot([p.tau for p in points], [p.acceptance for p in points], marker="o", label=name)
        axes[1].plot([p.regret for p in points], [p.acceptance for p in points], marker="o", label=name)
    axes[0].set(xlabel="tau (the divergence's own unit)", ylabel="acceptance", title="by threshold")
    axes[1].set(
        xlabel="regret let through (nats per position)", ylabel="acceptance", title="by what it costs in quality"
    )
    for axis in axes:
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def heat_maps(
    path: Path, maps: Mapping[str, np.ndarray], rows: Sequence[int], columns: Sequence[int], names: tuple[str, str]
) -> None:
    """Speed ratios over two lengths. maps: title -> [rows, columns]; names: of rows and columns."""
    figure, axes = _axes(len(maps), 3.9, 3.6)
    low, high = (pick([pick(values) for values in maps.values()]) for pick in (np.min, np.max))
    for axis, (title, values) in zip(axes, maps.items()):
        image = axis.imshow(values, vmin=low, vmax=high, origin="lower", aspect="auto", cmap="viridis")
        axis.set_xticks(range(len(columns)), columns)
        axis.set_yticks(range(len(rows)), rows)
        axis.set(title=title, xlabel=names[1], ylabel=names[0])
        for (i, j), value in np.ndenumerate(values):
            axis.text(
                j,
                i,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=6,
                color="white" if value < (low + high) / 2 else "black",
            )
    figure.colorbar(image, ax=axes, label="speed over target-only decoding, modelled")
    figure.savefig(path, dpi=110)


def oracle_bars(path: Path, bars: Mapping[str, Mapping[str, float]]) -> None:
    """Speed by how often the config may change. bars: task -> how often -> ratio."""
    figure, axes = _axes(1, 1.9 * max(3, len(bars)))
    kinds = list(next(iter(bars.values())))
    for i, kind in enumerate(kinds):
        axes[0].bar(
            np.arange(len(bars)) + 0.8 * i / len(kinds),
            [row[kind] for row in bars.values()],
            0.8 / len(kinds),
            label=kind,
        )
    axes[0].set_xticks(np.arange(len(bars)) + 0.4 - 0.4 / len(kinds), list(bars))
    axes[0].axhline(1.0, color="gray", linewidth=0.8)
    axes[0].set_ylabel("speed over target-only, modelled")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
