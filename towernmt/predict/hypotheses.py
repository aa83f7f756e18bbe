"""What a search finds: arrays of a batch, hypotheses of a sentence, and the translation of a line of several pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from towernmt.dataflow.text.alignment import Link
from towernmt.dataflow.vocabulary.base import EOS, PAD
from towernmt.predict.alignment.word_alignment import WordAlignment
from towernmt.predict.alignment.words import joined_words
from towernmt.predict.lexical.terminology import Term


class Found(NamedTuple):
    """What a predictor gives for a batch.

    Attributes:
        tokens: int32 `[batch, n_best, length]`: EOS where a hypothesis ended by itself, PAD behind.
        scores: float32 `[batch, n_best]`.
        log_probs: float32 `[batch, n_best, length]`, of each token; None if not asked for.
        attention: float32 `[batch, n_best, length, source length]`; None if not asked for.
    """

    tokens: np.ndarray
    scores: np.ndarray
    log_probs: np.ndarray | None = None
    attention: np.ndarray | None = None

    def text_ids(self, row: int, k: int) -> tuple[list[int], bool]:
        """The tokens of a hypothesis that stand for text, and whether EOS ended it."""
        ids = self.tokens[row, k]
        ends = np.flatnonzero((ids == EOS) | (ids == PAD))
        return (ids[:ends[0]].tolist(), bool(ids[ends[0]] == EOS)) if len(ends) else (ids.tolist(), False)

    def details(self, row: int, k: int, source_ids: Sequence[int | tuple[int, ...]]) -> TokenDetails | None:
        """Of the tokens of a hypothesis; None where nothing was asked for.

        Args:
            source_ids: without EOS; of several streams, tuples of ids.
        """
        if self.log_probs is None and self.attention is None:
            return None
        source = [token[0] if isinstance(token, tuple) else token for token in source_ids] + [EOS]
        ids = self.tokens[row, k]
        length = np.count_nonzero(ids != PAD)
        return TokenDetails(
            source, ids[:length].tolist(), None if self.log_probs is None else self.log_probs[row, k, :length],
            None if self.attention is None else self.attention[row, k, :length, :len(source)])


class TokenDetails(NamedTuple):
    """The tokens of a translation, and what the model made of each.

    Of a line translated in pieces, those of the pieces, one behind the other.

    Attributes:
        source_ids: of the source; EOS ends each piece. Of several streams, those of the words.
        ids: of the translation; EOS ends each piece, unless that was cut at the length limit.
        log_probs: float32 `[tokens]`, of each token by the model, in nats; None if not asked for.
        attention: float32 `[tokens, source tokens]`, which source tokens the model looked at when it chose each
            token; 0 between different pieces. None if not asked for.
        words: the word of the text that each token is of, from 0, and -1 for EOS; None without attention.
        source_words: the word of the line that each source token is of, in the same way.
        alignment: the words of the line and of the text, and the attention of these; None without attention.
    """

    source_ids: list[int]
    ids: list[int]
    log_probs: np.ndarray | None = None
    attention: np.ndarray | None = None
    words: list[int] | None = None
    source_words: list[int] | None = None
    alignment: WordAlignment | None = None


class _TextAndScore(NamedTuple):
    text: str
    score: float


class Hypothesis(_TextAndScore):
    """A translation: the pair of its text and its score, with what else is known of it.

    Attributes:
        text: detokenised, without line breaks.
        score: log-probability over the length penalty; of a line translated in pieces, their mean.
        details: of its tokens, where log-probabilities or attention were asked for.
        fault: what is seen to be wrong with it (see `lines.faults`); None for nothing.
        tokens: how many it has, EOS counted.
    """

    details: TokenDetails | None = None
    fault: str | None = None
    tokens: int = 0

    def __new__(cls, text: str, score: float, details: TokenDetails | None = None,
                fault: str | None = None, tokens: int = 0) -> Hypothesis:
        """The translation."""
        made = super().__new__(cls, text, score)
        made.details, made.fault, made.tokens = details, fault, tokens
        return made

    @property
    def alignment(self) -> WordAlignment | None:
        """The words of the line and of the text, with the attention of these; None where that was not asked for."""
        return self.details.alignment if self.details else None

    def links(self, threshold: float | None = None) -> list[Link] | None:
        """The links of the words, (source word, target word), from 0; None where attention was not asked for.

        Args:
            threshold: None for the source word with the most attention for each target word; a number for all with so
                much attention or more.
        """
        return self.alignment.links(threshold) if self.alignment else None


class Translation(list[Hypothesis]):
    """The hypotheses of a line or of a piece of one, best first.

    Attributes:
        retried: whether it was searched for again because something was seen to be wrong with the best one.
        terms: of a terminology, which were found in the source and asked for.
    """

    retried: bool = False
    terms: Sequence[Term] = ()

    @property
    def fault(self) -> str | None:
        """What is seen to be wrong with the best one; None for nothing."""
        return self[0].fault if self else None


def joined(pieces: Sequence[Translation], n_best: int | None = None) -> Translation:
    """The translation of a line from those of its pieces: its k-th best is the k-th best of each of them.

    Args:
        n_best: so many at most.
    """
    if not pieces:
        return Translation([Hypothesis("", 0.0)])
    hypotheses = pieces[0] if len(pieces) == 1 else list(map(_joined, zip(*pieces, strict=False)))
    together = Translation(hypotheses[:n_best])
    together.retried = any(piece.retried for piece in pieces)
    together.terms = list(dict.fromkeys(term for piece in pieces for term in piece.terms))
    return together


def _joined(parts: Sequence[Hypothesis]) -> Hypothesis:
    return Hypothesis(" ".join(h.text for h in parts if h.text), sum(h.score for h in parts) / len(parts),
                      _joined_details([(h.text, h.details) for h in parts if h.details]),
                      next((h.fault for h in parts if h.fault), None), sum(h.tokens for h in parts))


def _joined_details(parts: list[tuple[str, TokenDetails]]) -> TokenDetails | None:
    """Those of a line, from the text and the details of each of its pieces."""
    if not parts:
        return None
    pieces = [details for _, details in parts]
    log_probs = [piece.log_probs for piece in pieces if piece.log_probs is not None]
    blocks = [piece.attention for piece in pieces if piece.attention is not None]
    return TokenDetails([token for piece in pieces for token in piece.source_ids],
                        [token for piece in pieces for token in piece.ids],
                        np.concatenate(log_probs) if log_probs else None, _block_diagonal(blocks) if blocks else None,
                        joined_words([(text, details.words) for text, details in parts if details.words is not None])
                        if blocks else None)


def _block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    whole = np.zeros(np.sum([block.shape for block in blocks], axis=0), np.float32)
    row = column = 0
    for block in blocks:
        whole[row:row + block.shape[0], column:column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole
