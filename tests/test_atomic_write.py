"""A file is written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_pyramid.atomic_write import write_atomically


def test_text_and_bytes_replace_what_was_there(tmp_path) -> None:
    for content, raw in (("é\n", "é\n".encode()), (b"\x00\xff", b"\x00\xff")):
        write_atomically(tmp_path / "a.bin", content)
        assert (tmp_path / "a.bin").read_bytes() == raw
    assert [file.name for file in tmp_path.iterdir()] == ["a.bin"]


def test_an_interruption_leaves_the_old_file_alone(tmp_path, monkeypatch) -> None:
    write_atomically(tmp_path / "a.txt", "old")
    written = Path.write_bytes

    def interrupted(path: Path, content: bytes) -> None:
        written(path, content[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a.txt", "newer")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "old")]
    with pytest.raises(OSError):
        write_atomically(tmp_path / "none" / "a.txt", "x")
