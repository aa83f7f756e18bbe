"""Matrix products in the form in which the processor is fastest."""

from __future__ import annotations

from contextlib import AbstractContextManager

from towernmt.core.machine.processor import processor_flags
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1

_AVX2_ONLY = "avx2" in processor_flags() and "avx512f" not in processor_flags()
_COLLIDES = 512
"""Rows of a multiple of this many float32: the same column of the next rows falls on few lines of the first cache."""
_FILL = 16
"""Columns that move each next row to another line of the cache."""
_UNCOPIED = 0.0038
"""oneDNN's kernel for AVX2 reads its factors where they stand if the result is narrow: `1 / rows + 1 / columns` is this
or more (`nocopy_checker_avx2` in its `gemm_driver.cpp`); it copies them together first for larger results."""

_GRADIENT = "TowernmtProductOverRows"


def on_gpu(x: Tensor) -> bool:
    """Whether a tensor was placed on a GPU."""
    return "GPU" in x.device.upper()


def product_over_rows(x: Tensor, y: Tensor) -> Tensor:
    """`transpose(x) @ y`: a kernel's gradient, from what went in and the gradient of what came out.

    On a processor with AVX2 and no more, float32 rows whose lines would push each other out of the cache are
    filled up first: twice as fast for 256 by 1024.

    Args:
        x: `[..., rows, m]`.
        y: `[..., rows, n]`.
    Returns:
        `[..., m, n]`.
    """
    m, n = x.shape[-1], y.shape[-1]
    if _may_collide(x) and _may_collide(y) and 1 / m + 1 / n >= _UNCOPIED:
        product = tf.matmul(_filled(x), _filled(y), transpose_a=True)
        return product if product.shape == (m, n) else product[:m, :n]
    return tf.matmul(x, y, transpose_a=True)


def rows_collide(x: Tensor, kernel: Tensor) -> bool:
    """Whether the rows of a kernel `[depth, output]` push each other out of the cache in `x @ kernel`.

    That is so on a processor with AVX2 and no more. With some columns of zeros behind it (`with_filled_rows`), the
    product of 128 rows and 256 by 1,024 takes 0.96 ms in place of 1.7; 512 by 2,048, 3.7 in place of 6.3.
    """
    return bool(_AVX2_ONLY and not on_gpu(x) and (kernel.shape[1] or 1) % _COLLIDES == 0)


def with_filled_rows(weight: Tensor) -> Tensor:
    """A kernel `[depth, output]` with so many columns of zeros more that its rows do not collide; or its bias."""
    return tf.pad(weight, [[0, 0]] * (weight.shape.rank - 1) + [[0, _FILL]])


def _may_collide(x: Tensor) -> bool:
    return _AVX2_ONLY and x.dtype == tf.float32 and x.shape.rank == 2 and x.shape[1] and not on_gpu(x)


def _filled(x: Tensor) -> Tensor:
    return with_filled_rows(x) if x.shape[1] % _COLLIDES == 0 else x


def gradients_over_rows() -> AbstractContextManager[None]:
    """Products `a @ b` and `a @ transpose(b)` that are made inside take `product_over_rows` for their gradients."""
    overridden: AbstractContextManager[None] = tf1.get_default_graph().gradient_override_map(
        {"MatMul": _GRADIENT} if _AVX2_ONLY else {})
    return overridden


@tf.RegisterGradient(_GRADIENT)
def _gradient(product: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    a, b = product.inputs
    if product.get_attr("transpose_b"):
        return tf.matmul(dy, b), product_over_rows(dy, a)
    return tf.matmul(dy, b, transpose_b=True), product_over_rows(a, dy)
