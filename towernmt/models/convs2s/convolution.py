"""Convolution over time: TensorFlow's in float32, in bfloat16 matrix products over windows, gradient included.

On a processor TensorFlow's bfloat16 convolution spends most of its time in the gradient of the kernel; here that is
one product: 1.2 times as fast for a whole ConvS2S. In float32 it takes 0.95 times the speed.
"""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.kernels.precision import compute_dtype, to_float32, with_ones, zeros_like_rows


def convolution(x: Tensor, kernel: Tensor, bias: Tensor, padding: tuple[int, int]) -> Tensor:
    """A convolution and its bias.

    Args:
        x: `[batch, length, depth]`.
        kernel: float32 `[width, depth, output]`.
        bias: float32 `[output]`.
        padding: zeros before and behind each sequence.
    Returns:
        `[batch, length + sum(padding) - width + 1, output]`, bfloat16 where products are; float32 otherwise (in
        float16, too, which convolutions do without).
    """
    if compute_dtype() == tf.bfloat16:
        return _over_windows(tf.cast(x, tf.bfloat16), tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias), padding)
    empty = tf.cast(tf.equal(tf.shape(x)[0], 0), tf.int32)      # TensorFlow gives an empty batch a wrong shape
    padded = tf.pad(x, [[0, empty], list(padding), [0, 0]])
    return tf.nn.bias_add(tf.nn.conv1d(padded, kernel, stride=1, padding="VALID"), bias)[:tf.shape(x)[0]]


def _over_windows(x: Tensor, kernel: Tensor, bias: Tensor, padding: tuple[int, int]) -> Tensor:
    """`convolution` in bfloat16; the bias is a row of the kernel, as in `precision.affine`."""
    width, depth, output = (int(size) for size in kernel.shape)

    @tf.custom_gradient
    def run(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        length = tf.shape(x)[1]
        after = length + sum(padding) - width + 1
        # [batch * after, width * depth + ones]
        windows = with_ones(_side_by_side(x, padding, list(range(width)), after))
        narrow, row = tf.cast(kernel, tf.bfloat16), tf.cast(bias, tf.bfloat16)[None]
        rows = [tf.reshape(narrow, [width * depth, output]), row, zeros_like_rows(row, 0)]
        y = tf.matmul(windows, tf.concat(rows, 0))

        def gradient(dy: Tensor) -> list[Tensor]:
            # A position is multiplied by place k of the kernel in the window that begins k positions before it.
            begins = [padding[0] + width - 1 - k for k in range(width)]
            over = _side_by_side(dy, (width - 1, width - 1), begins, length)    # [batch * length, width * output]
            turned = tf.reshape(tf.transpose(narrow, [1, 0, 2]), [depth, width * output])
            d_x = tf.matmul(over, turned, transpose_b=True)
            joint = tf.matmul(windows, tf.reshape(dy, [-1, output]), transpose_a=True)
            d_kernel = tf.reshape(to_float32(joint[:width * depth]), [width, depth, output])
            return [tf.reshape(d_x, tf.shape(x)), d_kernel, to_float32(joint[width * depth])]

        return tf.reshape(y, [tf.shape(x)[0], after, output]), gradient

    return run(x, kernel, bias)


def _side_by_side(x: Tensor, padding: tuple[int, int], begins: list[int], length: Tensor) -> Tensor:
    """Slices of a padded `x` `[batch, time, depth]` from each of `begins` on: `[batch * length, slices * depth]`."""
    padded = tf.pad(x, [[0, 0], list(padding), [0, 0]])
    return tf.reshape(tf.concat([padded[:, begin:begin + length] for begin in begins], 2),
                      [-1, len(begins) * int(x.shape[2])])
