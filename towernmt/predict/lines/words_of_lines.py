"""From tokens to words and their links; and cutting lines that are too long for a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from towernmt.dataflow.text.pharaoh_alignments import Link
from towernmt.dataflow.text.text_lines import one_line
from towernmt.dataflow.vocabulary.base import EOS, Vocabulary

# Each pattern matches between two parts, from the best place to cut to the worst.
_CUTS = [
    re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"'»”’)\]])\s+|(?<=[。！？])"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])"),
    re.compile(r"\s+"),
]

# Words with their factors behind them are cut at spaces alone, behind words that end in punctuation first.
_FACTORED_CUTS = [
    re.compile(r"""[.!?…。！？]["'»”’)\]]?\|\S+\s+"""),
    re.compile(r"[,;:–—，、；：]\|\S+\s+"),
    re.compile(r"\s+"),
]


class Cut(NamedTuple):
    """A piece of a line.

    Attributes:
        ids: of its tokens, without EOS.
        start: the character of the line at which `text` begins.
        text: holds the piece.
        first: how many tokens of `text` stand before the piece: none, but where a text without any place to cut is cut
            between two tokens.
    """

    ids: list[int]
    start: int
    text: str
    first: int = 0


def cut_line(text: str, ids: list[int], vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    """The ids of `text` in pieces of at most `limit` tokens; no piece if it has no tokens.

    Args:
        ids: the whole text, encoded (no EOS).
    """
    return [cut.ids for cut in cuts_of(text, ids, vocabulary, limit)]


def cuts_of(text: str, ids: list[int], vocabulary: Vocabulary, limit: int) -> list[Cut]:
    """As `cut_line`, with the place of each piece in the line."""
    if len(ids) <= limit:
        return [Cut(ids, 0, text)] if ids else []
    return _cut(Cut(ids, 0, text), vocabulary, limit, level=0)


def _cut(whole: Cut, vocabulary: Vocabulary, limit: int, level: int) -> list[Cut]:
    text, ids = whole.text, whole.ids
    if len(ids) <= limit:
        return [whole]
    cuts = _CUTS if vocabulary.streams == 1 else _FACTORED_CUTS
    if level == len(cuts):
        return [Cut(ids[i:i + limit], whole.start, text, i) for i in range(0, len(ids), limit)]
    spans = _spans(cuts[level], text)
    encoded = vocabulary.encode_batch([text[start:end] for start, end in spans])
    pieces: list[Cut] = []
    first = 0
    while first < len(spans):
        last, size = first + 1, len(encoded[first])
        while last < len(spans) and size + len(encoded[last]) <= limit:
            size += len(encoded[last])
            last += 1
        start, piece = spans[first][0], text[spans[first][0]:spans[last - 1][1]]
        # A part that is too long alone is cut at the next level, and so is a pack whose joined text
        # turns out to have more tokens than its parts.
        pieces += _cut(Cut(vocabulary.encode(piece), whole.start + start, piece), vocabulary, limit, level + 1)
        first = last
    return [piece for piece in pieces if piece.ids]


def _spans(cut: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    ends = [match.end() for match in cut.finditer(text) if 0 < match.end() < len(text)]
    return list(zip([0, *ends], [*ends, len(text)], strict=True))


def links_of(weights: np.ndarray, threshold: float | None = None) -> list[Link]:
    """The links that weights of words make.

    Args:
        weights: float `[target words, source words]`, such as `word_weights` gives.
        threshold: None links each target word to the source word of the largest weight (the first of equal ones), or
            to none where all its weights are 0; a number links all words whose weight is at least that.
    Returns:
        (source word, target word), sorted.
    """
    if not weights.size:
        return []
    if threshold is not None:
        target, source = np.nonzero((weights >= threshold) & (weights > 0))
    else:
        target = np.flatnonzero(weights.max(axis=1) > 0)
        source = weights[target].argmax(axis=1)
    return sorted(zip(source.tolist(), target.tolist(), strict=True))


def pharaoh(links: Iterable[Link]) -> str:
    """The links as text, in order of the source words."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def swapped(links: Iterable[Link]) -> list[Link]:
    """The links seen from the other language, sorted."""
    return sorted((target, source) for source, target in links)


NO_WORD = -1
"""The number of the word of a token that is of none, as EOS."""


def word_weights(attention: np.ndarray, source_words: Sequence[int], target_words: Sequence[int],
                 sizes: tuple[int, int]) -> np.ndarray:
    """The attention of words to words.

    Args:
        attention: float `[target tokens, source tokens]`.
        source_words: the word of each source token, from 0, or `NO_WORD`.
        target_words: the word of each target token.
        sizes: how many words the source and the target have.
    Returns:
        float32 `[target words, source words]`: rows sum to 1, less what tokens of no word get; 0 for a word without
        tokens.
    """
    source, target = _members(source_words, sizes[0]), _members(target_words, sizes[1])
    tokens = np.maximum(target.sum(axis=0), 1)
    return ((target.T @ attention @ source) / tokens[:, None]).astype(np.float32)


def words_of_source(vocabulary: Vocabulary, text: str, limit: int) -> list[int]:
    """The word of each token of a line to be translated, from 0; `NO_WORD` for the EOS behind each of its pieces.

    Args:
        limit: a line of more tokens is in pieces; see `cut_line`.
    """
    (ids,), (words,) = vocabulary.encode_with_words([text])
    numbers: list[int] = []
    for cut in cuts_of(text, ids, vocabulary, limit):
        if cut.text != text:
            _, (words,) = vocabulary.encode_with_words([cut.text])
        before = _words_before(text, cut.start)
        numbers += [before + word for word in words[cut.first:cut.first + len(cut.ids)]] + [NO_WORD]
    return numbers


def _words_before(text: str, place: int) -> int:
    """How many words end before a character of the text."""
    inside_a_word = 0 < place < len(text) and not (text[place - 1].isspace() or text[place].isspace())
    return len(text[:place].split()) - inside_a_word


def words_of_translation(vocabulary: Vocabulary, ids: Sequence[int]) -> list[int]:
    """The word of each token of a translation, from 0; `NO_WORD` for EOS.

    A token is of the first word that the text gets, or goes on with, by it. One by which the text gets nothing, as a
    space alone, is of the word that follows.

    Args:
        ids: of one text, without padding.
    """
    words: list[int] = []
    text, count, waiting = "", 0, 0  # the text so far, its words, and how many tokens at the end have no word yet
    for length, id in enumerate(ids, start=1):
        if id == EOS:
            break
        before, text = text, one_line(vocabulary.decode(ids[:length]))
        waiting += 1
        if text != before:
            longer = len(text.split())
            words += [count if longer > count else max(count - 1, 0)] * waiting
            count, waiting = longer, 0
    words += [max(count - 1, 0)] * waiting
    # Bytes may look like words of their own until their character is whole.
    last = max(len(text.split()) - 1, 0)
    words = [min(word, last) for word in accumulate(words, max)]
    return words + [NO_WORD] * (len(ids) - len(words))


def joined_words(parts: Sequence[tuple[str, Sequence[int]]]) -> list[int]:
    """The words of the tokens of a text that is made of others, one behind the other.

    Args:
        parts: of each the text, and the words of its tokens.
    """
    numbers: list[int] = []
    before = 0
    for text, words in parts:
        numbers += [NO_WORD if word == NO_WORD else before + word for word in words]
        before += len(text.split())
    return numbers


def _members(words: Iterable[int], size: int) -> np.ndarray:
    """float32 `[tokens, size]`: 1 where the token is of the word."""
    numbers = np.fromiter(words, np.int64)
    return (numbers[:, None] == np.arange(size)).astype(np.float32)
