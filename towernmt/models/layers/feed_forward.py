"""The feed-forward layer of the Transformer, normalisation, and gradient checkpointing.

Activations: ReLU (Vaswani et al. 2017), swish, GELU, or gated (Shazeer 2020). Swish is `x * sigmoid(x)` (Ramachandran
et al. 2017); GELU has the two approximations of Hendrycks & Gimpel (2016): `x * sigmoid(1.702 x)`, and the one with a
hyperbolic tangent. Normalisation: layer normalisation and RMSNorm.

Gradient checkpointing computes layers again in the backward pass and keeps nothing (Chen et al. 2016). Between the
passes only the inputs and outputs of such a layer are in memory; the price is one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.errors import TowerRuleError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import is_hoisting, on_gpu, relu, to_float32
from towernmt.models.layers.projections import linear_layer
from towernmt.models.layers.randomness import dropout
from towernmt.models.model_settings import PLAIN, Gains


def layer_norm(x: Tensor, name: str, epsilon: float = 1e-6) -> Tensor:
    """Apply layer normalisation (Ba et al. 2016) over the last dimension of `x` float32 `[..., depth]`."""
    depth = int(x.shape[-1])
    with tf1.variable_scope(name):
        scale = tf1.get_variable("scale", [depth], initializer=tf1.ones_initializer())
        offset = tf1.get_variable("offset", [depth], initializer=tf1.zeros_initializer())
    standardize = _standardize_by_cudnn if _can_use_cudnn(x) else _standardize
    return _scaled(standardize(x, epsilon), scale, offset)


def _scaled(x: Tensor, scale: Variable, *offset: Variable) -> Tensor:
    """Return `x * scale`, plus the offset if there is one.

    The gradient knows the broadcast dimensions, which TensorFlow's own gradient computes from shapes at each step.
    """
    def scale_and_add(x: Tensor, scale: Tensor, *offset: Tensor) -> Tensor:
        return x * scale + offset[0] if offset else x * scale

    @tf.custom_gradient
    def scaled(x: Tensor, scale: Tensor, *offset: Tensor) -> Tensor:
        def gradient(dy: Tensor) -> tuple[Tensor, ...]:
            positions = list(range(x.shape.rank - 1))
            return dy * scale, tf.reduce_sum(dy * x, positions), *(tf.reduce_sum(dy, positions) for _ in offset)

        return scale_and_add(x, scale, *offset), gradient

    tensors = [tf.convert_to_tensor(variable) for variable in (scale, *offset)]
    return (scale_and_add if is_hoisting() else scaled)(x, *tensors)


def _can_use_cudnn(x: Tensor) -> bool:
    """Return whether cuDNN normalises `x`: in training towers on GPUs, unless XLA fuses the operations."""
    context, settings = get_current_tower_context(), graph_state().settings
    return settings.fused_norm and not settings.xla and context is not None and context.is_training and on_gpu(x)


def _standardize_by_cudnn(x: Tensor, epsilon: float) -> Tensor:
    """Return `_standardize` by cuDNN's batch normalisation, for which each row of `x` is a channel of one image.

    Keras 2 did the same. The forward pass has three kernels instead of seven, and the backward pass one instead of
    seven.
    """
    image = tf.reshape(x, [1, -1, int(x.shape[-1]), 1])
    rows = tf.shape(image)[1:2]
    standardized = tf.raw_ops.FusedBatchNormV3(     # `tf.nn.fused_batch_norm` would raise epsilon to 1.001e-5
        x=image, scale=tf.fill(rows, 1.0), offset=tf.fill(rows, 0.0), mean=[], variance=[], epsilon=epsilon,
        data_format="NCHW", is_training=True)
    return tf.reshape(standardized.y, tf.shape(x))


def _standardize(x: Tensor, epsilon: float) -> Tensor:
    """Return `(x - mean) / deviation` over the last dimension; its own gradient needs fewer passes over memory."""
    def standard(x: Tensor) -> tuple[Tensor, Tensor]:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + epsilon)
        return centred * inverse, inverse

    @tf.custom_gradient
    def standardize(x: Tensor) -> Tensor:
        y, inverse = standard(x)

        def gradient(dy: Tensor) -> Tensor:
            mean_dy = tf.reduce_mean(dy, -1, keepdims=True)
            mean_dy_y = tf.reduce_mean(dy * y, -1, keepdims=True)
            return (dy - mean_dy - y * mean_dy_y) * inverse

        return y, gradient

    return standard(x)[0] if is_hoisting() else standardize(x)     # steps of decoding have no gradient


def rms_norm(x: Tensor, name: str, epsilon: float = 1e-6) -> Tensor:
    """Apply root mean square normalisation (Zhang & Sennrich 2019) over the last dimension of `x` `[..., depth]`."""
    with tf1.variable_scope(name):
        scale = tf1.get_variable("scale", [int(x.shape[-1])], initializer=tf1.ones_initializer())

    @tf.custom_gradient
    def normalize(x: Tensor) -> Tensor:
        inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + epsilon)
        y = x * inverse
        return y, lambda dy: (dy - y * tf.reduce_mean(dy * y, -1, keepdims=True)) * inverse

    return _scaled(normalize(x), scale)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "swish": tf.nn.silu,
    "gelu_sigmoid": lambda x: x * tf.sigmoid(1.702 * x),
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
}
"""Activations of layers without a gate, by name."""
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": tf.sigmoid,
    "swiglu": tf.nn.silu,
    "geglu": tf.nn.gelu,
}
"""Activations of the gate, by name."""


def feed_forward(x: Tensor, filter_size: int, dropout_rate: float, kind: str = "relu", gains: Gains = PLAIN) -> Tensor:
    """Return `outer(act(inner x))`, or with a gate `outer(gate(a) * b)`, where a and b are the halves of `inner x`.

    All maps have a bias, unlike those of Shazeer (2020).

    Args:
        x: `[..., depth]`.
        filter_size: depth of the inner layer. A gated layer has three maps of this depth, a plain one two.
        dropout_rate: dropout on the inner layer.
        kind: one of `FEED_FORWARDS`.
        gains: factors of the initial kernels.

    Returns:
        `[..., depth]`, in the compute dtype.
    """
    with tf1.variable_scope("feed_forward"):
        if kind in ACTIVATIONS:
            hidden = linear_layer(x, filter_size, "inner", activation=ACTIVATIONS[kind], gains=[gains.values])
        else:
            packed = linear_layer(x, filter_size, "inner", parts=2, gains=[gains.values] * 2)
            gate, value = tf.split(to_float32(packed), 2, -1)
            hidden = GATES[kind](gate) * value
        return linear_layer(dropout(hidden, dropout_rate, "inner"), int(x.shape[-1]), "outer", gains=[gains.outputs])


def checkpointed(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `layer(x)`; with gradient checkpointing, a training tower computes the layer again for its gradient.

    The layer is called twice, the second time while the gradient is built, in the same variable scope. So it may
    depend only on `x`, on tensors that exist already, and on variables that it gets from `get_variable`. Draws of
    `randomness` are equal in both calls, because they depend only on the clock and the place.

    The second computation waits for the arriving gradient. This dependency also makes it different from the first one
    for TensorFlow's optimiser, which would otherwise merge both or compute the second too early.

    Args:
        layer: function from a tensor to a tensor.
        x: float tensor.

    Returns:
        the result of `layer`.

    Raises:
        TowerRuleError: the layer reads a variable without `get_variable`, or the gradient is built outside the tower.
    """
    context = get_current_tower_context()
    if not graph_state().settings.gradient_checkpointing or context is None or not context.is_training:
        return layer(x)
    graph, scope = tf1.get_default_graph(), tf1.get_variable_scope()
    operation_count = len(graph.get_operations())
    variables: dict[str, Variable] = {}
    y = _with_getter(layer, x, scope, lambda name, get: variables.setdefault(name, get()))
    captured = _captured(graph.get_operations()[operation_count:], x, variables)
    values = [tf.convert_to_tensor(variable) for variable in variables.values()]

    @tf.custom_gradient
    def passed(y: Tensor, x: Tensor, *inputs: Tensor) -> Tensor:
        def gradient(dy: Tensor) -> list[Tensor]:
            if get_current_tower_context() is not context:
                raise TowerRuleError(f"train.gradient_checkpointing: the gradient of a layer in '{scope.name}' is "
                                     "computed outside of the tower that built it: compute it inside, or switch "
                                     "train.gradient_checkpointing off.")
            value_by_name = dict(zip(variables, values, strict=True))
            dy = tf.convert_to_tensor(dy)
            with tf1.control_dependencies([dy]):
                recomputed_x = tf.identity(x)
                recomputed_y = _with_getter(layer, recomputed_x, scope, lambda name, get: (
                    value_by_name[name] if name in value_by_name else get()))
            sources = [recomputed_x, *values, *captured]
            # Partial derivatives: dependencies between these tensors lie outside of this layer.
            gradients = tf1.gradients(recomputed_y, sources, dy, stop_gradients=sources)
            # All gradients together: the layer below begins when nothing here needs the recomputed tensors any more.
            return [None, *tf1.tuple([None if g is None else tf.convert_to_tensor(g) for g in gradients])]

        return tf.identity(y), gradient

    return passed(y, x, *values, *captured)


