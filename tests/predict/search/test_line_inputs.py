"""Prefixes, beginnings of words and avoided phrases, compared with all hypotheses of a tiny vocabulary."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext

from tests.predict.search.toy_model import (
    BOS,
    EOS,
    PAD,
    Averaged,
    Scored,
    ToyModel,
    length_limit,
    normalised,
    plain_beam_search,
)
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, Vocabulary
from towernmt.models.interface import NMTModel
from towernmt.predict.ensemble import EnsembleModel
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.request_encoder import TargetText, padded
from towernmt.predict.search.decoding_loop import decode
from towernmt.predict.search.decoding_tower import decoding_for, decoding_signature
from towernmt.predict.search.search_settings import EnsembleSettings, SearchSettings
from towernmt.predict.search.surfaces import SPACE_MARK, Surfaces
from towernmt.predict.search_towers import PlainSearch, decoding_with

SENTENCES = [[3, 4, EOS], [5, EOS], [4, 4, EOS], [6, EOS]]
SETTINGS = SearchSettings(beam_size=400, n_best=6, max_length_factor=1.0, max_length_constant=1)


class Pieces(Vocabulary):
    """A vocabulary of pieces like those of SentencePiece; a text is encoded by the longest ones."""

    kind = "sentencepiece"

    def __init__(self, *pieces: str) -> None:
        self.pieces = [*SPECIAL_PIECES, *pieces]
        self.size = len(self.pieces)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [self._encoded("".join("▁" + word for word in text.split())) for text in texts]

    def _encoded(self, text: str) -> list[int]:
        if not text:
            return []
        fitting = [piece for piece in self.pieces[4:] if text.startswith(piece)]
        best = max(fitting, key=len, default="")
        return [self.pieces.index(best) if best else 3, *self._encoded(text[len(best) or 1:])]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.pieces[id] for id in ids if id > 3).replace("▁", " ").strip()

    def id_to_piece(self, id: int) -> str:
        return self.pieces[id]

    def piece_to_id(self, piece: str) -> int:
        return self.pieces.index(piece)

    def files(self) -> Mapping[str, bytes]:
        return {}


VOCABULARY = Pieces("▁a", "b", "▁ab", "▁")


def search(model: NMTModel, settings: SearchSettings, vocabulary: Vocabulary, sentences: list[list[int]],
           **further: Any) -> list[list[Scored]]:
    """Return the hypotheses of a search with further inputs, in one batch."""
    decoding = decoding_with(further.keys(), PlainSearch(decoding_for(settings), settings, vocabulary))
    longest = max(map(len, sentences))
    arrays = {"source": [s + [PAD] * (longest - len(s)) for s in sentences], "source_length": list(map(len, sentences))}
    with tf1.Graph().as_default(), PredictTowerContext(""):
        inputs = {spec.name: tf1.placeholder(spec.dtype, spec.shape) for spec in decoding_signature(model, decoding)}
        found = decode(model, inputs, decoding)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            tokens, scores = session.run([found.tokens, found.scores],
                                         {inputs[name]: array for name, array in {**arrays, **further}.items()})
    return [[(float(score), [int(t) for t in ids if t != PAD]) for score, ids in zip(row_scores, row, strict=True)
             if np.isfinite(score)] for row_scores, row in zip(scores, tokens, strict=True)]


def all_hypotheses(model: ToyModel, source: list[int], settings: SearchSettings, limit: int | None = None,
                   allowed: Callable[[list[int]], bool] = lambda tokens: True) -> list[Scored]:
    """Return the best of all possible hypotheses."""
    limit = limit or length_limit(source, settings)
    words = range(EOS + 1, model.target_vocab_size)
    found = []
    for length in range(1, limit + 1):
        for tokens in itertools.product(words, repeat=length):
            ends = [[*tokens[:-1], EOS]] if tokens[-1] == words[0] else []
            for hypothesis in [*ends, *([list(tokens)] if length == limit else [])]:
                if allowed(hypothesis):
                    total = sum(model.log_prob(source, hypothesis[:place])[token]
                                for place, token in enumerate(hypothesis))
                    found.append((normalised(total, length, settings), hypothesis))
    return sorted(found, key=lambda item: -item[0])[:settings.n_best]


def assert_same(found: list[Scored], expected: list[Scored]) -> None:
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    np.testing.assert_allclose([score for score, _ in found], [score for score, _ in expected], rtol=1e-4)


def test_a_prefix_gives_the_best_of_all_hypotheses_that_begin_with_it_each_sentence_its_own() -> None:
    model = ToyModel(vocabulary=7, seed=3, spread=1.5)
    prefixes = [[5, 3], [], [6], [4, 5, 6, 3]]      # the last one is longer than its sentence's limit
    found = search(model, SETTINGS, VOCABULARY, SENTENCES, prefix=padded(prefixes))
    for source, prefix, hypotheses in zip(SENTENCES, prefixes, found, strict=True):
        limit = max(length_limit(source, SETTINGS), len(prefix) + 1 if prefix else 0)
        assert_same(hypotheses, all_hypotheses(model, source, SETTINGS, limit,
                                               lambda tokens, prefix=prefix: tokens[:len(prefix)] == prefix))


def test_an_ensemble_has_prefixes_and_avoids_phrases_as_one_model_does() -> None:
    models = [ToyModel(vocabulary=7, seed=3, spread=1.5), ToyModel(vocabulary=7, seed=4, spread=1.5)]
    prefixes, avoided = [[5, 3], []], [[[4, 6], [6, PAD]], [[4, 4], [6, 5]]]
    found = search(EnsembleModel(models, EnsembleSettings("log-probabilities", (2, 1))), SETTINGS, VOCABULARY,
                   SENTENCES[:2], prefix=padded(prefixes), avoid=avoided)
    averaged = Averaged(models, (2, 1), "log-probabilities")
    for source, prefix, phrases, hypotheses in zip(SENTENCES, prefixes, avoided, found, strict=False):
        def allowed(tokens: list[int], prefix: list[int] = prefix, phrases: list[list[int]] = phrases) -> bool:
            text = " " + " ".join(map(str, tokens)) + " "
            return tokens[:len(prefix)] == prefix and not any(
                " " + " ".join(str(token) for token in phrase if token) + " " in text for phrase in phrases)

        limit = max(length_limit(source, SETTINGS), len(prefix) + 1 if prefix else 0)
        assert_same(hypotheses, all_hypotheses(averaged, source, SETTINGS, limit, allowed))


PREFIXES = [[5, 3, 4, 6, 3, 5], []]


def begins_with(prefix: list[int], tokens: list[int]) -> bool:
    """Return whether tokens, which may be fewer, begin with the prefix."""
    return tokens[:len(prefix)] == prefix[:len(tokens)]


@pytest.mark.parametrize("patience", [pytest.param(0.5, marks=pytest.mark.slow), 1.0])
def test_the_tokens_that_a_prefix_excludes_are_no_finished_hypotheses(patience: float) -> None:
    model = ToyModel(vocabulary=9, seed=3)
    settings = SearchSettings(beam_size=4, n_best=2, stopping="first", patience=patience)
    found = search(model, settings, VOCABULARY, SENTENCES[:2], prefix=padded(PREFIXES))
    for source, prefix, hypotheses in zip(SENTENCES, PREFIXES, found, strict=False):
        assert_same(hypotheses, plain_beam_search(
            model, source, settings,
            lambda tokens, token, prefix=prefix: begins_with(prefix, [*tokens, token])))  # type: ignore[misc]


@pytest.mark.parametrize(("options", "inputs"), [
    pytest.param({"beam_size": 8, "beam_groups": 2}, {}, marks=pytest.mark.slow),
    ({"beam_size": 4}, {"constraints": [[[4, 4]], [[3, PAD]]]})], ids=["groups", "constraints"])
def test_groups_and_constraints_have_translations_after_a_prefix(options: dict[str, Any], inputs: dict[str, Any]
                                                                 ) -> None:
    settings = SearchSettings(stopping="first", **options)
    found = search(ToyModel(vocabulary=12, seed=3), settings, VOCABULARY, SENTENCES[:2], prefix=padded(PREFIXES),
                   **inputs)
    assert all(begins_with(prefix, hypotheses[0][1]) for prefix, hypotheses in zip(PREFIXES, found, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("beam", [1, 3])
def test_a_prefix_with_an_end_is_the_whole_translation(beam: int) -> None:
    model = ToyModel(vocabulary=7, seed=3)
    settings = SearchSettings(beam_size=beam, max_length_constant=4)
    found = search(model, settings, VOCABULARY, SENTENCES[:2], prefix=[[4, 5, EOS], [5, PAD, PAD]])
    assert found[0][0][1] == [4, 5, EOS] and found[1][0][1][0] == 5


@pytest.mark.parametrize("beam", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_prefix_stands_where_other_rules_would_forbid_it(beam: int) -> None:
    model = ToyModel(vocabulary=7, seed=3)
    settings = SearchSettings(beam_size=beam, min_length=3, max_length_constant=4)
    found = search(model, settings, VOCABULARY, SENTENCES[:2], prefix=[[4, 4], [5, PAD]],
                   avoid=[[[4, PAD], [5, PAD]], [[4, 4], [5, PAD]]])
    assert [best[0][1][:2] for best in found][0] == [4, 4] and found[1][0][1][0] == 5
    assert not set(found[0][0][1][2:]) & {4, 5} and 5 not in found[1][0][1][1:]


def test_the_beginning_of_a_word_gives_the_best_of_all_hypotheses_whose_text_goes_on_with_it() -> None:
    model = ToyModel(vocabulary=VOCABULARY.size, seed=5, spread=1.5)
    text = TargetText(VOCABULARY)
    lines = [LineOptions(prefix="a ab", partial_word=True), LineOptions(prefix="abb", partial_word=True),
             LineOptions(prefix="a ", partial_word=True), LineOptions(prefix="ab a", partial_word=True)]
    inputs = [text.prefix(line) for line in lines]
    assert all(set(given) == {"prefix", "continuation"} for given in inputs)
    longest = np.max([given["continuation"].shape for given in inputs], axis=0)
    tables = [np.pad(table, [(0, size - own) for size, own in zip(longest, table.shape, strict=True)])
              for table in (given["continuation"] for given in inputs)]
    settings = SearchSettings(beam_size=400, n_best=6, max_length_factor=1.0, max_length_constant=2)
    found = search(model, settings, VOCABULARY, SENTENCES, prefix=padded([list(given["prefix"]) for given in inputs]),
                   continuation=np.stack(tables))
    surfaces = Surfaces(VOCABULARY)
    for source, line, given, hypotheses in zip(SENTENCES, lines, inputs, found, strict=True):
        whole = list(given["prefix"])
        rest = SPACE_MARK + line.prefix.rpartition(" ")[2].encode()

        def goes_on(tokens: list[int], whole: list[int] = whole, rest: bytes = rest) -> bool:
            written = b""
            for token in tokens[len(whole):]:
                if len(written) < len(rest) and not surfaces.texts[token]:
                    return False        # the unknown token and EOS write no text
                written += surfaces.texts[token]
            return tokens[:len(whole)] == whole and written.startswith(rest)
        limit = max(length_limit(source, settings), len(whole) + settings.max_length_constant if whole else 0)
        assert_same(hypotheses, all_hypotheses(model, source, settings, limit, goes_on))


def occurs(phrase: list[int], tokens: list[int], breaks: np.ndarray) -> bool:
    """Return whether a hypothesis contains a phrase, in which -1 is any token after which a word may begin."""
    text = [BOS, *tokens]
    return any(all(breaks[found] if wanted == -1 else found == wanted for wanted, found in
                   zip(phrase, text[place:], strict=False)) for place in range(len(text) - len(phrase) + 1))


def test_avoided_phrases_leave_the_best_of_all_hypotheses_without_them_each_sentence_its_own() -> None:
    model = ToyModel(vocabulary=7, seed=4, spread=1.5)
    vocabulary = Pieces("▁", "x", "y")
    breaks = Surfaces(vocabulary).breaks
    assert np.flatnonzero(breaks).tolist() == [BOS, 4]
    phrases = [[[3], [4, 5], [5, 6, 5]], [], [[BOS, 6], [3, EOS], [-1, 5]], [[6, 6], [-1, 4]]]
    longest = [max(len(of) for of in phrases), 3]
    avoid = np.zeros([len(SENTENCES), *longest], np.int32)
    for row, given in zip(avoid, phrases, strict=True):
        if given:
            array = padded(given)
            row[:array.shape[0], :array.shape[1]] = array
    found = search(model, SETTINGS, vocabulary, SENTENCES, avoid=avoid)
    for source, given, hypotheses in zip(SENTENCES, phrases, found, strict=True):
        expected = all_hypotheses(model, source, SETTINGS, allowed=lambda tokens, given=given: not any(
            occurs(phrase, tokens, breaks) for phrase in given))
        assert_same(hypotheses, expected)


def test_inputs_that_nothing_serves_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="The input 'prefex' of a line is not known: there are .*prefix"):
        decoding_with({"prefex"}, PlainSearch(decoding_for(SETTINGS), SETTINGS, VOCABULARY))
