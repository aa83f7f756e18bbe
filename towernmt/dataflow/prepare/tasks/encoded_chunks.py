"""Encoded chunks in a file, until it is known which of their pairs came before."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.dataflow.prepare.chunk_encoder import EncodedChunk
from towernmt.dataflow.prepare.running.task import putting

_ARRAYS = [field.name for field in fields(EncodedChunk) if field.name not in ("lines", "dropped")]


def write_chunks(path: Path, chunks: list[EncodedChunk]) -> None:
    """Write the file, whole or not at all."""
    arrays: dict[str, Any] = {"lines": np.array([chunk.lines for chunk in chunks])}
    for number, chunk in enumerate(chunks):
        arrays |= {f"{number}/{name}": values for name in _ARRAYS if (values := getattr(chunk, name)) is not None}
        arrays |= {f"{number}/dropped/{reason}": lines for reason, lines in chunk.dropped.items()}
    with putting(path) as unfinished, open(unfinished, "wb") as file:
        np.savez(file, **arrays)


def read_chunks(path: Path) -> list[EncodedChunk]:
    """What `write_chunks` wrote."""
    with np.load(path) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    chunks = []
    for number, lines in enumerate(found["lines"].tolist()):
        begin = f"{number}/dropped/"
        dropped = {name.removeprefix(begin): values for name, values in found.items() if name.startswith(begin)}
        columns = {name: found.get(f"{number}/{name}") for name in _ARRAYS}
        chunks.append(EncodedChunk(lines=lines, dropped=dropped, **columns))    # type: ignore[arg-type]
    return chunks