def _with_getter(layer: Callable[[Tensor], Tensor], x: Tensor, scope: Any,
                 choose: Callable[[str, Callable[[], Variable]], Tensor]) -> Tensor:
    """Return `layer(x)` in the variable scope `scope`, with each variable replaced by `choose(name, get)`."""
    def choosing(getter: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Tensor:
        return choose(name, lambda: getter(name, *arguments, **options))

    with tf1.variable_scope(scope, custom_getter=choosing, auxiliary_name_scope=False):
        return layer(x)


def _captured(operations: list[Operation], x: Tensor, variables: dict[str, Variable]) -> list[Tensor]:
    """Return the float inputs of these operations from outside, except `x`."""
    inner_names = {operation.name for operation in operations}
    handles = {variable.handle.name for variable in variables.values()}
    captured: dict[str, Tensor] = {}
    for operation in operations:
        for tensor in operation.inputs:
            if tensor.op.name in inner_names or tensor is x:
                continue
            if tensor.dtype == tf.resource and tensor.name not in handles:
                raise TowerRuleError(f"train.gradient_checkpointing: '{operation.name}' reads the variable "
                                     f"'{tensor.op.name}', which its layer did not get by get_variable; "
                                     "ask for it inside of the layer, or switch train.gradient_checkpointing off.")
            if tensor.dtype.is_floating:
                captured[tensor.name] = tensor
    return list(captured.values())
