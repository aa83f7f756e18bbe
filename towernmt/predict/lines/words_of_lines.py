"""Words of tokens, word alignments, and the division of lines that are too long for a model."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import regex  # type: ignore[import-untyped]

from towernmt.dataflow.text.clean_text import clean, one_line
from towernmt.dataflow.text.pharaoh_alignments import Link
from towernmt.dataflow.text.word_segmentation import space_between
from towernmt.dataflow.vocabulary.base import EOS, Vocabulary

_ENDS_WITH_SPACE = ".!?…؟۔።։"
"""Marks that end a sentence before a space, or an abbreviation. Those after `…` are Arabic, Urdu, Ethiopic and
Armenian."""
_SURE_ENDS = "।॥។။"
"""Marks of Indian scripts, Khmer and Burmese that always end a sentence."""
_ENDS = _ENDS_WITH_SPACE + _SURE_ENDS
_CLOSING = "”’」』）】》〉〕｝"
"""Quotes and brackets that belong to the Chinese or Japanese sentence before them."""

# Patterns of positions to divide a line at, best first.
_CUTS = [
    re.compile(rf"(?<=[{_ENDS}])\s+|(?<=[{_ENDS}][\"'“”‘’»«)\]])\s+"
               rf"|(?<=[。！？])(?![。！？…{_CLOSING}])|(?<=[。！？][{_CLOSING}])(?![{_CLOSING}])"),
    re.compile(r"(?<=[,;:–—،؛])\s+|(?<=[，、；：])"),
    re.compile(r"\s+"),
]

# Lines with factors are divided only at spaces, first after words that end with punctuation.
_FACTORED_CUTS = [
    re.compile(rf"""[{_ENDS}。！？]["'“”‘’»«)\]]?\|\S+\s+"""),
    re.compile(r"[,;:–—،؛，、；：]\|\S+\s+"),
    re.compile(r"\s+"),
]


_ABBREVIATIONS = """prof gen col capt maj adm rev hon gov sen rep pres inc corp co ave dept approx mio mill geb verh
    gest fa fam gebr abt univ ausg aufl bes insb einschl ausschl abzgl inkl exkl evtl sog betr max min ehem engl franz
    lat griech ital span russ amerik österr schweiz allg urspr verst ca resp mme mlle ste av env sra srta dra ud uds
    avda ee uu sig dott ing arch avv ir mevr bijv ul al im inż nám doc ifj id özv cad sok mah
    ул им проф тов акад просп обл""".split()
"""Abbreviations with a full stop that often precede a capital, in several languages. Those without a vowel are not
listed."""
_VOWELS = "aeiouyäöüåæøœàáâãèéêëìíîïòóôõùúûýąęěůőűıāēīōūįųаеёиоуыэюяіїєўαεηιουωάέήίόύώ"
_ABBREVIATED = (rf"(?<=(?<![\p{{L}}\p{{M}}])(?i:{'|'.join(_ABBREVIATIONS)}"
                rf"|(?:(?![{_VOWELS}])[\p{{Latin}}\p{{Cyrillic}}\p{{Greek}}]){{2,5}}))\.(?![.!?…])")
_AFTER_WORD = r"(?<=[^\W\d_]{2})(?<![IVXL]{2})"
_MARKS_BEFORE_SPACE = (rf"[{_ENDS_WITH_SPACE}]+[\"'“”‘’»«)\]]*\s+"
                       r"(?=[\"'„“‚‘»«(\[]*(?:\p{Georgian}|(?!\p{Ll})[^\W\d_]))")
_MARKS_WITHOUT_SPACE = rf"(?<![。！？…{_SURE_ENDS}])…*+[。！？{_SURE_ENDS}][。！？…{_SURE_ENDS}]*+"
_SENTENCE_END = regex.compile(rf"{_AFTER_WORD}(?!{_ABBREVIATED}){_MARKS_BEFORE_SPACE}"
                              rf"|{_MARKS_WITHOUT_SPACE}(?![\"'{_CLOSING}])(?=.)")
"""The end of a sentence before another one. Marks before a space follow a word of two letters or more, but no
abbreviation and no Roman numeral. The next sentence begins with a capital. In scripts that write none, such as Arabic
or Georgian, it begins with any letter. After a quotation, as in `「行こう！」と言った`, the sentence may continue."""
_POSSIBLE_END = regex.compile(rf"{_AFTER_WORD}{_MARKS_BEFORE_SPACE}"
                              rf"|{_MARKS_WITHOUT_SPACE}[\"'{_CLOSING}]*+(?=.)")
"""The same, and the end of an abbreviation, and of a quotation before further text."""


_WORD = re.compile(r"\S+")


class Cut(NamedTuple):
    """A piece of a line.

    Attributes:
        ids: ids of its tokens, without EOS.
        start: index of the character of the line at which `text` begins.
        text: text that contains the piece.
        is_divided: whether `text` is divided between tokens, so that it has more tokens than the piece.
        first_token: number of tokens of `text` before the piece.
    """

    ids: list[int]
    start: int
    text: str
    is_divided: bool = False
    first_token: int = 0


