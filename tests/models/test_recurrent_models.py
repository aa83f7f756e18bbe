"""What holds for both recurrent architectures as tower functions: padding, gradients, towers, search, learning."""

from __future__ import annotations

import numpy as np
import pytest
import towernmt_overfitting as overfitting
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels.precision import set_precision
from towernmt.models.layers.randomness import set_seed
from towernmt.models.recurrent.rnnsearch import RNNSearch, RNNSearchSettings
from towernmt.models.recurrent.seq2seq import Seq2Seq, Seq2SeqSettings

WORDS = {"source_vocab_size": 19, "target_vocab_size": 19}
MODELS = {
    "rnnsearch": (RNNSearch, RNNSearchSettings, {
        "embedding_size": 6, "encoder_size": 4, "decoder_size": 8, "attention_size": 5, "read_out_size": 6,
        "coverage": "linguistic", "decoder_layers": 2}),
    "rnnsearch, lstm": (RNNSearch, RNNSearchSettings, {
        "embedding_size": 6, "encoder_size": 4, "decoder_size": 8, "read_out_size": 6, "cell": "lstm",
        "attention": "dot", "layer_norm": True}),
    "seq2seq": (Seq2Seq, Seq2SeqSettings, {"embedding_size": 6, "hidden_size": 8}),
    "seq2seq, fed": (Seq2Seq, Seq2SeqSettings, {"embedding_size": 6, "hidden_size": 8, "input_feeding": True}),
}
SOURCE = np.array([[5, 9, 7, 2, 0, 0], [4, 4, 11, 6, 17, 2]], np.int32)
SOURCE_LENGTH = np.array([4, 6], np.int32)
TARGET = np.array([[8, 6, 2, 0, 0], [10, 3, 12, 18, 2]], np.int32)
TARGET_LENGTH = np.array([3, 5], np.int32)
INPUTS = (SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH, np.float32(8))


def make(name: str, **more):
    model, settings, sizes = MODELS[name]
    return model(settings(**{**WORDS, **sizes, **more}))


def scramble(session) -> None:
    random = np.random.default_rng(3)
    for variable in tf1.trainable_variables():
        variable.load(random.normal(0, 0.4, variable.shape).astype(np.float32), session)


