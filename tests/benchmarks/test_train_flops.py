"""The benchmark's formulas, compared with the multiplications that TensorFlow executes, loops included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tensorflow.python.ops import gen_math_ops, gen_nn_ops
from tensorpack.tfutils.tower import TrainTowerContext
from train_flops import forward_flops, train_flops

from towernmt.core.tf_compat import tf, tf1
from towernmt.models import architecture

pytestmark = pytest.mark.thorough

SENTENCES, LENGTH, VOCABULARY = 3, 5, 37

SIZES: list[tuple[str, dict[str, Any]]] = [
    ("transformer", {"hidden_size": 8, "filter_size": 20, "heads": 2, "encoder_layers": 2, "decoder_layers": 3}),
    ("seq2seq", {"embedding_size": 6, "hidden_size": 10, "layers": 2}),
    ("seq2seq", {"embedding_size": 6, "hidden_size": 10, "layers": 3, "cell": "gru", "attention": "dot"}),
    ("seq2seq", {"embedding_size": 6, "hidden_size": 10, "layers": 2, "attention": "none"}),
    ("seq2seq", {"embedding_size": 6, "hidden_size": 10, "layers": 2, "input_feeding": True}),
    ("rnnsearch", {"embedding_size": 6, "encoder_size": 5, "decoder_size": 9, "attention_size": 7, "read_out_size": 6}),
    ("rnnsearch", {"embedding_size": 6, "encoder_size": 5, "decoder_size": 9, "attention_size": 7, "read_out_size": 6,
                   "cell": "lstm", "attention": "general", "encoder_layers": 2, "decoder_layers": 2,
                   "read_out": "tanh"}),
    ("convs2s", {"embedding_size": 6, "encoder": "2x4/3,1x8/1", "decoder": "1x5/3,2x6/2", "output_size": 6}),
]


def matrix_product(a: Any, b: Any, out: Any, transpose: bool) -> Any:
    """Return the operations of `a` `[..., m, k]` (or `[..., k, m]`) times `b`: two for each k and element of `out`."""
    return 2 * tf.size(out) * tf.shape(a)[-2 if transpose else -1]


def convolution(filter_shape: Any, pixels: Any) -> Any:
    """Return the operations of a convolution with a filter `[height, width, input, output]` at these output pixels."""
    return 2 * tf.reduce_prod(filter_shape) * tf.reduce_prod(pixels)


@contextmanager
def counting(counter: Any) -> Iterator[None]:
    """Make every product that is built inside the block add its operations to `counter` when it runs."""
    def counted(original: Callable[..., Any], flops: Callable[..., Any]) -> Callable[..., Any]:
        def build(*arguments: Any, **named: Any) -> Any:
            out = original(*arguments, **named)
            add = counter.assign_add(tf.cast(flops(out, *arguments, **named), tf.int64), read_value=False)
            with tf1.control_dependencies([add]):
                return tf.identity(out)
        return build

    def flat(out: Any, a: Any, b: Any, transpose_a: bool = False, **_: Any) -> Any:
        # Products with one row are sums, which the loss computes by a product because that is faster.
        return 0 if a.shape[0] == 1 else matrix_product(a, b, out, transpose_a)

    def batched(out: Any, x: Any, y: Any, adj_x: bool = False, **_: Any) -> Any:
        return matrix_product(x, y, out, adj_x)

    def forward(out: Any, x: Any, filter: Any, *_: Any, **__: Any) -> Any:
        return convolution(tf.shape(filter), tf.shape(out)[:3])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gen_math_ops, "mat_mul", counted(gen_math_ops.mat_mul, flat))
        patch.setattr(tf.raw_ops, "BatchMatMul", counted(tf.raw_ops.BatchMatMul, batched))
        for name in ("batch_mat_mul_v2", "batch_mat_mul_v3"):
            patch.setattr(gen_math_ops, name, counted(getattr(gen_math_ops, name), batched))
        patch.setattr(gen_nn_ops, "conv2d", counted(gen_nn_ops.conv2d, forward))
        patch.setattr(gen_nn_ops, "conv2d_backprop_input", counted(
            gen_nn_ops.conv2d_backprop_input,
            lambda out, sizes, filter, gradient, *_, **__: convolution(tf.shape(filter), tf.shape(gradient)[:3])))
        patch.setattr(gen_nn_ops, "conv2d_backprop_filter", counted(
            gen_nn_ops.conv2d_backprop_filter,
            lambda out, x, sizes, gradient, *_, **__: convolution(sizes, tf.shape(gradient)[:3])))
        yield


def count(name: str, sizes: dict[str, Any], gradients: bool) -> tuple[int, Any]:
    """Return the counted operations of one pass over sentences without padding, and the model's settings."""
    kind = architecture(name)
    settings = kind.settings(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, **sizes)
    with tf.Graph().as_default():
        counter = tf1.get_variable("counter", [], tf.int64, tf1.zeros_initializer(), trainable=False,
                                   use_resource=True, collections=[tf1.GraphKeys.LOCAL_VARIABLES])
        model = kind.model(settings)
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
        with counting(counter), TrainTowerContext(""):
            loss = model.build_graph(*inputs)
            fetches = tf1.gradients(loss, tf1.trainable_variables()) if gradients else [loss]
        ids = np.full((SENTENCES, LENGTH), 5, np.int32)
        lengths = np.full(SENTENCES, LENGTH, np.int32)
        values = [ids, lengths, ids, lengths, np.float32(SENTENCES * LENGTH)]
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            session.run(fetches, dict(zip(inputs, values, strict=True)))
            return int(session.run(counter)), settings


@pytest.mark.parametrize(("name", "sizes"), [
    pytest.param(*case, marks=[pytest.mark.slow] * (number in (2, 3, 4, 5))) for number, case in enumerate(SIZES)])
def test_forward_operations_are_those_that_tensorflow_makes(name: str, sizes: dict[str, Any]) -> None:
    counted, settings = count(name, sizes, gradients=False)
    tokens = SENTENCES * LENGTH
    assert counted == forward_flops(name, settings, tokens, tokens, LENGTH)


@pytest.mark.parametrize(("name", "sizes"), [
    SIZES[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in (SIZES[1], SIZES[-1]))])
def test_a_step_makes_three_times_those_of_its_forward_pass(name: str, sizes: dict[str, Any]) -> None:
    counted, settings = count(name, sizes, gradients=True)
    tokens = SENTENCES * LENGTH
    assert counted == pytest.approx(train_flops(name, settings, tokens, tokens, LENGTH), rel=1e-3)


def test_the_transformer_counts_as_the_usual_benchmark_of_peers_does() -> None:
    d, f, layers, vocabulary, length = 256, 1024, 3, 8000, 24
    source, target = 900, 850
    encoder = layers * (8 * d * d + 4 * d * f + 4 * length * d) + layers * 4 * d * d
    decoder = layers * (12 * d * d + 4 * d * f + 8 * length * d) + 2 * d * vocabulary
    settings = architecture("transformer").settings(source_vocab_size=vocabulary, target_vocab_size=vocabulary)
    assert train_flops("transformer", settings, source, target) == 3 * (source * encoder + target * decoder)
