"""Print the diagram of docs/architecture.md: which package imports which, read from the sources.

    python docs/import_graph.py             # the diagram, as mermaid text
    python docs/import_graph.py --write     # and put it into docs/architecture.md

Imports inside functions count, those under TYPE_CHECKING too. Modules directly in adaptive_pyramid form two groups: those that
reach decoding, control or models (the facade), and the others (what everything may use).
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("adaptive_pyramid", "policies", "tuning")
FACADE, SHARED, COMMANDS = "adaptive_pyramid: facade", "adaptive_pyramid: shared", "tuning: command lines"


def modules() -> dict[str, set[str]]:
    """Every module of the packages -> the modules of the packages that it imports."""
    files = {
        path: path.relative_to(ROOT).with_suffix("").parts for name in PACKAGES for path in (ROOT / name).rglob("*.py")
    }
    names = {path: ".".join(parts[:-1] if parts[-1] == "__init__" else parts) for path, parts in files.items()}
    known = set(names.values())
    return {
        name: _imports(path, name, known) - {name} for path, name in sorted(names.items(), key=lambda item: item[1])
    }


def _imports(path: Path, name: str, known: set[str]) -> set[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            submodules = {f"{base}.{alias.name}" for alias in node.names} & known
            found |= submodules or {base}
    return found & known


def room_of(name: str, imports: dict[str, set[str]]) -> str:
    """The group that a module belongs to in the diagram."""
    top, *rest = name.split(".")
    if top == "policies":
        return top
    if rest and (ROOT / top / rest[0]).is_dir():
        return f"{top}.{rest[0]}"
    if top == "tuning":
        return COMMANDS
    reached, waiting = set(), [name]
    while waiting:
        here = waiting.pop()
        if here not in reached:
            reached.add(here)
            waiting += [used for used in imports[here] if used.count(".") == 1]
    packages = ("adaptive_pyramid.decoding", "adaptive_pyramid.control", "adaptive_pyramid.models")
    uses = {used for module in reached if module != top for used in imports[module]}
    return FACADE if any(used.startswith(packages) for used in uses) else SHARED


def edges() -> set[tuple[str, str]]:
    """(importer, imported) for every pair of groups."""
    imports = modules()
    rooms = {name: room_of(name, imports) for name in imports}
    rooms["adaptive_pyramid"] = SHARED  # its __init__ imports by name, on first use
    pairs = {(rooms[name], rooms[used]) for name, all_used in imports.items() for used in all_used}
    return {(one, other) for one, other in pairs if one != other}


def reduced(pairs: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the pairs that a longer path implies, sorted. Raises ValueError if there is a cycle."""
    direct = {one: {other for start, other in pairs if start == one} for pair in pairs for one in pair}

    def reach(room: str, path: tuple[str, ...]) -> set[str]:
        if room in path:
            raise ValueError("these import each other in a circle: " + " -> ".join((*path, room)))
        return direct[room].union(*(reach(other, (*path, room)) for other in direct[room]))

    reached = {room: reach(room, ()) for room in direct}
    return sorted(
        (one, other) for one, other in pairs if not any(other in reached[mid] for mid in direct[one] - {other})
    )


def diagram() -> str:
    """Mermaid text, without the fence."""
    pairs = reduced(edges())
    rooms = sorted({room for pair in pairs for room in pair})
    identifiers = {room: re.sub(r"\W+", "_", room) for room in rooms}
    lines = ["graph TD"]
    lines += [f'    {identifiers[room]}["{room}"]' for room in rooms]
    lines += [f"    {identifiers[one]} --> {identifiers[other]}" for one, other in pairs]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put it into docs/architecture.md")
    text = diagram()
    if parser.parse_args(arguments).write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(re.sub(r"(?<=```mermaid\n).*?(?=```)", lambda _: text, page, flags=re.S), encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
