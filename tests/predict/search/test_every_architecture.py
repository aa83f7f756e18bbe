"""Every architecture under all settings of the search at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

import tests.models.tiny_models as tiny
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import shift_right
from towernmt.predict.search.decoding_interfaces import Decoded
from towernmt.predict.search.decoding_loop import decode
from towernmt.predict.search.decoding_tower import decoding_for
from towernmt.predict.search.search_settings import SearchSettings

EOS, PAD = 2, 0
RULES: dict[str, Any] = {"temperature": 1.3, "repetition_penalty": 1.2, "no_repeat_ngram": 2, "min_length": 1,
                         "min_length_factor": 0.7, "max_length_factor": 1.0, "max_length_constant": 4, "max_tokens": 8}
BEAM = SearchSettings(beam_size=4, beam_groups=2, n_best=3, diversity=0.7, length_normalization="average",
                      length_penalty=0.8, word_reward=0.2, coverage_penalty=0.3, stopping="first", patience=2.0,
                      **RULES)
SAMPLES = SearchSettings(selection="sampling", n_best=3, top_k=15, top_p=0.9, epsilon=0.001, seed=7, **RULES)


def search_of(model: Any, settings: SearchSettings) -> tuple[Callable[..., Decoded], Callable[..., Any]]:
    """Return the search of a model with random weights, and log-probabilities by teacher forcing, `[batch, length]`."""
    source, length, target = (tf1.placeholder(tf.int32, shape) for shape in ([None, None], [None], [None, None]))
    with PredictTowerContext(""):
        found = decode(model, {"source": source, "source_length": length}, decoding_for(settings, log_probs=True))
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            logits = model.decode(model.encode(source, length), shift_right(target))
    forced = tf.gather(tf.nn.log_softmax(logits), target, batch_dims=2)
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    tiny.scramble(session, 0.8)
    return (lambda ids, count: session.run(found, {source: ids, length: count}),
            lambda ids, count, words: session.run(forced, {source: ids, length: count, target: words}))


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [BEAM, pytest.param(SAMPLES, marks=pytest.mark.slow)], ids=["beam", "samples"])
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name in tiny.RELATED)) for name in tiny.MODELS])
def test_all_settings_act_together_on_every_architecture(graph: Any, name: str, settings: SearchSettings) -> None:
    search, forced = search_of(tiny.make(name, quiet=True), settings)
    found = search(tiny.SOURCE, tiny.SOURCE_LENGTH)
    assert np.isfinite(found.scores).all()
    for row, words in enumerate(tiny.SOURCE_LENGTH):
        alone = search(tiny.SOURCE[row:row + 1, :words], [words])
        for place in range(3):
            tokens = [int(t) for t in found.tokens[row, place] if t != PAD]
            assert tokens == [int(t) for t in alone.tokens[0, place] if t != PAD]
            assert (words - 1) * 7 // 10 <= len(tokens) - (tokens[-1] == EOS) <= min(8, words + 4)
            pairs = list(zip(tokens, tokens[1:], strict=False))
            assert len(pairs) == len(set(pairs))
        np.testing.assert_allclose(alone.scores[0], found.scores[row], rtol=1e-4)
    for place in range(3):
        tokens = found.tokens[:, place]
        expected = forced(tiny.SOURCE, tiny.SOURCE_LENGTH, tokens) * (tokens != PAD)
        np.testing.assert_allclose(found.log_probs[:, place], expected, rtol=1e-3, atol=1e-4)
        if settings is SAMPLES:
            np.testing.assert_allclose(found.scores[:, place], expected.sum(1), rtol=1e-4)
