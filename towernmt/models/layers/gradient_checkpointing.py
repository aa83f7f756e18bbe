"""Gradient checkpointing: layers are computed again in the backward pass, and keep nothing (Chen et al. 2016).

Between the passes only the inputs and outputs of such a layer are in memory; the price is one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.errors import TowerRuleError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1


def checkpointed(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`layer(x)`, computed again for its gradient where `GraphSettings` say so; in training towers only.

    The layer is built twice by calling it twice, the second time while the gradient is built and in the same variable
    scope. So it must be a function of `x`, of tensors made before and of variables that it asks `get_variable` for;
    draws of `randomness` are the same both times, as they depend on clock and place alone.

    What it computes the second time waits for the arriving gradient, and by that differs from what the first one
    computed: TensorFlow's optimiser must neither make them one nor compute the second early.

    Args:
        layer: from a tensor to a tensor.
        x: float tensor.
    Returns:
        what `layer` returns.
    Raises:
        TowerRuleError: the layer reads a variable that it has not asked `get_variable` for, or the gradient is built
            outside of the tower.
    """
    context = get_current_tower_context()
    if not graph_state().settings.gradient_checkpointing or context is None or not context.is_training:
        return layer(x)
    graph, scope = tf1.get_default_graph(), tf1.get_variable_scope()
    before = len(graph.get_operations())
    variables: dict[str, Variable] = {}
    y = _with_getter(layer, x, scope, lambda name, get: variables.setdefault(name, get()))
    captured = _captured(graph.get_operations()[before:], x, variables)
    values = [tf.convert_to_tensor(variable) for variable in variables.values()]

    @tf.custom_gradient
    def passed(y: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        def gradient(dy: Tensor) -> list[Tensor]:
            if get_current_tower_context() is not context:
                raise TowerRuleError(f"train.gradient_checkpointing: the gradient of a layer in '{scope.name}' is "
                                     "asked for outside of the tower that built it; ask for it inside, or switch "
                                     "train.gradient_checkpointing off.")
            given = dict(zip(variables, values, strict=True))
            dy = tf.convert_to_tensor(dy)
            with tf1.control_dependencies([dy]):
                again = tf.identity(x)
                y_again = _with_getter(layer, again, scope, lambda name, get: given[name] if name in given else get())
            wanted = [again, *values, *captured]
            # Partial derivatives: what one of these has to do with another is no matter of this layer.
            gradients = tf1.gradients(y_again, wanted, dy, stop_gradients=wanted)
            # All together: the layer below begins when nothing here waits for what was computed again.
            return [None, *tf1.tuple([None if g is None else tf.convert_to_tensor(g) for g in gradients])]

        return tf.identity(y), gradient

    return passed(y, x, *values, *captured)


def _with_getter(layer: Callable[[Tensor], Tensor], x: Tensor, scope: Any,
                 choose: Callable[[str, Callable[[], Variable]], Tensor]) -> Tensor:
    """`layer(x)` in the variable scope `scope`, with `choose(name, get)` in the place of each variable."""
    def choosing(getter: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Tensor:
        return choose(name, lambda: getter(name, *arguments, **options))

    with tf1.variable_scope(scope, custom_getter=choosing, auxiliary_name_scope=False):
        return layer(x)


def _captured(operations: list[Operation], x: Tensor, variables: dict[str, Variable]) -> list[Tensor]:
    """The float tensors besides `x` that these operations take from others."""
    inside = {operation.name for operation in operations}
    handles = {variable.handle.name for variable in variables.values()}
    found: dict[str, Tensor] = {}
    for operation in operations:
        for tensor in operation.inputs:
            if tensor.op.name in inside or tensor is x:
                continue
            if tensor.dtype == tf.resource and tensor.name not in handles:
                raise TowerRuleError(f"train.gradient_checkpointing: '{operation.name}' reads the variable "
                                     f"'{tensor.op.name}', which its layer did not get by get_variable; "
                                     "ask for it inside of the layer, or switch train.gradient_checkpointing off.")
            if tensor.dtype.is_floating:
                found[tensor.name] = tensor
    return list(found.values())
