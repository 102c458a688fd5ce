"""What adapting could be worth: the best config for all prompts, for each prompt and for each block, known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_pyramid.config import PyramidConfig
from tuning.replay.engine import Replay


@dataclass(frozen=True)
class Oracle:
    """Speed over target-only decoding, by how often the config may change.

    Args:
        static: the best single config, and its ratio. by_trace: the best config of each trace, ratio over all traces.
        by_block: ratio with the best config for every block, every cache taken to be up to date: a bound, since no
            controller knows the tokens beforehand, and tiers that pause must catch up.
        ratios: config -> ratio, best first.
    """

    static: PyramidConfig
    static_ratio: float
    trace_configs: tuple[PyramidConfig, ...]
    by_trace: float
    by_block: float
    ratios: dict[PyramidConfig, float]


def oracle_speeds(replay: Replay, configs: Sequence[PyramidConfig]) -> Oracle:
    """Exhaustively over `configs` (at least one), in the replay's modelled time."""
    if not configs:
        raise ValueError("an oracle needs at least one config")
    results = [replay.play(config) for config in configs]
    seconds = np.array([result.by_trace["seconds"] for result in results])
    alone = results[0].ar_seconds
    best_each = seconds.argmin(0)
    order = np.argsort(seconds.sum(1), kind="stable")
    ratios = {configs[i]: float(alone / seconds[i].sum()) for i in order}
    static = configs[order[0]]
    return Oracle(
        static,
        ratios[static],
        tuple(configs[i] for i in best_each),
        float(alone / seconds.min(0).sum()),
        float(alone / (_best_blocks(replay, configs) + _prompts(replay))),
        ratios,
    )


def _best_blocks(replay: Replay, configs: Sequence[PyramidConfig]) -> float:
    """Least seconds for all traces if every block may run any config: shortest paths, from each end back."""
    tables = [replay.table(config) for config in configs]
    seconds = np.array([table.seconds for table in tables])
    steps = np.array([table.tokens for table in tables])
    flat = replay.flat
    last = np.searchsorted(flat.positions, flat.end)  # row behind each trace
    row_end = np.repeat(last, flat.end - flat.first)
    least = np.zeros(seconds.shape[1] + 1)
    for row in range(seconds.shape[1] - 1, -1, -1):
        after = row + steps[:, row]
        rest = np.where(after < row_end[row], least[np.minimum(after, len(least) - 1)], 0.0)
        least[row] = (seconds[:, row] + rest).min()
    return float(least[np.searchsorted(flat.positions, flat.first)].sum())


def _prompts(replay: Replay) -> float:
    """Seconds for the target to read the prompts: the least that any config pays."""
    if not replay.prefill:
        return 0.0
    target = replay.header.target
    return float((replay.prices(target, replay.flat.prompt) - replay.prices(target, 1)).sum())
