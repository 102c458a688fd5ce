"""Plots of a report, each drawn twice, for light and for dark. Needs matplotlib (the extra `report`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WIDTH = 4.8  # inches: on a phone of 360 px, 10 pt letters are then 10 px high
_DPI = 200


@dataclass(frozen=True)
class Palette:
    """Colours of one scheme; `series` are told apart by the colour-blind too (after Okabe and Ito)."""

    page: str
    ink: str
    faint: str
    grid: str
    good: str
    series: tuple[str, ...]


LIGHT = Palette(
    "#ffffff",
    "#1b2430",
    "#66717f",
    "#e3e7ec",
    "#0a7f5a",
    ("#1f6fb2", "#d1660b", "#0a8f6a", "#b2478f", "#8a6d00", "#4b4fa8"),
)
DARK = Palette(
    "#171c23",
    "#e4e9ef",
    "#97a3b1",
    "#2d3540",
    "#45c997",
    ("#63b3f0", "#f39b4a", "#45c997", "#e58bc3", "#e0c24a", "#a3a6f5"),
)


@dataclass(frozen=True)
class Plot:
    """One picture, as PNG in both schemes. alt: what it shows, for those who cannot see it."""

    name: str
    alt: str
    light: bytes
    dark: bytes


@dataclass(frozen=True)
class Point:
    """A measured trial. state: "front", "measured", "limit" (it breaks one) or "pruned"."""

    number: int
    x: float
    low: float
    high: float
    y: float
    y_low: float
    y_high: float
    state: str


def require() -> None:
    """Raises ImportError, naming the extra, without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("a report needs matplotlib: pip install 'adaptive-pyramid[report]'") from None


def picture(name: str, alt: str, painter: Callable[[Any, Palette], None], height: float = 3.4) -> Plot:
    """Call `painter(figure, palette)` for both schemes; `height` in inches."""
    require()
    import matplotlib
    from matplotlib.figure import Figure

    files = []
    for palette in (LIGHT, DARK):
        with matplotlib.rc_context(_style(palette)):
            figure = Figure((WIDTH, height), layout="constrained")
            painter(figure, palette)
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})
            files.append(file.getvalue())
    return Plot(name, alt, *files)


def _style(palette: Palette) -> dict[str, Any]:
    from cycler import cycler

    return {
        "font.family": "DejaVu Sans",
        "font.size": 9.5,
        "axes.titlesize": 10,
        "legend.fontsize": 8.5,
        "figure.facecolor": palette.page,
        "axes.facecolor": palette.page,
        "savefig.facecolor": palette.page,
        "text.color": palette.ink,
        "axes.labelcolor": palette.ink,
        "axes.edgecolor": palette.grid,
        "xtick.color": palette.faint,
        "ytick.color": palette.faint,
        "axes.grid": True,
        "grid.color": palette.grid,
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "axes.prop_cycle": cycler(color=palette.series),
    }


def front(name: str, alt: str, points: Sequence[Point], y_label: str) -> Plot:
    """Speed ratio against score or drift, with intervals, and the front as a line."""

    def paint(figure: Any, palette: Palette) -> None:
        axes = figure.subplots()
        looks = {
            "front": (palette.good, "on the front"),
            "measured": (palette.series[0], "measured"),
            "limit": (palette.series[1], "breaks a limit"),
            "pruned": (palette.faint, "pruned"),
        }
        axes.axvline(1.0, color=palette.faint, linewidth=1, linestyle=":")
        for state, (color, label) in looks.items():
            chosen = [point for point in points if point.state == state]
            if chosen:
                x, y = [point.x for point in chosen], [point.y for point in chosen]
                spread = [[point.x - point.low for point in chosen], [point.high - point.x for point in chosen]]
                rise = [[point.y - point.y_low for point in chosen], [point.y_high - point.y for point in chosen]]
                axes.errorbar(
                    x,
                    y,
                    xerr=spread,
                    yerr=rise,
                    fmt="o",
                    color=color,
                    markersize=6,
                    elinewidth=1,
                    alpha=0.9,
                    label=label,
                )
        best = sorted((point.x, point.y) for point in points if point.state == "front")
        axes.plot(*zip(*best) if len(best) > 1 else ([], []), color=palette.good, linewidth=1.2)
        axes.set(xlabel="speed, × target-only decoding", ylabel=y_label)
        axes.margins(0.1)
        _legend(figure, axes)

    return picture(name, alt, paint)


def ranking(name: str, alt: str, points: Sequence[Point], labels: Mapping[int, str]) -> Plot:
    """Trials by speed, with intervals: the front of a method whose output is the target's."""
    ordered = sorted(points, key=lambda point: point.x)

    def paint(figure: Any, palette: Palette) -> None:
        axes = figure.subplots()
        axes.axvline(1.0, color=palette.faint, linewidth=1, linestyle=":")
        for row, point in enumerate(ordered):
            color = {"front": palette.good, "limit": palette.series[1], "pruned": palette.faint}.get(
                point.state, palette.series[0]
            )
            axes.plot(
                [point.low, point.high], [row, row], color=color, linewidth=2.5, alpha=0.45, solid_capstyle="round"
            )
            axes.plot(point.x, row, "o", color=color, markersize=6)
        axes.set_yticks(range(len(ordered)), [labels[point.number] for point in ordered], fontsize=8)
        axes.grid(axis="y", visible=False)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("speed, × target-only decoding")

    return picture(name, alt, paint, height=1.1 + 0.24 * len(ordered))


