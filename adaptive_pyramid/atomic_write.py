"""Files that are written whole or not at all. No torch."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write text (as UTF-8) or bytes to `path` in one rename.

    A reader never sees half a file, and an interruption leaves the old one. Of two processes that write at once the
    later wins.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
