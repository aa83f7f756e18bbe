"""Weights as packages store them: float32, bfloat16 in 16 bits, or int8 with scales, in files of NumPy's format."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

Precision = Literal["float32", "bfloat16", "int8"]
Stored = Literal["float32", "bfloat16", "int8", "as it is"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
_LARGEST = 127
"""int8 is symmetric: -127 to 127."""


class StoredWeight(NamedTuple):
    """A weight in a precision.

    Attributes:
        stored: the precision; `as it is`: the dtype in NumPy, such as that of integers.
        values: float32, uint16 (the upper halves of float32) or int8; other dtypes are stored unchanged.
        scales: for int8, float32 of the rank of `values`, one for each row or for each column; else None.
    """

    stored: Stored
    values: np.ndarray
    scales: np.ndarray | None = None


def store(value: np.ndarray, precision: Precision) -> StoredWeight:
    """Return a weight in a precision. Vectors (biases, norms) stay float32, because they are small and sensitive."""
    if value.dtype != np.float32:
        return StoredWeight("as it is", value)
    if precision == "float32" or value.ndim < 2:
        return StoredWeight("float32", value)
    if precision == "bfloat16":
        return StoredWeight("bfloat16", _upper_halves(value))
    return StoredWeight("int8", *_quantised(value))


def restore(weight: StoredWeight) -> np.ndarray:
    """Return the value of a `StoredWeight`: float32, except values that are stored unchanged."""
    if weight.stored == "bfloat16":
        return (weight.values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if weight.stored == "int8" and weight.scales is not None:
        return np.asarray(weight.values.astype(np.float32) * weight.scales)
    return weight.values


def _upper_halves(value: np.ndarray) -> np.ndarray:
    """Return the values as bfloat16 in uint16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(value).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _quantised(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 values and their scales, for each row or each column (the last axis), whichever is closer."""
    rows, columns = tuple(range(1, value.ndim)), tuple(range(value.ndim - 1))
    return min((_with_scales(value, axes) for axes in (rows, columns)),
               key=lambda pair: float(np.square(pair[0] * pair[1] - value).sum(dtype=np.float64)))


def _with_scales(value: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    scales = np.abs(value).max(axis=axes, keepdims=True, initial=0).astype(np.float32) / np.float32(_LARGEST)
    scales[scales == 0] = 1
    return np.clip(np.rint(value / scales), -_LARGEST, _LARGEST).astype(np.int8), scales


def npy(array: np.ndarray) -> bytes:
    """Return an array in NumPy's format, without pickle."""
    stream = io.BytesIO()
    # `np.ascontiguousarray` would change the shape of a scalar from [] to [1].
    np.lib.format.write_array(stream, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def from_npy(content: bytes) -> np.ndarray:
    """Return the array in a file of NumPy's format, without unpickling or copying.

    Raises:
        ValueError: the content is not such a file, or is truncated.
    """
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("the version of NumPy's format differs")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    if by_columns or dtype.hasobject or len(content) - stream.tell() != dtype.itemsize * math.prod(shape):
        raise ValueError("its size differs from that of its values")
    return np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape)


def decode_weight(stored: Stored, shape: Sequence[int], content: bytes, scales: bytes | None) -> np.ndarray:
    """Return a weight from the contents of its files.

    Args:
        stored: the precision of the values, as the manifest says.
        shape: the shape of the weight.
        content: the file of the values.
        scales: the file of the scales; None without scales.

    Raises:
        ValueError: the files contradict the precision or the shape.
    """
    values = from_npy(content)
    if list(values.shape) != list(shape):
        raise ValueError(f"its shape is {list(values.shape)}")
    dtype = {"float32": "float32", "bfloat16": "uint16", "int8": "int8"}.get(stored)
    if values.dtype.name != dtype if dtype else values.dtype.kind not in "biuf":
        raise ValueError(f"its dtype is {values.dtype.name}")
    factors = from_npy(scales) if scales is not None else None
    if (stored == "int8") != (factors is not None):
        raise ValueError("int8 needs scales, and other precisions have none")
    if factors is not None and (factors.dtype != np.float32 or factors.ndim != values.ndim or any(
            size not in (1, dimension) for size, dimension in zip(factors.shape, values.shape, strict=True))):
        raise ValueError(f"its scales are {factors.dtype.name} {list(factors.shape)}")
    return restore(StoredWeight(stored, values, factors))
