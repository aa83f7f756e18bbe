"""Find the operations and tensors of a training step that a GPU leaves to the host, from TensorFlow's kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tensorflow.python.framework import kernels

from towernmt.core.tf_compat import tf

SCATTERED = ("ScatterNd", "ScatterNdAdd", "TensorScatterAdd", "TensorScatterUpdate", "ResourceScatterAdd",
             "ResourceScatterSub", "ResourceScatterNdAdd", "ResourceScatterNdSub")
"""Types of operations that TensorFlow computes on the host for a GPU if kernels must be deterministic."""


@dataclass(frozen=True)
class _Kernel:
    """A registered GPU kernel.

    Attributes:
        types: accepted types of each type attribute.
        on_host: names of the arguments in the memory of the host.
    """

    types: tuple[tuple[str, frozenset[Any]], ...]
    on_host: frozenset[str]


def without_gpu_kernel(operations: Iterable[Any]) -> list[Any]:
    """Return the operations without a GPU kernel for their types; each would copy its tensors to the CPU."""
    return [operation for operation in operations if _kernel_of(operation) is None]


def copied_tensors(operations: Iterable[Any]) -> list[tuple[Any, str]]:
    """Return the tensors that cross between a card and the host: with "host" or "card", to which they are copied.

    TensorFlow's optimiser removes some of these copies. The estimate does not follow functions, such as loops.

    Args:
        operations: all operations of a graph; those on the CPU have a device that says so.
    """
    operations = list(operations)
    on_host = {}
    for operation in operations:
        kernel = None if _on_cpu(operation) else _kernel_of(operation)
        for tensor, name in zip(operation.outputs, _arguments(operation, operation.outputs, "output_arg"), strict=True):
            on_host[tensor.ref()] = kernel is None or name in kernel.on_host
    crossing = {}
    for operation in operations:
        kernel = None if _on_cpu(operation) else _kernel_of(operation)
        for tensor, name in zip(operation.inputs, _arguments(operation, operation.inputs, "input_arg"), strict=True):
            needs_host = kernel is None or name in kernel.on_host
            if needs_host != on_host[tensor.ref()] and tensor.dtype != tf.resource and not _calls(operation, tensor.op):
                crossing[tensor.ref(), needs_host] = (tensor, "host" if needs_host else "card")
    return list(crossing.values())


def _calls(*operations: Any) -> bool:
    return any(operation.type in ("If", "StatelessIf", "While", "StatelessWhile") for operation in operations)


def _on_cpu(operation: Any) -> bool:
    return "cpu" in operation.device.lower()


def _arguments(operation: Any, tensors: Any, kind: str) -> Iterator[str]:
    """Yield the name of the argument of each input or output; a list of tensors is one argument."""
    left = len(tensors)
    for argument in getattr(operation.op_def, kind):
        if argument.number_attr:
            count = operation.get_attr(argument.number_attr)
        else:
            count = len(operation.get_attr(argument.type_list_attr)) if argument.type_list_attr else 1
        left -= count
        yield from [argument.name] * count
    yield from [""] * left


def _kernel_of(operation: Any) -> _Kernel | None:
    for kernel in _gpu_kernels(operation.type):
        if all(_type_of(operation, name) in allowed for name, allowed in kernel.types):
            return kernel
    return None


def _type_of(operation: Any, attribute: str) -> Any:
    """Return the value of a type attribute, or the first of a list of types."""
    value = operation.get_attr(attribute)
    return tf.as_dtype(value[0] if isinstance(value, list) else value)


@cache
def _gpu_kernels(kind: str) -> tuple[_Kernel, ...]:
    """Return the GPU kernels of a kind of operations."""
    return tuple(
        _Kernel(tuple((constraint.name, frozenset(map(tf.as_dtype, constraint.allowed_values.list.type)))
                      for constraint in kernel.constraint if constraint.allowed_values.list.type),
                frozenset(kernel.host_memory_arg))
        for kernel in kernels.get_registered_kernels_for_op(kind).kernel if kernel.device_type in ("GPU", "DEFAULT"))
