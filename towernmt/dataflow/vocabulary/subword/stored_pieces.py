"""The words of sentences that are stored as ids of a SentencePiece model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import Sampling, WordDraws
from towernmt.dataflow.vocabulary.subword.merge_draws import MergeDraws
from towernmt.dataflow.vocabulary.subword.piece_model import SPACE, PieceModel
from towernmt.dataflow.vocabulary.subword.unigram_draws import UnigramDraws


class StoredPieces:
    """See `towernmt.dataflow.vocabulary.base.StoredWords`.

    User-defined symbols, bytes and what is unknown are words of their own, which stay as they are.

    Args:
        model: the model.
        sampling: how far from the best segmentation.
        ids: of each id of the vocabulary, that of the model; -1 where it has none.
    """

    def __init__(self, model: PieceModel, sampling: Sampling, ids: Sequence[int]) -> None:
        self._model, self._sampling, self.size = model, sampling, len(ids)
        names = {id: piece for piece, id in model.normal.items()}
        self._pieces = [names.get(id) for id in ids]
        self._ids = {piece: id for id, piece in enumerate(self._pieces) if piece is not None}
        self.within_words = not model.crosses_spaces
        marks_begin, marks_end = model.marks_begin_words, model.marks_end_words
        self._opens = np.array([piece is None or (marks_begin and piece[0] == SPACE) for piece in self._pieces])
        self._closes = np.array([piece is None or (marks_end and piece[-1] == SPACE) for piece in self._pieces])

    def begins(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """See `StoredWords.begins`."""
        begins = self._opens[ids]
        begins[1:] |= self._closes[ids[:-1]]
        return begins

    def text(self, ids: Sequence[int]) -> str | None:
        """See `StoredWords.text`."""
        pieces = [self._pieces[id] for id in ids]
        return None if None in pieces else "".join(pieces)  # type: ignore[arg-type]

    def draws(self) -> WordDraws:
        """See `StoredWords.draws`."""
        if not self._model.is_bpe:
            return UnigramDraws(self._model, self._sampling.alpha, self._ids.__getitem__)
        return MergeDraws(self._rank, self._symbols, self._ids.get, self._sampling.alpha)

    def _rank(self, left: str, right: str) -> float | None:
        score = self._model.scores.get(left + right)
        return None if score is None else -score

    def _symbols(self, word: str) -> str | None:
        return word if all(character in self._ids for character in word) else None
