"""Rows of a foreign table in the order of our ids, and vocabularies whose pieces are these rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, UNK
from towernmt.importing.foreign_model import NEVER

NOBODY = -1
"""In `PieceTable.rows`: the foreign table has no such row."""


@dataclass(frozen=True)
class PieceTable:
    """The pieces of a foreign model in our order.

    Attributes:
        pieces: by our id, the four special ones first.
        rows: int64 `[pieces]`, where each is in the foreign table; NOBODY for those that it does not have.
        known: how many pieces are the model's own; those behind divide text, and the model knows them as UNK.
    """

    pieces: list[str]
    rows: NDArray[np.int64]
    known: int

    @classmethod
    def of(cls, special: Mapping[int, int], words: Sequence[tuple[str, int]]) -> PieceTable:
        """From the rows of special pieces, by our id, and the other pieces, each with its row."""
        rows = [special.get(id, NOBODY) for id in range(len(SPECIAL_PIECES))]
        pieces = [*SPECIAL_PIECES, *(piece for piece, _ in words)]
        return cls(pieces, np.array([*rows, *(row for _, row in words)], np.int64), len(pieces))

    def with_unknown(self, pieces: Sequence[str]) -> PieceTable:
        """With further pieces that the model knows as UNK."""
        there = set(self.pieces)
        new = [piece for piece in dict.fromkeys(pieces) if piece not in there]
        rows = np.concatenate([self.rows, np.full(len(new), self.rows[UNK])])
        return PieceTable([*self.pieces, *new], rows, self.known)

    def renamed(self, names: Mapping[str, str]) -> PieceTable:
        """With other texts of some pieces."""
        return PieceTable([names.get(piece, piece) for piece in self.pieces], self.rows, self.known)

    def table(self, table: np.ndarray) -> np.ndarray:
        """The rows of an embedding, float32 `[foreign pieces, depth]`, in our order; zeros for those of nobody."""
        ours = table[np.maximum(self.rows, 0)].astype(np.float32)
        ours[self.rows == NOBODY] = 0.0
        return ours

    def bias(self, bias: np.ndarray) -> np.ndarray:
        """The bias of logits, float32 `[foreign pieces]`, in our order; what the model does not know never comes."""
        ours = bias[np.maximum(self.rows, 0)].astype(np.float32)
        ours[self.rows == NOBODY] = NEVER
        ours[self.known:] += NEVER
        return ours
