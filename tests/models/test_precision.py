"""bfloat16 products: close to float32, with parameters, gradients and loss in float32."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import TrainTowerContext

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import affine, is_slow_on_cpu, matmul, on_gpu, relu, set_precision
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer

INPUTS = [np.array([[5, 9, 7, 2], [4, 8, 2, 0]], np.int32), np.array([4, 3], np.int32),
          np.array([[8, 6, 2], [10, 3, 2]], np.int32), np.array([3, 3], np.int32), np.float32(6)]


def loss_and_gradients(precision: str):
    with tf.Graph().as_default() as graph:
        set_precision(precision)
        model = Transformer(TransformerSettings(
            hidden_size=32, filter_size=64, heads=2, encoder_layers=2, decoder_layers=2, source_vocab_size=20,
            target_vocab_size=20, residual_dropout=0.2))
        with TrainTowerContext(""):
            cost = model.build_graph(*map(tf.constant, INPUTS))
            gradients = tf1.gradients(cost, tf1.trainable_variables())
        # A product with one row is a sum over the kernel's rows, which stays float32.
        products = {op.get_attr("T") for op in graph.get_operations()
                    if op.type in ("MatMul", "BatchMatMul", "BatchMatMulV2") and op.inputs[0].shape[0] != 1}
        assert {v.dtype.base_dtype for v in tf1.trainable_variables()} == {tf.float32}
        assert cost.dtype == tf.float32 and {g.dtype for g in gradients} == {tf.float32}
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            return products, session.run([cost, [tf.convert_to_tensor(g) for g in gradients]])


@pytest.mark.thorough
def test_bfloat16_rounds_the_factors_of_every_product_and_nothing_else():
    products, (loss, gradients) = loss_and_gradients("float32")
    rounded_products, (rounded_loss, rounded_gradients) = loss_and_gradients("bfloat16")
    assert products == {tf.float32} and rounded_products == {tf.bfloat16}
    assert abs(loss - rounded_loss) < 0.01 * loss
    flat, rounded_flat = (np.concatenate([g.ravel() for g in gs]) for gs in (gradients, rounded_gradients))
    cosine = flat @ rounded_flat / np.linalg.norm(flat) / np.linalg.norm(rounded_flat)
    assert 0.995 < cosine < 1.0
    assert loss != rounded_loss


def test_a_product_in_bfloat16_equals_the_product_of_rounded_factors(graph):
    random = np.random.default_rng(0)
    a, b = random.normal(size=(7, 33)).astype(np.float32), random.normal(size=(33, 5)).astype(np.float32)
    set_precision("bfloat16")
    product = tf.cast(matmul(tf.constant(a), tf.constant(b)), tf.float32)
    rounded = [tf.cast(tf.cast(tf.constant(m), tf.bfloat16), tf.float32) for m in (a, b)]
    with tf1.Session() as session:
        got, (a16, b16) = session.run([product, rounded])
    exact = a16.astype(np.float64) @ b16.astype(np.float64)
    assert np.abs(got - exact).max() <= np.abs(exact).max() * 2 ** -7


@pytest.mark.parametrize(("ones", "device"), [(2, "/cpu:0"), (32, "/cpu:0"), (2, "/gpu:0")])    # without AMX, with it
@pytest.mark.parametrize("transpose", [False, True])
def test_an_affine_map_in_bfloat16_and_its_gradients_equal_those_of_rounded_values(
        graph, monkeypatch, transpose, ones, device):
    monkeypatch.setattr("towernmt.models.kernels._ONES", ones)
    random = np.random.default_rng(1)
    x, kernel, bias, dy = (rounded(random.normal(size=size)) for size in ((9, 40), (40, 6), (6,), (9, 6)))
    set_precision("bfloat16")
    with tf1.device(device):
        inputs = [tf.constant(v) for v in (x, kernel.T if transpose else kernel, bias)]
        y = tf.cast(affine(*inputs, transpose_kernel=transpose), tf.float32)
        gradients = tf1.gradients(y, inputs, grad_ys=tf.constant(dy))
    copies = any(operation.type.startswith("Concat") for operation in graph.get_operations())
    assert copies == (device == "/cpu:0")
    with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True)) as session:
        got, (dx, dkernel, dbias) = session.run([y, gradients])
    dkernel = dkernel.T if transpose else dkernel
    for ours, exact in ((got, x @ kernel + bias), (dx, dy @ kernel.T), (dkernel, x.T @ dy), (dbias, dy.sum(0))):
        assert ours.dtype == np.float32
        assert np.abs(ours - exact).max() <= np.abs(exact).max() * 2 ** -7


def test_operations_without_a_device_run_on_a_gpu_if_tensorflow_sees_one(graph, monkeypatch):
    results_in_loops = []

    def is_on_gpu(device, gpus):
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: gpus)
        with tf1.device(device):
            x = tf.constant(1.0)
            tf.while_loop(lambda x: x < 2.0, lambda x: results_in_loops.append(on_gpu(x)) or x + 1.0, [x])
        return on_gpu(x)

    assert [is_on_gpu(device, gpus) for device in (None, "/cpu:0", "/gpu:0") for gpus in ([], ["GPU:0"])] == [
        False, True, False, False, True, True]
    assert results_in_loops == [False, True, False, False, True, True]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_relu_and_its_gradient_are_exact_for_every_kind_of_number(graph, precision):
    values = np.array([-np.inf, -3e38, -1.0, -1e-37, -0.0, 0.0, 1e-37, 0.5, 3e38, np.inf], np.float32)
    dy = np.array([1, -2, 3, -4, 5, -6, 7, -8, 9, -10], np.float32)
    x = tf.cast(tf.constant(values), precision)
    y = relu(x)
    (dx,) = tf1.gradients(y, x, grad_ys=tf.cast(tf.constant(dy), precision))
    with tf1.Session() as session:
        x, y, dx = session.run([tf.cast(t, tf.float32) for t in (x, y, dx)])
    assert y.tolist() == np.maximum(x, 0).tolist()
    assert dx.tolist() == np.where(x > 0, dy, 0).tolist()


@pytest.mark.parametrize("fast", [False, True])
def test_a_narrow_precision_is_slow_if_the_processor_lacks_its_instructions(monkeypatch, fast):
    monkeypatch.setattr("towernmt.models.kernels.has_fast_bfloat16", lambda: fast)
    slow = {name: is_slow_on_cpu(name) for name in ("float32", "bfloat16", "float16")}
    assert slow == {"float32": False, "bfloat16": not fast, "float16": True}


def rounded(values):
    return values.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
