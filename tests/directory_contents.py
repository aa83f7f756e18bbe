"""The files of a directory, to show that two directories are equal or that one has not changed."""

from __future__ import annotations

from pathlib import Path


def contents(directory: str | Path) -> dict[str, bytes]:
    """Return the content of each file below a directory, by its relative path with slashes."""
    return {path.relative_to(directory).as_posix(): path.read_bytes()
            for path in Path(directory).rglob("*") if path.is_file()}
