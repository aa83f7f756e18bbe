"""Whole Transformers: gradients against finite differences, and pairs learnt by heart."""

from __future__ import annotations

import pytest
import towernmt_overfitting as overfitting
import towernmt_tiny_models as tiny

from towernmt.core.tf_compat import tf1
from towernmt.models.transformer.model import Transformer, TransformerSettings

STYLES = {
    "pre-norm": {},
    "post-norm": {"preprocess": "", "postprocess": "drn", "positions": "learned", "tie_embeddings": "none"},
    "relative": {"positions": "relative", "max_distance": 2, "norm": "rms", "feed_forward": "geglu"},
    "rotary": {"positions": "rotary", "feed_forward": "glu", "lhuc": True, "tie_embeddings": "target"},
}
"""All smooth: ReLUs have kinks, within the feed-forward layers and the SSRU."""


@pytest.mark.parametrize("style", STYLES)
def test_gradients_agree_with_finite_differences(graph, style):
    """Along the gradient of each variable, where the slope is the gradient's length, and along a random line."""
    model = tiny.make("transformer", quiet=True, **STYLES[style])
    cost, *gradients = tiny.loss_and_gradients(model, tiny.INPUTS)
    variables = tf1.trainable_variables()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        tiny.scramble(session)
        values, slopes = session.run([variables, gradients])
        for variable, expected, got in tiny.slopes_by_differences(session, cost, variables, values, slopes):
            assert got == pytest.approx(expected, rel=0.02, abs=3e-4), variable


def bleu_after_overfitting(pairs, steps: int, sentences: int, **sizes) -> float:
    return overfitting.bleu_after_overfitting(
        Transformer, lambda words: TransformerSettings(**{
            "source_vocab_size": words, "target_vocab_size": words, "residual_dropout": 0.0, "embedding_dropout": 0.0,
            "label_smoothing": 0.0, **sizes}),
        pairs, steps, sentences, learning_rate=1e-3, lower_rate=3e-4)


def test_a_few_pairs_are_learnt_by_heart_and_found_by_beam_search():
    assert bleu_after_overfitting(overfitting.made_up_pairs(10, 3, 5, 80), 150, 10, hidden_size=64, filter_size=128,
                                  encoder_layers=1, decoder_layers=1) > 95


@pytest.mark.slow
def test_a_hundred_real_pairs_are_learnt_by_heart():
    """The sizes are those of the preset `tiny`."""
    assert bleu_after_overfitting(overfitting.a_hundred_real_pairs(), 400, 50) > 95
