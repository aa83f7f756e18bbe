"""Word dropout, and R-Drop compared with its formula in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.layers.projections import Projection
from towernmt.models.layers.randomness import drop_words, start_clock
from towernmt.models.losses import LossBatch, r_drop_loss
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer

pytestmark = pytest.mark.thorough

INPUTS = [np.array([[5, 9, 7, 2], [4, 8, 2, 0]], np.int32), np.array([4, 3], np.int32),
          np.array([[8, 6, 2], [10, 2, 0]], np.int32), np.array([3, 2], np.int32), np.float32(5)]
SIZES = {"hidden_size": 8, "filter_size": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1,
         "source_vocab_size": 11, "target_vocab_size": 11}


def test_words_become_unknown_at_the_given_rate_and_nothing_else_changes(graph):
    ids = np.random.default_rng(0).integers(0, 50, [100, 200]).astype(np.int32)
    with TrainTowerContext(""):
        start_clock(tf.constant(0.0))
        read = drop_words(tf.constant(ids), 0.3, "words")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        got = session.run(read)
    changed = got != ids
    assert set(got[changed]) == {3} and ids[changed].min() > 3
    assert changed.mean() == pytest.approx(0.3 * (ids > 3).mean(), abs=0.01)


def test_words_are_dropped_in_training_alone(graph):
    ids = tf.constant(INPUTS[0])
    with PredictTowerContext(""):
        assert drop_words(ids, 0.3, "words") is ids


def test_disagreement_of_two_passes_costs_what_the_formula_says(graph):
    random = np.random.default_rng(1)
    hidden, kernel, bias = (random.normal(size=size) for size in ([4, 3, 6], [9, 6], [9]))
    length, target = np.array([3, 2]), np.array([[4, 7, 2], [5, 2, 0]])
    both = [np.concatenate([x, x]).astype(np.int32) for x in (target, length)]
    projection = Projection(*(tf.constant(x, tf.float32) for x in (kernel, bias)))
    batch = LossBatch(None, None, *map(tf.constant, both), tf.constant(hidden, tf.float32), projection, True)
    losses = [r_drop_loss(batch.cross_entropy(0.1), batch.logits, 5.0), batch.negative_log_likelihood() / 2.0]
    with tf1.Session() as session:
        got = session.run(losses)
    logits = hidden @ kernel.T + bias
    log_p = (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).reshape(2, 2, 3, 9)
    nll = loss = 0.0
    for row in range(2):
        for t in range(length[row]):
            p, q = log_p[0, row, t], log_p[1, row, t]
            divergence = (np.exp(p) * (p - q)).sum() + (np.exp(q) * (q - p)).sum()
            right = (p[target[row, t]] + q[target[row, t]]) / 2
            smooth = (p.mean() + q.mean()) / 2
            nll -= right
            loss += -0.9 * right - 0.1 * smooth + 5.0 / 2 * divergence / 2
    np.testing.assert_allclose(got, [loss, nll], rtol=1e-5)


def loss_and_gradients(**options) -> list[np.ndarray]:
    with tf.Graph().as_default(), tf1.Session() as session:
        model = Transformer(TransformerSettings(**SIZES, **options))
        with TrainTowerContext(""):
            cost = model.build_graph(*map(tf.constant, INPUTS))
            gradients = tf1.gradients(cost, tf1.trainable_variables())
        session.run(tf1.global_variables_initializer())
        return session.run([cost, *map(tf.convert_to_tensor, gradients)])


def loss_of_validation(**options) -> float:
    with tf.Graph().as_default(), tf1.Session() as session:
        with PredictTowerContext(""):
            loss = Transformer(TransformerSettings(**SIZES, **options)).build_graph(*map(tf.constant, INPUTS))
        session.run(tf1.global_variables_initializer())
        return float(session.run(loss))


def test_a_tower_that_validates_has_the_complete_softmax():
    assert loss_of_validation(softmax_sample=0.3) == loss_of_validation()


def test_two_passes_cost_as_much_as_one_without_dropout_and_more_with_it():
    quiet = {"residual_dropout": 0.0, "embedding_dropout": 0.0}
    once, twice = loss_and_gradients(**quiet), loss_and_gradients(**quiet, r_drop_alpha=5.0)
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    (agreeing, *_), (disagreeing, *_) = (loss_and_gradients(r_drop_alpha=w) for w in (1e-6, 5.0))
    assert disagreeing > agreeing + 0.01


def test_a_model_trained_with_word_dropout_reads_fewer_words():
    assert loss_and_gradients(word_dropout=0.5)[0] != loss_and_gradients()[0]
