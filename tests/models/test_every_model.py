"""What holds for every architecture as a tower function, and as a decoder that search drives step by step."""

from __future__ import annotations

import numpy as np
import pytest
import towernmt_tiny_models as tiny
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel, shift_right


@pytest.mark.parametrize("beam", [1, 2])
@pytest.mark.parametrize("name", tiny.MODELS)
def test_the_attention_of_a_step_is_that_of_teacher_forcing(graph, name, beam):
    model = tiny.make(name)
    assert model.gives_step_attention
    with PredictTowerContext(""):
        memory = model.encode(tf.constant(tiny.SOURCE), tf.constant(tiny.SOURCE_LENGTH))
        target_in = shift_right(tf.constant(tiny.TARGET))
        hidden, forced = model.decode_with_attention(memory, target_in)
        forced_logits, steps = model.output_projection().logits(hidden), []
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            state = model.start_state(memory, beam)
            for t in range(tiny.TARGET.shape[1]):
                logits, state, attention = model.decode_step(tf.repeat(target_in[:, t], beam), state, attention=True)
                steps.append((attention, logits))
    with tf1.Session() as session:
        tiny.scramble(session)
        expected, expected_logits, got = session.run([forced, forced_logits, steps])
    for t, (attention, logits) in enumerate(got):
        np.testing.assert_allclose(attention, np.repeat(expected[:, t], beam, 0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(logits, np.repeat(expected_logits[:, t], beam, 0), rtol=1e-4, atol=1e-5)


def test_a_model_of_ones_own_whose_steps_cannot_give_attention_says_so():
    class Own(NMTModel):
        encode = decode_hidden = output_projection = start_state = optimizer = None

        def decode_with_attention(self, memory, target_in):
            return None, None

        def decode_step(self, token, state):
            return None, state

    assert Own().gives_attention and not Own().gives_step_attention
    assert not tiny.make("seq2seq", attention="none").gives_step_attention
