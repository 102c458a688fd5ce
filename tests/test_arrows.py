"""Who may import whom, read from the sources; and what must import without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("adaptive_pyramid", "policies", "tuning")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, only_at_import: bool = False) -> set[str]:
    """Absolute names of everything a file imports, `from . import x` included; optionally without what functions import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    skipped = (
        {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or _is_type_checking(node)
            for inner in ast.walk(node)
        }
        if only_at_import
        else set()
    )
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (
                [*package[: len(package) - node.level + 1], *([node.module] if node.module else [])]
                if node.level
                else [node.module]
            )
            found.add(".".join(base))
            found |= {
                ".".join([*base, alias.name])
                for alias in node.names
                if (ROOT / Path(*".".join(base).split(".")) / f"{alias.name}.py").exists()
                or (ROOT / Path(*".".join(base).split(".")) / alias.name).is_dir()
            }
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
IMPORTS = {module_name(path): imports_of(path) for path in SOURCES}


def users_of(target: str, importers: str) -> list[str]:
    """`importer -> imported` for every import of `target` (or anything in it) by `importers` (or anything in it)."""

    def within(name, package):
        return name == package or name.startswith(package + ".")

    return [
        f"{name} -> {used}"
        for name, all_used in IMPORTS.items()
        if within(name, importers)
        for used in sorted(all_used)
        if within(used, target)
    ]


@pytest.mark.parametrize(
    ("importers", "target"),
    [
        ("policies", "adaptive_pyramid"),
        ("policies", "tuning"),
        ("policies", "torch"),
        ("policies", "transformers"),
        ("adaptive_pyramid", "tuning"),
        ("adaptive_pyramid", "tests"),
        ("adaptive_pyramid.control", "tuning"),
        ("adaptive_pyramid.decoding", "tuning"),
        ("adaptive_pyramid.control", "adaptive_pyramid.decoding"),
        ("adaptive_pyramid.decoding", "adaptive_pyramid.control"),
        ("adaptive_pyramid.control", "adaptive_pyramid.models"),
        ("adaptive_pyramid.control", "torch"),
        ("adaptive_pyramid.control", "transformers"),
        ("adaptive_pyramid.control", "adaptive_pyramid.pyramid"),
        ("adaptive_pyramid.decoding", "policies"),
        ("adaptive_pyramid.decoding", "adaptive_pyramid.models"),
        ("adaptive_pyramid.decoding", "adaptive_pyramid.pyramid"),
        ("adaptive_pyramid.decoding", "adaptive_pyramid.generation"),
        ("adaptive_pyramid.models", "adaptive_pyramid.control"),
        ("adaptive_pyramid.models", "adaptive_pyramid.pyramid"),
        ("adaptive_pyramid.request", "adaptive_pyramid.decoding"),
        ("adaptive_pyramid.prompts", "adaptive_pyramid.decoding"),
        ("adaptive_pyramid.output", "adaptive_pyramid.decoding"),
        ("adaptive_pyramid.profile", "adaptive_pyramid.pyramid"),
    ],
)
def test_no_arrow(importers, target):
    assert users_of(target, importers) == []


# From top to bottom: a room uses only rooms that stand behind it.
ROOMS = ("report", "study", "research", "replay", "traces", "tasks", "statistics", "terminal")