@pytest.mark.parametrize("name", MODELS)
def test_more_padding_changes_neither_loss_nor_gradients(graph, name):
    model = make(name)
    wide = [np.pad(SOURCE, [[0, 0], [0, 3]]), SOURCE_LENGTH, np.pad(TARGET, [[0, 0], [0, 2]]), TARGET_LENGTH,
            np.float32(8)]
    results = []
    for index, inputs in enumerate([INPUTS, wide]):
        with tf1.variable_scope("", reuse=index > 0), PredictTowerContext(f"t{index}"):
            cost = model.build_graph(*map(tf.constant, inputs))
            results.append([cost, *map(tf.convert_to_tensor, tf1.gradients(cost, tf1.trainable_variables()))])
    with tf1.Session() as session:
        scramble(session)
        for a, b in zip(*session.run(results), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_agree_with_finite_differences(graph, name):
    """Along the gradient of each variable, where the slope is the gradient's length, and along a random line.

    The read-out is smooth here: a maxout has kinks within the shift.
    """
    model = make(name, kernels="loop", **({"read_out": "tanh"} if name.startswith("rnnsearch") else {}))
    with PredictTowerContext(""):
        cost = model.build_graph(*map(tf.constant, INPUTS))
    variables = tf1.trainable_variables()
    gradients = [tf.convert_to_tensor(g) for g in tf1.gradients(cost, variables)]
    shift = 5e-3
    random = np.random.default_rng(5)
    with tf1.Session() as session:
        scramble(session)
        values, slopes = session.run([variables, gradients])
        for variable, value, slope in zip(variables, values, slopes, strict=True):
            for line in (slope, random.normal(size=slope.shape)):
                line = line / np.linalg.norm(line)
                costs = []
                for sign in (1, -1):
                    variable.load((value + sign * shift * line).astype(np.float32), session)
                    costs.append(float(session.run(cost)))
                variable.load(value, session)
                assert (costs[0] - costs[1]) / (2 * shift) == pytest.approx(np.sum(slope * line), rel=0.02, abs=3e-4)


@pytest.mark.parametrize("name", MODELS)
def test_towers_share_their_variables_and_a_share_without_a_row_counts_nothing(graph, name):
    model = make(name, dropout=0.2, embedding_dropout=0.2)
    with TrainTowerContext("tower0", index=0, total=2):
        model.build_graph(*map(tf.constant, INPUTS))
    names = {v.op.name for v in tf1.global_variables()}
    with tf1.variable_scope("", reuse=True):
        with TrainTowerContext("tower1", index=1, total=2):
            cost = model.build_graph(*[tf.constant(array[:0]) for array in INPUTS[:4]], tf.constant(8.0))
            gradients = [tf.convert_to_tensor(g) for g in tf1.gradients(cost, tf1.trainable_variables())]
        with PredictTowerContext("predict"):
            model.build_graph(*map(tf.constant, INPUTS))
    assert {v.op.name for v in tf1.global_variables()} == names
    assert not any("tower" in name for name in names)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert not any(np.any(value) for value in session.run([cost, *gradients]))


def dropout_losses(name: str, seed: int, clocks: list[int]) -> list[float]:
    with tf.Graph().as_default():
        set_seed(seed)
        with TrainTowerContext(""):
            cost = make(name, dropout=0.3, embedding_dropout=0.2).build_graph(*map(tf.constant, INPUTS))
        clock = next(v for v in tf1.global_variables() if v.op.name == "random_clock")
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            losses = []
            for time in clocks:
                clock.load(time, session)
                losses.append(float(session.run(cost)))
            return losses


@pytest.mark.parametrize("name", ["rnnsearch", "seq2seq, fed"])
def test_dropout_is_a_function_of_seed_and_clock_alone(name):
    first, second, again = dropout_losses(name, 1, [0, 1, 0])
    assert first == again
    assert first != second
    assert dropout_losses(name, 1, [0]) == [first]


@pytest.mark.parametrize("name", ["rnnsearch", "seq2seq, fed"])
def test_bfloat16_stays_close_to_float32(name):
    losses = {}
    for precision in ("float32", "bfloat16"):
        with tf.Graph().as_default():
            set_precision(precision)
            with TrainTowerContext(""):
                cost = make(name, dropout=0.0, embedding_dropout=0.0).build_graph(*map(tf.constant, INPUTS))
                gradients = tf1.gradients(cost, tf1.trainable_variables())
            assert {g.dtype for g in gradients} == {tf.float32} and cost.dtype == tf.float32
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                losses[precision] = session.run(cost)
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.01)
    assert losses["bfloat16"] != losses["float32"]


def bleu_after_overfitting(name: str, pairs, steps: int, sentences: int, **sizes) -> float:
    kind, settings, _ = MODELS[name]
    return overfitting.bleu_after_overfitting(
        kind, lambda words: settings(**{"source_vocab_size": words, "target_vocab_size": words, "dropout": 0.0,
                                        "embedding_dropout": 0.0, "label_smoothing": 0.0, **sizes}),
        pairs, steps, sentences, learning_rate=3e-3)


@pytest.mark.parametrize("name, sizes", [
    ("rnnsearch", {"embedding_size": 32, "read_out_size": 32, "encoder_size": 32, "decoder_size": 64,
                   "attention_size": 32}),
    ("seq2seq, fed", {"embedding_size": 32, "hidden_size": 64, "layers": 1, "input_feeding": True}),
])
def test_a_few_pairs_are_learnt_by_heart_and_found_by_beam_search(name, sizes):
    assert bleu_after_overfitting(name, overfitting.made_up_pairs(10, 3, 5, 80), 200, 10, **sizes) > 95


@pytest.mark.slow
@pytest.mark.parametrize("name, sizes", [
    ("rnnsearch", {}),
    ("seq2seq", {}),
    ("seq2seq, fed", {"input_feeding": True}),
])
def test_a_hundred_real_pairs_are_learnt_by_heart(name, sizes):
    """The sizes are those of the preset `tiny`."""
    assert bleu_after_overfitting(name, overfitting.a_hundred_real_pairs(), 400, 50, **sizes) > 95
