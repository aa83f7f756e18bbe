"""Gradients of kernels with padded rows, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.core.tf_compat import tf, tf1
from towernmt.models import kernels
from towernmt.models.kernels import affine, hoisting, matmul, product_over_rows


@pytest.fixture(autouse=True)
def avx2_only(monkeypatch):
    monkeypatch.setattr(kernels, "_AVX2_ONLY", True)


def filled(graph) -> list[int]:
    """Return the depths of the padded tensors, in the order of their operations."""
    return [int(op.inputs[0].shape[-1]) for op in graph.get_operations() if op.type in ("Pad", "PadV2")]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("m", "n", "wide"), [
    (3, 512, [512]), (1024, 5, [1024]), (512, 512, [512, 512]), (7, 5, []), (3, 513, []), (2048, 1024, []),
])
def test_only_colliding_rows_of_narrow_products_are_filled_and_the_product_is_that_of_numpy(graph, m, n, wide):
    x, y = drawn(9, m), drawn(9, n)
    product = product_over_rows(tf.constant(x), tf.constant(y))
    assert filled(graph) == wide and product.shape == (m, n)
    with tf1.Session() as session:
        np.testing.assert_allclose(session.run(product), x.T @ y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("difference", [{"device": "/gpu:0"}, {"dtype": tf.bfloat16}, {"rank": 3}])
def test_other_products_are_unchanged(graph, difference):
    with tf.device(difference.get("device")):
        x, y = (tf1.placeholder(difference.get("dtype", tf.float32), [None] * (difference.get("rank", 2) - 1) + [512])
                for _ in range(2))
        product = product_over_rows(x, y)
    assert filled(graph) == [] and product.shape[-2:] == (512, 512)


def test_other_processors_fill_nothing(graph, monkeypatch):
    monkeypatch.setattr(kernels, "_AVX2_ONLY", False)
    x = tf.constant(drawn(9, 512))
    tf1.gradients(matmul(x, tf.constant(drawn(512, 3))), x)
    product_over_rows(x, x)
    assert filled(graph) == []


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("depth", "output"), [(512, 3), (3, 1024), (4, 6)])
def test_the_gradients_of_an_affine_map_are_those_of_numpy(graph, depth, output, transpose):
    x, kernel, bias, dy = drawn(9, depth), drawn(depth, output), drawn(output), drawn(9, output)
    inputs = [tf.constant(v) for v in (x, kernel.T if transpose else kernel, bias)]
    y = affine(*inputs, transpose_kernel=transpose)
    gradients = tf1.gradients(y, inputs, grad_ys=tf.constant(dy))
    assert filled(graph) == [size for size in (depth, output) if size % 512 == 0]
    with tf1.Session() as session:
        got, (dx, dkernel, dbias) = session.run([y, gradients])
    for ours, exact in ((got, x @ kernel + bias), (dx, dy @ kernel.T), (dbias, dy.sum(0)),
                        (dkernel.T if transpose else dkernel, x.T @ dy)):
        np.testing.assert_allclose(ours, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("output", [512, 6])
def test_steps_of_decoding_multiply_by_filled_kernels_and_give_what_numpy_gives(graph, output, transpose):
    x, kernel, bias = drawn(9, 3), drawn(3, output), drawn(output)
    weights = tf1.get_variable("kernel", initializer=kernel), tf1.get_variable("bias", initializer=bias)
    multiplied_kernel = tf.transpose(weights[0]) if transpose else weights[0]
    with hoisting():
        kernels = [affine(tf.constant(x), multiplied_kernel, weights[1], transpose) for _ in range(2)]
        kernels.append(matmul(tf.constant(x), weights[0]))
    assert len(filled(graph)) == (0 if output == 6 else 2 + transpose) and kernels[0].shape == (9, output)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for product, expected in zip(session.run(kernels), [x @ kernel + bias] * 2 + [x @ kernel], strict=True):
            np.testing.assert_allclose(product, expected, rtol=1e-4, atol=1e-5)
