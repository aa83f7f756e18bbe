"""Replace unknown tokens by the source word that the model attended to, or by its translation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import regex  # type: ignore[import-untyped]

from towernmt.dataflow.vocabulary.base import EOS, UNK, Vocabulary
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE
from towernmt.predict.lines.hypotheses import Hypothesis, TokenDetails, Translation, WordAlignment
from towernmt.predict.lines.words_of_lines import NO_WORD, most_attended, word_weights
from towernmt.predict.search.lexical_table import table_lines

_MARKS = re.compile(f"^{SPACE}|@@$")
_BARE_WORD = regex.compile(r"[\p{L}\p{N}_](?:.*[\p{L}\p{N}_])?\p{M}*")
"""A word without punctuation at its ends; a vowel sign at its end belongs to it."""


class UnknownWords:
    """Replaces unknown tokens of translations.

    The source token with the most attention determines the replacement: if this token is unknown, too, its characters;
    otherwise the complete source word without punctuation at its ends. A complete word is translated if the table
    contains it, unchanged or in lower case. Consecutive unknown tokens with the same source token count as one.

    Args:
        source, target: vocabularies of the model.
        table: target words by source words.
    """

    def __init__(self, source: Vocabulary, target: Vocabulary, table: Mapping[str, str] | None = None) -> None:
        self._source, self._target, self._table = source, target, table or {}
        self._unknown = target.decode([UNK]).strip()

    def replace(self, translation: Translation) -> Translation:
        """Replace the unknown tokens of a translation whose hypotheses have attention, and return it."""
        translation[:] = [self._replaced(hypothesis) for hypothesis in translation]
        return translation

    def _replaced(self, hypothesis: Hypothesis) -> Hypothesis:
        details, alignment = hypothesis.details, hypothesis.alignment
        if details is None or alignment is None or UNK not in details.ids:
            return hypothesis
        attention, of_source, of_target = details.attention_of_pieces, details.source_words, details.words
        if attention is None or of_source is None or of_target is None:
            return hypothesis
        source_indices = most_attended(attention, of_source)
        words = list(alignment.target)
        unspaced_words = set()      # words that continue the previous word
        for index in np.flatnonzero(np.array(details.ids) == UNK).tolist():
            word = of_target[index]
            is_repeat = (index > 0 and details.ids[index - 1] == UNK
                         and source_indices[index] == source_indices[index - 1])
            text = "" if is_repeat else self._word_for(int(source_indices[index]), details, of_source, alignment)
            words[word] = words[word].replace(self._unknown, text, 1)
            unspaced_words |= {word} if is_repeat else self._unspaced_words(index, source_indices, details, of_source)
        return self._joined(hypothesis, details, alignment, words, unspaced_words)

    def _word_for(self, index: int, details: TokenDetails, of_source: list[int], alignment: WordAlignment) -> str:
        """Return the replacement of an unknown token that attends to the source token `index`."""
        word = alignment.source[of_source[index]]
        bare_match = _BARE_WORD.search(word)
        bare_word = bare_match[0] if bare_match else word
        if details.source_ids[index] == UNK:
            tokens = [i for i, word_index in enumerate(of_source) if word_index == of_source[index]]
            letters = self._letters_of(word, [details.source_ids[i] for i in tokens], tokens.index(index))
            if letters is not None and letters != word:
                return self._table.get(letters) or letters
        return self._table.get(bare_word) or self._table.get(bare_word.lower()) or bare_word

    def _letters_of(self, word: str, ids: Sequence[int], index: int) -> str | None:
        """Return the letters of a word that an unknown token stands for; None if the tokens do not write the word.

        An unknown token stands for as few letters as possible, at least one. The time is linear: a regular expression
        would try all divisions of a word that its tokens do not write.

        Args:
            word: the word.
            ids: tokens of the word.
            index: index of the unknown token.
        """
        starts: list[int] = []      # of the text of each token
        position = 0
        for is_unknown, group in groupby(ids, lambda id: id == UNK):
            if is_unknown:
                starts += range(position, position + len(list(group)))
                position = starts[-1] + 1
                continue
            pieces = [_MARKS.sub("", self._source.id_to_piece(id)) for id in group]
            text = "".join(pieces)
            if len(starts) + len(pieces) < len(ids):
                start = word.find(text, position)
            else:
                start = len(word) - len(text) if word.endswith(text) else -1
            if start < position or not starts and start > 0:
                return None
            starts += [start] * len(pieces)
            position = start + len(text)
        return None if position > len(word) else word[starts[index]:[*starts, len(word)][index + 1]]

    def _unspaced_words(self, index: int, source_indices: np.ndarray, details: TokenDetails,
                        of_source: list[int]) -> set[int]:
        """Return the words at and after an unknown token that continue the previous word without a space."""
        ids, of_target = details.ids, details.words or []
        unspaced_words = set()
        for left, right in ((index - 1, index), (index, index + 1)):
            if left < 0 or right == len(ids) or EOS in (ids[left], ids[right]) or of_target[left] == of_target[right]:
                continue
            if self._target.kind == "sentencepiece":    # a mark begins a word
                piece = self._target.id_to_piece(ids[left if right == index else right])
                is_joined = piece != SPACE if right == index else not piece.startswith(SPACE)
            else:                                       # as in the source, if the tokens are in one word there
                left_source, right_source = source_indices[left], source_indices[right]
                is_joined = right_source == left_source + 1 and of_source[left_source] == of_source[right_source]
            if is_joined:
                unspaced_words.add(of_target[right])
        return unspaced_words

    def _joined(self, hypothesis: Hypothesis, details: TokenDetails, alignment: WordAlignment, words: list[str],
                unspaced_words: set[int]) -> Hypothesis:
        """Return the hypothesis with the new words and their alignment."""
        texts: list[str] = []
        new_indices = {NO_WORD: NO_WORD}
        for word, text in enumerate(words):
            if texts and word in unspaced_words:
                texts[-1] += text
            else:
                texts.append(text)
            new_indices[word] = len(texts) - 1
        of_target = [new_indices[word] for word in details.words or ()]
        weights = word_weights(details.attention_of_pieces or (), details.source_words or (), of_target,
                               (len(alignment.source), len(texts)))
        return hypothesis.replaced(text=" ".join(texts), details=details._replace(
            words=of_target, alignment=WordAlignment(alignment.source, texts, weights)))


def read_translations(path: str | Path) -> dict[str, str]:
    """Return the most probable translation of each word of a table with lines of `source target probability`.

    Raises:
        DataError: the file is missing, or a line is not valid.
    """
    best_translations: dict[str, tuple[float, str]] = {}
    for source, target, probability in table_lines(path):
        if source not in best_translations or probability > best_translations[source][0]:
            best_translations[source] = probability, target
    return {source: target for source, (_, target) in best_translations.items()}