def predictions(name: str, alt: str, rows: Mapping[str, Sequence[tuple[float, float, float, float]]]) -> Plot:
    """(predicted, measured, low, high) by kind of prediction, with the line where both are equal."""

    def paint(figure: Any, palette: Palette) -> None:
        axes = figure.subplots()
        ends = [value for values in rows.values() for row in values for value in (row[0], row[1])]
        span = np.array([min(ends) * 0.93, max(ends) * 1.07])
        axes.fill_between(span, span * 0.9, span * 1.1, color=palette.grid, alpha=0.7, linewidth=0, label="within 10 %")
        axes.plot(span, span, color=palette.faint, linewidth=1)
        for (label, values), marker in zip(rows.items(), ("o", "D")):
            predicted, measured, low, high = (np.array(column) for column in zip(*values))
            axes.errorbar(
                predicted,
                measured,
                yerr=[measured - low, high - measured],
                fmt=marker,
                markersize=5.5,
                elinewidth=1,
                markerfacecolor="none" if marker == "D" else None,
                label=label,
                alpha=0.9,
            )
        axes.set(xlabel="predicted speed, × ar", ylabel="measured speed, × ar", xlim=tuple(span))
        _legend(figure, axes)

    return picture(name, alt, paint, height=3.8)


def lines(
    name: str,
    alt: str,
    series: Mapping[str, Sequence[float]],
    x: Sequence[float],
    x_label: str,
    y_label: str,
    *,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    logarithmic: bool = False,
    share: bool = False,
    markers: bool = True,
) -> Plot:
    """One line per entry over x; `bands` are intervals around them, `share` fixes y to [0, 1]."""

    def paint(figure: Any, palette: Palette) -> None:
        axes = figure.subplots()
        for (label, values), color, mark in zip(series.items(), _cycle(palette, len(series)), "osD^vPX*" * len(series)):
            axes.plot(
                x[: len(values)], values, marker=mark if markers else None, markersize=4.5, color=color, label=label
            )
            if bands and label in bands:
                axes.fill_between(x[: len(values)], *bands[label], color=color, alpha=0.15, linewidth=0)
        if logarithmic:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.set_xticks(x, [f"{value:g}" for value in x])
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel=x_label, ylabel=y_label)
        if share:
            axes.set_ylim(0, 1.03)
        _legend(figure, axes)

    return picture(name, alt, paint)


def spreads(name: str, alt: str, rows: Mapping[str, Sequence[float]], x_label: str) -> Plot:
    """A violin with quartiles per row."""

    def paint(figure: Any, palette: Palette) -> None:
        axes = figure.subplots()
        for row, (values, color) in enumerate(zip(rows.values(), _cycle(palette, len(rows)))):
            if max(values) > min(values):
                body = axes.violinplot(values, [row], orientation="horizontal", widths=0.8, showextrema=False)[
                    "bodies"
                ][0]
                body.set(facecolor=color, alpha=0.3)
            low, middle, high = np.percentile(values, [25, 50, 75])
            axes.plot([low, high], [row, row], color=color, linewidth=4, solid_capstyle="round")
            axes.plot(middle, row, "o", color=palette.page, markeredgecolor=color, markersize=7, markeredgewidth=2)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.grid(axis="y", visible=False)
        axes.set(xlabel=x_label, ylim=(-0.6, len(rows) - 0.4))
        axes.set_xlim(left=0)

    return picture(name, alt, paint, height=1.2 + 0.55 * len(rows))


def heat_map(
    name: str,
    alt: str,
    values: np.ndarray,
    rows: Sequence[Any],
    columns: Sequence[Any],
    row_label: str,
    column_label: str,
    *,
    outlined: Callable[[int, int], bool] = lambda row, column: False,
    lowest_is_best: bool = False,
    digits: int = 2,
) -> Plot:
    """Numbers in coloured cells, the best one ringed; cells for which `outlined(row, column)` get a frame."""
    best = np.unravel_index(np.argmin(values) if lowest_is_best else np.argmax(values), values.shape)

    def paint(figure: Any, palette: Palette) -> None:
        import matplotlib
        from matplotlib.patches import Rectangle

        axes = figure.subplots()
        colors = matplotlib.colormaps["viridis_r" if lowest_is_best else "viridis"]
        low, high = float(values.min()), float(values.max())
        axes.imshow(values, cmap=colors, aspect="auto", origin="lower", vmin=low, vmax=high)
        for (row, column), value in np.ndenumerate(values):
            red, green, blue, _ = colors((value - low) / (high - low) if high > low else 0.5)
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            is_best = (row, column) == best
            axes.text(
                column,
                row,
                f"{value:.{digits}f}",
                ha="center",
                va="center",
                fontsize=7.6,
                color="#ffffff" if dark else "#111111",
                fontweight="bold" if is_best else "normal",
            )
            if outlined(row, column) or is_best:
                inset = 0.44 if is_best else 0.48
                color = "#ff3b5c" if is_best else "#ffffff" if dark else "#111111"
                axes.add_patch(
                    Rectangle(
                        (column - inset, row - inset),
                        2 * inset,
                        2 * inset,
                        fill=False,
                        linewidth=2.2 if is_best else 0.9,
                        edgecolor=color,
                        linestyle="-" if is_best else ":",
                    )
                )
        axes.set_xticks(range(len(columns)), [str(column) for column in columns])
        axes.set_yticks(range(len(rows)), [str(row) for row in rows])
        axes.grid(False)
        axes.set(xlabel=column_label, ylabel=row_label)

    return picture(name, alt, paint, height=0.9 + 0.36 * len(rows))


def _cycle(palette: Palette, n: int) -> list[str]:
    return [palette.series[i % len(palette.series)] for i in range(n)]


def _legend(figure: Any, axes: Any) -> None:
    """Above the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=2 if max(map(len, labels)) > 18 else 3,
            columnspacing=1.2,
            handlelength=1.6,
        )
