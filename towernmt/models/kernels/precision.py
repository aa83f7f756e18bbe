"""Precision of matrix products: float32, or bfloat16 or float16 with what must be exact in float32.

In bfloat16 and float16 the factors and results of each product are rounded, and so are the logits and the softmax over
the vocabulary, which stand between two products (a kernel sums in float32 inside). Parameters, optimizer,
gradients of parameters, residual stream, normalisation, attention weights and the summed loss are float32
(mixed precision, Micikevicius et al. 2018; bfloat16 has float32's range and needs no loss scaling,
Kalamkar et al. 2019; float16 gets it, see `towernmt.optim.loss_scale`, and its softmax is float32).
"""

from __future__ import annotations

from dataclasses import replace

from towernmt.core.graph_state import graph_state
from towernmt.core.machine.processor import has_fast_bfloat16, processor_flags
from towernmt.core.tensors import DType, Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels.once import is_made_once, once
from towernmt.models.kernels.products import gradients_over_rows, on_gpu, rows_collide, with_filled_rows


def set_precision(name: str) -> None:
    """Set the precision of the default graph's matrix products: one of `PRECISIONS`."""
    state = graph_state()
    state.settings = replace(state.settings, precision=name)


def is_slow_on_cpu(name: str) -> bool:
    """Whether this processor multiplies float32 faster than in the precision of that name, as far as is known."""
    return name == "float16" or (name == "bfloat16" and not has_fast_bfloat16())


def compute_dtype() -> DType:
    """The dtype of the factors of products in the default graph, by its settings; by default float32."""
    return tf.as_dtype(graph_state().settings.precision)


def matmul(a: Tensor, b: Tensor, transpose_b: bool = False) -> Tensor:
    """`tf.matmul` of the factors in the compute dtype; so is the result."""
    dtype = compute_dtype()
    if is_made_once() and dtype == tf.float32 and isinstance(b, tf.Variable) and not transpose_b and rows_collide(a, b):
        return tf.matmul(a, once("filled", with_filled_rows, b))[:, :b.shape[1]]
    with gradients_over_rows():
        return tf.matmul(tf.cast(a, dtype), _narrowed(b), transpose_b=transpose_b)


def _narrowed(weight: Tensor) -> Tensor:
    """A factor in the compute dtype; a weight is cast before the loops of decoding."""
    dtype = compute_dtype()
    if dtype == tf.float32:
        return weight
    return once(dtype.name, lambda weight: tf.cast(weight, dtype), weight)


def affine(x: Tensor, kernel: Tensor, bias: Tensor, transpose_kernel: bool = False) -> Tensor:
    """`x @ kernel + bias` in the compute dtype.

    In bfloat16 the bias is one more row of the kernel, and `x` gets a column of ones: so the product adds the bias
    before it rounds, and gives its gradient, too. (oneDNN's bfloat16 product with a fused bias runs 4 times slower
    than its plain one on a processor with AMX, and TensorFlow's bfloat16 `BiasAdd` takes longer than the product.)

    Args:
        x: `[rows, depth]`.
        kernel: float32 `[depth, output]`, or `[output, depth]` if `transpose_kernel`.
        bias: float32 `[output]`.
    Returns:
        `[rows, output]`.
    """
    if is_made_once():
        return _affine_in_steps(x, kernel, bias, transpose_kernel)
    if compute_dtype() != tf.bfloat16:
        return tf.nn.bias_add(matmul(x, kernel, transpose_b=transpose_kernel), tf.cast(bias, compute_dtype()))
    return _affine_bfloat16(tf.cast(x, tf.bfloat16), tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias),
                            transpose_kernel)


def _affine_in_steps(x: Tensor, kernel: Tensor, bias: Tensor, transpose_kernel: bool) -> Tensor:
    """As `affine`, with what it makes of the weights made before the loops of decoding."""
    dtype = compute_dtype()
    if dtype != tf.bfloat16:
        if transpose_kernel:
            kernel = once("transposed", tf.transpose, kernel)
        if dtype == tf.float32 and rows_collide(x, kernel):
            filled, more = (once("filled", with_filled_rows, weight) for weight in (kernel, bias))
            return tf.nn.bias_add(matmul(x, filled), more)[:, :kernel.shape[1]]
        return tf.nn.bias_add(matmul(x, kernel), tf.cast(bias, dtype))

    def with_bias(kernel: Tensor, bias: Tensor) -> Tensor:
        columns, row = tf.cast(tf.transpose(kernel) if transpose_kernel else kernel, dtype), tf.cast(bias, dtype)[None]
        return tf.concat([columns, row, zeros_like_rows(row, 0)], 0)

    return tf.matmul(with_ones(tf.cast(x, dtype)), once("columns_with_bias", with_bias, kernel, bias))


def _affine_bfloat16(x: Tensor, kernel: Tensor, bias: Tensor, transpose_kernel: bool) -> Tensor:
    depth = int(x.shape[1])
    axis = 1 if transpose_kernel else 0

    @tf.custom_gradient
    def product(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        augmented = with_ones(x)
        rows = tf.expand_dims(tf.cast(bias, tf.bfloat16), axis)
        narrow = tf.cast(kernel, tf.bfloat16)
        y = tf.matmul(augmented, tf.concat([narrow, rows, zeros_like_rows(rows, axis)], axis),
                      transpose_b=transpose_kernel)

        def gradient(dy: Tensor) -> Tensor:
            if transpose_kernel:
                joint = to_float32(tf.matmul(dy, augmented, transpose_a=True))
                return tf.matmul(dy, narrow), joint[:, :depth], joint[:, depth]
            joint = to_float32(tf.matmul(augmented, dy, transpose_a=True))
            return tf.matmul(dy, narrow, transpose_b=True), joint[:depth], joint[depth]

        return y, gradient

    return product(x, kernel, bias)


_ONES = 32 if "amx_bf16" in processor_flags() else 2
"""Columns of ones added to `x` for the bias: AMX takes depths in tiles of 32, AVX512_BF16 in pairs. The kernel's
rows for them are the bias, and then zeros."""


def with_ones(x: Tensor) -> Tensor:
    """`x` `[rows, depth]` with `_ONES` columns of ones behind it."""
    return tf.concat([x, tf.ones([tf.shape(x)[0], _ONES], x.dtype)], 1)


def zeros_like_rows(row: Tensor, axis: int) -> Tensor:
    """`_ONES - 1` rows (columns where `axis` is 1) of zeros, which follow `row`."""
    size = row.shape[1 - axis] or tf.shape(row)[1 - axis]
    return tf.zeros([_ONES - 1, size] if axis == 0 else [size, _ONES - 1], row.dtype)


def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`.

    On a CPU bfloat16 is compared as the integer of its bits, which is negative where the number is: 5 times
    faster than TensorFlow's kernel, and twice in the gradient. (A NaN whose sign bit is set becomes 0 there.)
    """
    if x.dtype != tf.bfloat16 or on_gpu(x):
        return tf.nn.relu(x)

    @tf.custom_gradient
    def relu_of_bits(x: Tensor) -> Tensor:
        bits = tf.maximum(tf.bitcast(x, tf.int16), tf.zeros([], tf.int16))

        def gradient(dy: Tensor) -> Tensor:
            positive = tf.minimum(bits, tf.ones([], tf.int16))      # 1 or 0
            return tf.bitcast(tf.bitcast(dy, tf.int16) * positive, tf.bfloat16)

        return tf.bitcast(bits, tf.bfloat16), gradient

    return relu_of_bits(x)


def to_float32(x: Tensor) -> Tensor:
    """`x` as float32; itself if it is."""
    return tf.cast(x, tf.float32)
