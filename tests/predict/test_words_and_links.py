"""From the attention of tokens to links of words, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.dataflow.text.text_lines import one_line
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import learn_bpe_codes
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import learn_sentence_piece
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.hypotheses import SourceWords
from towernmt.predict.lines.words_of_lines import (
    NO_WORD,
    cut_line,
    joined_words,
    lacks_sentences,
    links_of,
    pharaoh,
    reversed_links,
    word_weights,
    words_of_source,
    words_of_translation,
)

TEXT = ["the cat sat on the mat .", "a black cat and a white cat !", "mats and cats, sats; the blackest"] * 3
VOCABULARIES = {
    "words": lambda: WordVocabulary([*SPECIAL_PIECES, *sorted({w for line in TEXT for w in line.split()})]),
    "bpe-codes": lambda: learn_bpe_codes(TEXT, 60),
    "unigram": lambda: learn_sentence_piece(TEXT, "unigram", 40),
    "bpe": lambda: learn_sentence_piece(TEXT, "bpe", 45),
    "bytes": lambda: learn_sentence_piece(TEXT, "bpe", 300, byte_fallback=True),
}


@pytest.fixture(params=sorted(VOCABULARIES))
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return VOCABULARIES[request.param]()


def test_the_weight_of_words_is_the_sum_over_source_tokens_in_the_mean_over_target_tokens() -> None:
    attention = np.array([[0.2, 0.3, 0.4, 0.1], [0.6, 0.0, 0.2, 0.2], [0.1, 0.1, 0.1, 0.7]])
    weights = word_weights(attention, [0, 0, 1, NO_WORD], [0, 0, NO_WORD], (2, 2))
    np.testing.assert_allclose(weights, [[0.55, 0.3], [0.0, 0.0]], rtol=1e-6)
    assert weights.dtype == np.float32


def test_a_word_is_linked_where_its_attention_is_largest_or_wherever_it_reaches_the_threshold() -> None:
    weights = np.array([[0.1, 0.6, 0.3], [0.0, 0.0, 0.0], [0.4, 0.4, 0.2]])
    assert links_of(weights) == [(0, 2), (1, 0)]                    # the first of equal weights; 0 is no link
    assert links_of(weights, 0.3) == [(0, 2), (1, 0), (1, 2), (2, 0)]
    assert links_of(weights, 0.5) == [(1, 0)]
    assert pharaoh([(1, 0), (0, 2)]) == "0-2 1-0" and reversed_links([(0, 2), (1, 0)]) == [(0, 1), (2, 0)]
    assert links_of(np.zeros([0, 3])) == links_of(np.zeros([2, 0])) == []


def test_the_words_of_a_translation_are_those_of_the_same_text_as_a_source(vocabulary: Vocabulary) -> None:
    for text in TEXT[:3]:
        (ids,), (words,) = vocabulary.encode_with_words([text])
        assert vocabulary.decode(ids) == text
        assert words_of_translation(vocabulary, [*ids, EOS]) == [*words, NO_WORD]


def test_every_token_of_a_translation_is_of_a_word_whatever_it_is() -> None:
    random = np.random.default_rng(1)
    for make in VOCABULARIES.values():
        vocabulary = make()
        for _ in range(50):
            ids = random.integers(3, vocabulary.size, 12).tolist()
            words, count = words_of_translation(vocabulary, ids), len(one_line(vocabulary.decode(ids)).split())
            assert words == sorted(words) and words[0] == 0 and words[-1] <= max(count - 1, 0)


def test_the_words_of_pieces_are_those_of_the_whole_line(vocabulary: Vocabulary) -> None:
    for line in ["the cat sat. on the mat, and the blackest cat sat", "mat。cat。mat and cat。mat", "thecatsatonmat"]:
        for limit in (3, 5, 100):
            pieces = cut_line(line, vocabulary.encode(line), vocabulary, limit)
            words = words_of_source(vocabulary, line, limit)
            assert len(words) == sum(len(piece) + 1 for piece in pieces)
            assert [word == NO_WORD for word in words] == [last for piece in pieces
                                                           for last in [False] * len(piece) + [True]]
            numbers = [word for word in words if word != NO_WORD]
            assert numbers == sorted(numbers) and set(numbers) == set(range(len(line.split())))
            place = 0
            for piece in pieces:                    # each piece contains the text of its words
                text = vocabulary.decode(piece).split()
                span = words[place:place + len(piece)]
                if "⁇" not in text and "<unk>" not in text:
                    for word, part in zip(sorted(set(span)), text, strict=False):
                        assert part.strip("\ufffd") in line.split()[word]
                place += len(piece) + 1


def test_a_line_is_divided_at_the_ends_of_its_sentences(vocabulary: Vocabulary) -> None:
    line = 'the cat sat. And "the mat!" The cat and on. the mat'
    pieces = cut_line(line, vocabulary.encode(line), vocabulary, 100, by_sentence=True)
    assert pieces == [vocabulary.encode(text) for text in (
        "the cat sat. ", 'And "the mat!" ', "The cat and on. the mat")]
    words = words_of_source(vocabulary, line, 100, by_sentence=True)
    sentences = line.replace("sat. ", "sat.|").replace('!" ', '!"|').split("|")
    assert [word for word in words if word != NO_WORD] == [
        before + word for before, text in zip((0, 3, 6), sentences, strict=True)
        for word in vocabulary.encode_with_words([text])[1][0]]
    short = cut_line(line, vocabulary.encode(line), vocabulary, 3, by_sentence=True)
    assert all(len(piece) <= 3 for piece in short)


@pytest.mark.parametrize(("line", "translation", "lacks"), [
    ("Ich gehe. Du kommst.", "I go.", True), ("Ich gehe. Du kommst.", "I go. You come.", False),
    ("Ich gehe.", "I. Go.", False), ("Am 3. Mai um 5. Da", "so", False), ("z. B. Dir ist kalt", "you", False),
    ("Der II. Weltkrieg", "World War II", False),
    ("我走。你来。", "I go.", True), ("Was? Wo?", "What?", True), ('"Ja!" Er ging.', "He went.", True)])
def test_a_translation_lacks_a_sentence(line: str, translation: str, lacks: bool) -> None:
    assert lacks_sentences(line, translation) == lacks


def test_words_with_factors_are_counted_and_shown_without_them() -> None:
    vocabulary = FactoredVocabulary(VOCABULARIES["bpe"](), [WordVocabulary([*SPECIAL_PIECES, "N", "D"])])
    source = SourceWords.of(vocabulary, "the|D cats|N  mats|N", 100)
    assert source.words == ["the", "cats", "mats"]
    assert source.of_tokens == [*vocabulary.words.encode_with_words(["the cats mats"])[1][0], NO_WORD]
    aligned = source.aligned("x", [0], np.eye(1, len(source.of_tokens), dtype=np.float32))
    assert aligned.pharaoh() == "0-0" and aligned.target == ["x"]


def test_the_words_of_joined_texts_go_on_counting() -> None:
    assert joined_words([("a b", [0, 1, NO_WORD]), ("", [NO_WORD]), ("c d", [0, 0, 1])]) == [0, 1, -1, -1, 2, 2, 3]