def lacks_sentences(line: str, translation: str) -> bool:
    """Return whether a translation of several sentences has fewer sentences than the line."""
    ends = len(_SENTENCE_END.findall(line))
    return ends > 0 and len(_POSSIBLE_END.findall(translation)) < ends


def cuts_of(text: str, ids: list[int], vocabulary: Vocabulary, limit: int, by_sentence: bool = False) -> list[Cut]:
    """Return the pieces of a line; none for a line without tokens.

    Args:
        text: the line.
        ids: its ids without EOS.
        vocabulary: source vocabulary.
        limit: maximum number of tokens of a piece.
        by_sentence: whether each sentence is a piece of its own.
    """
    if by_sentence:
        sentences = [(start, text[start:end]) for start, end in _spans(_SENTENCE_END, text)]
        encoded = vocabulary.encode_batch([sentence for _, sentence in sentences])
        return [cut for (start, sentence), sentence_ids in zip(sentences, encoded, strict=True) if sentence_ids
                for cut in _cut(Cut(sentence_ids, start, sentence), vocabulary, limit, level=0)]
    if len(ids) <= limit:
        return [Cut(ids, 0, text)] if ids else []
    return _cut(Cut(ids, 0, text), vocabulary, limit, level=0)


def _cut(cut: Cut, vocabulary: Vocabulary, limit: int, level: int) -> list[Cut]:
    text, ids = cut.text, cut.ids
    if len(ids) <= limit:
        return [cut]
    patterns = _CUTS if vocabulary.streams == 1 else _FACTORED_CUTS
    if level == len(patterns):
        return [Cut(ids[i:i + limit], cut.start, text, is_divided=True, first_token=i)
                for i in range(0, len(ids), limit)]
    spans = _spans(patterns[level], text)
    encoded = vocabulary.encode_batch([text[start:end] for start, end in spans])
    pieces: list[Cut] = []
    first_index = 0
    while first_index < len(spans):
        end_index, size = first_index + 1, len(encoded[first_index])
        while end_index < len(spans) and size + len(encoded[end_index]) <= limit:
            size += len(encoded[end_index])
            end_index += 1
        start, piece = spans[first_index][0], text[spans[first_index][0]:spans[end_index - 1][1]]
        # A span that is too long is divided at the next level. So are joined spans whose common text has more tokens
        # than the spans have.
        pieces += _cut(Cut(vocabulary.encode(piece), cut.start + start, piece), vocabulary, limit, level + 1)
        first_index = end_index
    return [piece for piece in pieces if piece.ids]


