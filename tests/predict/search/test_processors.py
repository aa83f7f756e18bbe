"""Processors and chains of them, compared with NumPy, and in a search, compared with a search with lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.predict.search.toy_model import EOS, ToyModel, plain_beam_search, searcher
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.predict.search.decoding_interfaces import Candidates, LogitsProcessor, TokenFilter
from towernmt.predict.search.decoding_tower import decoding_for
from towernmt.predict.search.distribution import NEG_INF, Distribution
from towernmt.predict.search.processors import ForbiddenTokens, MinimumLength, Temperature
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search.step_context import History, StepContext

SIZE = 9
LOGITS = np.random.default_rng(4).normal(0, 2, [4, SIZE]).astype(np.float32)
LOGITS[1, :] = 1.0      # all equal
LOGITS[2, 5] = 30.0     # one certain


def context(step: int = 2, **inputs: Any) -> StepContext:
    """Return a context of two sentences with two hypotheses each."""
    tokens = tf.reshape(tf.range(3, 3 + 4 * step), [2, 2, step])
    return StepContext(step=tf.constant(step), limit=tf.constant([9, 9]), history=History(tokens), attention=(),
                       inputs=inputs, vocabulary_size=SIZE)


def run(tensors: Any) -> Any:
    with tf1.Session() as session:
        return session.run(tensors)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


class NotAgain(LogitsProcessor):
    """A processor that forbids the last token."""

    def __call__(self, logits: Any, context: StepContext) -> Any:
        last = tf.concat([tf.fill([tf.shape(logits)[0], 1], -1), context.tokens], axis=1)[:, -1]
        return tf.where(tf.equal(tf.range(context.vocabulary_size)[None], last[:, None]), NEG_INF, logits)


class NotAgainByFilter(TokenFilter):
    """`NotAgain` as a filter."""

    max_forbidden = 1

    def forbids(self, token: Any, context: StepContext) -> Any:
        last = tf.concat([tf.fill([tf.shape(context.tokens)[0], 1], -1), context.tokens], axis=1)[:, -1]
        return tf.equal(token, last[:, None])


class Shortlist(LogitsProcessor):
    """A processor that allows only EOS and the words of a list for each sentence."""

    def inputs(self) -> list[Any]:
        return [tf.TensorSpec([None, None], tf.int32, "shortlist")]

    def __call__(self, logits: Any, context: StepContext) -> Any:
        listed = tf.reduce_any(tf.equal(
            tf.range(context.vocabulary_size)[None, :, None], context.inputs["shortlist"][:, None]), axis=2)
        return tf.where(context.for_rows(listed), logits, NEG_INF)


def test_forbidden_tokens_never_come_and_the_others_keep_their_logits(graph: Any) -> None:
    filter = ForbiddenTokens([0, 1, 7])
    every, some = run([filter(tf.constant(LOGITS), context()),
                       filter.forbids(tf.constant([[7, 8], [0, 3], [4, 1], [2, 2]]), context())])
    expected = LOGITS.copy()
    expected[:, [0, 1, 7]] = NEG_INF
    assert np.array_equal(every, expected) and filter.max_forbidden == 3
    assert some.tolist() == [[True, False], [True, False], [False, True], [False, False]]


def test_a_minimum_length_forbids_the_end_until_it_is_reached(graph: Any) -> None:
    filter = MinimumLength(3)
    before, reached = run([filter(tf.constant(LOGITS), context(step)) for step in (2, 3)])
    assert (before[:, EOS] == NEG_INF).all() and np.isfinite(np.delete(before, EOS, 1)).all()
    assert np.array_equal(reached, LOGITS)


def test_the_processors_of_a_chain_act_in_their_order(graph: Any) -> None:
    chain = [Temperature(2.0), ForbiddenTokens([3]), Temperature(0.25)]
    expected = LOGITS / 2
    expected[:, 3] = NEG_INF
    candidates = Candidates(Distribution(tf.constant(LOGITS)), chain, context())
    np.testing.assert_allclose(log_softmax(run(candidates.logits())), log_softmax(expected / 0.25), rtol=1e-5)


@pytest.mark.parametrize("chain", [
    [], [ForbiddenTokens([0, 1]), MinimumLength(9)], [NotAgain(), ForbiddenTokens([0, 1])],
    [ForbiddenTokens([0, 1]), NotAgain()], [ForbiddenTokens([0, 1]), NotAgainByFilter(), MinimumLength(9)]])
@pytest.mark.parametrize("count", [1, 3, SIZE])
def test_the_best_candidates_are_those_that_may_come_with_the_models_log_probabilities(
        graph: Any, chain: list[LogitsProcessor], count: int) -> None:
    candidates = Candidates(Distribution(tf.constant(LOGITS)), chain, context())
    log_prob, token, logits = run([*candidates.best(count), candidates.logits()])
    full = np.where(logits > NEG_INF, log_softmax(LOGITS), NEG_INF)
    for row in range(len(LOGITS)):
        left = [(t, p) for t, p in zip(token[row].tolist(), log_prob[row].tolist(), strict=True) if p > NEG_INF]
        best = sorted(range(SIZE), key=lambda t, row=row: (-LOGITS[row, t], t))  # of equal ones, the smaller first
        expected = [(t, full[row, t]) for t in best if full[row, t] > NEG_INF]
        found = left[:min(count, len(expected))]
        assert [t for t, _ in found] == [t for t, _ in expected[:count]]
        np.testing.assert_allclose([p for _, p in found], [p for _, p in expected[:count]], rtol=1e-5, atol=1e-6)


def test_the_best_candidates_are_the_same_with_filters_as_with_processors_of_all_logits(graph: Any) -> None:
    class All(LogitsProcessor):
        def __init__(self, filter: TokenFilter) -> None:
            self.filter = filter

        def __call__(self, logits: Any, context: StepContext) -> Any:
            return self.filter(logits, context)

    filters: list[TokenFilter] = [ForbiddenTokens([0, 1]), MinimumLength(9), NotAgainByFilter()]
    few, every = run([Candidates(Distribution(tf.constant(LOGITS)), chain, context()).best(4)
                      for chain in (filters, [All(filter) for filter in filters])])
    for row in range(len(LOGITS)):
        left = few[0][row] > NEG_INF
        assert few[1][row][left][:4].tolist() == every[1][row].tolist()
        assert few[0][row][left][:4].tolist() == every[0][row].tolist()     # to the last bit


def test_the_models_log_probability_of_a_token_is_what_no_processor_changes(graph: Any) -> None:
    token = np.array([3, 0, 5, 8])
    chain = [Temperature(0.1), ForbiddenTokens([0])]
    found = run(Candidates(Distribution(tf.constant(LOGITS)), chain, context()).log_prob(tf.constant(token)))
    np.testing.assert_allclose(found, log_softmax(LOGITS)[range(4), token], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("beam", "processor"), [
    (3, NotAgain), (1, NotAgainByFilter), pytest.param(1, NotAgain, marks=pytest.mark.slow),
    pytest.param(3, NotAgainByFilter, marks=pytest.mark.slow)])
def test_a_search_gives_only_what_its_processors_allow(beam: int, processor: type[LogitsProcessor]) -> None:
    model = ToyModel(vocabulary=8, seed=6, spread=1.5)
    settings = SearchSettings(beam_size=beam, n_best=beam, min_length=2, max_length_factor=1)
    sentences = [[3, w, EOS] for w in range(3, 8)]
    for source, found in zip(sentences, searcher(model, settings, [processor()])(sentences), strict=True):
        expected = plain_beam_search(model, source, settings, lambda prefix, token: prefix[-1:] != [token])
        assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
        np.testing.assert_allclose([s for s, _ in found], [s for s, _ in expected], rtol=1e-5)


@pytest.mark.parametrize("beam", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_processor_reads_an_input_of_its_own_for_each_sentence(beam: int) -> None:
    model = ToyModel(vocabulary=8, seed=8, spread=1.5)
    settings = SearchSettings(beam_size=beam, n_best=beam, max_length_factor=1)
    sentences, lists = [[3, 4, EOS], [5, EOS], [6, 3, EOS]], [[EOS, 3, 4, 5], [EOS, 5, 6, 7], [EOS, 4, 6, 0]]
    found = searcher(model, settings, [Shortlist()])(sentences, shortlist=lists)
    for source, listed, hypotheses in zip(sentences, lists, found, strict=True):
        expected = plain_beam_search(model, source, settings, lambda prefix, token, listed=listed: token in listed)
        assert [tokens for _, tokens in hypotheses if tokens] == [tokens for _, tokens in expected]


def test_a_search_in_which_nothing_may_come_gives_no_translation() -> None:
    for beam in (1, 2):
        search = searcher(ToyModel(vocabulary=6, seed=0), SearchSettings(beam_size=beam, max_length_constant=1),
                          [ForbiddenTokens(range(6))])
        assert search([[3, EOS]]) == [[(NEG_INF, [])]]


@pytest.mark.parametrize("rule", [NotAgain, lambda logits, context: logits])
def test_a_rule_that_is_not_a_processor_is_refused(rule: Any) -> None:
    with pytest.raises(SettingsError, match="pass instances of classes derived from LogitsProcessor"):
        decoding_for(SearchSettings(), [rule])
