"""Gradient health: which gradients are watched, which steps may skip their update, and whether values are finite.

Optimizers set this, and callbacks such as `NaNGuard` read it.
"""

from __future__ import annotations

from collections.abc import Sequence

from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Graph, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1


def watch_gradients(gradients: Sequence[tuple[Tensor | None, Variable]]) -> None:
    """Let the guard look at these gradients. Call it where they are computed, before they are clipped.

    Clipping by the global norm spreads one bad value over all of them. The guard finds the inputs of the
    optimizer's operations by itself when nothing is watched.

    Args:
        gradients: (gradient, variable) pairs; a variable that is watched already is left as it is.
    """
    watched = graph_state().watched_gradients
    known = {variable.name for _, variable in watched}
    for gradient, variable in gradients:
        if gradient is not None and variable.name not in known:
            watched.append((gradient, variable))


def allow_skipped_update(skipped: Tensor) -> None:
    """Tell the guard which steps skip their update: values that are not finite are then no divergence.

    The first call in a graph is that of the train step; the others are of updates at the end of the data.

    Args:
        skipped: bool `[]`, computed with each step: whether its update is skipped.
    """
    state = graph_state()
    if state.update_skipped is None:
        state.update_skipped = skipped


def named_gradients(graph: Graph) -> list[tuple[str, Tensor]]:
    """(variable's name, gradient): those that are watched, else the inputs of the optimizer's operations."""
    watched = [(variable.op.name, gradient) for gradient, variable in graph_state(graph).watched_gradients]
    return watched or _optimizer_inputs(graph)


def _optimizer_inputs(graph: Graph) -> list[tuple[str, Tensor]]:
    """(variable, gradient) of every optimizer operation: those with inputs `var` and `grad` or `delta`."""
    found: dict[str, Tensor] = {}
    for operation in graph.get_operations():
        names = [argument.name for argument in operation.op_def.input_arg] if operation.op_def else []
        gradient = next((name for name in ("grad", "delta") if name in names), None)
        if "var" in names and gradient and len(names) == len(operation.inputs):
            variable = operation.inputs[names.index("var")].op.name
            found.setdefault(variable, operation.inputs[names.index(gradient)])
    return list(found.items())


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """bool `[tensors]`: whether each tensor holds finite values only."""
    with tf1.name_scope("finite"):
        values = [t.values if isinstance(t, tf.IndexedSlices) else tf.convert_to_tensor(t) for t in tensors]
        # One pass and no copy; a sum of squares that overflows would poison a global norm in the same way.
        return tf.math.is_finite(tf.stack([tf.cast(tf.nn.l2_loss(value), tf.float32) for value in values]))