def _spans(cut: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    ends = [match.end() for match in cut.finditer(text) if 0 < match.end() < len(text)]
    return list(zip([0, *ends], [*ends, len(text)], strict=True))


def links_of(weights: np.ndarray, threshold: float | None = None) -> list[Link]:
    """Return the word alignments of weights.

    Args:
        weights: float `[target words, source words]`, as from `word_weights`.
        threshold: minimum weight of a link; None links each target word to the source word with the largest weight (of
            equal ones, the first), unless all its weights are 0.

    Returns:
        (source word, target word), sorted.
    """
    if not weights.size:
        return []
    if threshold is not None:
        target, source = np.nonzero((weights >= threshold) & (weights > 0))
    else:
        target = np.flatnonzero(weights.max(axis=1) > 0)
        source = weights.argmax(axis=1)[target]
    return sorted(zip(source.tolist(), target.tolist(), strict=True))


def pharaoh(links: Iterable[Link]) -> str:
    """Return links as text, in the order of the source words."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def reversed_links(links: Iterable[Link]) -> list[Link]:
    """Return the links with source and target exchanged, sorted."""
    return sorted((target, source) for source, target in links)


NO_WORD = -1
"""Word index of a token that belongs to no word, such as EOS."""


def word_weights(attention: np.ndarray | Sequence[np.ndarray], source_words: Sequence[int],
                 target_words: Sequence[int], sizes: tuple[int, int]) -> np.ndarray:
    """Return the attention of words to words.

    Args:
        attention: float `[target tokens, source tokens]`; for a line in pieces, that of each piece.
        source_words: index of the word of each source token, or `NO_WORD`.
        target_words: index of the word of each target token, or `NO_WORD`.
        sizes: number of words of the source and of the target.

    Returns:
        float32 `[target words, source words]`; the sum of a row is 1 minus the attention to tokens without a word, or 0
        for a word without tokens.
    """
    source, target = np.array(source_words, np.int64), np.array(target_words, np.int64)
    num_tokens = np.bincount(target[_are_words(target, sizes[1])], minlength=sizes[1])
    weights = np.zeros(sizes[::-1], np.float32)
    row = column = 0
    for block in [attention] if isinstance(attention, np.ndarray) else attention:
        num_rows, num_columns = block.shape
        rows, sums = _sums_of_words(block, target[row:row + num_rows], sizes[1])
        columns, sums = _sums_of_words(sums.T, source[column:column + num_columns], sizes[0])
        np.add.at(weights, np.ix_(rows, columns), sums.T / num_tokens[rows, None])
        row, column = row + num_rows, column + num_columns
    return weights


def _sums_of_words(weights: np.ndarray, words: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the rows of each range of tokens of one word.

    Args:
        weights: float `[tokens, columns]`.
        words: index of the word of each token.
        size: number of words.

    Returns:
        the index of the word of each range; float32 or float64 `[ranges, columns]`.
    """
    starts = np.flatnonzero(np.diff(words, prepend=words[:1] - 1))
    sums = np.add.reduceat(weights, starts, axis=0, dtype=np.result_type(weights, np.float32)) if starts.size else (
        np.zeros([0, weights.shape[1]], np.float32))
    are_words = _are_words(words[starts], size)
    return words[starts][are_words], sums[are_words]


def _are_words(words: np.ndarray, size: int) -> np.ndarray:
    """Return whether each index is that of one of `size` words."""
    return (words >= 0) & (words < size)


def most_attended(attention: Sequence[np.ndarray], source_words: Sequence[int]) -> np.ndarray:
    """Return the index of the source token that each target token attends to most, among the tokens of words.

    Of tokens with equal attention, the first one is returned.

    Args:
        attention: float `[target tokens, source tokens]` of each piece of a line. Between pieces, it is 0.
        source_words: index of the word of each source token, or `NO_WORD`.

    Returns:
        int64 `[target tokens]`.
    """
    are_words = np.array(source_words, np.int64) != NO_WORD
    first = int(are_words.argmax())
    indices: list[np.ndarray] = []
    column = 0
    for block in attention:
        weights = np.where(are_words[column:column + block.shape[1]], block, -1.0)
        indices.append(np.where(weights.max(axis=1, initial=-1.0) > 0, column + weights.argmax(axis=1), first))
        column += block.shape[1]
    return np.concatenate(indices)


def words_of_source(vocabulary: Vocabulary, text: str, limit: int, by_sentence: bool = False) -> list[int]:
    """Return the index of the word of each source token, and `NO_WORD` for the EOS after each piece.

    Args:
        vocabulary: source vocabulary.
        text: the line.
        limit: maximum number of tokens of a piece; see `cuts_of`.
        by_sentence: whether each sentence is a piece of its own.
    """
    (ids,), (words,) = vocabulary.encode_with_words([text])
    cuts = cuts_of(text, ids, vocabulary, limit, by_sentence)
    # The model reads the cleaned text, in which a word of invisible characters is missing.
    raw_words = list(_WORD.finditer(text)) if len(cuts) > 1 else []
    word_ends = [match.end() for match in raw_words]
    num_words = [0, *accumulate(len(clean(match[0]).split()) for match in raw_words)]
    word_indices: list[int] = []
    for cut in cuts:
        if cut.text != text:
            _, (words,) = vocabulary.encode_with_words([cut.text])
        num_words_before = num_words[bisect_right(word_ends, cut.start)]
        words_of_cut = words[cut.first_token:cut.first_token + len(cut.ids)]
        word_indices += [num_words_before + word for word in words_of_cut] + [NO_WORD]
    return word_indices


def words_of_translation(vocabulary: Vocabulary, ids: Sequence[int]) -> list[int]:
    """Return the index of the word of each token of a translation; `NO_WORD` for EOS.

    A token belongs to the first word that it begins or continues. A token that adds no text, such as a space, belongs
    to the next word.

    Args:
        vocabulary: target vocabulary.
        ids: ids of a text, without padding.
    """
    words: list[int] = []
    text, count, num_waiting = "", 0, 0  # text so far, its words, and tokens at the end without a word
    for length, id in enumerate(ids, start=1):
        if id == EOS:
            break
        previous_text, text = text, one_line(vocabulary.decode(ids[:length]))
        num_waiting += 1
        if text != previous_text:
            new_count = len(text.split())
            words += [count if new_count > count else max(count - 1, 0)] * num_waiting
            count, num_waiting = new_count, 0
    words += [max(count - 1, 0)] * num_waiting
    # Bytes may look like separate words until their character is complete.
    last_word = max(len(text.split()) - 1, 0)
    words = [min(word, last_word) for word in accumulate(words, max)]
    return words + [NO_WORD] * (len(ids) - len(words))


def joined_words(texts_and_words: Sequence[tuple[str, Sequence[int]]]) -> list[int]:
    """Return the word indices of the tokens of texts that are joined by `joined_sentences`.

    Args:
        texts_and_words: each text, and the word indices of its tokens.
    """
    word_indices: list[int] = []
    num_words_before, last_text = 0, ""
    for text, words in texts_and_words:
        if text and last_text and not space_between(last_text, text):
            num_words_before -= 1       # the first word continues the last one
        word_indices += [NO_WORD if word == NO_WORD else num_words_before + word for word in words]
        num_words_before += len(text.split())
        last_text = text or last_text
    return word_indices
