"""From tokens to words: which word a token is of, and how much of the attention of words a source word gets.

Words are what stands between white space of the text. Where a model sees sub-words, the weight of two words is the
attention to all tokens of the source word together, in the mean over the tokens of the target word. The end of the
sentence is no word: the attention that it gets is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from towernmt.dataflow.text.cleaning import one_line
from towernmt.dataflow.vocabulary.base import EOS, Vocabulary
from towernmt.predict.pieces import cuts_of

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
