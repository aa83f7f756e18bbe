"""An ensemble of all architectures: its results have the mean of the members' teacher-forced probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

import tests.models.tiny_models as tiny
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import shift_right
from towernmt.predict.ensemble import EnsembleModel
from towernmt.predict.search.decoding_loop import decode
from towernmt.predict.search.decoding_tower import decoding_for
from towernmt.predict.search.search_settings import EnsembleSettings, SearchSettings

LIMITS: dict[str, Any] = {"n_best": 3, "max_length_factor": 1.0, "max_length_constant": 3}
CASES = [(SearchSettings(beam_size=4, **LIMITS), "probabilities"),
         (SearchSettings(selection="sampling", seed=3, **LIMITS), "log-probabilities")]


@pytest.mark.slow
@pytest.mark.thorough
def test_the_tokens_of_an_ensemble_have_the_mean_of_all_architectures(graph: Any) -> None:
    members = [tiny.make(name, quiet=True) for name in ("transformer", "seq2seq", "rnnsearch", "convs2s")]
    weights = np.arange(1.0, len(members) + 1)
    source, length, target = (tf1.placeholder(tf.int32, shape) for shape in ([None, None], [None], [None, None]))
    with PredictTowerContext(""):
        found, forced = [], []
        for search, mean in CASES:
            ensemble = EnsembleModel(members, EnsembleSettings(mean, tuple(weights)))
            with tf1.variable_scope(tf1.get_variable_scope(), reuse=bool(found)):
                found.append(decode(ensemble, {"source": source, "source_length": length},
                                    decoding_for(search, log_probs=True)))
        for place, member in enumerate(members):
            with tf1.variable_scope(ensemble.scope(place), reuse=True):
                logits = member.decode(member.encode(source, length), shift_right(target))
                forced.append(tf.nn.log_softmax(tf.cast(logits, tf.float32)))
    session = tf1.Session()
    session.run(tf1.global_variables_initializer())
    tiny.scramble(session, 0.8)
    given = {source: tiny.SOURCE, length: tiny.SOURCE_LENGTH}
    for (_, mean), result in zip(CASES, session.run(found, given), strict=True):
        assert np.isfinite(result.scores).all()
        for best in range(result.tokens.shape[1]):
            tokens = result.tokens[:, best]
            each = np.stack(session.run(forced, {**given, target: tokens})).astype(np.float64)
            shares = (weights / weights.sum())[:, None, None, None]
            together = np.log((shares * np.exp(each)).sum(0)) if mean == "probabilities" else (shares * each).sum(0)
            together -= np.log(np.exp(together).sum(-1, keepdims=True))
            expected = np.take_along_axis(together, tokens[:, :, None], axis=2)[:, :, 0]
            np.testing.assert_allclose(result.log_probs[:, best], np.where(tokens > 0, expected, 0.0), rtol=1e-3,
                                       atol=1e-4)
