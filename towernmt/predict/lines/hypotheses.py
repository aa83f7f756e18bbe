"""The results of a search: arrays of a batch, hypotheses of a sentence, translations and their word alignments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from towernmt.dataflow.text.clean_text import clean, one_line
from towernmt.dataflow.text.pharaoh_alignments import Link
from towernmt.dataflow.text.word_segmentation import joined_sentences
from towernmt.dataflow.vocabulary.base import EOS, PAD, Vocabulary
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary
from towernmt.predict.lines.batch_inputs import LinePiece
from towernmt.predict.lines.terminology import Term
from towernmt.predict.lines.words_of_lines import (
    NO_WORD,
    joined_words,
    links_of,
    pharaoh,
    word_weights,
    words_of_source,
    words_of_translation,
)
from towernmt.predict.search.search_settings import SearchSettings


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """Attention between the words of a source and a translation.

    Attributes:
        source, target: words separated by white space.
        weights: float32 `[target words, source words]`, the attention; see `word_weights`.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray

    def links(self, threshold: float | None = None) -> list[Link]:
        """Return the links of the words; see `links_of`."""
        return links_of(self.weights, threshold)

    def pharaoh(self, threshold: float | None = None) -> str:
        """Return the links as text: `0-0 1-2`."""
        return pharaoh(self.links(threshold))

    def as_json(self) -> dict[str, Any]:
        """Return the words, and the weights with 4 digits: for each target word, those of the source words."""
        weights = [[round(weight, 4) for weight in row] for row in self.weights.tolist()]
        return {"source": self.source, "target": self.target, "weights": weights}


def words_of_line(vocabulary: Vocabulary, line: str) -> list[str]:
    """Return the words of a line without factors."""
    return vocabulary.plain_words(line) if isinstance(vocabulary, FactoredVocabulary) else clean(line).split()


@dataclass(frozen=True)
class SourceWords:
    """The words of a source line.

    Attributes:
        words: words without factors.
        of_tokens: index of the word of each token; see `words_of_source`.
    """

    words: list[str]
    of_tokens: list[int]

    @classmethod
    def of(cls, vocabulary: Vocabulary, line: str, limit: int, by_sentence: bool = False) -> SourceWords:
        """Return the words of a line that was translated in pieces; for the arguments, see `joined`."""
        return cls(words_of_line(vocabulary, line), words_of_source(vocabulary, line, limit, by_sentence))

    def aligned(self, target: str, target_words: Sequence[int],
                attention: np.ndarray | Sequence[np.ndarray]) -> WordAlignment:
        """Return the alignment with the words of a translation.

        Args:
            target: the translation.
            target_words: index of the word of each of its tokens.
            attention: float32 `[target tokens, source tokens]`; for a line in pieces, that of each piece.
        """
        words = target.split()
        return WordAlignment(self.words, words, word_weights(
            attention, self.of_tokens, target_words, (len(self.words), len(words))))


