"""Convolution over time as matrix products over windows, gradient included.

On a processor TensorFlow's convolution spends most of its time in the gradient of the kernel; here that is one product.
"""

from __future__ import annotations

from typing import Any

from towernmt.models.precision import compute_dtype, to_float32, with_ones, zeros_like_rows
from towernmt.tf_compat import tf


def convolution(x: Any, kernel: Any, bias: Any, padding: tuple[int, int]) -> Any:
    """A convolution and its bias.

    In bfloat16 the bias is a row of the kernel, as in `precision.affine`.

    Args:
        x: `[batch, length, depth]`.
        kernel: float32 `[width, depth, output]`.
        bias: float32 `[output]`.
        padding: zeros before and behind each sequence.
    Returns:
        `[batch, length + sum(padding) - width + 1, output]` in the compute dtype.
    """
    width, depth, output = (int(size) for size in kernel.shape)
    dtype = compute_dtype()

    @tf.custom_gradient
    def run(x: Any, kernel: Any, bias: Any) -> Any:
        length = tf.shape(x)[1]
        after = length + sum(padding) - width + 1
        windows = _side_by_side(x, padding, list(range(width)), after)      # [batch * after, width * depth]
        narrow = tf.cast(kernel, dtype)
        flat = tf.reshape(narrow, [width * depth, output])
        if dtype == tf.bfloat16:
            row = tf.cast(bias, dtype)[None]
            windows = with_ones(windows)
            y = tf.matmul(windows, tf.concat([flat, row, zeros_like_rows(row, 0)], 0))
        else:
            y = tf.nn.bias_add(tf.matmul(windows, flat), tf.cast(bias, dtype))

        def gradient(dy: Any) -> list[Any]:
            # A position met the kernel's place k in the window that begins k before it.
            begins = [padding[0] + width - 1 - k for k in range(width)]
            over = _side_by_side(dy, (width - 1, width - 1), begins, length)    # [batch * length, width * output]
            d_x = tf.matmul(over, tf.reshape(tf.transpose(narrow, [1, 0, 2]), [depth, width * output]),
                            transpose_b=True)
            d_rows = tf.reshape(dy, [-1, output])
            joint = tf.matmul(windows, d_rows, transpose_a=True)
            d_bias = joint[width * depth] if dtype == tf.bfloat16 else tf.reduce_sum(d_rows, 0)
            d_kernel = to_float32(joint[:width * depth])
            return [tf.reshape(d_x, tf.shape(x)), tf.reshape(d_kernel, [width, depth, output]), to_float32(d_bias)]

        return tf.reshape(y, [tf.shape(x)[0], after, output]), gradient

    return run(tf.cast(x, dtype), tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias))


def _side_by_side(x: Any, padding: tuple[int, int], begins: list[int], length: Any) -> Any:
    """Slices of a padded `x` `[batch, time, depth]` from each of `begins` on: `[batch * length, slices * depth]`."""
    padded = tf.pad(x, [[0, 0], list(padding), [0, 0]])
    return tf.reshape(tf.concat([padded[:, begin:begin + length] for begin in begins], 2),
                      [-1, len(begins) * int(x.shape[2])])
