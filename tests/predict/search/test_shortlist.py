"""Vocabulary shortlists, compared with a search with lists over each sentence's words; independence of the batch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import TowerContext

from tests.predict.search.toy_model import EOS, PAD, Averaged, Scored, ToyModel, assert_same, plain_beam_search
from towernmt.checkpoint.package_manifest import SHORTLIST, PackageManifest
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.graph_state import GraphSettings, graph_state
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.preparation.alignment_model import Entries
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.interop.package_archive import write_archive
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.layers.projections import Projection
from towernmt.predict.ensemble import EnsembleModel
from towernmt.predict.search.decoding_interfaces import LogitsProcessor
from towernmt.predict.search.decoding_tower import build_predictor, decoding_for
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.search.sampling_tower import SamplingSettings, sampling_for
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search.shortlist import Shortlist

SIZE = 12
TRANSLATIONS = {3: [4, 5], 4: [9], 5: [6, 7, 10], 6: [11], 7: [4], 8: [5, 9], 9: [7], 10: [8, 11], 11: [6]}
FREQUENT = [8]
SENTENCES = [[3, EOS], [4, 5, 6, EOS], [10, 3, EOS], [EOS], [7, 7, 9, 11, EOS]]


class Projected(ToyModel):
    """A model with the same logits by a projection: the hidden layer is the row, and the kernel the identity."""

    def output_projection(self) -> Any:
        size = self.target_vocab_size
        return Projection(tf1.get_variable("kernel", [size, size], initializer=tf1.initializers.identity()),
                          tf1.get_variable("bias", [size], initializer=tf1.zeros_initializer()))

    def decode_step(self, token: Any, state: DecoderState) -> tuple[Any, DecoderState]:
        hidden, state = super().decode_step(token, state)
        return self.output_projection().logits(hidden), state


class NotAgain(LogitsProcessor):
    """A processor that forbids the last token, and reads the logits of the complete vocabulary."""

    def __call__(self, logits: Any, context: Any) -> Any:
        last = tf.concat([tf.fill([tf.shape(logits)[0], 1], -1), context.tokens], axis=1)[:, -1]
        return tf.where(tf.equal(tf.range(context.vocabulary_size)[None], last[:, None]), -np.inf, logits)


def own_list(source: list[int]) -> set[int]:
    return {0, 1, 2, 3, *FREQUENT, *(target for word in source for target in TRANSLATIONS.get(word, []))}


class Reference:
    """A toy model with only the words of a sentence's list."""

    def __init__(self, model: ToyModel) -> None:
        self.model, self.target_vocab_size = model, model.target_vocab_size

    def log_prob(self, source: list[int], prefix: list[int]) -> np.ndarray:
        log_prob = self.model.log_prob(source, prefix)
        allowed = np.isin(np.arange(SIZE), list(own_list(source)))
        return np.where(allowed, log_prob - np.log(np.exp(log_prob[allowed]).sum()), -np.inf)


def shortlist() -> Shortlist:
    table = np.zeros([SIZE, 3], np.int32)
    for source, targets in TRANSLATIONS.items():
        table[source, :len(targets)] = targets
    return Shortlist(table, np.array(FREQUENT), SIZE)


def finder(model: NMTModel, decoding: Any, precision: str = "float32") -> Any:
    """Return a function from sentences and further inputs by name to the arrays that a predictor returns."""
    with tf1.Graph().as_default():
        graph_state().settings = GraphSettings(precision=precision)
        with TowerContext("", is_training=True):
            memory = model.encode(tf.constant([[EOS]]), tf.constant([1]))
            model.decode_step(tf.constant([1]), model.start_state(memory, 1))
        predictor = build_predictor(model, decoding)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        predictor.set_session(session)

    def find(sentences: list[list[int]], **inputs: Any) -> Any:
        longest = max(map(len, sentences))
        source = np.array([s + [PAD] * (longest - len(s)) for s in sentences], np.int32)
        return predictor(source, np.array([len(s) for s in sentences], np.int32), **inputs)
    return find


def scored(tokens: Any, scores: Any) -> list[list[Scored]]:
    return [[(float(score), [int(t) for t in ids if t != PAD])
             for score, ids in zip(row_scores, row, strict=True) if np.isfinite(score)]
            for row_scores, row in zip(scores, tokens, strict=True)]


@pytest.mark.parametrize(("kind", "beam", "processors"), [
    (Projected, 1, []), (ToyModel, 3, [NotAgain()]), pytest.param(Projected, 3, [], marks=pytest.mark.thorough),
    pytest.param(ToyModel, 3, [], marks=pytest.mark.slow)])
def test_a_sentence_is_searched_with_its_own_words_alone_in_any_batch(
        kind: type[ToyModel], beam: int, processors: list[LogitsProcessor]) -> None:
    model = kind(vocabulary=SIZE, seed=5, spread=1.5)
    search = SearchSettings(beam_size=beam, n_best=beam, max_length_constant=3)
    decoding = dataclasses.replace(decoding_for(search, processors, log_probs=True), shortlist=shortlist())
    find = finder(model, decoding)
    tokens, scores, log_probs = find(SENTENCES)

    def allowed(prefix: list[int], token: int) -> bool:
        return not processors or prefix[-1:] != [token]

    for source, found, row in zip(SENTENCES, scored(tokens, scores), log_probs, strict=True):
        expected = [item for item in plain_beam_search(Reference(model), source, search, allowed)  # type: ignore[arg-type]
                    if np.isfinite(item[0])]
        assert_same(found, expected)
        alone_tokens, alone_scores, _ = find([source])
        assert_same(scored(alone_tokens, alone_scores)[0], found)
        for (_, ids), values in zip(found, row, strict=False):
            steps = [Reference(model).log_prob(source, ids[:place])[token] for place, token in enumerate(ids)]
            np.testing.assert_allclose(values[:len(ids)], steps, rtol=1e-4, atol=1e-5)


