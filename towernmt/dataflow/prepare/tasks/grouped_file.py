"""A file of columns whose values lie in groups, so that each of many readers reads its group alone.

This is how tasks hand data to tasks that cut them the other way: of each part of the text, the pairs lie by shard, and
a shard takes its group of every part.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.prepare.running.task import putting

_HEAD = struct.Struct("<qqq")     # columns, groups, bytes of all values


@dataclass(frozen=True)
class Column:
    """Values of all groups, one group after another.

    Attributes:
        values: `[values]`, little-endian.
        counts: int64 `[groups]`, values of each group.
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]


def write_grouped(path: Path, columns: Sequence[Column], facts: dict[str, Any]) -> None:
    """Write the file, whole or not at all.

    Args:
        path: of the file.
        columns: as many groups in each.
        facts: what else is to be known; JSON.
    """
    sizes = np.array([column.counts * column.values.itemsize for column in columns], np.int64)
    with putting(path) as unfinished, open(unfinished, "wb") as file:
        file.write(_HEAD.pack(*sizes.shape, int(sizes.sum())))
        file.write(sizes.astype("<i8").tobytes())
        for column in columns:
            file.write(np.ascontiguousarray(column.values).data)
        file.write(json.dumps(facts).encode())


class GroupedFile:
    """Reads what `write_grouped` wrote. Nothing stays open, and only the place of one group is kept.

    Args:
        path: of the file.
        group: the one whose values are read.
    """

    def __init__(self, path: Path, group: int) -> None:
        self._path = path
        with open(path, "rb") as file:
            columns, groups, _ = _HEAD.unpack(file.read(_HEAD.size))
            sizes = np.frombuffer(file.read(8 * columns * groups), "<i8")
        stops = _HEAD.size + sizes.nbytes + np.cumsum(sizes)
        places = np.arange(columns) * groups + group
        self._places = list(zip((stops - sizes)[places].tolist(), sizes[places].tolist(), strict=True))

    def size(self, column: int) -> int:
        """Bytes of the group in a column."""
        return self._places[column][1]

    def read(self, column: int) -> bytes:
        """The group's values of a column."""
        offset, size = self._places[column]
        if not size:
            return b""
        with open(self._path, "rb") as file:
            file.seek(offset)
            return file.read(size)


def read_facts(path: Path) -> dict[str, Any]:
    """What else the writer said."""
    with open(path, "rb") as file:
        columns, groups, size = _HEAD.unpack(file.read(_HEAD.size))
        file.seek(8 * columns * groups + size, os.SEEK_CUR)
        facts: dict[str, Any] = json.loads(file.read())
    return facts
