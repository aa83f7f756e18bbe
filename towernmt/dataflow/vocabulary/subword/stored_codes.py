"""The words of sentences that are stored as ids of pieces by subword-nmt's codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, Sampling
from towernmt.dataflow.vocabulary.subword.merge_draws import MergeDraws

_GOES_ON, _END = "@@", "</w>"


class StoredCodes:
    """See `towernmt.dataflow.vocabulary.base.StoredWords`.

    Where several merges of one rank are possible, a step makes one of them, the next step perhaps the next.

    Args:
        pieces: of the vocabulary, by their ids.
        encode_word: the ids of a word.
        ranks: of merges of two symbols; the last symbol of a word carries `</w>`.
        sampling: how far from the best segmentation.
    """

    within_words = True

    def __init__(self, pieces: Sequence[str], encode_word: Callable[[str], list[int]],
                 ranks: Mapping[tuple[str, str], int], sampling: Sampling) -> None:
        self._pieces, self._encode_word, self._ranks, self._dropout = pieces, encode_word, ranks, sampling.alpha
        self.size = len(pieces)
        self._ids = {piece: id for id, piece in enumerate(pieces) if id >= len(SPECIAL_PIECES)}
        self._goes_on = np.array([piece.endswith(_GOES_ON) for piece in pieces])

    def begins(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """See `StoredWords.begins`."""
        begins = np.ones(len(ids), np.bool_)
        begins[1:] = ~self._goes_on[ids[:-1]]
        return begins

    def text(self, ids: Sequence[int]) -> str | None:
        """See `StoredWords.text`. None, too, where a word of the text ends in `@@` itself and so is not told apart."""
        if min(ids) < len(SPECIAL_PIECES):
            return None
        word = "".join(self._pieces[id].removesuffix(_GOES_ON) for id in ids)
        return word if word and self._encode_word(word) == list(ids) else None

    def draws(self) -> MergeDraws:
        """See `StoredWords.draws`."""
        return MergeDraws(lambda *pair: self._ranks.get(pair), lambda word: [*word[:-1], word[-1] + _END], self._id_of,
                          self._dropout)

    def _id_of(self, symbol: str) -> int | None:
        """None where it is no piece: the vocabulary has the pieces of best segmentations only."""
        return self._ids.get(symbol.removesuffix(_END) if symbol.endswith(_END) else symbol + _GOES_ON)
