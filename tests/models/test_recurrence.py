"""Recurrent layers compared with NumPy, fused kernels with the loop, and the loop's gradient with TensorFlow's."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from tests.models.numpy_layers import sigmoid, standardized
from tests.variables import assign_random
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import set_precision
from towernmt.models.layers.randomness import set_seed, start_clock
from towernmt.models.recurrent_cells import Cell, at_end, reverse, run_both_ways, sequence_dropout
from towernmt.models.scan import Step, apply_now, scan

TIME, BATCH, INPUT, DEPTH = 5, 3, 4, 6
KINDS = ("gru", "lstm")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=[TIME, BATCH, INPUT]).astype(np.float32)
LENGTH = np.array([5, 2, 3], np.int32)


def reference(kind: str, v: dict[str, np.ndarray], x: np.ndarray, norm: bool = False) -> np.ndarray:
    """Return the outputs `[time, batch, depth]` by the equations in the docstring of `Cell`, step by step."""
    def affine(name, x, h):
        kernel, bias = v[f"{name}/kernel"], v[f"{name}/bias"]
        ahead, back = x @ kernel[:INPUT], h @ kernel[INPUT:]
        if norm:
            ahead = standardized(ahead) * v[f"{name}/input_scale"]
            back = standardized(back) * v[f"{name}/state_scale"]
        return ahead + back + bias

    h = c = np.zeros([x.shape[1], DEPTH])
    outputs = []
    for inputs in x.astype(np.float64):
        if kind == "gru":
            r, u = np.split(sigmoid(affine("gates", inputs, h)), 2, -1)
            h = u * h + (1 - u) * np.tanh(affine("candidate", inputs, r * h))
        else:
            i, f, g, o = np.split(affine("gates", inputs, h), 4, -1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            squashed_cell = standardized(c) * v["cell_norm/scale"] + v["cell_norm/offset"] if norm else c
            h = sigmoid(o) * np.tanh(squashed_cell)
        outputs.append(h)
    return np.array(outputs)


def scramble(session) -> dict[str, np.ndarray]:
    values = assign_random(session, np.random.default_rng(3), 0.5)
    return {name.split("/", 1)[1]: value for name, value in values.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernels, norm", [("loop", False), ("fused", False), ("loop", True)])
def test_outputs_equal_the_equations_of_the_papers(graph, kind, kernels, norm):
    cell = Cell(kind, INPUT, DEPTH, "layer", layer_norm=norm, kernels=kernels)
    outputs = cell.run(tf.constant(X), cell.zero_state(BATCH))[-1]
    with tf1.Session() as session:
        values = scramble(session)
        np.testing.assert_allclose(session.run(outputs), reference(kind, values, X, norm), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_fused_kernels_and_loop_agree_in_outputs_and_all_gradients(graph, kind):
    x = tf.constant(X)
    weights = tf.constant(np.random.default_rng(4).normal(size=[TIME, BATCH, DEPTH]).astype(np.float32))
    results = []
    for kernels in ("loop", "fused"):
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            cell = Cell(kind, INPUT, DEPTH, "layer", kernels=kernels)
        start = [tf.constant(0.3 * X[i, :, :1].repeat(DEPTH, 1)) for i in range(cell.state_size)]
        states = cell.run(x, start, whole_state=True)
        cost = tf.add_n([tf.reduce_sum(tf.square(state) * weights) for state in states])
        results.append([*states, *tf1.gradients(cost, [x, *start, *tf1.trainable_variables()])])
    with tf1.Session() as session:
        scramble(session)
        loop, fused = session.run(results)
    for a, b in zip(loop, fused, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(a).max()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernels", ["loop", "fused"])
def test_a_batch_without_rows_has_gradients_of_zero(graph, kind, kernels):
    """TensorFlow's kernel does not write the gradients of the weights, which then contain old memory."""
    cell = Cell(kind, INPUT, DEPTH, "layer", kernels=kernels)
    rows = tf1.placeholder_with_default(0, [])
    cost = tf.reduce_sum(cell.run(tf.constant(X)[:, :rows], cell.zero_state(rows))[-1])
    gradients = tf1.gradients(cost, tf1.trainable_variables())
    with tf1.Session() as session:
        scramble(session)
        session.run(gradients, {rows: BATCH})       # memory with content
        for gradient in session.run(gradients):
            np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernels, norm", [("loop", False), ("fused", False), ("loop", True)])
