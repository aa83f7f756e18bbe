"""From the attention of tokens to links of words, by hand."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.dataflow.text.clean_text import one_line
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import learn_bpe_codes
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.hypotheses import Hypothesis, SourceWords, TokenDetails, Translation, joined
from towernmt.predict.lines.words_of_lines import (
    NO_WORD,
    Cut,
    cuts_of,
    joined_words,
    lacks_sentences,
    links_of,
    most_attended,
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


def block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    matrix = np.zeros(np.sum([block.shape for block in blocks], axis=0), np.float32)
    row = column = 0
    for block in blocks:
        matrix[row:row + len(block), column:column + block.shape[1]] = block
        row, column = row + len(block), column + block.shape[1]
    return matrix


def weights_by_products(attention: np.ndarray, source_words: list[int], target_words: list[int],
                        sizes: tuple[int, int]) -> np.ndarray:
    """Return the weights of words by products with matrices that have a column for each word."""
    source, target = ((np.array(words, int).reshape(-1, 1) == np.arange(size)).astype(np.float32)
                      for words, size in zip((source_words, target_words), sizes, strict=True))
    return (target.T @ attention @ source) / np.maximum(target.sum(axis=0), 1)[:, None]


@st.composite
def pieces_of_a_line(draw: st.DrawFn) -> tuple[list[np.ndarray], list[int], list[int], tuple[int, int]]:
    """Return the attention of pieces, the words of their tokens, and the numbers of words.

    Some words are cut between pieces, have no tokens, or have an index that is too large, as those of a piece without
    text; some tokens belong to no word.
    """
    num_words = draw(st.tuples(st.integers(0, 8), st.integers(0, 8)))
    tokens: tuple[list[int], list[int]] = ([], [])
    blocks = []
    random = np.random.default_rng(draw(st.integers(0, 99)))
    for _ in range(draw(st.integers(1, 4))):
        words_of_piece = [draw(st.lists(st.integers(NO_WORD, size), max_size=6)) for size in num_words]
        for words, of_piece in zip(tokens, words_of_piece, strict=True):
            words += [*of_piece, NO_WORD]
        rows, columns = len(words_of_piece[1]) + 1, len(words_of_piece[0]) + 1
        blocks.append((random.random((rows, columns)) * random.integers(0, 2, (rows, 1))).astype(np.float32))
    return blocks, *tokens, num_words


@given(pieces_of_a_line())
def test_the_weights_of_the_pieces_of_a_line_are_those_of_one_matrix(line: Any) -> None:
    blocks, source_words, target_words, sizes = line
    attention = block_diagonal(blocks)
    expected = weights_by_products(attention, source_words, target_words, sizes)
    for found in (word_weights(blocks, source_words, target_words, sizes),
                  word_weights(attention, source_words, target_words, sizes)):
        assert found.shape == (sizes[1], sizes[0]) and found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@given(pieces_of_a_line())
def test_the_most_attended_tokens_of_the_pieces_of_a_line_are_those_of_one_matrix(line: Any) -> None:
    blocks, source_words, _, _ = line
    expected = np.where(np.array(source_words) == NO_WORD, -1.0, block_diagonal(blocks)).argmax(axis=1)
    assert most_attended(blocks, source_words).tolist() == expected.tolist()


def test_the_alignment_of_a_long_line_needs_little_more_memory_than_its_weights() -> None:
    vocabulary = WordVocabulary([*SPECIAL_PIECES, "w"])
    num_pieces, limit, n_best = 20, 50, 4
    random = np.random.default_rng(1)
    pieces = []
    for _ in range(num_pieces):
        attention = random.random((n_best, limit + 1, limit + 1)).astype(np.float32)
        pieces.append(Translation(
            Hypothesis(" ".join(["w"] * limit), -1.0, TokenDetails(
                [4] * limit + [EOS], [4] * limit + [EOS], None, attention[rank], [*range(limit), NO_WORD]))
            for rank in range(n_best)))
    line = " ".join(["w"] * (num_pieces * limit))
    joined(pieces, 1, line, vocabulary, limit)      # imports and caches
    tracemalloc.start()
    try:
        [best] = joined(pieces, 1, line, vocabulary, limit)
        links, (_, peak) = best.links(), tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    details = best.details
    assert details is not None and details.alignment is not None and details.attention is not None and links is not None
    weights = details.alignment.weights
    blocks = [piece[0].details.attention for piece in pieces]  # type: ignore[union-attr]
    np.testing.assert_array_equal(details.attention, block_diagonal(blocks))
    np.testing.assert_array_equal(weights, block_diagonal([block[:-1, :-1] for block in blocks]))
    assert len(links) == num_pieces * limit and peak < 2 * weights.nbytes


def test_details_with_the_attention_of_a_line_or_of_pieces_are_copied_and_stored() -> None:
    for attention in (None, np.eye(2), (np.eye(2), np.ones([1, 3]))):
        details = TokenDetails([4, 2], [5, 2], np.zeros(2), attention)
        for other in (copy.copy(details), pickle.loads(pickle.dumps(details)), details._replace(words=[0, -1])):
            assert other.words in (None, [0, -1])
            np.testing.assert_array_equal(other.attention, details.attention)


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
            pieces = [cut.ids for cut in cuts_of(line, vocabulary.encode(line), vocabulary, limit)]
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


def test_invisible_characters_between_spaces_are_no_words_of_a_line_in_pieces(vocabulary: Vocabulary) -> None:
    for limit in (3, 5):
        assert words_of_source(vocabulary, "the \u200b cat sat. on \xad the mat, cat", limit) == (
            words_of_source(vocabulary, "the cat sat. on the mat, cat", limit))


def test_a_line_is_divided_at_the_ends_of_its_sentences(vocabulary: Vocabulary) -> None:
    line = 'the cat sat. And "the mat!" The cat and on. the mat'
    cuts = cuts_of(line, vocabulary.encode(line), vocabulary, 100, by_sentence=True)
    assert cuts == [Cut(vocabulary.encode(text), line.index(text), text) for text in (
        "the cat sat. ", 'And "the mat!" ', "The cat and on. the mat")]
    words = words_of_source(vocabulary, line, 100, by_sentence=True)
    sentences = line.replace("sat. ", "sat.|").replace('!" ', '!"|').split("|")
    assert [word for word in words if word != NO_WORD] == [
        before + word for before, text in zip((0, 3, 6), sentences, strict=True)
        for word in vocabulary.encode_with_words([text])[1][0]]
    short = cuts_of(line, vocabulary.encode(line), vocabulary, 3, by_sentence=True)
    assert all(len(cut.ids) <= 3 for cut in short)


def test_a_japanese_line_is_divided_neither_between_its_marks_nor_before_a_closing_quote(
        vocabulary: Vocabulary) -> None:
    line = "「行く！？」と彼。来る。。。はい。"
    cuts = cuts_of(line, vocabulary.encode(line), vocabulary, 100, by_sentence=True)
    assert [cut.text for cut in cuts] == ["「行く！？」と彼。", "来る。。。", "はい。"]


@pytest.mark.parametrize(("line", "translation", "lacks"), [
    ("Ich gehe. Du kommst.", "I go.", True), ("Ich gehe. Du kommst.", "I go. You come.", False),
    ("Ich gehe.", "I. Go.", False), ("Am 3. Mai um 5. Da", "so", False), ("z. B. Dir ist kalt", "you", False),
    ("Der II. Weltkrieg", "World War II", False),
    ("I go. You come.", "मैं जाता हूँ। तुम आओ।", False), ("I go. You come.", "मैं जाता हूँ।", True),
    ("What? Here.", "ماذا؟ هنا.", False), ("I go. You come.", "میں جاتا ہوں۔ تم آؤ۔", False),
    ("我走。你来。", "I go.", True), ("Was? Wo?", "What?", True), ('"Ja!" Er ging.', "He went.", True),
    ("「行こう！」と彼は言った。", '"Let us go!" he said.', False), ("えっ！？行く。", "What!? I go.", False),
    ("走吧。。。你来。", "Let us go... You come.", False), ("走吧……。你来。", "Let us go.", True),
    ('"Go!" He went.', "“走！”他走了。", False), ("What?! I go. You come.", "什么？！我走。", True),
    ("Иванов и др. пришли.", "Ivanov and others came.", False), ("To jest np. żona.", "This is a wife.", False),
    ("Он ушёл. Она пришла.", "He left.", True), ("He left. She came.", "წავიდა. მოვიდა.", False),
    ("Mr. Smith came.", "Herr Smith kam.", False), ("Mr. Smith came. He left.", "Herr Smith kam.", True),
    ("Es kostet 5 Mio. Euro.", "It costs 5 million euros.", False), ("ул. Ленина", "Lenin street", False),
    ("Anna, geb. Müller, kam.", "Anna, née Müller, came.", False), ("EE. UU. ganó.", "The US won.", False),
    ("Pst! Komm.", "Come.", True), ("Ich. Du.", "Dr. Lee.", False)])
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
    assert joined_words([("a 你。", [0, 1]), ("", []), ("我 b", [0, 1]), ("c", [0])]) == [0, 1, 1, 2, 3]