def imported_modules(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """importer -> the project's own modules that it imports. A package counts only where names of its own are taken."""
    return {name: {used for used in all_used if used in imports and used != name} for name, all_used in imports.items()}


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """One cycle as a list of names, first and last alike; [] if there is none."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for used in sorted(graph[name]):
            if found := search(used, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in graph if (found := search(name, []))), [])


def room_of(module: str) -> str | None:
    """The room of a module of `tuning`; None for the commands, and for what lies outside."""
    parts = module.split(".")
    return parts[1] if parts[0] == "tuning" and len(parts) > 1 and parts[1] in ROOMS else None


def wrong_rooms(graph: dict[str, set[str]]) -> list[str]:
    """`importer -> imported` where a room uses one that stands before it, or where anything below uses a command."""
    found = []
    for name, all_used in graph.items():
        for used in sorted(all_used):
            here, there = room_of(name), room_of(used)
            if here is None or not used.startswith("tuning"):
                continue
            if there is None or ROOMS.index(there) < ROOMS.index(here):
                found.append(f"{name} -> {used}")
    return found


def test_no_cycle():
    assert cycle_in(imported_modules(IMPORTS)) == []


def test_rooms_use_only_rooms_below_them():
    folders = {path.parent.name for path in (ROOT / "tuning").glob("*/__init__.py")}
    assert folders == set(ROOMS)
    assert wrong_rooms(imported_modules(IMPORTS)) == []


def test_control_and_decoding_meet_in_the_loop_only():
    loop = {"adaptive_pyramid.generation", "adaptive_pyramid.pyramid"}
    meeting = {
        name
        for name, used in IMPORTS.items()
        if all(
            any(f"{one}.".startswith(f"adaptive_pyramid.{package}.") for one in used)
            for package in ("control", "decoding")
        )
        and name.startswith("adaptive_pyramid")
    }
    assert meeting <= loop


def test_no_file_shares_its_name_with_a_folder_beside_it():
    assert [path for path in SOURCES if path.with_suffix("").is_dir()] == []


def test_a_class_name_names_one_class():
    """Private classes may repeat: nobody imports them."""
    homes: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module_name(path))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_the_checks_of_this_file_can_fail():
    graph = {"tuning.study.a": {"tuning.study.b"}, "tuning.study.b": {"tuning.replay.c"}, "tuning.replay.c": set()}
    assert cycle_in(graph) == [] and wrong_rooms(graph) == []
    graph["tuning.replay.c"] = {"tuning.study.a"}
    assert cycle_in(graph) == ["tuning.study.a", "tuning.study.b", "tuning.replay.c", "tuning.study.a"]
    assert wrong_rooms(graph) == ["tuning.replay.c -> tuning.study.a"]
    assert wrong_rooms({"tuning.tasks.x": {"tuning.search"}}) == ["tuning.tasks.x -> tuning.search"]


def test_policies_use_numpy_and_the_standard_library_only():
    allowed = {*sys.stdlib_module_names, "numpy", "policies"}
    used = {
        name.split(".")[0] for module, names in IMPORTS.items() if module.split(".")[0] == "policies" for name in names
    }
    assert used <= allowed


@pytest.mark.parametrize("module", ["config", "stats", "throughput", "errors", "names"])
def test_host_side_modules_do_not_need_torch(module):
    reached, waiting = set(), [f"adaptive_pyramid.{module}"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        path = ROOT / Path(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        waiting += list(imports_of(file, only_at_import=True) if file.exists() else ())
    assert not {name for name in reached if name.split(".")[0] in ("torch", "transformers", "sklearn", "optuna")}


def test_only_the_scorer_and_its_two_helpers_know_caches():
    knowing = [
        module_name(path)
        for path in (ROOT / "adaptive_pyramid" / "decoding").glob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in ("DynamicCache", ".crop(", "past_key_values"))
    ]
    # `caches` makes them and says which models have none, `rope` asks what `generate` keeps of one; the scorer alone crops.
    assert sorted(knowing) == [f"adaptive_pyramid.decoding.{name}" for name in ("caches", "rope", "scorer")]


def test_importing_the_packages_does_not_import_torch():
    code = (
        "import sys; import adaptive_pyramid, policies; from adaptive_pyramid import PyramidConfig, StageConfig, CostModel;"
        "import adaptive_pyramid.stats, adaptive_pyramid.control.controller;"
        "heavy = {'torch', 'transformers', 'optuna', 'sklearn'} & set(sys.modules); sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_all_public_names_resolve():
    import adaptive_pyramid

    for name in adaptive_pyramid.__all__:
        assert getattr(adaptive_pyramid, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Pyramid'"):
        _ = adaptive_pyramid.Pyramid


def test_the_old_name_of_the_lookup_tier_warns():
    import adaptive_pyramid

    with pytest.warns(DeprecationWarning, match="adaptive_pyramid.Lookup is now adaptive_pyramid.PromptLookup"):
        assert adaptive_pyramid.Lookup is adaptive_pyramid.PromptLookup
    assert "Lookup" not in adaptive_pyramid.__all__


def test_the_reader_of_imports_sees_relative_ones(tmp_path):
    """The arrows above are worth as much as this reader."""
    assert "adaptive_pyramid.stats" in IMPORTS["adaptive_pyramid.decoding.tiers"]
    assert "adaptive_pyramid.decoding.decoder" in IMPORTS["adaptive_pyramid.pyramid"]
    assert "torch" in IMPORTS["adaptive_pyramid.decoding.tiers"]
    assert "adaptive_pyramid.config" in IMPORTS["adaptive_pyramid.control.controller"]
    assert users_of("adaptive_pyramid.control", "adaptive_pyramid.generation")
