"""What an installed package must hold: every data file beside the code, and a command for every module that is one."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]


def folder(package: str) -> Path:
    return ROOT / package.replace(".", "/")


def test_every_folder_with_code_is_a_package() -> None:
    roots = {package.split(".")[0] for package in PACKAGES}
    found = {path.parent.relative_to(ROOT) for root in roots for path in (ROOT / root).rglob("*.py")}
    assert {".".join(path.parts) for path in found} == set(PACKAGES)


@pytest.mark.parametrize("package", ["adaptive_pyramid", "policies", "tuning"])
def test_every_data_file_is_shipped(package) -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    shipped = {path for name, patterns in data.items() for pattern in patterns for path in folder(name).glob(pattern)}
    kinds = ("yaml", "jsonl", "html", "css", "js", "typed")
    there = {path for kind in kinds for path in folder(package).rglob(f"*.{kind}")}
    assert there - shipped == set() and folder(package) / "py.typed" in shipped


def test_every_command_has_a_script() -> None:
    """A command is a module beside the rooms, or the `__main__` of a room: both run as `python -m tuning.NAME`."""
    sources = [*(ROOT / "tuning").glob("*.py"), *(ROOT / "tuning").glob("*/__main__.py")]
    commands = [path for path in sources if " = OneSentenceParser(" in path.read_text(encoding="utf-8")]
    modules = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in commands}
    scripts = PROJECT["project"]["scripts"]
    assert scripts == {
        f"adaptive-pyramid-{module.removesuffix('.__main__').removeprefix('tuning.')}": f"{module}:main"
        for module in modules
    }
    for target in scripts.values():
        module, function = target.split(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_the_licence_is_named_and_shipped() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0" and PROJECT["project"]["license-files"] == ["LICENSE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_nothing_but_the_three_packages_is_installed() -> None:
    assert {package.split(".")[0] for package in PACKAGES} == {"adaptive_pyramid", "policies", "tuning"}


@pytest.mark.parametrize("room", ["benchmarks", "examples", "tests"])
def test_scripts_need_no_path_tricks(room) -> None:
    tricks = ("sys." + "path", "syspath" + "_prepend", "site." + "addsitedir")
    found = {path.name for path in (ROOT / room).glob("*.py") if any(t in path.read_text("utf-8") for t in tricks)}
    assert not found
