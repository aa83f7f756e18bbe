"""Convolutions, in bfloat16 as products over windows, compared with TensorFlow's kernel and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.convs2s import convolution
from towernmt.models.kernels import set_precision

BATCH, TIME, DEPTH, OUTPUT = 3, 7, 5, 4


def results(width: int, padding: tuple[int, int], rows: int = BATCH, of_tensorflow: bool = False) -> list[np.ndarray]:
    """Return the output and the gradients of input, kernel and bias, by windows or by TensorFlow's convolution."""
    random = np.random.default_rng(1)
    x, kernel, bias = (tf.constant(random.normal(size=shape).astype(np.float32))
                       for shape in ([rows, TIME, DEPTH], [width, DEPTH, OUTPUT], [OUTPUT]))
    weights = tf.constant(random.normal(size=[rows, TIME + sum(padding) - width + 1, OUTPUT]).astype(np.float32))
    if of_tensorflow:
        y = tf.nn.conv1d(tf.pad(x, [[0, 0], list(padding), [0, 0]]), kernel, 1, "VALID") + bias
    else:
        y = tf.cast(convolution(x, kernel, bias, padding), tf.float32)
    with tf1.Session() as session:
        return session.run([y, *tf1.gradients(tf.reduce_sum(y * weights), [x, kernel, bias])])


@pytest.mark.parametrize("width, padding", [(3, (1, 1)), (3, (2, 0)), (1, (0, 0)), (4, (3, 0)), (5, (0, 1))])
def test_outputs_and_gradients_equal_those_of_tensorflows_convolution(graph, width, padding):
    for ours, theirs in zip(results(width, padding), results(width, padding, of_tensorflow=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width, padding", [(3, (1, 1)), (3, (2, 0)), (1, (0, 0)), (4, (3, 0)), (5, (0, 1))])
def test_in_bfloat16_they_are_near(graph, width, padding):
    set_precision("bfloat16")
    for ours, theirs in zip(results(width, padding), results(width, padding, of_tensorflow=True), strict=True):
        assert ours.dtype == np.float32
        assert 0 < np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_batch_without_rows_has_gradients_of_zero(graph, precision):
    set_precision(precision)
    ours = results(3, (2, 0), rows=0)
    assert ours[0].shape == (0, TIME, OUTPUT)
    assert ours[1].shape == (0, TIME, DEPTH)
    for gradient in ours[2:]:
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))