def test_a_step_by_itself_equals_the_step_of_a_sequence(graph, kind, kernels, norm):
    cell = Cell(kind, INPUT, DEPTH, "layer", layer_norm=norm, kernels=kernels)
    expected = cell.run(tf.constant(X), cell.zero_state(BATCH))[-1]
    state, got = cell.zero_state(BATCH), []
    for inputs in X:
        state = cell.step(tf.constant(inputs), [], state)
        got.append(state[-1])
    with tf1.Session() as session:
        scramble(session)
        np.testing.assert_allclose(*session.run([tf.stack(got), expected]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernels", ["loop", "fused"])
def test_the_backward_direction_reads_from_the_end_of_each_sentence(graph, kernels):
    cells = [Cell("gru", INPUT, DEPTH, name, kernels=kernels) for name in ("ahead", "back")]
    ahead, back = run_both_ways(*cells, tf.constant(X), tf.constant(LENGTH))
    (last,) = at_end([ahead], tf.constant(LENGTH))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        values = session.run({v.op.name: v for v in tf1.trainable_variables()})
        ahead, back, last = session.run([ahead, back, last])
    for row, length in enumerate(LENGTH):
        sentence = X[:length, row:row + 1]
        for got, name, order in ((ahead, "ahead", 1), (back, "back", -1)):
            variables = {key.split("/", 1)[1]: value for key, value in values.items() if key.startswith(name)}
            expected = reference("gru", variables, sentence[::order])[::order, 0]
            np.testing.assert_allclose(got[:length, row], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(last[row], ahead[length - 1, row])


def test_sequences_are_turned_round_within_their_length(graph):
    with tf1.Session() as session:
        got = session.run(reverse(tf.constant([[1, 5], [2, 6], [3, 0]]), tf.constant([3, 2])))
    assert got.T.tolist() == [[3, 2, 1], [6, 5, 0]]


def attention_like(step: Step):
    """A step with all features of a scan: a plain and a grouped matrix, shared and fixed tensors."""
    state, total = step.state
    weights = tf.nn.softmax(step.multiply(state[:, None], 1) * step.shared[0] + step.fixed[0])
    context = step.multiply(weights, 2)[:, 0]
    state = tf.tanh(step.inputs[0] + step.multiply(tf.concat([state, context], 1), 0))
    return [state, total * 0.5 + state], [state * total, context]


def unrolled(inputs, start, matrices, shared, fixed):
    state, emitted = start, []
    for time in range(TIME):
        state, outputs = attention_like(Step([x[time] for x in inputs], state,
                                             lambda a, i: tf.matmul(a, matrices[i]), apply_now, shared, fixed))
        emitted.append(outputs)
    return [tf.stack(parts) for parts in zip(*emitted, strict=True)]


def test_the_written_out_gradient_of_a_loop_equals_tensorflows_own_of_the_unrolled_steps(graph):
    random = np.random.default_rng(7)

    def tensors(*shapes):
        return [tf.constant(random.normal(size=shape).astype(np.float32)) for shape in shapes]

    inputs, start = tensors([TIME, BATCH, DEPTH]), tensors([BATCH, DEPTH], [BATCH, DEPTH])
    matrices = tensors([DEPTH + 4, DEPTH], [BATCH, DEPTH, 7], [BATCH, 7, 4])
    shared, fixed = tensors([BATCH, 1, 7]), tensors([BATCH, 1, 7])
    weights = tensors([TIME, BATCH, DEPTH], [TIME, BATCH, 4])
    results = []
    for emitted in (scan(attention_like, 2, inputs, start, matrices, shared, fixed),
                    unrolled(inputs, start, matrices, shared, fixed)):
        cost = tf.add_n([tf.reduce_sum(e * w) for e, w in zip(emitted, weights, strict=True)])
        results.append([*emitted, *tf1.gradients(cost, [*inputs, *start, *matrices, *shared])])
    with tf1.Session() as session:
        for a, b in zip(*session.run(results), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_in_bfloat16_the_products_are_rounded_and_the_rest_is_near(graph, kind):
    results = []
    for precision in ("float32", "bfloat16"):
        set_precision(precision)
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            cell = Cell(kind, INPUT, DEPTH, "layer")
        outputs = cell.run(tf.constant(X), cell.zero_state(BATCH))[-1]
        results.append([outputs, *tf1.gradients(tf.reduce_sum(outputs ** 2), tf1.trainable_variables())])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for exact, rounded in zip(*session.run(results), strict=True):
            assert rounded.dtype == np.float32
            assert 0 < np.abs(exact - rounded).max() < 0.05 * np.abs(exact).max()


def test_sequence_dropout_drops_the_same_units_at_every_step_and_nothing_outside_of_training(graph):
    set_seed(1)
    x = tf.ones([TIME, 50, 40])
    with TrainTowerContext(""):
        start_clock(x)
        dropped = sequence_dropout(x, 0.25, "place")
    with PredictTowerContext("predict"):
        assert sequence_dropout(x, 0.25, "place") is x
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        got, again = session.run(dropped), session.run(dropped)
    np.testing.assert_array_equal(got, again)
    np.testing.assert_array_equal(got, np.broadcast_to(got[:1], got.shape))
    assert (got == 0).mean() == pytest.approx(0.25, abs=0.03)
    np.testing.assert_allclose(np.unique(got), [0, 4 / 3], rtol=1e-6)
