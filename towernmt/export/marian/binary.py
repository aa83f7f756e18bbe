"""Marian's binary file, and matrices in 8 bits in the form that intgemm reads on every processor.

```
version 1, number of items                              uint64 each
for each item: length of its name, type, dimensions, bytes   uint64 each
names, each with a NUL
shapes                                                  int32 each
length of the gap, and a gap to a multiple of 256 bytes
data of each item, with a gap to a multiple of 256 bytes
```

A matrix in 8 bits is `round(multiplier * matrix)`, one multiplier for all, which stands behind its last element. It is
stored transposed, but for tables of embeddings. What it is multiplied with gets a multiplier of its own, known
beforehand: `NAME_QuantMultA`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

VERSION = 1
ALIGNMENT = 256
INT8, FLOAT32, INTGEMM8 = 0x0101, 0x0404, 0x4101
"""Marian's numbers of types; the last is 8 bits for intgemm, not yet in the order of a processor."""
MODEL_OPTIONS = "special:model.yml"
RANGE = 127
ALPHA = "_QuantMultA"
SHORTLISTED_OUTPUT = "none"
"""What Marian calls the output matrix when it has taken some columns of it."""


class Item(NamedTuple):
    """An item of the file."""

    name: str
    type: int
    shape: tuple[int, ...]
    data: bytes


def binary_file(items: Sequence[Item]) -> bytes:
    """The content of a file."""
    data = [item.data + bytes(-len(item.data) % ALIGNMENT) for item in items]
    names = [item.name.encode() + b"\0" for item in items]
    headers = np.array([[len(name), item.type, len(item.shape), len(content)]
                        for item, name, content in zip(items, names, data, strict=True)], "<u8")
    shapes = np.array([size for item in items for size in item.shape], "<i4")
    front = b"".join([np.array([VERSION, len(items)], "<u8").tobytes(), headers.tobytes(), *names, shapes.tobytes()])
    gap = -(len(front) + 8) % ALIGNMENT
    return b"".join([front, np.array([gap], "<u8").tobytes(), bytes(gap), *data])


def int8_items(parameters: Mapping[str, np.ndarray], largest: Mapping[str, float], options: str) -> list[Item]:
    """The items of a model in 8 bits: matrices quantised, the rest in float32.

    Args:
        parameters: float32, by Marian's names.
        largest: by the name of a matrix, the largest absolute value that it is multiplied with.
        options: the text of `special:model.yml`.
    """
    items = [quantised(name, value) if _is_matrix(name) else _float(name, value)
             for name, value in parameters.items()]
    output = "Wemb" if "Wemb" in parameters else "decoder_Wemb"
    for name, value in largest.items():
        alpha = np.full([1, 1], RANGE / value, np.float32)
        for known_as in ((output, SHORTLISTED_OUTPUT) if name == output else (name,)):
            items.append(_float(f"{known_as}{ALPHA}", alpha))
    text = options.encode() + b"\0"
    return [*sorted(items), Item(MODEL_OPTIONS, INT8, (len(text),), text)]


def quantised(name: str, matrix: np.ndarray) -> Item:
    """A matrix in 8 bits, whose shape is told as it was before it was transposed."""
    multiplier = np.float32(RANGE) / np.abs(matrix).max()
    ordered = matrix if name.endswith("Wemb") else matrix.T
    values = np.clip(np.rint(ordered * multiplier), -RANGE, RANGE).astype(np.int8)
    return Item(name, INTGEMM8, matrix.shape, values.tobytes() + np.array([multiplier], "<f4").tobytes())


def _is_matrix(name: str) -> bool:
    return name.endswith("Wemb") or name.rsplit("_", 1)[-1].startswith("W")


def _float(name: str, value: np.ndarray) -> Item:
    return Item(name, FLOAT32, value.shape, value.astype("<f4").tobytes())
