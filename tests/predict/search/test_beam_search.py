"""Beam search, compared with a brute-force enumeration and an independent search in plain Python."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tensorpack.predict import OfflinePredictor, PredictConfig
from tensorpack.tfutils.tower import PredictTowerContext, TowerContext

from tests.predict.search.toy_model import (
    EOS,
    PAD,
    LookingToyModel,
    Scored,
    ToyModel,
    assert_same,
    length_limit,
    plain_beam_search,
    plain_score,
    searcher,
)
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.predict.search.decoding_tower import (
    OUTPUT_NAMES,
    beam_search,
    build_search_predictor,
    search_signature,
    search_tower,
)
from towernmt.predict.search.search_settings import SearchSettings


def all_hypotheses(model: ToyModel, source: list[int], settings: SearchSettings) -> list[Scored]:
    """Return (score, tokens) of every sequence within the limit, best first."""
    limit = length_limit(source, settings)
    words = range(3, model.target_vocab_size)
    sequences = [[*body, EOS] for length in range(settings.min_length, limit)
                 for body in itertools.product(words, repeat=length)]
    sequences += [list(body) for body in itertools.product(words, repeat=limit)]
    scored = []
    for tokens in sequences:
        total = sum(model.log_prob(source, tokens[:i])[token] for i, token in enumerate(tokens))
        scored.append((plain_score(model, source, total, tokens, settings), tokens))
    return sorted(scored, key=lambda item: -item[0])


@pytest.mark.parametrize("score", [
    {"length_penalty": 0.6}, {"length_penalty": 1.3, "length_normalization": "average"},
    {"coverage_penalty": 0.4, "word_reward": 0.3},
    pytest.param({"length_penalty": 0.0, "word_reward": 1.1}, marks=pytest.mark.thorough),
    *(pytest.param(more, marks=pytest.mark.slow) for more in (
        {"length_penalty": 0.0}, {"length_penalty": 2.0}, {"length_penalty": 0.6, "word_reward": 3.0}))])
def test_a_beam_that_holds_everything_finds_the_n_best_of_all_sequences(score: dict[str, Any]) -> None:
    model = LookingToyModel(vocabulary=6, seed=1)
    settings = SearchSettings(beam_size=110, n_best=20, max_length_factor=1, max_length_constant=1, **score)
    search = searcher(model, settings)
    sentences = [[4, 5, EOS], [3, 3, EOS], [5, EOS], [EOS]]
    for source, found in zip(sentences, search(sentences), strict=True):
        expected = all_hypotheses(model, source, settings)[:20]
        assert_same(found[:len(expected)], expected)
        assert all(score == -np.inf and not tokens for score, tokens in found[len(expected):])


@pytest.mark.parametrize("beam, alpha", [
    (1, 0.6), (5, 0.6), pytest.param(5, 0.0, marks=pytest.mark.thorough), *(
        pytest.param(beam, alpha, marks=pytest.mark.slow)
        for beam, alpha in ((1, 0.0), (1, 1.5), (2, 0.0), (2, 0.6), (2, 1.5), (5, 1.5)))])
def test_a_small_beam_agrees_with_a_plain_search_that_never_stops_early(beam: int, alpha: float) -> None:
    model = ToyModel(vocabulary=9, seed=beam, spread=1.5)
    settings = SearchSettings(beam_size=beam, n_best=beam, length_penalty=alpha, max_length_factor=2,
                              max_length_constant=3)
    rng = np.random.default_rng(7)
    sentences = [[*rng.integers(3, 9, rng.integers(0, 5)).tolist(), EOS] for _ in range(24)]
    for source, found in zip(sentences, searcher(model, settings)(sentences), strict=True):
        expected = plain_beam_search(model, source, settings)
        assert_same([item for item in found if np.isfinite(item[0])], expected)


@pytest.mark.parametrize("options", [
    {"n_best": 4},
    pytest.param({"beam_groups": 2, "n_best": 3, "coverage_penalty": 0.2}, marks=pytest.mark.thorough),
    *(pytest.param(more, marks=pytest.mark.slow) for more in (
        {}, {"length_penalty": 0.0, "word_reward": 2.0},
        {"n_best": 2, "length_normalization": "average", "word_reward": 0.5}))])
def test_stopping_when_no_hypothesis_can_win_never_changes_the_result(options: dict[str, Any]) -> None:
    sentences = [[3, w, EOS] for w in range(3, 12)]
    model = LookingToyModel(vocabulary=12, seed=0)
    stopping, stubborn = (SearchSettings(**{"beam_size": 4, "length_penalty": 1.0, **options, "stopping": stop})
                          for stop in ("exact", "none"))
    assert searcher(model, stopping)(sentences) == searcher(model, stubborn)(sentences)


@pytest.mark.parametrize("patience", [0.3, pytest.param(1.0, marks=pytest.mark.slow), 2.5])
def test_a_beam_may_end_when_so_many_hypotheses_have_finished(patience: float) -> None:
    model = ToyModel(vocabulary=9, seed=5)
    settings = SearchSettings(beam_size=4, n_best=2, stopping="first", patience=patience)
    sentences = [[3, w, EOS] for w in range(3, 9)]
    expected = [plain_beam_search(model, source, settings) for source in sentences]
    for found, plain in zip(searcher(model, settings)(sentences), expected, strict=True):
        assert_same([item for item in found if np.isfinite(item[0])], plain)
    exact = [plain_beam_search(model, source, SearchSettings(beam_size=4, n_best=2)) for source in sentences]
    assert (expected == exact) == (patience > 2)


RULES = [
    {"temperature": 0.6}, {"temperature": 2.0, "min_length": 2}, {"repetition_penalty": 1.8}, {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 3}, {"no_repeat_ngram": 2, "repetition_penalty": 1.2, "temperature": 1.3},
    {"min_length_factor": 1.5, "max_tokens": 7}]


@pytest.mark.parametrize(("options", "beam"), [
    *(pytest.param(options, 3, marks=[pytest.mark.slow] * (options in RULES[:3])) for options in RULES),
    *(pytest.param(options, 1, marks=pytest.mark.slow if options in RULES[:5] else pytest.mark.thorough)
      for options in RULES)])
def test_what_a_translation_may_be_agrees_with_a_plain_search(options: dict[str, Any], beam: int) -> None:
    model = ToyModel(vocabulary=7, seed=6, spread=1.0)
    model.table[:, EOS] -= 1.0
    settings = SearchSettings(beam_size=beam, n_best=beam, **options)
    sentences = [[EOS], [3, 5, EOS], [6, 4, 4, 3, EOS]]
    changed = False
    for source, found in zip(sentences, searcher(model, settings)(sentences), strict=True):
        expected = plain_beam_search(model, source, settings)
        assert_same([item for item in found if np.isfinite(item[0])], expected)
        changed |= expected != plain_beam_search(model, source, SearchSettings(beam_size=beam, n_best=beam))
    assert changed


@pytest.mark.thorough
@pytest.mark.parametrize("extreme", [
    {"length_penalty": 10.0, "length_normalization": "average", "temperature": 0.001, "no_repeat_ngram": 100},
    {"word_reward": 1000.0, "coverage_penalty": 1000.0, "stopping": "first", "patience": 1000.0},
    {"repetition_penalty": 1000.0, "beam_groups": 3, "diversity": 1000.0, "max_length_factor": 1000.0, "max_tokens": 9},
    {"length_penalty": 10.0, "max_length_constant": 1_000_000, "min_length": 1_000_000, "max_tokens": 9}])
def test_the_extreme_values_that_settings_accept_give_finite_scores(extreme: dict[str, Any]) -> None:
    settings = SearchSettings(**{"beam_size": 3, "max_length_constant": 3, **extreme})
    sentences = [[EOS], [3, 5, EOS], [6, 4, 4, 3, EOS]]
    found = searcher(LookingToyModel(vocabulary=7, seed=6), settings)(sentences)
    assert all(np.isfinite(hypotheses[0][0]) and hypotheses[0][1] for hypotheses in found)


def test_search_stops_long_before_the_limit_when_the_end_is_certain() -> None:
    model = ToyModel(vocabulary=6, seed=0)
    model.table[:, EOS] += 20.0
    settings = SearchSettings(beam_size=2, max_length_constant=500)
    with tf1.Graph().as_default(), PredictTowerContext(""):
        result = beam_search(model, tf.constant([[3, EOS]]), tf.constant([2]), settings)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            assert session.run(result).tokens.shape[2] < 20


def test_a_sentence_is_translated_alone_as_in_a_batch() -> None:
    model = ToyModel(vocabulary=10, seed=3)
    search = searcher(model, SearchSettings(beam_size=3, n_best=3, max_length_factor=1))
    sentences = [[3, EOS], [4, 5, 6, 7, 8, 9, 3, 4, EOS], [EOS], [9, 9, 9, EOS]]
    assert [search([sentence])[0] for sentence in sentences] == search(sentences)


def test_the_length_limit_is_each_sentences_own_and_cuts_without_an_end() -> None:
    model = ToyModel(vocabulary=6, seed=0)
    model.table[:, EOS] -= 50.0
    search = searcher(model, SearchSettings(beam_size=2, max_length_factor=1.5, max_length_constant=1))
    short, long = search([[EOS], [3, 3, 3, 3, 3, EOS]])
    assert len(short[0][1]) == 2 and len(long[0][1]) == 10
    assert EOS not in short[0][1] + long[0][1]


def test_pad_and_bos_are_never_generated_and_keep_their_probability() -> None:
    model = ToyModel(vocabulary=7, seed=5)
    model.table[:, :2] += 8.0
    settings = SearchSettings(beam_size=3, n_best=3)
    source = [3, 4, EOS]
    found = searcher(model, settings)([source])[0]
    assert not {0, 1} & {token for _, tokens in found for token in tokens}
    assert_same(found, plain_beam_search(model, source, settings))


def test_an_empty_translation_is_allowed_unless_a_minimum_length_forbids_it() -> None:
    model = ToyModel(vocabulary=6, seed=0)
    model.table[:, EOS] += 20.0
    assert searcher(model, SearchSettings(beam_size=2))([[3, EOS]])[0][0][1] == [EOS]
    settings = SearchSettings(beam_size=2, min_length=3)
    found = searcher(model, settings)([[3, EOS]])[0]
    assert found[0][1][-1] == EOS and len(found[0][1]) == 4
    assert_same(found, plain_beam_search(model, [3, EOS], settings))


def test_of_equal_scores_the_smaller_token_ids_win() -> None:
    model = ToyModel(vocabulary=6, seed=0)
    model.table[:] = 0.0
    model.table[:, EOS] = -9.0
    settings = SearchSettings(beam_size=3, n_best=3, max_length_factor=0, max_length_constant=2)
    found = searcher(model, settings)([[3, EOS]])[0]
    assert [tokens for _, tokens in found] == [[3, 3], [3, 4], [3, 5]]


def test_search_is_a_tower_function_of_tensorpacks_offline_predictor() -> None:
    model = ToyModel(vocabulary=8, seed=2)
    settings = SearchSettings(beam_size=3, n_best=2)
    predictor = OfflinePredictor(PredictConfig(
        tower_func=search_tower(model, settings, "/cpu:0"), input_signature=search_signature(model),
        input_names=["source", "source_length"], output_names=OUTPUT_NAMES))
    with predictor.graph.as_default():
        predictor.sess.run(tf1.global_variables_initializer())
    tokens, scores = predictor(np.array([[3, 4, EOS]], np.int32), np.array([3], np.int32))
    expected = searcher(model, settings)([[3, 4, EOS]])[0]
    assert [[t for t in row if t != PAD] for row in tokens[0].tolist()] == [ids for _, ids in expected]
    assert scores[0].tolist() == [score for score, _ in expected]


def test_search_inside_a_training_graph_reuses_its_variables_and_may_be_built_twice() -> None:
    model = ToyModel(vocabulary=8, seed=2)
    sentence = (np.array([[3, 4, EOS]], np.int32), np.array([3], np.int32))
    with tf1.Graph().as_default():
        with TowerContext("", is_training=True):
            memory = model.encode(tf.constant(sentence[0]), tf.constant(sentence[1]))
            model.decode_step(tf.constant([1]), model.start_state(memory, 1))
        variables = tf1.global_variables()
        beam, greedy = (build_search_predictor(model, SearchSettings(beam_size=size)) for size in (3, 1))
        assert tf1.global_variables() == variables
        assert sorted(v.op.name for v in variables) == ["decoder/table", "encoder/weight"]
        with tf1.train.MonitoredSession() as session:
            for predictor, size in ((beam, 3), (greedy, 1)):
                predictor.set_session(session)
                tokens, scores = predictor(*sentence)
                expected = plain_beam_search(model, [3, 4, EOS], SearchSettings(beam_size=size))
                assert [t for t in tokens[0, 0].tolist() if t != PAD] == expected[0][1]
                assert scores[0, 0] == pytest.approx(expected[0][0], rel=1e-5)


@pytest.mark.parametrize("wrong", [{"beam_size": 0}, {"n_best": 6}, {"n_best": 0}, {"length_penalty": -1.0},
                                   {"max_length_factor": -1.0}, {"min_length": -1},
                                   {"min_length_factor": 2.5}, {"repetition_penalty": 0.5}, {"temperature": 0.0},
                                   {"top_k": 3}, {"top_p": 0.9}, {"epsilon": 0.1}, {"beam_groups": 2},
                                   {"stopping": "never"}, {"patience": 0.0}, {"word_reward": -0.1},
                                   {"coverage_penalty": 0.2, "selection": "sampling"},
                                   {"word_reward": 0.2, "selection": "sampling"},
                                   {"stopping": "first", "selection": "sampling"}, {"length_penalty": 1000.0},
                                   {"temperature": 1e-40}, {"word_reward": 1e38}, {"coverage_penalty": 1e38},
                                   {"repetition_penalty": 1e38}, {"patience": 1e38}, {"max_length_factor": 1e30},
                                   {"max_length_constant": 2**31}, {"max_tokens": 2**31}, {"min_length": 2**31},
                                   {"no_repeat_ngram": 100_000}, {"n_best": 10**12, "selection": "sampling"}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        SearchSettings(**wrong)


def test_the_advice_on_sampling_is_also_that_of_settings_files() -> None:
    with pytest.raises(SettingsError) as error:
        SearchSettings(top_k=3)
    assert str(error.value) == "top_k=3 is for sampling: set selection=sampling, too, or top_k=0."
