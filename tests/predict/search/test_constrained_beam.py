"""Lexical constraints, compared with an enumeration of all sequences and with plain beam search; properties."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorpack.tfutils.tower import TowerContext

from tests.predict.search.toy_model import (
    EOS,
    PAD,
    Averaged,
    Scored,
    ToyModel,
    assert_same,
    length_limit,
    plain_beam_search,
    plain_score,
)
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel
from towernmt.predict.ensemble import EnsembleModel
from towernmt.predict.search.constrained_beam import ConstrainedBeamSearch, Phrases, allocated
from towernmt.predict.search.decoding_loop import Decoding, LengthLimit
from towernmt.predict.search.decoding_tower import build_predictor
from towernmt.predict.search.processors import ForbiddenTokens
from towernmt.predict.search.scores import LengthPenalty
from towernmt.predict.search.search_settings import SearchSettings

Constraints = list[list[int]]


def constrained_searcher(model: NMTModel, search: SearchSettings, forbidden: tuple[int, ...] = ()) -> Any:
    """Return a function from sentences and the phrases of each to (score, tokens) of the n best."""
    strategy = ConstrainedBeamSearch(search.beam_size, search.n_best, LengthPenalty(search.length_penalty))
    decoding = Decoding(strategy, [ForbiddenTokens([PAD, 1, *forbidden])],
                        LengthLimit(search.max_length_factor, search.max_length_constant))
    with tf1.Graph().as_default():
        with TowerContext("", is_training=True):
            memory = model.encode(tf.constant([[EOS]]), tf.constant([1]))
            model.decode_step(tf.constant([1]), model.start_state(memory, 1))
        predictor = build_predictor(model, decoding)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        predictor.set_session(session)

    def find(sentences: list[list[int]], phrases: list[Constraints]) -> list[list[Scored]]:
        longest = max(map(len, sentences))
        source = np.array([s + [PAD] * (longest - len(s)) for s in sentences], np.int32)
        tokens, scores = predictor(source, np.array([len(s) for s in sentences], np.int32), constraints=padded(phrases))
        return [[(float(score), [int(t) for t in ids if t != PAD])
                 for score, ids in zip(row_scores, row, strict=True) if np.isfinite(score)]
                for row_scores, row in zip(scores, tokens, strict=True)]
    return find


def padded(phrases: list[Constraints]) -> np.ndarray:
    """Return the phrases as int32 `[batch, phrases, longest]`."""
    number = max(map(len, phrases))
    longest = max((len(phrase) for sentence in phrases for phrase in sentence), default=0)
    array = np.zeros([len(phrases), number, longest], np.int32)
    for row, sentence in enumerate(phrases):
        for place, phrase in enumerate(sentence):
            array[row, place, :len(phrase)] = phrase
    return array


def occurrences(phrase: list[int], tokens: list[int]) -> int:
    """Return how often a phrase occurs without overlapping itself."""
    count = place = 0
    while place + len(phrase) <= len(tokens):
        found = tokens[place:place + len(phrase)] == phrase
        count += found
        place += len(phrase) if found else 1
    return count


def lacks(phrases: Constraints, tokens: list[int]) -> int:
    """Return the number of missing phrases, by counting."""
    return sum(max(0, phrases.count(list(phrase)) - occurrences(list(phrase), tokens))
               for phrase in {tuple(phrase) for phrase in phrases})


def all_that_hold(model: ToyModel, source: list[int], phrases: Constraints, search: SearchSettings) -> list[Scored]:
    """Return (score, tokens) of every sequence within the limit that contains the phrases, best first."""
    limit, words = length_limit(source, search), range(3, model.target_vocab_size)
    sequences = [[*body, EOS] for length in range(limit) for body in itertools.product(words, repeat=length)]
    sequences += [list(body) for body in itertools.product(words, repeat=limit)]
    scored = []
    for tokens in sequences:
        if not lacks(phrases, tokens):
            total = sum(model.log_prob(source, tokens[:i])[token] for i, token in enumerate(tokens))
            scored.append((plain_score(model, source, total, tokens, search), tokens))
    return sorted(scored, key=lambda item: -item[0])


PHRASES: list[Constraints] = [
    [[3]], [[4, 5]], [[5], [3]],
    [[3, 4], [3, 5]],           # share a beginning
    [[3, 4], [4, 5]],           # may overlap
    [[3], [3, 4]],              # one within the other
    [[3], [3]],                 # twice
    [[3, 3], [3, 3]],           # twice, which must not overlap
    [[3, 3, 4]],                # begins again within itself
    [[4, 3, 4, 5]],
    [[4, EOS]], [[4, 3, EOS], [5]],         # at the end
    [[3, 4, EOS], [4, EOS]], [[4, EOS], [4, 3]],
    [],
]


@pytest.mark.parametrize("alpha", [pytest.param(0.0, marks=pytest.mark.thorough), 1.0])
def test_a_beam_that_holds_everything_finds_the_best_of_all_sequences_with_the_phrases(alpha: float) -> None:
    model = ToyModel(vocabulary=6, seed=1)
    search = SearchSettings(beam_size=330, n_best=6, length_penalty=alpha, max_length_factor=1, max_length_constant=2)
    sources = [[3 + place % 3, 3 + place % 2, EOS] for place in range(len(PHRASES))]
    found = constrained_searcher(model, search)(sources, PHRASES)
    for source, phrases, hypotheses in zip(sources, PHRASES, found, strict=True):
        assert_same(hypotheses, all_that_hold(model, source, phrases, search)[:6])


def test_an_ensemble_finds_the_best_of_all_sequences_with_the_phrases_by_its_mean() -> None:
    models = [ToyModel(vocabulary=6, seed=1), ToyModel(vocabulary=6, seed=2)]
    search = SearchSettings(beam_size=90, n_best=4, length_penalty=1.0, max_length_factor=1, max_length_constant=1)
    phrases, sources = [[[4, 5]], [[5], [3]], []], [[3, 5, EOS], [4, EOS], [5, 3, EOS]]
    found = constrained_searcher(EnsembleModel(models), search)(sources, phrases)
    for source, wanted, hypotheses in zip(sources, phrases, found, strict=True):
        assert_same(hypotheses, all_that_hold(Averaged(models), source, wanted, search)[:4])


@pytest.mark.parametrize("beam", [*(pytest.param(beam, marks=pytest.mark.slow) for beam in (1, 2)), 5])
def test_without_phrases_the_result_is_that_of_plain_beam_search(beam: int) -> None:
    model = ToyModel(vocabulary=9, seed=beam, spread=1.5)
    search = SearchSettings(beam_size=beam, n_best=beam, length_penalty=0.6, max_length_constant=3)
    rng = np.random.default_rng(7)
    sources = [[*rng.integers(3, 9, rng.integers(0, 5)).tolist(), EOS] for _ in range(12)]
    find = constrained_searcher(model, search)
    alone = find(sources, [[] for _ in sources])
    beside = find([*sources, [3, EOS]], [*([] for _ in sources), [[5, 6, 7], [8]]])
    for source, found, same in zip(sources, alone, beside, strict=False):
        assert_same(found, plain_beam_search(model, source, search))
        assert_same(same, found)


@functools.cache
def small_searcher(beam: int) -> Any:
    search = SearchSettings(beam_size=beam, n_best=beam, max_length_factor=0, max_length_constant=12)
    return constrained_searcher(ToyModel(vocabulary=8, seed=11), search)


SENTENCES = st.lists(st.integers(3, 7), max_size=4).map(lambda words: [*words, EOS])
PHRASE_LISTS = st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=4), max_size=3)


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(batch=st.lists(st.tuples(SENTENCES, PHRASE_LISTS), min_size=1, max_size=4), beam=st.sampled_from([1, 4]))
def test_every_phrase_occurs_where_the_limit_leaves_room_whatever_the_neighbours_ask_for(
        batch: list[tuple[list[int], Constraints]], beam: int) -> None:
    find = small_searcher(beam)
    together = find(*map(list, zip(*batch, strict=True)))
    for (source, phrases), found in zip(batch, together, strict=True):
        assert found and all(not lacks(phrases, tokens) for _, tokens in found)
        assert_same(find([source], [phrases])[0], found)


@settings(max_examples=20, deadline=None)
@given(source=SENTENCES, phrases=st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=3), max_size=2),
       end=st.lists(st.integers(3, 5), min_size=1, max_size=3), beam=st.sampled_from([1, 4]))
def test_a_phrase_at_the_end_comes_last_whatever_others_must_occur(
        source: list[int], phrases: Constraints, end: list[int], beam: int) -> None:
    found = small_searcher(beam)([source], [[[*end, EOS], *phrases]])[0]
    assert found and all(tokens[-len(end) - 1:] == [*end, EOS] and not lacks(phrases, tokens) for _, tokens in found)


def test_at_the_length_limit_the_hypotheses_that_lack_the_fewest_phrases_are_given() -> None:
    model = ToyModel(vocabulary=8, seed=3)
    search = SearchSettings(beam_size=4, n_best=4, max_length_factor=0, max_length_constant=4)
    (found,) = constrained_searcher(model, search)([[3, EOS]], [[[3, 4], [5, 6], [7, 3, 5]]])
    assert found and {lacks([[3, 4], [5, 6], [7, 3, 5]], tokens) for _, tokens in found} == {1}
    assert all(len(tokens) == 4 and EOS not in tokens for _, tokens in found)


def test_a_phrase_with_a_forbidden_word_cannot_come_and_the_others_do() -> None:
    search = SearchSettings(beam_size=4, max_length_factor=0, max_length_constant=6)
    find = constrained_searcher(ToyModel(vocabulary=8, seed=3), search, forbidden=(7,))
    ((score, tokens),) = find([[3, EOS]], [[[3, 7], [5, 6]]])[0]
    assert np.isfinite(score) and occurrences([5, 6], tokens) and 7 not in tokens


def test_places_are_dealt_out_to_the_banks_in_turn_the_highest_first() -> None:
    log_prob = tf.constant([[-1.0, -2.0, -3.0, -4.0, -5.0, -float("inf")], [-3.0, -1.0, -2.0, -9.0, -1.0, -5.0]])
    bank = tf.constant([[0, 0, 0, 2, 0, 3], [0, 0, 0, 0, 0, 0]])
    with tf1.Session() as session:
        order = session.run(allocated(log_prob, bank, 6)).tolist()
    assert order[0] == [3, 0, 1, 2, 4, 5]
    assert order[1] == [1, 4, 2, 0, 5, 3]


def test_progress_counts_what_has_occurred_and_the_phrase_that_is_furthest() -> None:
    phrases = Phrases.of(tf.constant([[[3, 3, 4], [3, 5, 0], [3, 5, 0]]]))
    progress, counts = phrases.start(1), []
    for token in [3, 3, 3, 4, 3, 5, 3, 5]:
        progress = phrases.after(progress, tf.constant([[token]]))
        counts.append((phrases.tokens_met(progress)[0, 0], phrases.missing(progress)[0, 0]))
    with tf1.Session() as session:
        assert session.run(counts) == [(1, 3), (2, 3), (2, 3), (3, 2), (4, 2), (5, 1), (6, 1), (7, 0)]