def assert_as_the_reference(model: NMTModel, reference: ToyModel, precision: str = "float32") -> None:
    search = SearchSettings(beam_size=3, n_best=3, max_length_constant=3)
    find = finder(model, dataclasses.replace(decoding_for(search), shortlist=shortlist()), precision)
    for source, found in zip(SENTENCES, scored(*find(SENTENCES)), strict=True):
        expected = plain_beam_search(Reference(reference), source, search)  # type: ignore[arg-type]
        assert_same(found, [item for item in expected if np.isfinite(item[0])])


def test_an_ensemble_is_searched_with_a_sentences_own_words_by_the_mean_of_its_members() -> None:
    models = [Projected(vocabulary=SIZE, seed=seed, spread=1.5) for seed in (5, 6)]
    assert_as_the_reference(EnsembleModel(models), Averaged(models))


def test_in_bfloat16_the_result_is_that_of_the_logits_in_bfloat16() -> None:
    model = Projected(vocabulary=SIZE, seed=5, spread=1.5)
    # A product with the identity keeps bfloat16 numbers, so the products do not round.
    model.table = (model.table.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert_as_the_reference(model, model, "bfloat16")


def test_samples_are_drawn_from_a_sentences_own_words_with_their_probabilities() -> None:
    model = Projected(vocabulary=SIZE, seed=2, spread=1.0)
    decoding = dataclasses.replace(sampling_for(SamplingSettings(samples=30)), shortlist=shortlist())
    tokens, log_prob = finder(model, decoding)(SENTENCES, draw=0)
    for source, row, values in zip(SENTENCES, tokens.tolist(), log_prob, strict=True):
        assert {token for ids in row for token in ids} <= own_list(source)
        for ids, value in zip(row, values, strict=True):
            ids = [token for token in ids if token != PAD]
            steps = [Reference(model).log_prob(source, ids[:place])[token] for place, token in enumerate(ids)]
            assert value == pytest.approx(sum(steps), rel=1e-4)


def test_phrases_that_a_translation_must_hold_are_in_its_list() -> None:
    sentences, constraints = tf.constant([[3, EOS], [4, EOS]]), tf.constant([[[10, 11]], [[7, 0]]])
    words = shortlist().allowed_tokens({"source": sentences, "constraints": constraints}, 3)
    with tf1.Session() as session:
        tokens, bias, place = session.run(words)
    own = [set(tokens[row == 0].tolist()) for row in bias]
    assert own == [own_list([3]) | {10, 11}, own_list([4]) | {7}]
    assert tokens.tolist() == sorted(own[0] | own[1])
    assert [tokens[place[token]] for token in tokens] == tokens.tolist() and place[6] == len(tokens)


def test_a_search_that_looks_at_more_candidates_than_are_listed_has_as_many_places() -> None:
    words = Shortlist(np.zeros([5, 0], np.int32), np.zeros(0, np.int32), SIZE).allowed_tokens(
        {"source": tf.constant([[3, 4, EOS]])}, 7)
    with tf1.Session() as session:
        tokens, bias, place = session.run(words)
    assert tokens.tolist() == [0, 1, 2, 3, 0, 0, 0] and bias.tolist() == [[0] * 4 + [-np.inf] * 3]
    assert place.tolist() == [0, 1, 2, 3] + [7] * (SIZE - 4)


def test_the_settings_name_the_file_and_a_table_of_other_vocabularies_is_refused(tmp_path: Path) -> None:
    vocabulary = WordVocabulary(["<pad>", "<s>", "</s>", "<unk>", *"abcdefgh"])
    entries = Entries(np.array([3, 5, 5]), np.array([7, 6, 8]), np.array([0.9, 0.2, 0.8]), np.arange(SIZE))
    Lexicon.of(entries, vocabulary, vocabulary).save(tmp_path / "table")
    decoding = decoding_for(SearchSettings(shortlist=str(tmp_path / "table"), shortlist_size=1, shortlist_frequent=2))
    assert decoding.shortlist is not None
    words = decoding.shortlist.allowed_tokens({"source": tf.constant([[5, EOS]])}, 0)
    with tf1.Session() as session:
        assert session.run(words.tokens).tolist() == [0, 1, 2, 3, 8, 10, 11]
    with pytest.raises(SettingsError, match="table is for vocabularies of 12 and 12 pieces, but the model has 9 and 9"):
        finder(ToyModel(vocabulary=9, seed=1), decoding)


def test_a_package_is_a_shortlist_unless_it_has_none(tmp_path: Path) -> None:
    vocabulary = WordVocabulary(["<pad>", "<s>", "</s>", "<unk>", *"abcdefgh"])
    entries = Entries(np.array([3, 5, 5]), np.array([7, 6, 8]), np.array([0.9, 0.2, 0.8]), np.arange(SIZE))
    Lexicon.of(entries, vocabulary, vocabulary).save(tmp_path / "table")
    for name, members in (("with", {SHORTLIST: tmp_path / "table"}), ("without", {})):
        with open(tmp_path / f"{name}.towernmt.zip", "wb") as file:
            write_archive(file, PackageManifest("towernmt-package", 1, "0.1", 7, "int8", False, {}, {}, ""), members)
    packaged, table = (Lexicon.load(tmp_path / name) for name in ("with.towernmt.zip", "table"))
    for name in ("starts", "targets", "probabilities", "frequency", "vocabularies"):
        np.testing.assert_array_equal(getattr(packaged, name), getattr(table, name))
    with pytest.raises(CheckpointError, match="without.towernmt.zip: the package has no shortlist: pass another"):
        Lexicon.load(tmp_path / "without.towernmt.zip")
