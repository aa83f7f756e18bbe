"""The loss and the layers, compared with formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import TrainTowerContext

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.layers.feed_forward import _standardize
from towernmt.models.layers.projections import Projection
from towernmt.models.layers.randomness import start_clock
from towernmt.models.losses import LossBatch, TokenRows
from towernmt.models.recurrent_cells import at_end


def dense_reference(hidden, kernel, bias, target, length, smoothing):
    """Return the cross-entropy with the dense smoothed distribution, by definition."""
    total = 0.0
    for row in range(len(target)):
        for t in range(length[row]):
            logits = kernel @ hidden[row, t] + bias
            log_probability = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
            expected = np.full(len(kernel), smoothing / len(kernel))
            expected[target[row, t]] += 1 - smoothing
            total -= expected @ log_probability
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("length", [[5, 2, 1], [0, 0, 0], [0, 5, 3]])
@pytest.mark.parametrize(("of_nll", "device"), [(0.0, "/cpu:0"), (-0.7, "/cpu:0"), (0.0, "/gpu:0")])
def test_smoothed_loss_and_its_gradients_equal_the_dense_one_hot_formula(graph, smoothing, length, of_nll, device):
    random = np.random.default_rng(0)
    hidden, kernel, bias = random.normal(size=(3, 5, 4)), random.normal(size=(11, 4)), random.normal(size=11)
    target = random.integers(3, 11, (3, 5)).astype(np.int32)
    inputs = [tf.constant(a, tf.float32) for a in (hidden, kernel, bias)]
    with tf1.device(device):
        batch = LossBatch(None, None, tf.constant(target), tf.constant(length), inputs[0],
                          Projection(inputs[1], inputs[2]), is_training=True)
        loss, nll = batch.cross_entropy(smoothing), batch.negative_log_likelihood()
        gradients = [tf.convert_to_tensor(g) for g in tf1.gradients(1.5 * loss + of_nll * nll, inputs)]
    scattered = any(operation.type == "TensorScatterAdd" for operation in graph.get_operations())
    assert scattered == (device == "/cpu:0")        # on a GPU it would copy data to the CPU
    with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True)) as session:
        got_loss, got_nll, got = session.run([loss, nll, gradients])
    arguments = [hidden, kernel, bias]
    assert got_loss == pytest.approx(dense_reference(*arguments, target, length, smoothing), rel=1e-5, abs=1e-6)
    assert got_nll == pytest.approx(dense_reference(*arguments, target, length, 0.0), rel=1e-5, abs=1e-6)
    for which in range(3):
        direction = random.normal(size=arguments[which].shape)
        step = 1e-5
        moved = [[a + sign * step * direction if i == which else a for i, a in enumerate(arguments)]
                 for sign in (1, -1)]
        ahead, behind = (1.5 * dense_reference(*a, target, length, smoothing)
                         + of_nll * dense_reference(*a, target, length, 0.0) for a in moved)
        slope = (ahead - behind) / (2 * step)
        assert np.sum(got[which] * direction) == pytest.approx(slope, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_sample_of_the_whole_vocabulary_has_its_loss_and_gradients(graph, smoothing):
    random = np.random.default_rng(0)
    hidden, kernel, bias = (tf.constant(random.normal(size=size), tf.float32) for size in ((3, 5, 4), (11, 4), (11,)))
    target, length = tf.constant(random.integers(3, 11, (3, 5)).astype(np.int32)), tf.constant([5, 2, 1])
    tensors = []
    with TrainTowerContext(""):
        start_clock(tf.constant(0.0))
        for share in (0.0, 1.0 - 1e-7):
            batch = LossBatch(None, None, target, length, hidden, Projection(kernel, bias), True, softmax_sample=share)
            loss = batch.cross_entropy(smoothing)
            gradients = tf1.gradients(loss, [hidden, kernel, bias])
            tensors.append([loss, batch.negative_log_likelihood(), *map(tf.convert_to_tensor, gradients)])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for complete, sampled in zip(*session.run(tensors), strict=True):
            np.testing.assert_allclose(sampled, complete, rtol=1e-5, atol=1e-5)


def test_a_sampled_softmax_has_the_labels_and_a_normaliser_whose_mean_is_that_of_the_vocabulary(graph):
    random = np.random.default_rng(0)
    hidden, kernel, bias = random.normal(size=(1, 2, 4)), random.normal(size=(50, 4)), random.normal(size=50)
    label = 7
    with TrainTowerContext(""):
        start_clock(tf.constant(0.0))
        batch = LossBatch(None, None, tf.constant([[label, 0]]), tf.constant([1]), tf.constant(hidden, tf.float32),
                          Projection(tf.constant(kernel, tf.float32), tf.constant(bias, tf.float32)), True,
                          softmax_sample=0.3)
        tensors = [batch.negative_log_likelihood(), tf.shape(batch.logits)[1], batch.logits[0, batch.labels[0]]]
    clock = tf1.get_default_graph().get_tensor_by_name("random_clock_now:0")
    with tf1.Session() as session:
        drawn = np.array([session.run(tensors, {clock: step}) for step in range(2000)])
        assert session.run(tensors, {clock: 3})[0] == drawn[3, 0]         # a function of the batch's number
    logits = kernel @ hidden[0, 0] + bias
    normalisers = np.exp(drawn[:, 0] + logits[label])
    assert abs(normalisers.mean() - np.exp(logits).sum()) < 4 * normalisers.std() / np.sqrt(2000)
    assert abs(drawn[:, 1].mean() - (1 + 49 * 0.3)) < 0.4 and drawn[:, 1].std() > 1
    np.testing.assert_allclose(drawn[:, 2], logits[label], rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_and_its_gradient_read_each_variable_once(graph, smoothing):
    """An optimizer may change a variable before a second read, and gradients would then belong to different weights."""
    kernel = tf1.get_variable("kernel", [11, 4], use_resource=True)
    bias = tf1.get_variable("bias", [11], use_resource=True)
    before = len(graph.get_operations())
    batch = LossBatch(None, None, tf.constant([[4, 5]]), tf.constant([2]), tf.ones([1, 2, 4]), Projection(kernel, bias),
                      is_training=True)
    tf1.gradients(batch.cross_entropy(smoothing) + batch.negative_log_likelihood(), [kernel, bias])
    read = [operation.inputs[0].op.name for operation in graph.get_operations()[before:]
            if operation.inputs and operation.inputs[0].dtype == tf.resource]
    assert sorted(read) == ["bias", "kernel"]


@pytest.mark.parametrize("length", [[5, 2, 1], [0, 0, 0], [0, 5, 3]])
def test_tokens_and_their_gradients_have_the_bits_of_gather_nd_without_its_scatter(graph, length):
    random = np.random.default_rng(0)
    x, dy = (tf.constant(random.normal(size=shape), tf.float32) for shape in ([3, 5, 4], [sum(length), 4]))
    rows = TokenRows(tf.constant(length), tf.constant(5))
    positions = tf.where(tf.sequence_mask(length, 5))
    ours = rows.select(x)
    gradients = [ours, *tf1.gradients(ours, x, dy), rows.padded(dy[:, 0]),
                 *tf1.gradients(rows.padded(dy[:, 0]), dy, x[:, :, 0])]
    assert not any("ScatterNd" in operation.type for operation in graph.get_operations())
    theirs = tf.gather_nd(x, positions)
    scattered = tf.scatter_nd(positions, dy[:, 0], [3, 5])
    expected = [theirs, *tf1.gradients(theirs, x, dy), scattered, *tf1.gradients(scattered, dy, x[:, :, 0])]
    with tf1.Session() as session:
        for got, reference in zip(*session.run([gradients, expected]), strict=True):
            np.testing.assert_array_equal(got, reference)
        np.testing.assert_array_equal(*session.run([rows.select(x[:, :, 0]), tf.gather_nd(x[:, :, 0], positions)]))


def test_the_last_step_and_its_gradient_have_the_bits_of_gather_nd_without_its_scatter(graph):
    random = np.random.default_rng(0)
    x, dy = (tf.constant(random.normal(size=shape), tf.float32) for shape in ([5, 3, 4], [3, 4]))
    (ours,) = at_end([x], tf.constant([5, 1, 3]))
    gradient = tf1.gradients(ours, x, dy)[0]
    assert not any("ScatterNd" in operation.type for operation in graph.get_operations())
    theirs = tf.gather_nd(x, [[4, 0], [0, 1], [2, 2]])
    with tf1.Session() as session:
        for got, reference in (session.run((ours, theirs)), session.run((gradient, tf1.gradients(theirs, x, dy)[0]))):
            np.testing.assert_array_equal(got, reference)


def test_standardisation_has_the_gradient_that_tensorflow_derives(graph):
    x = tf.constant(np.random.default_rng(0).normal(2, 3, (7, 12)), tf.float32)
    weights = tf.constant(np.random.default_rng(1).normal(size=(7, 12)), tf.float32)
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    derived = (x - mean) / tf.sqrt(variance + 1e-6)
    ours = _standardize(x, 1e-6)
    with tf1.Session() as session:
        a, b, ga, gb = session.run([ours, derived, tf1.gradients(tf.reduce_sum(ours * weights), x)[0],
                                    tf1.gradients(tf.reduce_sum(derived * weights), x)[0]])
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ga, gb, rtol=1e-3, atol=1e-5)