class SearchOutput(NamedTuple):
    """Output of a predictor for a batch.

    Attributes:
        tokens: int32 `[batch, n_best, length]`: EOS after a complete hypothesis, then PAD.
        scores: float32 `[batch, n_best]`.
        log_probs: float32 `[batch, n_best, length]`, of each token; None if not requested.
        attention: float32 `[batch, n_best, length, source length]`; None if not requested.
    """

    tokens: np.ndarray
    scores: np.ndarray
    log_probs: np.ndarray | None = None
    attention: np.ndarray | None = None

    def translations(self, pieces: Sequence[LinePiece], source: Vocabulary, target: Vocabulary,
                     find_fault: Callable[..., str | None] | None = None,
                     search: SearchSettings = SearchSettings()) -> list[Translation]:  # noqa: B008 -- immutable
        """Return the translation of each piece of the batch, without impossible hypotheses (score -inf).

        Args:
            pieces: pieces of the batch.
            source: source vocabulary.
            target: target vocabulary.
            search: settings of the search that computed the scores.
            find_fault: returns the fault of a translation, as `faults.fault_of`; None does not look for faults.
        """
        translations = []
        for row, (piece, scores) in enumerate(zip(pieces, self.scores.tolist(), strict=True)):
            translation = Translation()
            translation.terms = piece.terms
            for k, score in enumerate(scores):
                if not math.isfinite(score):
                    continue
                ids, ended = self.text_ids(row, k)
                text = one_line(target.decode(ids))
                fault = find_fault(text, ids, ended, partial(source.decode, piece.text_ids)) if find_fault else None
                details = with_words(self.details(row, k, piece.text_ids, piece.prefix_size), target)
                tokens = len(ids) + ended
                translation.append(Hypothesis(text, score, details, fault, tokens, search.log_prob(score, tokens)))
            translations.append(translation)
        return translations

    def text_ids(self, row: int, k: int) -> tuple[list[int], bool]:
        """Return the ids of a hypothesis without EOS and padding, and whether EOS ended it."""
        ids: list[int] = self.tokens[row, k].tolist()
        end = min((ids.index(id) for id in (EOS, PAD) if id in ids), default=len(ids))
        return ids[:end], EOS in ids[end:end + 1]

    def details(self, row: int, k: int, source_ids: Sequence[int | tuple[int, ...]], prefix_size: int = 0
                ) -> TokenDetails | None:
        """Return the details of the tokens of a hypothesis, or None if none were requested.

        Args:
            row: index of the sentence in the batch.
            k: rank of the hypothesis, from 0.
            source_ids: source tokens without EOS and source prefix; with several streams, tuples of ids.
            prefix_size: number of tokens of the source prefix, to which the details have no attention.
        """
        if self.log_probs is None and self.attention is None:
            return None
        source = [token[0] if isinstance(token, tuple) else token for token in source_ids] + [EOS]
        ids = self.tokens[row, k]
        length = np.count_nonzero(ids != PAD)
        return TokenDetails(
            source, ids[:length].tolist(), None if self.log_probs is None else self.log_probs[row, k, :length],
            None if self.attention is None else (
                self.attention[row, k, :length, prefix_size:prefix_size + len(source)]))


class _DetailFields(NamedTuple):
    source_ids: list[int]
    ids: list[int]
    log_probs: np.ndarray | None
    attention_of_pieces: tuple[np.ndarray, ...] | None
    words: list[int] | None
    source_words: list[int] | None
    alignment: WordAlignment | None


class TokenDetails(_DetailFields):
    """Tokens of a translation with their probabilities and attention.

    For a line that was translated in pieces, the tokens of all pieces are concatenated.

    Attributes:
        source_ids: source tokens; EOS ends each piece. With several streams, tokens of the words.
        ids: tokens of the translation; EOS ends each piece, unless it was cut at the length limit.
        log_probs: float32 `[tokens]`, log-probability of each token in nats; None if not requested.
        attention_of_pieces: for each piece of the line, the attention of its tokens to its source tokens, float32
            `[tokens, source tokens]`; None if not requested. It needs less memory than `attention`.
        words: index of the word of each token, from 0, and -1 for EOS; None without attention.
        source_words: index of the word of each source token, likewise.
        alignment: words of source and translation with their attention; None without attention.
    """

    def __new__(cls, source_ids: list[int], ids: list[int], log_probs: np.ndarray | None = None,
                attention: np.ndarray | tuple[np.ndarray, ...] | None = None, words: list[int] | None = None,
                source_words: list[int] | None = None, alignment: WordAlignment | None = None) -> TokenDetails:
        of_pieces = attention if isinstance(attention, tuple | None) else (np.asarray(attention),)
        return super().__new__(cls, source_ids, ids, log_probs, of_pieces, words, source_words, alignment)

    @property
    def attention(self) -> np.ndarray | None:
        """The attention of each token to the source tokens, float32 `[tokens, source tokens]`; None if not requested.

        It is 0 between different pieces. For a line in pieces, each access makes a new array.
        """
        pieces = self.attention_of_pieces
        return None if pieces is None else pieces[0] if len(pieces) == 1 else _block_diagonal(pieces)

    def of_changed_text(self, text: str) -> TokenDetails:
        """Return the details by the words of the translation after a change of its text.

        A word that becomes several words is aligned by its first one. If several words become one, the first one
        determines the alignment.
        """
        alignment, words = self.alignment, text.split()
        if alignment is None or words == alignment.target:
            return self
        indices = _indices_of_changed_words(alignment.target, words)
        weights = np.zeros([len(words), len(alignment.source)], np.float32)
        for index, row in reversed(list(zip(indices, alignment.weights, strict=True))):
            if index != NO_WORD:
                weights[index] = row
        return self._replace(
            words=self.words and [word if word == NO_WORD else indices[word] for word in self.words],
            alignment=WordAlignment(alignment.source, words, weights))


