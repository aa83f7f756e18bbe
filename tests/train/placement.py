"""Find the operations of a graph that TensorFlow could place on a GPU, from its kernels, without a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from tensorflow.python.framework import kernels

from towernmt.core.tf_compat import tf


def without_gpu_kernel(operations: Iterable[Any]) -> list[Any]:
    """Return the operations without a GPU kernel for their types; each would copy its tensors to the CPU."""
    return [operation for operation in operations if not _fits_gpu(operation)]


def _fits_gpu(operation: Any) -> bool:
    return any(all(_type_of(operation, name) in allowed for name, allowed in kernel)
               for kernel in _gpu_kernels(operation.type))


def _type_of(operation: Any, attribute: str) -> Any:
    """Return the value of a type attribute, or the first of a list of types."""
    value = operation.get_attr(attribute)
    return tf.as_dtype(value[0] if isinstance(value, list) else value)


@cache
def _gpu_kernels(kind: str) -> tuple[tuple[tuple[str, frozenset[Any]], ...], ...]:
    """Return the accepted types of each type attribute, for each GPU kernel of a kind of operations."""
    found = kernels.get_registered_kernels_for_op(kind).kernel
    return tuple(
        tuple((constraint.name, frozenset(map(tf.as_dtype, constraint.allowed_values.list.type)))
              for constraint in kernel.constraint if constraint.allowed_values.list.type)
        for kernel in found if kernel.device_type in ("GPU", "DEFAULT"))
