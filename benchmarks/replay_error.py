"""How far replay's estimates are from the real decoder, on recorded traces of a family.

    python -m tuning.traces --task gsm8k spec_bench --limit 8 --out traces.npz
    python -m benchmarks.replay_error --traces traces.npz --answers 4

Decodes some of the prompts again, for every route with one pair of lengths, and sets its forward passes beside those of
replay: with mean acceptance rates off the recorded text, and with an acceptance model learned from the other answers.
In half precision even exact counters differ a little, because near-ties fall otherwise in forwards of another width.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.control.pool import Pool
from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.request import GenerationRequest
from tuning.replay.acceptance_model import fitting
from tuning.replay.engine import Replay
from tuning.terminal.progress import progress_bar
from tuning.traces.format import TraceSet


def decoded_forwards(decoder: PyramidDecoder, traces: TraceSet, config: PyramidConfig) -> Counter[int]:
    """Passes per tier of the real decoder on the prompts of `traces`, each from cold caches."""
    passes: Counter[int] = Counter()
    for trace in traces:
        decoder.clear_caches()
        request = GenerationRequest(
            tuple(trace.prompt.tolist()), trace.max_new_tokens, eos=frozenset(traces.header.eos)
        )
        passes.update(forward.tier for block in decoder.blocks(request, config) for forward in block.stats.forwards)
    return passes


def errors(decoded: Mapping[int, int], replayed: Mapping[int, int]) -> dict[int, float]:
    """tier -> replayed / decoded - 1, for tiers that the decoder used."""
    return {tier: replayed.get(tier, 0) / passes - 1 for tier, passes in sorted(decoded.items())}


def configs(traces: TraceSet, lengths: Sequence[int]) -> list[PyramidConfig]:
    """Every route of two tiers or more, with `lengths` from the lowest stage up (the last one repeats)."""
    header = traces.header
    routes = [route for route in Pool(len(header.tiers), header.models, header.costs, True).routes() if len(route) > 1]
    found = []
    for route in routes:
        config = PyramidConfig.simple([1] * header.target, route=route)
        for i, tier in enumerate(route[1:]):
            config = config.with_stage(tier, length=lengths[min(i, len(lengths) - 1)])
        found.append(config)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, metavar="FILE", help="made by python -m tuning.traces")
    parser.add_argument("--family", help="a family's name or YAML file (default: the one in the traces)")
    parser.add_argument("--answers", type=int, default=4, help="how many to decode again, the first ones (default 4)")
    parser.add_argument("--lengths", default="2,6", help="tokens per stage from the lowest up (default 2,6)")
    options = parser.parse_args(arguments)
    traces = TraceSet.load(options.traces)
    if not 1 <= options.answers <= len(traces):
        parser.error(f"--answers must be between 1 and the {len(traces)} in {options.traces}, got {options.answers}")
    from adaptive_pyramid.models import families

    family = families.load(options.family or traces.header.family, dtype=traces.header.dtype)
    decoder = PyramidDecoder(family.models)
    asked = traces.select(indices=range(options.answers))
    model = fitting(traces.select(indices=range(options.answers, len(traces))), Replay(asked).method)
    players = {"means": Replay(asked)} | ({} if model is None else {"model": Replay(asked, acceptance=model)})
    chosen = configs(traces, [int(length) for length in options.lengths.split(",")])
    table = Table(title=f"replayed over decoded forward passes, {len(asked)} answers, {asked.tokens} tokens")
    for column in ("config", "decoded passes", *(f"error, {name}" for name in players), "replay says"):
        table.add_column(column)
    with progress_bar("decoding", len(chosen)) as advance:
        for config in chosen:
            real = decoded_forwards(decoder, asked, config)
            played = {name: player.play(config) for name, player in players.items()}
            cells = [
                " ".join(
                    f"{family.tier_names[tier]} {error:+.1%}" for tier, error in errors(real, result.forwards).items()
                )
                for result in played.values()
            ]
            passes = " ".join(f"{family.tier_names[tier]} {count}" for tier, count in sorted(real.items()))
            table.add_row(config.label, passes, *cells, "exact" if played["means"].exact else "estimated")
            advance()
    Console().print(table)


if __name__ == "__main__":
    main()