class _TextAndScore(NamedTuple):
    text: str
    score: float


class Hypothesis(_TextAndScore):
    """A translation: the pair of text and score, with further attributes.

    Attributes:
        text: detokenised, without line breaks.
        score: log-probability over the length penalty; of a line translated in pieces, their mean.
        details: details of its tokens, if log-probabilities or attention were requested.
        fault: detected fault (see `lines.faults`), or None.
        tokens: number of tokens, EOS included.
        log_prob: log-probability of all tokens in nats; without one, it is the score.
    """

    details: TokenDetails | None = None
    fault: str | None = None
    tokens: int = 0
    log_prob: float = 0.0

    def __new__(cls, text: str, score: float, details: TokenDetails | None = None, fault: str | None = None,
                tokens: int = 0, log_prob: float | None = None) -> Hypothesis:
        hypothesis = super().__new__(cls, text, score)
        hypothesis.details, hypothesis.fault, hypothesis.tokens = details, fault, tokens
        hypothesis.log_prob = score if log_prob is None else log_prob
        return hypothesis

    @property
    def mean_log_prob(self) -> float:
        """The mean log-probability of the tokens in nats."""
        return self.log_prob / max(self.tokens, 1)

    def replaced(self, **changes: Any) -> Hypothesis:
        """Return the hypothesis with changed attributes; the others stay."""
        attributes: dict[str, Any] = {"text": self.text, "score": self.score, **vars(self), **changes}
        return Hypothesis(**attributes)

    def with_text(self, text: str) -> Hypothesis:
        """Return the hypothesis with a changed text, and with its details by the words of this text."""
        return self.replaced(text=text, details=self.details and self.details.of_changed_text(text))

    @property
    def alignment(self) -> WordAlignment | None:
        """Words of source and translation with their attention; None if it was not requested."""
        return self.details.alignment if self.details else None

    def links(self, threshold: float | None = None) -> list[Link] | None:
        """Return word alignments (source word, target word), from 0, or None if attention was not requested.

        Args:
            threshold: minimum attention of a link; None means the source word with the most attention for each target
                word.
        """
        return self.alignment.links(threshold) if self.alignment else None


class Translation(list[Hypothesis]):
    """The hypotheses of a line or of a piece of one, best first.

    Attributes:
        retried: whether the search was repeated because of a fault of the best one.
        terms: terms of a terminology that occur in the source.
    """

    retried: bool = False
    terms: Sequence[Term] = ()

    @property
    def fault(self) -> str | None:
        """Fault of the best hypothesis, or None."""
        return self[0].fault if self else None

    def changed(self, change: Callable[[Hypothesis], Hypothesis]) -> Translation:
        """Return the translation with changed hypotheses; its other attributes are the same."""
        translation = Translation(map(change, self))
        translation.retried, translation.terms = self.retried, self.terms
        return translation


