"""Ensembles of toy models, compared with a search with lists over probabilities that are averaged in float64."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.predict.search.toy_model import EOS, Averaged, Scored, ToyModel, plain_beam_search, searcher
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.models.interface import DecoderState
from towernmt.predict.ensemble import EnsembleModel, TrainedEnsemble
from towernmt.predict.search.processors import ForbiddenTokens
from towernmt.predict.search.search_settings import EnsembleSettings, SearchSettings

SENTENCES = [[4, 5, 7, EOS], [3, 3, EOS], [5, EOS], [EOS], [6, 4, 3, 7, 5, EOS]]
SETTINGS = SearchSettings(beam_size=3, n_best=3, length_penalty=0.6, max_length_factor=1, max_length_constant=3)


def assert_same(found: Sequence[list[Scored]], expected: Sequence[list[Scored]]) -> None:
    assert [[tokens for _, tokens in row] for row in found] == [[tokens for _, tokens in row] for row in expected]
    np.testing.assert_allclose(np.concatenate([[score for score, _ in row] for row in found]),
                               np.concatenate([[score for score, _ in row] for row in expected]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mean", "weights"), [
    ("probabilities", (2.0, 1.0)), ("log-probabilities", ()),
    pytest.param("probabilities", (), marks=pytest.mark.slow),
    pytest.param("log-probabilities", (2.0, 1.0), marks=pytest.mark.slow)])
def test_two_models_are_searched_as_their_averaged_distribution(mean: str, weights: tuple[float, ...]) -> None:
    models = [ToyModel(vocabulary=9, seed=1), ToyModel(vocabulary=9, seed=2)]
    found = searcher(EnsembleModel(models, EnsembleSettings(mean, weights)), SETTINGS)(SENTENCES)
    averaged = Averaged(models, weights or (1, 1), mean)
    assert_same(found, [plain_beam_search(averaged, source, SETTINGS) for source in SENTENCES])


@pytest.mark.parametrize("mean", ["probabilities", pytest.param("log-probabilities", marks=pytest.mark.thorough)])
def test_a_model_with_itself_translates_as_it_does_alone(mean: str) -> None:
    model = ToyModel(vocabulary=9, seed=1)
    together = searcher(EnsembleModel([model] * 3, EnsembleSettings(mean, (1, 2, 3))), SETTINGS)(SENTENCES)
    assert_same(together, searcher(model, SETTINGS)(SENTENCES))


def test_greedy_search_and_processors_take_an_ensemble_for_one_model() -> None:
    models = [ToyModel(vocabulary=9, seed=3), ToyModel(vocabulary=9, seed=4), ToyModel(vocabulary=9, seed=5)]
    settings = SearchSettings(beam_size=1, min_length=2, max_length_factor=1, max_length_constant=3)
    found = searcher(EnsembleModel(models), settings, [ForbiddenTokens([7])])(SENTENCES)
    averaged = Averaged(models, (1, 1, 1), "probabilities")
    assert_same(found, [plain_beam_search(averaged, source, settings, lambda _, token: token != 7)
                        for source in SENTENCES])


class Member(nullcontext):  # type: ignore[type-arg]
    """A trained model whose source words have a factor."""

    device, checkpoint = None, ""

    def __init__(self, name: str, *factor: str) -> None:
        super().__init__()
        self.run, self.model = SimpleNamespace(name=name), ToyModel(vocabulary=6, seed=1)
        self.target_vocabulary = WordVocabulary([*SPECIAL_PIECES, "a", "b"])
        self.source_vocabulary = FactoredVocabulary(
            self.target_vocabulary, [WordVocabulary([*SPECIAL_PIECES, *factor])])


def test_members_with_other_factors_of_the_same_words_are_refused() -> None:
    first, same, other = Member("a", "NOUN", "VERB"), Member("b", "NOUN", "VERB"), Member("c", "VERB", "NOUN")
    assert TrainedEnsemble([first, same]).source_vocabulary is first.source_vocabulary  # type: ignore[list-item]
    with pytest.raises(SettingsError, match=r"The source vocabulary of c .* is not that of a "):
        TrainedEnsemble([first, other])  # type: ignore[list-item]


def test_a_token_that_all_members_think_impossible_has_a_finite_score() -> None:
    models = [ToyModel(vocabulary=6, seed=seed, spread=300.0) for seed in (1, 2)]
    found = searcher(EnsembleModel(models), SETTINGS)(SENTENCES)
    assert all(np.isfinite(score) for row in found for score, _ in row)


class Looking(ToyModel):
    """A toy model that attends to one source position in each step."""

    def __init__(self, place: int) -> None:
        super().__init__(vocabulary=6, seed=place)
        self._place = place

    def decode_with_attention(self, memory: Any, target_in: Any) -> Any:
        raise AssertionError("search must not decode by teacher forcing")

    def encode(self, source: Any, source_length: Any) -> Any:
        memory = super().encode(source, source_length)
        return {**memory, "looks": tf.one_hot(tf.zeros_like(source_length) + self._place, tf.shape(source)[1])}

    def decode_step(self, token: Any, state: DecoderState, attention: bool = False) -> Any:  # type: ignore[override]
        step = super().decode_step(token, state)
        return (*step, state.memory["looks"]) if attention else step


def test_the_attention_of_an_ensemble_is_the_mean_of_its_members() -> None:
    ensemble = EnsembleModel([Looking(0), Looking(2)], EnsembleSettings(weights=(3, 1)))
    assert ensemble.gives_step_attention and not EnsembleModel([Looking(0), ToyModel(6, 1)]).gives_step_attention
    with tf1.Graph().as_default(), tf1.Session() as session:
        memory = ensemble.encode(tf.constant([[3, 4, EOS]]), tf.constant([3]))
        state = ensemble.start_state(memory, 1)
        attention = ensemble.decode_step(tf.constant([1]), state, attention=True)[2]
        session.run(tf1.global_variables_initializer())
        np.testing.assert_allclose(session.run(attention), [[0.75, 0.0, 0.25]])


def test_members_with_other_numbers_of_target_pieces_or_weights_are_refused() -> None:
    with pytest.raises(SettingsError, match="have 6 and 9 pieces"):
        EnsembleModel([ToyModel(9, 1), ToyModel(6, 1)])
    with pytest.raises(SettingsError, match="2 members and the 3 weights 1,2,3"):
        EnsembleModel([ToyModel(9, 1)] * 2, EnsembleSettings(weights=(1, 2, 3)))
    with pytest.raises(SettingsError, match="weights 1,0 of an ensemble"):
        EnsembleSettings(weights=(1, 0))
    with pytest.raises(SettingsError, match="mean"):
        EnsembleSettings(mean="median")
