"""Matrix products: their precision, their fastest form, and values hoisted out of the decoding loop.

In bfloat16 and float16 the factors and results of each product are rounded, and so are the logits and the softmax
over the vocabulary, which are between two products (a kernel sums in float32 inside). Parameters, optimizer,
gradients of parameters, residual stream, normalisation, attention weights and the summed loss are float32 (mixed
precision, Micikevicius et al. 2018; bfloat16 has float32's range and needs no loss scaling, Kalamkar et al. 2019;
float16 gets it, see `towernmt.optim.optimizer`, and its softmax is float32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from towernmt.core.graph_state import graph_state
from towernmt.core.machine import has_fast_bfloat16, processor_flags
from towernmt.core.tensors import DType, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1


def set_precision(name: str) -> None:
    """Set the precision of the matrix products in the default graph: one of `PRECISIONS`."""
    state = graph_state()
    state.settings = replace(state.settings, precision=name)


def is_slow_on_cpu(name: str) -> bool:
    """Return whether this CPU is known to multiply faster in float32 than in the precision `name`."""
    return name == "float16" or (name == "bfloat16" and not has_fast_bfloat16())


def compute_dtype() -> DType:
    """Return the dtype of the factors of products in the default graph: float32 by default."""
    return tf.as_dtype(graph_state().settings.precision)


def matmul(a: Tensor, b: Tensor, transpose_b: bool = False) -> Tensor:
    """Return `tf.matmul` of the factors in the compute dtype.

    Batches of matrices must have equal leading dimensions. `tf.matmul` would also broadcast them, and so its gradients
    compute shapes and sums, even if there is nothing to sum.
    """
    dtype = compute_dtype()
    if b.shape.rank > 2:
        return tf.raw_ops.BatchMatMul(x=tf.cast(a, dtype), y=_narrowed(b), adj_y=transpose_b)
    if is_hoisting() and dtype == tf.float32 and isinstance(b, tf.Variable) and not transpose_b and rows_collide(a, b):
        return tf.matmul(a, hoisted("filled", with_filled_rows, b))[:, :b.shape[1]]
    with gradients_over_rows():
        return tf.matmul(tf.cast(a, dtype), _narrowed(b), transpose_b=transpose_b)


def _narrowed(weight: Tensor) -> Tensor:
    """Return a factor in the compute dtype; the cast of a weight is hoisted out of decoding loops."""
    dtype = compute_dtype()
    if dtype == tf.float32:
        return weight
    return hoisted(dtype.name, lambda weight: tf.cast(weight, dtype), weight)


def affine(x: Tensor, kernel: Tensor, bias: Tensor, transpose_kernel: bool = False) -> Tensor:
    """Return `x @ kernel + bias` in the compute dtype.

    On a CPU in bfloat16 the bias is an additional row of the kernel, and `x` gets a column of ones. So the product adds
    the bias before it rounds, and its gradient contains the gradient of the bias. (With AMX, oneDNN's bfloat16 product
    with a fused bias is 4 times slower than the plain one. TensorFlow's bfloat16 `BiasAdd` is slower than the product.)

    Args:
        x: `[rows, depth]`.
        kernel: float32 `[depth, output]`, or `[output, depth]` if `transpose_kernel`.
        bias: float32 `[output]`.
        transpose_kernel: whether to transpose the kernel.

    Returns:
        `[rows, output]`.
    """
    if is_hoisting():
        return _affine_in_steps(x, kernel, bias, transpose_kernel)
    if compute_dtype() != tf.bfloat16 or on_gpu(x):
        return tf.nn.bias_add(matmul(x, kernel, transpose_b=transpose_kernel), tf.cast(bias, compute_dtype()))
    return _affine_bfloat16(tf.cast(x, tf.bfloat16), tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias),
                            transpose_kernel)


def _affine_in_steps(x: Tensor, kernel: Tensor, bias: Tensor, transpose_kernel: bool) -> Tensor:
    """Return `affine` with the preparation of the weights hoisted out of decoding loops."""
    dtype = compute_dtype()
    if dtype != tf.bfloat16 or on_gpu(x):
        if transpose_kernel:
            kernel = hoisted("transposed", tf.transpose, kernel)
        if dtype == tf.float32 and rows_collide(x, kernel):
            filled_kernel, filled_bias = (hoisted("filled", with_filled_rows, weight) for weight in (kernel, bias))
            return tf.nn.bias_add(matmul(x, filled_kernel), filled_bias)[:, :kernel.shape[1]]
        return tf.nn.bias_add(matmul(x, kernel), _narrowed(bias))

    def with_bias(kernel: Tensor, bias: Tensor) -> Tensor:
        columns, row = tf.cast(tf.transpose(kernel) if transpose_kernel else kernel, dtype), tf.cast(bias, dtype)[None]
        return tf.concat([columns, row, zeros_like_rows(row, 0)], 0)

    return tf.matmul(with_ones(tf.cast(x, dtype)), hoisted("columns_with_bias", with_bias, kernel, bias))


def _affine_bfloat16(x: Tensor, kernel: Tensor, bias: Tensor, transpose_kernel: bool) -> Tensor:
    depth = int(x.shape[1])
    axis = 1 if transpose_kernel else 0

    @tf.custom_gradient
    def product(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        augmented = with_ones(x)
        rows = tf.expand_dims(tf.cast(bias, tf.bfloat16), axis)
        narrow_kernel = tf.cast(kernel, tf.bfloat16)
        y = tf.matmul(augmented, tf.concat([narrow_kernel, rows, zeros_like_rows(rows, axis)], axis),
                      transpose_b=transpose_kernel)

        def gradient(dy: Tensor) -> Tensor:
            if transpose_kernel:
                d_kernel_and_bias = to_float32(tf.matmul(dy, augmented, transpose_a=True))
                return tf.matmul(dy, narrow_kernel), d_kernel_and_bias[:, :depth], d_kernel_and_bias[:, depth]
            d_kernel_and_bias = to_float32(tf.matmul(augmented, dy, transpose_a=True))
            return tf.matmul(dy, narrow_kernel, transpose_b=True), d_kernel_and_bias[:depth], d_kernel_and_bias[depth]

        return y, gradient

    return product(x, kernel, bias)


_ONES = 32 if "amx_bf16" in processor_flags() else 2
"""Columns of ones added to `x` for the bias: AMX takes depths in tiles of 32, AVX512_BF16 in pairs. The kernel's
rows for them are the bias, and then zeros."""


def with_ones(x: Tensor) -> Tensor:
    """Return `x` `[rows, depth]` followed by `_ONES` columns of ones."""
    return tf.concat([x, tf.ones([tf.shape(x)[0], _ONES], x.dtype)], 1)


def zeros_like_rows(row: Tensor, axis: int) -> Tensor:
    """Return `_ONES - 1` rows (if `axis` is 1, columns) of zeros with the length of `row`."""
    size = row.shape[1 - axis] or tf.shape(row)[1 - axis]
    return tf.zeros([_ONES - 1, size] if axis == 0 else [size, _ONES - 1], row.dtype)


def relu(x: Tensor) -> Tensor:
    """Return `max(x, 0)`.

    On a CPU, bfloat16 is compared as the integer of its bits, which has the same sign. This is 5 times faster than
    TensorFlow's kernel, and twice as fast in the gradient. (It maps a NaN with a set sign bit to 0.)
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
    """Return `x` as float32."""
    return tf.cast(x, tf.float32)


def dtype_of_ids(x: Tensor) -> DType:
    """Return the dtype of the ids and indices that are computed on the device of a tensor: int64 on a GPU, else int32.

    TensorFlow keeps int32 in host memory and computes with it there, even if it uses a GPU.
    """
    return tf.int64 if on_gpu(x) else tf.int32


def as_ids(x: Tensor) -> Tensor:
    """Return ids or indices int32 in the dtype that their device computes with (`dtype_of_ids`)."""
    return tf.cast(x, dtype_of_ids(x))


def padded_tensor(x: Tensor, paddings: Any, value: int = 0) -> Tensor:
    """Return `tf.pad(x, paddings)`, which has no kernel for int64 on a GPU: there it pads float64, which is exact."""
    if x.dtype != tf.int64:
        return tf.pad(x, paddings, constant_values=value)
    return tf.cast(tf.pad(tf.cast(x, tf.float64), paddings, constant_values=value), tf.int64)


def count_to(end: Tensor) -> Tensor:
    """Return the numbers from 0 to `end` - 1, int64 `[end]`; `end` is int32 `[]`.

    Lengths and positions that decide what a GPU computes are int64 (see `dtype_of_ids`).
    """
    return tf.cast(tf.range(end), tf.int64)


def token_mask(length: Tensor, longest: Tensor) -> Tensor:
    """Return whether each position of a sequence contains a token: bool `[batch, longest]`.

    Args:
        length: int32 `[batch]`, in tokens.
        longest: int32 `[]`, number of positions.
    """
    return count_to(longest) < tf.cast(length, tf.int64)[:, None]


def rows_at(x: Tensor, rows: Tensor, inverse: Tensor) -> Tensor:
    """Return some rows of a tensor, with a gradient that gathers.

    The gradient of `tf.gather_nd` is `ScatterNd`, which TensorFlow runs on the CPU under op determinism.

    Args:
        x: `[n, depth]`.
        rows: int64 `[m]`, indices of the rows, each at most once.
        inverse: int64 `[n]`, index in `rows` of each row of `x`; m for a row that is not in `rows`.

    Returns:
        `[m, depth]`.
    """
    @tf.custom_gradient
    def gathered(x: Tensor) -> Tensor:
        return tf.gather(x, rows), lambda dy: tf.gather(_with_row_of_zeros(dy), inverse)

    return gathered(x)


def rows_into(x: Tensor, rows: Tensor, inverse: Tensor) -> Tensor:
    """Return a tensor of zeros `[n, ...]` with `x` `[m, ...]` in the rows `rows`: the inverse of `rows_at`."""
    @tf.custom_gradient
    def scattered(x: Tensor) -> Tensor:
        return tf.gather(_with_row_of_zeros(x), inverse), lambda dy: tf.gather(dy, rows)

    return scattered(x)


def _with_row_of_zeros(x: Tensor) -> Tensor:
    return tf.pad(x, [[0, 1]] + [[0, 0]] * (x.shape.rank - 1))


_AVX2_ONLY = "avx2" in processor_flags() and "avx512f" not in processor_flags()
_COLLIDES = 512
"""Rows of a multiple of this many float32: the same column of the next rows falls on few lines of the first cache."""
_FILL = 16
"""Columns that move each next row to another line of the cache."""
_UNCOPIED = 0.0038
"""oneDNN's kernel for AVX2 reads its factors in place if the result is narrow: `1 / rows + 1 / columns` is this
or more (`nocopy_checker_avx2` in its `gemm_driver.cpp`); it copies them together first for larger results."""

_GRADIENT = "TowernmtProductOverRows"


def on_gpu(x: Tensor) -> bool:
    """Return whether operations on a tensor run on a GPU, on which every form of this module is TensorFlow's plain one.

    The tensor's device decides; of a tensor without one, the device of new operations (in the body of a loop, that of
    the loop). TensorFlow places operations without a device on a GPU if it sees one.
    """
    device = x.device
    if not device:
        with _outermost_graph().as_default():
            device = tf.no_op().device
    return "GPU" in device.upper() if device else bool(tf.config.get_visible_devices("GPU"))


def product_over_rows(x: Tensor, y: Tensor) -> Tensor:
    """Return `transpose(x) @ y`, the gradient of a kernel.

    On a CPU with AVX2 but without AVX-512, float32 rows that collide in the cache are padded first, which is twice as
    fast for 256 by 1024.

    Args:
        x: `[..., rows, m]`, the input of the kernel's product.
        y: `[..., rows, n]`, the gradient of its output.

    Returns:
        `[..., m, n]`.
    """
    m, n = x.shape[-1], y.shape[-1]
    if _may_collide(x) and _may_collide(y) and 1 / m + 1 / n >= _UNCOPIED:
        product = tf.matmul(_filled(x), _filled(y), transpose_a=True)
        return product if product.shape == (m, n) else product[:m, :n]
    return tf.matmul(x, y, transpose_a=True)


def rows_collide(x: Tensor, kernel: Tensor) -> bool:
    """Return whether the rows of a kernel `[depth, output]` collide in the cache in `x @ kernel`.

    This happens on a CPU with AVX2 but without AVX-512. With additional columns of zeros (`with_filled_rows`), the
    product of 128 rows and 256 by 1,024 takes 0.96 ms instead of 1.7; with 512 by 2,048, 3.7 ms instead of 6.3.
    """
    return bool(_AVX2_ONLY and not on_gpu(x) and (kernel.shape[1] or 1) % _COLLIDES == 0)


def with_filled_rows(weight: Tensor) -> Tensor:
    """Return a kernel `[depth, output]`, or its bias, with columns of zeros that keep its rows from colliding."""
    return tf.pad(weight, [[0, 0]] * (weight.shape.rank - 1) + [[0, _FILL]])


def _may_collide(x: Tensor) -> bool:
    return _AVX2_ONLY and x.dtype == tf.float32 and x.shape.rank == 2 and x.shape[1] and not on_gpu(x)


def _filled(x: Tensor) -> Tensor:
    return with_filled_rows(x) if x.shape[1] % _COLLIDES == 0 else x


def gradients_over_rows() -> AbstractContextManager[None]:
    """Return a context in which products `a @ b` and `a @ transpose(b)` use `product_over_rows` for their gradients."""
    overridden: AbstractContextManager[None] = tf1.get_default_graph().gradient_override_map(
        {"MatMul": _GRADIENT} if _AVX2_ONLY else {})        # which is TensorFlow's own gradient on a GPU
    return overridden


@tf.RegisterGradient(_GRADIENT)
def _gradient(product: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    a, b = product.inputs
    if product.get_attr("transpose_b"):
        return tf.matmul(dy, b), product_over_rows(dy, a)
    return tf.matmul(dy, b, transpose_b=True), product_over_rows(a, dy)


@contextmanager
def hoisting() -> Iterator[None]:
    """Let decoding steps that are built inside share the values that `hoisted` makes from weights."""
    state = graph_state()
    enclosing, state.hoisted = state.hoisted, {}
    try:
        yield
    finally:
        state.hoisted = enclosing


def hoisted(name: str, make: Callable[..., Tensor], *weights: Variable | Tensor) -> Tensor:
    """Return `make(*weights)`; within `hoisting`, hoist it out of all loops and share it between equal calls.

    Args:
        name: name of the result.
        make: function of the weights.
        weights: variables or tensors; the result is not hoisted if one of them was created within a loop.
    """
    cache, graph = graph_state().hoisted, _outermost_graph()
    if cache is None or any(weight.graph is not graph for weight in weights):
        return make(*weights)
    key = (name, *(weight.name for weight in weights))
    if key not in cache:
        with graph.as_default():
            cache[key] = make(*weights)
    return cache[key]


def is_hoisting() -> bool:
    """Return whether the caller is within `hoisting`."""
    return graph_state().hoisted is not None


def _outermost_graph() -> Tensor:
    graph = tf1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph
