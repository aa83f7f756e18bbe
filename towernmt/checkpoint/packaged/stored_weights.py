"""A weight as a package has it: float32, bfloat16 in 16 bits, or int8 with scales; and as an array again."""

from __future__ import annotations

import io
import math
from typing import NamedTuple

import numpy as np

from towernmt.checkpoint.packaged.manifest import Precision, Stored, WeightInfo

_LARGEST = 127
"""int8 is symmetric: -127 to 127."""


class StoredWeight(NamedTuple):
    """A weight in a precision.

    Attributes:
        stored: as `WeightInfo.stored` has it.
        values: float32, uint16 (the upper halves of float32) or int8; what is no float32 stays as it is.
        scales: of int8, float32 with the rank of `values`, one for each row or one for each column; else None.
    """

    stored: Stored
    values: np.ndarray
    scales: np.ndarray | None = None


def store(value: np.ndarray, precision: Precision) -> StoredWeight:
    """A weight in this precision. Vectors (biases, norms) stay float32: they take no room, and much hangs on them."""
    if value.dtype != np.float32:
        return StoredWeight("as it is", value)
    if precision == "float32" or value.ndim < 2:
        return StoredWeight("float32", value)
    if precision == "bfloat16":
        return StoredWeight("bfloat16", _upper_halves(value))
    return StoredWeight("int8", *_quantised(value))


def restore(weight: StoredWeight) -> np.ndarray:
    """The weight that stands in a `StoredWeight`, float32 but for what is as it is."""
    if weight.stored == "bfloat16":
        return (weight.values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if weight.stored == "int8" and weight.scales is not None:
        return np.asarray(weight.values.astype(np.float32) * weight.scales)
    return weight.values


def _upper_halves(value: np.ndarray) -> np.ndarray:
    """bfloat16, rounded to the nearest, and to even where two are as near."""
    bits = np.ascontiguousarray(value).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _quantised(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and their scales: for each row or for each column (the last axis), whichever comes closer."""
    rows, columns = tuple(range(1, value.ndim)), tuple(range(value.ndim - 1))
    return min((_with_scales(value, over) for over in (rows, columns)),
               key=lambda pair: float(np.square(pair[0] * pair[1] - value).sum(dtype=np.float64)))


def _with_scales(value: np.ndarray, over: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    scales = np.abs(value).max(axis=over, keepdims=True, initial=0).astype(np.float32) / np.float32(_LARGEST)
    scales[scales == 0] = 1
    return np.clip(np.rint(value / scales), -_LARGEST, _LARGEST).astype(np.int8), scales


def npy(array: np.ndarray) -> bytes:
    """An array in NumPy's format, without pickle."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def from_npy(content: bytes) -> np.ndarray:
    """The array in the content of a file in NumPy's format. Nothing is unpickled, nor taken to be larger than it is.

    Raises:
        ValueError: it is none, or is cut off.
    """
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("another version of NumPy's format")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    if by_columns or dtype.hasobject or len(content) - stream.tell() != dtype.itemsize * math.prod(shape):
        raise ValueError("its size is not that of its values")
    return np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape)


def loaded(told: WeightInfo, content: bytes, scales: bytes | None) -> np.ndarray:
    """The weight in the contents of its files.

    Raises:
        ValueError: they are not what the manifest tells.
    """
    values = from_npy(content)
    if list(values.shape) != told.shape:
        raise ValueError(f"its shape is {list(values.shape)}")
    wanted = {"float32": "float32", "bfloat16": "uint16", "int8": "int8"}.get(told.stored)
    if values.dtype.name != wanted if wanted else values.dtype.kind not in "biuf":
        raise ValueError(f"it holds {values.dtype.name}")
    factors = from_npy(scales) if scales is not None else None
    if (told.stored == "int8") != (factors is not None):
        raise ValueError("scales belong to int8, and to nothing else")
    if factors is not None and (factors.dtype != np.float32 or factors.ndim != values.ndim or any(
            size not in (1, whole) for size, whole in zip(factors.shape, values.shape, strict=True))):
        raise ValueError(f"its scales are {factors.dtype.name} {list(factors.shape)}")
    return restore(StoredWeight(told.stored, values, factors))
