"""Check and convert the values that a feed function returns for the tensors that it feeds.

`Session.run` converts fed values with `np.asarray(value, dtype)`, which silently truncates 1.5 to 1 and wraps 2**40
to 0. Here a value is converted only if at most floating-point precision is lost; any other value is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towernmt.core.errors import FeederError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf


def feed_dict(tensors: Tensor | list[Tensor], values: Any, names: Sequence[str] | None = None
              ) -> dict[Tensor, np.ndarray]:
    """Return the feeds for `Session.run` from a feed function's values.

    Args:
        tensors: one tensor, or a list of tensors.
        values: for one tensor, its value; for a list of tensors, a list, tuple or dict with one value each. The keys of
            a dict are `names`, tensors, or tensor names with or without `:0`.
        names: a name for each tensor, for errors and for the keys of a dict; None: the names of the tensors.

    Returns:
        the `feed_dict`: arrays with the tensors' dtypes, and shapes that are compatible with their static shapes.

    Raises:
        FeederError: a value is missing or unexpected, cannot be converted (see `_converted`), or has a wrong shape.
    """
    tensor_list = tensors if isinstance(tensors, list) else [tensors]
    names = names or [tensor.op.name for tensor in tensor_list]
    if not isinstance(tensors, list) and not isinstance(values, Mapping):
        values = [values]
    return {tensor: _fitting(tensor, name, value)
            for tensor, name, value in zip(tensor_list, names, in_order(values, names, tensor_list), strict=True)}


def in_order(values: Any, names: Sequence[str], tensors: Sequence[Tensor] = ()) -> list[Any]:
    """Return the values of a datapoint, one for each name.

    Args:
        values: a list or tuple in the order of the names, or a dict.
        names: names of the values, and keys of a dict.
        tensors: tensors whose names are also accepted as keys.

    Raises:
        FeederError: a value is missing or unexpected.
    """
    if isinstance(values, Mapping):
        return _dict_values(values, names, tensors)
    if not isinstance(values, (list, tuple)):
        description = type(values).__name__
        if isinstance(values, np.ndarray):
            description = f"one array of shape {list(values.shape)}"
        raise FeederError(f"Expected a list or a dict with a value for each of {', '.join(names)}; got {description}.")
    if len(values) != len(names):
        raise FeederError(f"Expected {len(names)} values ({', '.join(names)}); got {len(values)}.")
    return list(values)


def _dict_values(values: Mapping[Any, Any], names: Sequence[str], tensors: Sequence[Tensor]) -> list[Any]:
    keys = {_operation_name(key): key for key in values}
    accepted = zip(names, [_operation_name(tensor) for tensor in tensors] or names, strict=True)
    matches = [keys.get(_operation_name(name), keys.get(tensor_name)) for name, tensor_name in accepted]
    missing = [name for name, key in zip(names, matches, strict=True) if key is None]
    unexpected = [str(key) for key in values if not any(key is match for match in matches)]
    if missing or unexpected:
        raise FeederError(f"Expected a dict with the keys {', '.join(names)}; got one "
                          + " and ".join(["without " + ", ".join(missing)] * bool(missing)
                                         + ["with the unexpected " + ", ".join(unexpected)] * bool(unexpected)) + ".")
    return [values[key] for key in matches]


def _operation_name(key: Any) -> Any:
    """Return the name of the operation of a key, which is a tensor or its name."""
    name = key if isinstance(key, str) else getattr(key, "name", key)
    return name.removesuffix(":0") if isinstance(name, str) else name


def _fitting(tensor: Tensor, name: str, value: Any) -> np.ndarray:
    try:
        if inspect.isgenerator(value):
            raise ValueError("it is a generator; pass the generator or its function itself as the feed function")
        # A NumPy string would lose the zeros at the end of bytes.
        dtype = tensor.dtype.base_dtype
        array = np.asarray(value, object if dtype == tf.string and not isinstance(value, np.ndarray) else None)
    except ValueError as error:  # ragged nested lists
        raise FeederError(f"The value for '{name}' is not an array: {error}") from error
    array = _converted(array, dtype, name)
    if not tensor.shape.is_compatible_with(array.shape):
        raise FeederError(f"The value for '{name}' has the shape {list(array.shape)}; expected "
                          f"{tensor.shape.as_list()}.")
    return array


def _converted(array: np.ndarray, dtype: tf.DType, name: str) -> np.ndarray:
    """Convert an array to a dtype, if no value changes except by rounding between floating-point types.

    float64 becomes float32 or bfloat16, and int64 becomes int32, if the values are in range. Floating-point numbers
    become integers only if they are whole, and integers become floating-point numbers only if these represent them
    exactly.

    Raises:
        FeederError: a value would change.
    """
    if dtype == tf.string:
        if not all(isinstance(item, (str, bytes)) for item in array.flat):
            raise _wrong_dtype(array, dtype, name)
        return array.astype(object)
    numpy_dtype = np.dtype(dtype.as_numpy_dtype)
    if array.dtype == numpy_dtype:
        return array
    if not array.size:  # the dtype of an empty list means nothing
        return array.astype(numpy_dtype)
    if array.dtype.kind == "O" and all(isinstance(item, (int, np.integer)) for item in array.flat):
        raise _out_of_range(array, dtype, name)    # Python integers beyond 64 bits
    if not (dtype.is_bool or dtype.is_integer or dtype.is_floating or dtype.is_complex) or not _is_number(array):
        raise _wrong_dtype(array, dtype, name)
    if array.dtype.kind == "c" and not dtype.is_complex:
        raise _wrong_dtype(array, dtype, name)
    with np.errstate(all="ignore"):
        cast = array.astype(numpy_dtype)
        rounds = (dtype.is_floating or dtype.is_complex) and array.dtype.kind not in "biu"
        unchanged = np.isfinite(cast) | ~np.isfinite(array) if rounds else cast.astype(array.dtype) == array
        if not rounds and array.dtype.kind in "biu" and (dtype.is_integer or dtype.is_bool):
            unchanged &= (cast < 0) == (array < 0)   # between signed and unsigned integers of one size
    if np.all(unchanged):
        return cast
    changed = array[~unchanged].flat[0]
    is_fraction = array.dtype.kind not in "biuc" and np.isfinite(changed) and changed != np.floor(changed)
    if is_fraction and not dtype.is_floating:
        raise FeederError(f"The value for '{name}' has the dtype {array.dtype} and holds {changed!s}, which is not a "
                          f"whole number; expected {dtype.name}. Round it in the feed function.")
    raise _out_of_range(changed, dtype, name)


def _is_number(array: np.ndarray) -> bool:
    # The kind of bfloat16 is V, like that of a structured array.
    return array.dtype.kind in "biufc" or (array.dtype.kind == "V" and array.dtype.names is None
                                           and array.dtype.name.startswith(("bfloat", "float", "int", "uint")))


def _wrong_dtype(array: np.ndarray, dtype: tf.DType, name: str) -> FeederError:
    return FeederError(f"The value for '{name}' has the dtype {array.dtype}; expected {dtype.name}.")


def _out_of_range(value: Any, dtype: tf.DType, name: str) -> FeederError:
    return FeederError(f"The value for '{name}' holds {np.asarray(value).flat[0]}, which {dtype.name} cannot hold.")
