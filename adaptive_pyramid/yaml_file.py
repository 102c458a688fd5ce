"""YAML files: read safely, with one sentence on what is wrong. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def read_yaml(path: Path, what: str) -> Any:
    """The content of the YAML file at `path`.

    Args:
        what: the kind of file, for the sentence: "profile".

    Raises:
        FileNotFoundError: no such file. ValueError: not YAML, or a key that a mapping repeats.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {what} at {path}")
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            repeated = _repeated_key(loader, node)
            if repeated is None:
                return loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    key, first, again = repeated
    raise ValueError(f"{path}, line {again}: the key {key!r} is repeated (first in line {first}); expected it once")


def _repeated_key(loader: yaml.SafeLoader, root: yaml.Node) -> tuple[Any, int, int] | None:
    """(key, line of the first, line of the second) of a key that a mapping holds twice; None without one.

    PyYAML keeps the last of them without a word. Looked for before construction, which puts the keys that `<<` merges
    among a mapping's own: those may repeat.
    """
    found: list[tuple[int, Any, int]] = []
    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
            continue
        lines: dict[Any, int] = {}
        for key_node, value in node.value:
            nodes += [key_node, value]
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            is_merge = key_node.tag == "tag:yaml.org,2002:merge"
            key, line = "<<" if is_merge else loader.construct_object(key_node), key_node.start_mark.line + 1
            if key in lines:
                found.append((line, key, lines[key]))
            lines.setdefault(key, line)
    if not found:
        return None
    again, key, first = min(found, key=lambda entry: entry[0])
    return key, first, again
