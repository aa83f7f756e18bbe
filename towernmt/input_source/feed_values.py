"""What a feed function returned, checked against the tensors that it feeds.

`Session.run` converts what is fed with `np.asarray(value, dtype)`, which cuts 1.5 to 1 and wraps 2**40
to 0 in silence; here a value that does not fit is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from towernmt.core.errors import FeederError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf


def feed_dict(tensors: Tensor | list[Tensor], values: Any) -> dict[Tensor, np.ndarray]:
    """Pair a feed function's values with its feed tensors.

    Args:
        tensors: one tensor, or a list of tensors.
        values: one value for a single tensor; a list or tuple of as many values for a list of tensors.

    Returns:
        The `feed_dict` for `Session.run`: arrays of the tensors' dtypes, of shapes that their static
        shapes (with None for what varies) allow.

    Raises:
        FeederError: wrong number of values, a dtype that would lose something, or a wrong shape.
    """
    if not isinstance(tensors, list):
        return {tensors: _fitting(tensors, values)}
    if not isinstance(values, (list, tuple)):
        raise FeederError(f"The feed function returned a {type(values).__name__} where a list of "
                          f"{len(tensors)} values ({_names(tensors)}) was expected.")
    if len(values) != len(tensors):
        raise FeederError(f"The feed function returned {len(values)} values where {len(tensors)} "
                          f"({_names(tensors)}) were expected.")
    return {tensor: _fitting(tensor, value) for tensor, value in zip(tensors, values, strict=True)}


def _names(tensors: list[Tensor]) -> str:
    return ", ".join(tensor.op.name for tensor in tensors)


def _fitting(tensor: Tensor, value: Any) -> np.ndarray:
    array = _of_dtype(tensor, value)
    if not tensor.shape.is_compatible_with(array.shape):
        raise FeederError(f"The value for '{tensor.op.name}' has the shape {list(array.shape)} where "
                          f"{tensor.shape.as_list()} was expected.")
    return array


def _of_dtype(tensor: Tensor, value: Any) -> np.ndarray:
    wanted = tensor.dtype.base_dtype
    try:
        array = np.asarray(value)
    except ValueError as error:  # ragged nested lists
        raise FeederError(f"The value for '{tensor.op.name}' is no array: {error}") from error
    if wanted == tf.string:
        if array.size and array.dtype.kind not in "SUO":
            raise _wrong_dtype(tensor, array)
        return np.asarray(value, dtype=object)
    target = np.dtype(wanted.as_numpy_dtype)
    if array.dtype == target:
        return array
    if isinstance(value, (np.ndarray, np.generic)):  # the feeder chose its dtype: only a widening will do
        if not np.can_cast(array.dtype, target, "safe"):
            raise _wrong_dtype(tensor, array)
        return array.astype(target)
    if not array.size:  # an empty list has no dtype of its own
        return array.astype(target)
    if not np.can_cast(array.dtype, target, "same_kind"):
        raise _wrong_dtype(tensor, array)
    cast = array.astype(target)
    if array.dtype.kind in "iu" and not np.array_equal(cast, array):
        raise FeederError(f"The value for '{tensor.op.name}' holds numbers too large for {wanted.name}.")
    return cast


def _wrong_dtype(tensor: Tensor, array: np.ndarray) -> FeederError:
    return FeederError(f"The value for '{tensor.op.name}' has the dtype {array.dtype} where "
                       f"{tensor.dtype.base_dtype.name} was expected.")
