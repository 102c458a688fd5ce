"""What-if hardware: cost tables written down instead of measured, to explore routes for a machine one does not have.

A file is YAML: `name`, `description`, and `rows`, one per model from draft to target: width -> seconds for a forward
over that many new tokens (one at least; linear in between and beyond). docs/traces.md shows one. Results of a table are
labelled modelled, and it is used whole or not at all: measured rows never stand beside invented ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_pyramid.errors import check_keys, check_number, unknown_name
from adaptive_pyramid.throughput import CostModel
from adaptive_pyramid.yaml_file import read_yaml

FOLDER = Path(__file__).with_name("cost_tables")


@dataclass(frozen=True)
class CostTable:
    """A what-if cost table. `rows`: model name -> width -> seconds, draft first."""

    name: str
    description: str
    rows: Mapping[str, Mapping[int, float]]

    @property
    def label(self) -> str:
        return f"what-if costs {self.name!r}, modelled and not measured: {self.description}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in the YAML file."""
        return {
            "name": self.name,
            "description": self.description,
            "rows": {name: dict(row) for name, row in self.rows.items()},
        }

    def only(self, names: Sequence[str]) -> CostTable:
        """The table with these rows, in this order: what stands for the tiers of traces with fewer models.

        Raises ValueError for a row that is not there.
        """
        for name in names:
            if name not in self.rows:
                raise ValueError(unknown_name(f"row of cost table {self.name!r}", name, self.rows))
        return CostTable(self.name, self.description, {name: self.rows[name] for name in names})

    def model(self, names: Mapping[int, str]) -> CostModel:
        """Costs of the tiers in `names` (tier -> name of its model, draft first): rows in order stand for them in order.

        Raises ValueError if their numbers differ; choose rows with `only` then.
        """
        if len(self.rows) != len(names):
            raise ValueError(
                f"cost table {self.name!r} has the rows {', '.join(self.rows)}, the traces have the models "
                f"{', '.join(names.values())}: name {len(names)} of the rows, draft first"
            )
        return CostModel(dict(zip(names, self.rows.values())))


def cost_table_names() -> list[str]:
    """Names of the tables that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_costs(name_or_path: str | Path, rows: Sequence[str] | None = None) -> CostTable:
    """The shipped table called `name_or_path`, or the one in a YAML file.

    rows: keep these, in this order.

    Raises FileNotFoundError, or ValueError (unknown name or key, broken YAML, impossible value).
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        if str(name_or_path) not in cost_table_names():
            raise ValueError(
                unknown_name("cost table", str(name_or_path), cost_table_names())
                + "; your own is a path ending in .yaml"
            )
        path = FOLDER / f"{name_or_path}.yaml"
    data = read_yaml(path, "cost table")
    check_keys(str(path), data, ("name", "description", "rows"), required=("name", "description", "rows"))
    if not isinstance(data["rows"], Mapping) or not data["rows"]:
        raise ValueError(f"{path}: rows must map model names, draft first, to width -> seconds, got {data['rows']!r}")
    table = {str(name): _row(f"{path}: row {name!r}", row) for name, row in data["rows"].items()}
    loaded = CostTable(str(data["name"]), " ".join(str(data["description"]).split()), table)
    return loaded if rows is None else loaded.only(rows)


def _row(where: str, row: object) -> dict[int, float]:
    if not isinstance(row, Mapping) or not row:
        raise ValueError(f"{where} must map widths (whole numbers from 1) to seconds, got {row!r}")
    for width, seconds in row.items():
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"{where}: a width must be a whole number from 1, got {width!r}")
        check_number(f"{where}: seconds at width {width}", seconds, minimum=0.0)
    return {width: float(seconds) for width, seconds in row.items()}
