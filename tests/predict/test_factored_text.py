"""Lines with source factors to translations, by a fake predictor. No test imports TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.callbacks.validation_towers import teacher_forced_batches
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import EOS, PAD, SPECIAL_PIECES
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.line_options import LineOptions, LineRequest, line_requests
from towernmt.predict.lines.request_encoder import RequestEncoder
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.predict.lines.words_of_lines import Cut, cuts_of
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings
from towernmt.predict.stream import translate_stream

WORDS = WordVocabulary([*SPECIAL_PIECES, "a", "b", "c", ".", ",", "。"])
TAGS = WordVocabulary([*SPECIAL_PIECES, "x", "y", "P."])
SOURCE = FactoredVocabulary(WORDS, [TAGS])
BOTH = WordVocabulary([*SPECIAL_PIECES, *(f"{word}/{tag}" for word in "abc.,。" for tag in ("x", "y", "P."))])


def spell(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Translate each subword into itself with its factor."""
    assert source.dtype == np.int32 and source.ndim == 3 and source.shape[2] == 2
    tokens = np.full((len(source), 1, source.shape[1]), PAD)
    for row, pieces, count in zip(tokens, source, source_length, strict=True):
        assert (pieces[count - 1] == EOS).all() and (pieces[count:] == PAD).all()
        row[0, :count - 1] = [BOTH.piece_to_id(f"{WORDS.id_to_piece(piece)}/{TAGS.id_to_piece(tag)}")
                              for piece, tag in pieces[:count - 1]]
    return tokens, np.zeros((len(source), 1), np.float32)


def translate(lines: list[str], **settings: int) -> list[str]:
    stream = translate_stream(spell, SOURCE, BOTH, line_requests(lines, "in.de"), StreamSettings(**settings), "in.de")
    return [hypotheses[0].text for hypotheses in stream]


def test_lines_are_translated_with_their_factors_in_place() -> None:
    lines = ["a|x b|y", "", "  ", "a|y b|y  c|x", "a|x b|y"]
    expected = ["a/x b/y", "", "", "a/y b/y c/x", "a/x b/y"]
    assert translate(lines) == expected
    assert translate(lines, window=1, batch_sentences=1) == expected


def test_a_word_without_its_factor_is_refused_with_its_line_in_any_window() -> None:
    lines = ["a|x"] * 6 + ["", "a|x b"]
    for window in (1, 3, 100):
        with pytest.raises(DataError, match=r"^in.de line 8: 'b' does not have the form word\|factor1. Write each"):
            translate(lines, window=window)


def test_long_lines_are_cut_between_words_behind_punctuation_first() -> None:
    line = "a|x .|P. b|y c|x ,|y a|x b|x 。|x c|y"
    ids = SOURCE.encode(line)
    assert [cut.ids for cut in cuts_of(line, ids, SOURCE, 6)] == [ids[:2], ids[2:8], ids[8:]]
    for limit in range(1, 10):
        pieces = [cut.ids for cut in cuts_of(line, ids, SOURCE, limit)]
        assert [id for piece in pieces for id in piece] == ids
        assert max(map(len, pieces)) <= limit
    assert translate([line], max_source_length=3) == [line.replace("|", "/")]


def test_pairs_for_the_teacher_forced_tower_have_all_streams_even_where_a_line_is_blank() -> None:
    batches = list(teacher_forced_batches(["", "a|x b|y", ""], ["a/x", "b/y", "a/y"], SOURCE, BOTH, 2))
    assert [batch[0].shape[2] for batch in batches] == [2] * len(batches)
    assert batches[0][0][0].tolist() == [[EOS, EOS]]
    assert batches[-1][0].tolist() == [[[4, 4], [5, 5], [EOS, EOS]]]


def test_protected_words_are_refused_because_lines_with_factors_are_translated_once() -> None:
    encoder = RequestEncoder(SearchSettings(), SOURCE, BOTH)
    encoder.check(LineOptions(prefix="a/x"))
    with pytest.raises(SettingsError, match=r"protect=\['a'\] has no effect, because the source words .* have factors"):
        encoder.check(LineOptions(protect=["a"]))


def test_a_term_of_several_words_is_found_between_their_factors() -> None:
    term = Term("a b", "c/x")
    request = LineRequest("a|x b|y c|x", LineOptions(terminology=Terminology([term, Term("x", "c/y")])))
    [piece] = RequestEncoder(SearchSettings(), SOURCE, BOTH).pieces(
        request, [Cut(SOURCE.encode(request.text), 0, request.text)])
    assert piece.terms == [term] and piece.inputs["constraints"].tolist() == [BOTH.encode("c/x")]
