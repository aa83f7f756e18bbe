"""The input of the decoder before the first word: with `start` zero an embedding of zeros, in both forms."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

import tests.models.tiny_models as tiny
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.models.interface import shift_right


@pytest.mark.parametrize("name", ["transformer", *[
    pytest.param(name, marks=pytest.mark.thorough) for name in ("rnnsearch", "seq2seq", "convs2s")]])
def test_a_zero_start_reads_what_bos_reads_from_a_row_of_zeros_whatever_that_row_holds(graph, name):
    sizes = {"tie_embeddings": "none"}
    learned, zero = (tiny.make(name, quiet=True, start=start, **sizes) for start in ("bos", "zero"))
    target_in = shift_right(tf.constant(tiny.TARGET))
    source = tf.constant(tiny.SOURCE), tf.constant(tiny.SOURCE_LENGTH)
    with PredictTowerContext(""):
        expected = learned.decode(learned.encode(*source), target_in)
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):      # the same variables
            memory = zero.encode(*source)
            forced, steps = zero.decode(memory, target_in), []
            state = zero.start_state(memory, 1)
            for t in range(tiny.TARGET.shape[1]):
                logits, state = zero.decode_step(target_in[:, t], state)
                steps.append(logits)
    (table,) = [v for v in tf1.trainable_variables() if v.op.name.endswith("target_embedding")]
    with tf1.Session() as session:
        rows = tiny.scramble(session)[table.op.name]
        by_row, by_zero, by_step = session.run([expected, forced, tf.stack(steps, 1)])
        rows[BOS] = 0.0
        table.load(rows, session)
        zero_row, still_zero = session.run([expected, forced])
    assert np.abs(by_row - by_zero).max() > 0.01
    np.testing.assert_allclose(by_zero, zero_row, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_step, by_zero, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(still_zero, by_zero)
