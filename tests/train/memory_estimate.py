"""Estimate the peak memory of a training step from its graph, for a given batch shape, without running it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from towernmt.core.tf_compat import tf, tf1


class MemoryEstimate(NamedTuple):
    """The memory of one training step.

    Attributes:
        variables: bytes of the used variables, slots included.
        peak: maximum bytes of simultaneous tensors, without variables.
        at: the operation at the peak.
        unknown: names of operations with unknown output shapes, such as those of loops, which count as 0.
    """

    variables: int
    peak: int
    at: str
    unknown: list[str]


def estimate_memory(graph: Any, fetches: Sequence[Any], shapes: Mapping[str, Sequence[int]]) -> MemoryEstimate:
    """Estimate the memory of a run of `fetches`.

    Operations are processed in the order of their creation, the forward pass before the backward pass, and a tensor
    lives until its last use. Reshapes share memory with their input, and elementwise operations overwrite an input
    without further uses, as in TensorFlow. Shapes that depend on the data have their maximum: no token is padding.
    Temporary memory of kernels, fused operations and concurrent operations are not taken into account.

    Args:
        fetches: tensors or operations of the graph.
        shapes: shapes of the fed input tensors, by name ("source:0").
    """
    shapes_of_tensors, fed_shapes = _with_shapes(graph, shapes)
    order = _needed(graph, [getattr(f, "op", f) for f in fetches])
    pinned = {t.name for f in fetches for t in ([f] if isinstance(f, tf.Tensor) else [])}
    return _Walk(shapes_of_tensors, fed_shapes, pinned).over(order)


def _with_shapes(graph: Any, shapes: Mapping[str, Sequence[int]]) -> tuple[Any, dict[str, list[int]]]:
    """Return a copy of the graph with all shapes that TensorFlow infers, and these shapes."""
    definition = graph.as_graph_def()
    fed_shapes: dict[str, list[int]] = {name: list(shape) for name, shape in shapes.items()}
    while True:
        with tf.Graph().as_default() as copy:
            stand_ins = {name: tf1.placeholder(graph.get_tensor_by_name(name).dtype, shape, "given")
                         for name, shape in fed_shapes.items()}
            tf1.import_graph_def(definition, stand_ins, name="")
        more = {name: shape for name, shape in _bounds(copy) if name not in fed_shapes}
        if not more:
            return copy, fed_shapes
        fed_shapes.update(more)


def _bounds(graph: Any) -> Iterable[tuple[str, list[int]]]:
    """Return the maximum shapes of operations whose output shape depends on the data."""
    for operation in graph.get_operations():
        if operation.type in ("Where", "Unique") and not operation.outputs[0].shape.is_fully_defined():
            shape = operation.inputs[0].shape
            if shape.is_fully_defined():
                count = math.prod(shape.as_list())
                yield operation.outputs[0].name, [count] if operation.type == "Unique" else [count, shape.rank]


def _needed(graph: Any, last: Iterable[Any]) -> list[Any]:
    """Return the operations that are run for `last`, in the order of their creation."""
    visited, waiting = set(), list(last)
    while waiting:
        operation = waiting.pop()
        if operation.name not in visited:
            visited.add(operation.name)
            waiting += [*(t.op for t in operation.inputs), *operation.control_inputs]
    return [operation for operation in graph.get_operations() if operation.name in visited]


class _Walk:
    """Tracks the live buffers while operations run."""

    def __init__(self, shapes: Any, fed_shapes: Mapping[str, Sequence[int]], pinned: set[str]) -> None:
        self._shapes, self._fed_shapes, self._pinned = shapes, fed_shapes, pinned
        self._buffer: dict[str, int] = {}       # of each tensor
        self._size: list[int] = []              # of each buffer, bytes
        self._uses: Counter[int] = Counter()    # of each buffer, still to come
        self._unknown: list[str] = []
        self._live = self._peak = 0
        self._at = ""

    def over(self, order: list[Any]) -> MemoryEstimate:
        """Process the operations in order."""
        consumers = Counter(tensor.name for operation in order for tensor in _read(operation))
        variables = 0
        for operation in order:
            if operation.type == "VarHandleOp":
                shape = tf.TensorShape(operation.get_attr("shape"))
                variables += math.prod(shape.as_list()) * tf.as_dtype(operation.get_attr("dtype")).size
            self._run(operation, consumers)
        return MemoryEstimate(variables, self._peak, self._at, self._unknown)

    def _run(self, operation: Any, consumers: Counter[str]) -> None:
        spent = Counter(self._buffer[tensor.name] for tensor in _read(operation) if tensor.name in self._buffer)
        fresh = []
        for index, tensor in enumerate(operation.outputs):
            buffer = self._buffer_of(operation, index, tensor, spent)
            self._buffer[tensor.name] = buffer
            self._uses[buffer] += consumers[tensor.name] + (tensor.name in self._pinned)
            fresh.append(buffer)
        if self._live > self._peak:
            self._peak, self._at = self._live, operation.name
        for buffer, count in spent.items():
            self._uses[buffer] -= count
        for buffer in {*spent, *fresh}:
            if self._uses[buffer] <= 0:
                self._live -= self._size[buffer]
                self._size[buffer] = 0

    def _buffer_of(self, operation: Any, index: int, tensor: Any, spent: Counter[int]) -> int:
        size = self._bytes(operation, tensor)
        inputs = [self._buffer.get(source.name) for source in operation.inputs]
        if operation.type in _SHARES and inputs:
            shared = inputs[index if operation.type == "IdentityN" else 0]
            if shared is not None:
                return shared
        if operation.type in _WRITES_OVER:
            for buffer in inputs:
                if buffer is not None and self._size[buffer] == size and self._uses[buffer] == spent[buffer]:
                    return buffer
        self._size.append(size)
        self._live += size
        return len(self._size) - 1

    def _bytes(self, operation: Any, tensor: Any) -> int:
        if tensor.dtype.base_dtype in (tf.resource, tf.variant, tf.string) or operation.type in _NO_MEMORY:
            return 0
        shape = tf.TensorShape(self._fed_shapes.get(tensor.name, self._shapes.get_tensor_by_name(tensor.name).shape))
        if not shape.is_fully_defined():
            if operation.name not in self._unknown:
                self._unknown.append(operation.name)
            return 0
        return math.prod(shape.as_list()) * int(tensor.dtype.size)


def _read(operation: Any) -> list[Any]:
    """Return the inputs whose contents an operation needs; shapes are read at once, wherever the graph uses them."""
    return [] if operation.type in ("Shape", "ShapeN", "Size", "Rank") else list(operation.inputs)


_NO_MEMORY = frozenset({"BroadcastGradientArgs", "ReadVariableOp"})
"""Their output is the variable's own memory, or a few numbers."""
_SHARES = frozenset({
    "Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Bitcast", "Unpack",
    "EnsureShape", "CheckNumerics"})
"""Their outputs lie in the memory of an input."""
_WRITES_OVER = frozenset({
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "DivNoNan", "Exp", "GreaterEqual", "Log", "LogSoftmax", "Maximum",
    "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "ReluGrad", "Rsqrt", "RsqrtGrad", "Select",
    "SelectV2", "Sigmoid", "SigmoidGrad", "Softmax", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tanh",
    "TanhGrad"})
"""They write over an input of the size of their output, if it is not needed any more."""
