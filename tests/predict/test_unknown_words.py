"""Words in place of unknown tokens, by a predictor that copies a sentence and attends to the copied words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES, UNK, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import learn_bpe_codes
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.hypotheses import Hypothesis
from towernmt.predict.lines.line_options import LineRequest
from towernmt.predict.lines.unknown_words import UnknownWords, read_translations
from towernmt.predict.search.search_settings import StreamSettings
from towernmt.predict.stream import translate_stream

WORDS = WordVocabulary([*SPECIAL_PIECES, "a", "b", ".", ","])
TEXT = ["der kleine Hund bellt laut .", "die kleine Katze , der Hund und die Maus", "Katzen und Hunde ( laut ) bellen"]


def copied(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, ...]:
    attention = np.broadcast_to(np.eye(source.shape[1], dtype=np.float32), [len(source), 1, *[source.shape[1]] * 2])
    return source[:, None], np.zeros([len(source), 1]), None, attention


def replaced(line: str, vocabulary: Vocabulary, table: dict[str, str] | None = None, predictor=copied,
             limit: int = 100) -> Hypothesis:
    stream = translate_stream(predictor, vocabulary, vocabulary, [LineRequest(line)],
                              StreamSettings(max_source_length=limit))
    return UnknownWords(vocabulary, vocabulary, table).replace(next(stream))[0]


def test_an_unknown_word_is_the_source_word_or_its_translation_by_the_table() -> None:
    assert replaced("a Kraków b", WORDS).text == "a Kraków b"
    assert replaced("a Kraków, b Haus", WORDS, {"Kraków": "Cracow", "haus": "house"}).text == "a Cracow b house"
    assert replaced("a , b", WORDS, {",": ";"}).text == "a , b"         # known words stay
    assert replaced("a दिल्ली। b", WORDS, {"दिल्ली": "Delhi"}).text == "a Delhi b"
    assert replaced("a (दिल्ली)।", WORDS).text == "a दिल्ली"


def test_words_of_a_long_line_are_found_in_all_its_pieces() -> None:
    found = replaced("a x b y a z b", WORDS, {"y": "Y"}, limit=2)
    assert found.text == "a x b Y a z b" and found.links() == [(i, i) for i in range(7)]


def test_a_known_source_word_stands_for_an_unknown_target_word() -> None:
    def forgets(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, ...]:
        tokens, *rest = copied(source, source_length)
        return np.where(tokens == WORDS.piece_to_id("b"), UNK, tokens), *rest

    assert replaced("a b . b", WORDS, {"b": "B"}, forgets).text == "a B . B"


def test_unknown_tokens_that_look_at_one_token_are_one_word() -> None:
    def stutters(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, ...]:
        attention = np.zeros([1, 1, 4, source.shape[1]], np.float32)
        attention[0, 0, [0, 1, 2, 3], [0, 1, 1, 2]] = 1
        return np.array([[[4, UNK, UNK, EOS]]], np.int32), np.zeros([1, 1]), None, attention

    found = replaced("a Kraków", WORDS, None, stutters)
    assert found.text == "a Kraków" and found.links() == [(0, 0), (1, 1)]
    assert found.alignment is not None and found.alignment.weights.shape == (2, 2)


@pytest.mark.parametrize("make", [lambda: learn_sentence_piece(TEXT * 3, "unigram", 40),
                                  lambda: learn_bpe_codes(TEXT, 80)])
@pytest.mark.parametrize("line", ["der Hund Łódź bellt", "die Katze (Łódź) .", "Hund😀 und 😀Katze , Hu😀nd"])
def test_a_part_of_a_word_that_is_unknown_comes_back_in_its_place(make, line: str) -> None:
    vocabulary = make()
    assert UNK in vocabulary.encode(line)
    found = replaced(line, vocabulary)
    assert found.text == line and found.links() == [(i, i) for i in range(len(line.split()))]


@pytest.mark.parametrize("line", ["Hu☃nd☃☃", "☃Hund", "☃", "☃Hu☃", "Hund☃Hund☃"])
def test_each_unknown_token_of_a_word_stands_for_its_letters(line: str) -> None:
    assert replaced(line, learn_bpe_codes(TEXT, 80)).text == line


def test_the_letters_of_unknown_tokens_are_found_in_linear_time() -> None:
    class Written(WordVocabulary):
        """A vocabulary that writes `x` otherwise than it reads it, as a normalisation does."""

        def id_to_piece(self, id: int) -> str:
            return super().id_to_piece(id).replace("x", "y")

    vocabulary = Written([*SPECIAL_PIECES, "a", "x"])
    replacement = UnknownWords(vocabulary, vocabulary)
    ids = [UNK, vocabulary.piece_to_id("a")] * 40
    word = "жa" * 80        # the letters could be divided in 10 ** 22 ways
    assert replacement._letters_of(word + "x", [*ids, vocabulary.piece_to_id("x")], 0) is None
    assert replacement._letters_of(word, ids, 0) == "ж"
    assert replacement._letters_of(word, ids, 78) == word[2 * 39:-1]
    for tokens, index, letters in (([UNK, UNK, 4], 0, "ж"), ([UNK, UNK, 4], 1, "bc"), ([4, UNK], 1, None),
                                   ([UNK] * 5, 4, None), ([UNK, UNK], 1, "bca"), ([UNK, 4, UNK], 0, None)):
        assert replacement._letters_of("жbca", tokens, index) == letters


def test_the_likeliest_translation_of_a_table_is_taken(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("Haus house -0.5\nHaus home -0.2\nNULL the -0.1\nHund dog -1\n")
    assert read_translations(tmp_path / "table") == {"Haus": "home", "Hund": "dog"}
    (tmp_path / "table").write_text("Haus house\n")
    with pytest.raises(DataError, match="table line 1: expected a source word"):
        read_translations(tmp_path / "table")
