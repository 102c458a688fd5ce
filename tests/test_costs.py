"""What-if cost tables: the shipped one is what its own comment computes, and tables are used whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from adaptive_pyramid.config import PyramidConfig
from tests.recorded import synthetic
from tuning.replay.engine import Replay
from tuning.replay.what_if_costs import FOLDER, cost_table_names, load_costs


def test_the_shipped_table_is_what_its_comment_computes() -> None:
    text = (FOLDER / "gpu-24gb.yaml").read_text(encoding="utf-8")
    bandwidth = float(re.search(r"bandwidth  = ([\d.]+) \* (\d+) GB/s", text)[1]) * 1008e9
    throughput = float(re.search(r"throughput = ([\d.]+) \* 165 TFLOP/s", text)[1]) * 165e12
    models = re.findall(r"^#   (\w+)\s+([\d.]+e9).*?(\d+)\s+(\d+) \* 2 \* (\d+) \*\s+(\d+) \* 2 =\s*(\d+)", text, re.M)
    table = load_costs("gpu-24gb")
    assert [model[0] for model in models] == list(table.rows) == ["1b", "3b", "8b"]
    for name, weights, layers, again, heads, size, cache in models:
        assert int(layers) == int(again) and int(layers) * 2 * int(heads) * int(size) * 2 == int(cache)
        for width, seconds in table.rows[name].items():
            reading = (float(weights) + 1024 * int(cache)) / bandwidth
            expected = max(reading, 2 * float(weights) * width / throughput) + 0.2e-3 + 10e-6 * int(layers)
            assert seconds == pytest.approx(expected, abs=1e-6)
    assert "9.436 ms" in text and table.rows["8b"][1] == 0.009436 and table.rows["8b"][64] == 0.010223


def test_results_say_that_they_are_modelled() -> None:
    traces = synthetic(4, tiers=3)
    table = load_costs("gpu-24gb")
    what_if, measured = (
        Replay(traces, table).play(PyramidConfig.simple((3, 5))),
        Replay(traces).play(PyramidConfig.simple((3, 5))),
    )
    assert any("what-if costs 'gpu-24gb', modelled and not measured" in label for label in what_if.labels)
    assert any("costs measured where the traces were recorded" in label for label in measured.labels)
    assert what_if.forwards == measured.forwards and what_if.seconds != measured.seconds
    assert Replay(traces, table).costs.table[2] == dict(table.rows["8b"])


def test_rows_are_chosen_for_traces_with_fewer_models() -> None:
    traces = synthetic(4, tiers=2)
    with pytest.raises(
        ValueError, match="has the rows 1b, 3b, 8b, the traces have the models tier0, tier1: name 2 of the rows"
    ):
        Replay(traces, load_costs("gpu-24gb"))
    chosen = Replay(traces, load_costs("gpu-24gb", ["1b", "8b"])).costs
    assert chosen.seconds(0, 1) == 0.001842 and chosen.seconds(1, 1) == 0.009436
    with pytest.raises(ValueError, match="unknown row of cost table 'gpu-24gb' '8bb'; did you mean '8b'"):
        load_costs("gpu-24gb", ["1b", "8bb"])


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"rows": {}}, "rows must map model names"),
        ({"rows": {"a": {0: 1.0}}}, "whole number from 1, got 0"),
        ({"rows": {"a": {1: -1.0}}}, "row 'a': seconds at width 1"),
        ({"rows": {"a": {"x": 1.0}}}, "whole number from 1, got 'x'"),
        ({"row": {}}, "did you mean 'rows'"),
        ({"rows": {"a": 3}}, "must map widths"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, change, sentence) -> None:
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump({"name": "own", "description": "d", "rows": {"a": {1: 0.1}}} | change)
    )
    with pytest.raises((ValueError, TypeError), match=sentence):
        load_costs(tmp_path / "own.yaml")


def test_unknown_tables_are_named(tmp_path: Path) -> None:
    assert cost_table_names() == ["gpu-24gb"]
    with pytest.raises(ValueError, match="unknown cost table 'gpu-24'; did you mean 'gpu-24gb'"):
        load_costs("gpu-24")
    with pytest.raises(FileNotFoundError, match="no cost table at"):
        load_costs(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("rows: [")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_costs(tmp_path / "broken.yaml")
