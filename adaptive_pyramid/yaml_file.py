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
        FileNotFoundError: no such file. ValueError: not YAML.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {what} at {path}")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
