"""Minimal models of all four architectures, a batch for them, and functions for their tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from tests.variables import assign, assign_random
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.convs2s import ConvS2S
from towernmt.models.interface import shift_right
from towernmt.models.model_settings import ConvS2SSettings, RNNSearchSettings, Seq2SeqSettings, TransformerSettings
from towernmt.models.rnnsearch import RNNSearch
from towernmt.models.seq2seq import Seq2Seq
from towernmt.models.transformer import Transformer

_RNNSEARCH = {"embedding_size": 6, "encoder_size": 4, "decoder_size": 8, "attention_size": 5, "read_out_size": 6,
              "read_out": "tanh"}
"""With a smooth read-out: a maxout has kinks, which finite differences trip over."""
MODELS = {
    "transformer": (Transformer, TransformerSettings, {
        "hidden_size": 8, "filter_size": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2,
        "feed_forward": "swiglu"}),
    "seq2seq": (Seq2Seq, Seq2SeqSettings, {"embedding_size": 6, "hidden_size": 8}),
    "seq2seq, fed": (Seq2Seq, Seq2SeqSettings, {"embedding_size": 6, "hidden_size": 8, "input_feeding": True,
                                                "layer_norm": True}),
    "rnnsearch": (RNNSearch, RNNSearchSettings, {**_RNNSEARCH, "coverage": "linguistic", "decoder_layers": 2}),
    "rnnsearch, lstm": (RNNSearch, RNNSearchSettings, {**_RNNSEARCH, "attention": "general", "cell": "lstm",
                                                       "encoder_layers": 2}),
    "convs2s": (ConvS2S, ConvS2SSettings, {
        "embedding_size": 6, "encoder": "1x8/3", "decoder": "1x8/3,1x6/2", "output_size": 6,
        "scale_encoder_gradients": False}),
}
"""Class, settings and sizes."""
NO_DROPOUT = {"transformer": {"residual_dropout": 0.0, "embedding_dropout": 0.0},
              "seq2seq": {"dropout": 0.0, "embedding_dropout": 0.0},
              "rnnsearch": {"dropout": 0.0, "embedding_dropout": 0.0}, "convs2s": {"dropout": 0.0}}
"""Settings by architecture."""

SOURCE = np.array([[5, 9, 7, 2, 0, 0], [4, 4, 11, 6, 17, 2]], np.int32)
SOURCE_LENGTH = np.array([4, 6], np.int32)
TARGET = np.array([[8, 6, 2, 0, 0], [10, 3, 12, 18, 2]], np.int32)
TARGET_LENGTH = np.array([3, 5], np.int32)
INPUTS = [SOURCE, SOURCE_LENGTH, TARGET, TARGET_LENGTH, np.float32(8)]
FACTORED_SOURCE = np.stack([SOURCE, [[4, 6, 4, 2, 0, 0], [5, 4, 3, 6, 6, 2]], [[5, 5, 4, 2, 0, 0], [4, 5, 5, 4, 3, 2]]],
                           2).astype(np.int32)
"""`SOURCE` with two factors."""
FACTORS = {"source_factor_vocab_sizes": [7, 6], "source_factor_size": 3}
ALIGNMENT = np.zeros([2, 5, 6], np.uint8)
"""Of `TARGET` and `SOURCE`: links of one word, of several, of none."""
ALIGNMENT[0, 0, [0, 2]] = ALIGNMENT[0, 1, 1] = ALIGNMENT[1, 0, 4] = ALIGNMENT[1, 2, [0, 1, 2]] = 1
ALIGNMENT[1, 3, 0] = 1


def names_with(mark: pytest.MarkDecorator, *unmarked: str) -> list:
    """Return the names of all models as parameters, with a mark for all but some."""
    return [pytest.param(name, marks=[] if name in unmarked else mark) for name in MODELS]


RELATED = ("seq2seq", "rnnsearch, lstm")
"""Models that are only slow cases of tests in which the other recurrent models show the same."""


def make(name: str, quiet: bool = False, **more):
    """Return a model; a `quiet` one has no dropout."""
    model, settings, sizes = MODELS[name]
    words = {"source_vocab_size": 19, "target_vocab_size": 19}
    return model(settings(**{**words, **sizes, **(NO_DROPOUT[model.architecture] if quiet else {}), **more}))


def scramble(session, deviation: float = 0.4) -> dict[str, np.ndarray]:
    """Set random values for every variable, and return them by name."""
    return assign_random(session, np.random.default_rng(3), deviation)


def assert_logits(model: Any, reference: Callable[..., Any], deviation: float) -> None:
    """Assert that the logits of a model for each target word are those of a forward pass in NumPy.

    Args:
        model: the model, whose variables get random values.
        reference: makes an object with `logits(source, target_in)` from the model's settings and these values.
        deviation: standard deviation of the values.
    """
    with PredictTowerContext(""):
        logits = model.decode(model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH)),
                              shift_right(tf.constant(TARGET)))
    with tf1.Session() as session:
        values = scramble(session, deviation)
        found = session.run(logits)
    for row in range(2):
        target_in = np.concatenate([[1], TARGET[row, :TARGET_LENGTH[row] - 1]])
        expected = reference(model.settings, values).logits(SOURCE[row, :SOURCE_LENGTH[row]], target_in)
        np.testing.assert_allclose(found[row, :TARGET_LENGTH[row]], expected, rtol=1e-4, atol=1e-4)


def wider(source: np.ndarray, length: int = 3) -> np.ndarray:
    """Return an array with more padding in the second dimension."""
    return np.pad(source, [[0, 0], [0, length]] + [[0, 0]] * (source.ndim - 2))


def loss_and_gradients(model, inputs, scope: str = "", training: bool = True, reuse: bool = False) -> list:
    """Return tensors: the cost of a tower, and the gradient of each variable."""
    context = TrainTowerContext if training else PredictTowerContext
    with tf1.variable_scope("", reuse=reuse), context(scope):
        cost = model.build_graph(*map(tf.constant, inputs))
        gradients = tf1.gradients(cost, tf1.trainable_variables())
    assert None not in gradients
    return [cost, *map(tf.convert_to_tensor, gradients)]


def forced_and_stepwise(model, source, beam: int = 2, scope: str = "", most: int | None = None) -> tuple:
    """Return tensors: teacher-forced logits, those of the first steps of decoding, and the last state.
    """
    with PredictTowerContext(scope):
        memory = model.encode(tf.constant(source), tf.constant(SOURCE_LENGTH))
        target_in = shift_right(tf.constant(TARGET))
        forced, steps = model.decode(memory, target_in), []
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            state = model.start_state(memory, beam)
            for t in range(TARGET.shape[1])[:most]:
                logits, state = model.decode_step(tf.repeat(target_in[:, t], beam), state)
                steps.append(logits)
    return forced, steps, state


def guided_attention(model) -> object:
    """Return the guided attention `[batch, target length, source length]`, after creating all variables."""
    with PredictTowerContext(""):
        memory = model.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTH))
        hidden, attention = model.decode_with_attention(memory, shift_right(tf.constant(TARGET)))
        model.output_projection().logits(hidden)
    return attention


def slopes_by_differences(session, cost, variables, values, gradients, shift: float = 5e-3):
    """Yield (name, slope by central differences, slope by gradient) of each variable, along the gradient and across."""
    random, names = np.random.default_rng(5), [variable.op.name for variable in variables]
    all_values = dict(zip(names, values, strict=True))
    for name, value, gradient in zip(names, values, gradients, strict=True):
        for line in (gradient, random.normal(size=gradient.shape)):
            line = line / max(np.linalg.norm(line), 1e-9)
            costs = []
            for sign in (1, -1):
                assign(session, {**all_values, name: (value + sign * shift * line).astype(np.float32)})
                costs.append(float(session.run(cost)))
            yield name, (costs[0] - costs[1]) / (2 * shift), float(np.sum(gradient * line))
