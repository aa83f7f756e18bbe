"""Final sentences that leave the batch, compared with a search without rounds; the largest values of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

from tests.predict.search.toy_model import EOS, ToyModel, plain_beam_search, searcher
from tests.variables import assign_random
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.predict.search.decoding_tower import beam_search
from towernmt.predict.search.distribution import top_of_rows
from towernmt.predict.search.search_settings import SearchSettings

LENGTHS = [1, 30, 2, 3, 1, 14, 2, 1, 5, 1, 22, 2, 1, 3, 1, 2, 9, 1]     # most sentences are much shorter


def test_a_batch_whose_sentences_end_at_very_different_steps_gives_what_plain_search_gives_each(graph: Any) -> None:
    model = ToyModel(vocabulary=7, seed=5, spread=0.5)
    settings = SearchSettings(beam_size=3, n_best=2, max_length_factor=1.0, max_length_constant=0)
    sentences = [[3 + (place + i) % 4 for i in range(length - 1)] + [EOS] for place, length in enumerate(LENGTHS)]
    for sentence, found in zip(sentences, searcher(model, settings)(sentences), strict=True):
        expected = plain_beam_search(model, sentence, settings)
        assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
        np.testing.assert_allclose([score for score, _ in found], [score for score, _ in expected], rtol=1e-5)


@pytest.mark.parametrize(("changes", "beam"), [
    ({}, 4), pytest.param({"positions": "relative"}, 4, marks=pytest.mark.thorough),
    pytest.param({}, 1, marks=pytest.mark.thorough),
    pytest.param({"positions": "rotary"}, 4, marks=pytest.mark.slow),
    pytest.param({"decoder_cell": "ssru"}, 4, marks=pytest.mark.thorough)])
def test_what_a_transformer_finds_for_a_sentence_does_not_depend_on_when_its_neighbours_end(
        graph: Any, changes: dict[str, str], beam: int) -> None:
    model = Transformer(TransformerSettings(
        source_vocab_size=17, target_vocab_size=17, hidden_size=8, filter_size=8, heads=2, encoder_layers=1,
        decoder_layers=2, **changes))
    source, length = tf1.placeholder(tf.int32, [None, None]), tf1.placeholder(tf.int32, [None])
    with PredictTowerContext(""):
        found = beam_search(model, source, length, SearchSettings(
            beam_size=beam, max_length_factor=1.0, max_length_constant=0))
    random = np.random.default_rng(1)
    lengths = np.array(LENGTHS)
    ids = np.where(np.arange(30) < lengths[:, None] - 1, random.integers(4, 17, [len(LENGTHS), 30]), 0)
    ids[np.arange(len(LENGTHS)), lengths - 1] = EOS
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assign_random(session, random, 0.5)
        together = session.run(found, {source: ids, length: lengths})
        assert (together.tokens[:, 0] != 0).sum(1).max() > 20       # so that there are several rounds
        for place in (1, 5, 8, 10):
            one = slice(place, place + 1)
            alone = session.run(found, {source: ids[one, :lengths[place]], length: lengths[one]})
            steps = alone.tokens.shape[2]
            assert together.tokens[place, :, :steps].tolist() == alone.tokens[0].tolist()
            assert not together.tokens[place, :, steps:].any()
            np.testing.assert_allclose(together.scores[place], alone.scores[0], rtol=1e-4)


@pytest.mark.parametrize(("size", "count"), [(8000, 10), (7919, 6), (200, 3), (50, 12), (9, 9)])
def test_the_largest_values_of_rows_are_those_of_a_stable_sort_with_ties_and_minus_infinity(
        graph: Any, size: int, count: int) -> None:
    random = np.random.default_rng(size)
    x = random.integers(0, 40, [6, size]).astype(np.float32)       # many ties
    x[1] = random.normal(size=size)
    x[2, 3:] = -np.inf
    with tf1.Session() as session:
        values, places = session.run(top_of_rows(tf.constant(x), count))
    expected = np.argsort(-x, axis=1, kind="stable")[:, :count]
    assert np.array_equal(values, np.take_along_axis(x, expected, 1))
    assert np.array_equal(places, expected)