def joined(pieces: Sequence[Translation], n_best: int | None, line: str, vocabulary: Vocabulary, limit: int,
           by_sentence: bool = False) -> Translation:
    """Join the translations of the pieces of a line; the k-th best joins the k-th best of each piece.

    Hypotheses with attention get the alignment of their words.

    Args:
        pieces: translations of the pieces.
        n_best: maximum number of translations.
        line: the source line.
        vocabulary: source vocabulary.
        limit: maximum number of tokens of a piece.
        by_sentence: whether each sentence is a piece of its own.
    """
    if not pieces:
        return Translation([Hypothesis("", 0.0)])
    hypotheses = pieces[0] if len(pieces) == 1 else map(_joined, zip(*pieces, strict=False))
    translation = Translation(islice(hypotheses, n_best))
    translation.retried = any(piece.retried for piece in pieces)
    translation.terms = list(dict.fromkeys(term for piece in pieces for term in piece.terms))
    _align(translation, line, vocabulary, limit, by_sentence)
    return translation


def _joined(hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    mean_score = sum(h.score for h in hypotheses) / len(hypotheses)
    return Hypothesis(joined_sentences(h.text for h in hypotheses), mean_score,
                      _joined_details([(h.text, h.details) for h in hypotheses if h.details]),
                      next((h.fault for h in hypotheses if h.fault), None), sum(h.tokens for h in hypotheses),
                      sum(h.log_prob for h in hypotheses))


def _joined_details(texts_and_details: list[tuple[str, TokenDetails]]) -> TokenDetails | None:
    """Return the details of a line from the texts and details of its pieces."""
    if not texts_and_details:
        return None
    pieces = [details for _, details in texts_and_details]
    log_probs = [piece.log_probs for piece in pieces if piece.log_probs is not None]
    blocks = tuple(block for piece in pieces for block in piece.attention_of_pieces or ())
    return TokenDetails([token for piece in pieces for token in piece.source_ids],
                        [token for piece in pieces for token in piece.ids],
                        np.concatenate(log_probs) if log_probs else None, blocks or None,
                        joined_words([(text, details.words) for text, details in texts_and_details
                                      if details.words is not None]) if blocks else None)


def _indices_of_changed_words(words: Sequence[str], changed_words: Sequence[str]) -> list[int]:
    """Return the index of each word of a text after a change of the text; `NO_WORD` for a word that was left out."""
    if len(words) == len(changed_words):
        return list(range(len(words)))
    indices: list[int] = []
    for _, start, end, new_start, new_end in SequenceMatcher(None, words, changed_words).get_opcodes():
        indices += [min(new_start + index, new_end - 1) if new_start < new_end else NO_WORD
                    for index in range(end - start)]
    return indices


def _block_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray:
    matrix = np.zeros(np.sum([block.shape for block in blocks], axis=0), np.float32)
    row = column = 0
    for block in blocks:
        matrix[row:row + block.shape[0], column:column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return matrix


def with_words(details: TokenDetails | None, vocabulary: Vocabulary) -> TokenDetails | None:
    """Return details with the words of the tokens, if they have attention."""
    if details is None or details.attention_of_pieces is None:
        return details
    return details._replace(words=words_of_translation(vocabulary, details.ids))


def token_alignment(details: TokenDetails, source: Vocabulary, target: Vocabulary) -> WordAlignment | None:
    """Return the attention between tokens, ends of sentences included, instead of words.

    Returns:
        The attention, or None if it was not requested.
    """
    attention = details.attention
    if attention is None:
        return None
    return WordAlignment([source.id_to_piece(id) for id in details.source_ids],
                         [target.id_to_piece(id) for id in details.ids], attention)


def _align(translation: Translation, line: str, vocabulary: Vocabulary, limit: int, by_sentence: bool) -> None:
    """Add the alignment of words to each hypothesis with attention."""
    source: SourceWords | None = None
    for index, (hypothesis, details) in enumerate([(hypothesis, hypothesis.details) for hypothesis in translation]):
        if details is None or details.attention_of_pieces is None or details.words is None:
            continue
        source = source or SourceWords.of(vocabulary, line, limit, by_sentence)
        alignment = source.aligned(hypothesis.text, details.words, details.attention_of_pieces)
        translation[index] = hypothesis.replaced(details=details._replace(
            source_words=source.of_tokens, alignment=alignment))
