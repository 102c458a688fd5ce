"""YAML files: a repeated key is an error that names key and line, for every kind of file that is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from adaptive_pyramid.models.families import load
from adaptive_pyramid.profile import Profile
from adaptive_pyramid.yaml_file import read_yaml
from tuning.replay.what_if_costs import load_costs
from tuning.tasks.task import load_task


def written(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "key", "line", "first"),
    [
        ("method: sd\ntask: csqa\nmethod: ar\n", "'method'", 3, 1),
        ("measured:\n  prompts: 1\n  prompts: 2\n", "'prompts'", 3, 2),
        ("stages:\n- length: 4\n  tau: 0\n- {length: 3, length: 4}\n", "'length'", 4, 4),
        ("costs:\n  1: 0.1\n  0x1: 0.2\n", "1", 3, 2),  # equal as a key of the mapping, however it is written
        ('a: 1\n"a": 2\n', "'a'", 2, 1),
        ("b: 1\nb: 2\na: 1\na: 2\n", "'b'", 2, 1),  # the first mistake is the one named
        ("? [x, {y: 1, y: 2}]\n: 1\n", "'y'", 1, 1),
        ("one: &one {a: 1}\nboth:\n  <<: *one\n  <<: *one\n", "'<<'", 4, 3),
    ],
)
def test_a_repeated_key_is_named_with_its_lines(tmp_path, text, key, line, first) -> None:
    assert yaml.compose(text) is not None  # PyYAML itself says nothing
    path = written(tmp_path, text)
    with pytest.raises(ValueError) as caught:
        read_yaml(path, "file")
    assert str(caught.value) == (
        f"{path}, line {line}: the key {key} is repeated (first in line {first}); expected it once"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: {a: {a: 1}}\n",
        "- a: 1\n- a: 2\n",
        "1: int\n'1': text\n",
        "base: &base {a: 1, b: 2}\nown: {<<: *base, a: 3}\n",  # a merged key may be replaced
        "deep: {inner: &b {<<: &a {x: 1}, x: 2}}\nother: {<<: *b, x: 3}\n",
        "x: &x [1, 2]\ny: *x\n",
    ],
)
def test_everything_else_reads_as_before(tmp_path, text) -> None:
    assert read_yaml(written(tmp_path, text), "file") == yaml.safe_load(text)


@pytest.mark.parametrize(
    "text", ["a: [", "a: !!python/object:os.system 1", "a: 1\n---\nb: 2", "? {a: 1}\n: 2", "[" * 5000]
)
def test_what_is_no_yaml_is_a_value_error(tmp_path, text) -> None:
    with pytest.raises(ValueError, match="is not valid YAML"):
        read_yaml(written(tmp_path, text), "file")


@pytest.mark.parametrize("read", [Profile.load, load_task, load_costs, lambda path: load(str(path))])
def test_every_kind_of_file_is_read_like_this(tmp_path, read) -> None:
    path = written(tmp_path, "name: one\ndescription: d\nname: two\n")
    with pytest.raises(ValueError, match="line 3: the key 'name' is repeated"):
        read(str(path))


def test_nothing_else_reads_yaml() -> None:
    root = Path(__file__).parents[1]
    readers = [
        path.name
        for package in ("adaptive_pyramid", "policies", "tuning", "examples", "benchmarks")
        for path in (root / package).rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in ("safe_load(", "SafeLoader", "yaml.load("))
    ]
    assert readers == ["yaml_file.py"]
