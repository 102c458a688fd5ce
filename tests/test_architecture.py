"""The diagram in docs/architecture.md is that of the code, and the page is what it says it is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
GRAPH = runpy.run_path(str(ROOT / "docs" / "import_graph.py"))


def test_the_diagram_is_what_the_command_prints():
    (shown,) = re.findall(r"```mermaid\n(.*?)```", PAGE, flags=re.S)
    assert shown == GRAPH["diagram"](), "run python docs/import_graph.py --write"


def test_reduction_keeps_reachability_and_refuses_cycles():
    assert GRAPH["reduced"]({("a", "b"), ("b", "c"), ("a", "c")}) == [("a", "b"), ("b", "c")]
    with pytest.raises(ValueError, match="in a circle"):
        GRAPH["reduced"]({("a", "b"), ("b", "a")})


def test_the_files_that_the_page_names_exist():
    names = re.findall(r"[\w/]+\.py|(?<=`)[\w/]+/(?=`)", PAGE)
    folders = [ROOT, ROOT / "adaptive_pyramid", ROOT / "tuning"]
    assert [name for name in names if not any((folder / name).exists() for folder in folders)] == []


def test_the_glossary_is_short():
    assert len(PAGE.partition("## Glossary\n")[2].strip().splitlines()) <= 40
