"""Blocks of sentence pairs as integer ids: flat arrays with offsets, without a Python object for each sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PairBlock:
    """The pairs of one block (a prepared shard, or a window of a stream), without BOS or EOS.

    Attributes:
        source_ids: int32 (or a narrower unsigned type) `[source tokens]`, all sentences one after another.
        source_offsets: int64 `[pairs + 1]`; sentence i is
            `source_ids[source_offsets[i]:source_offsets[i + 1]]`.
        target_ids: as `source_ids`.
        target_offsets: as `source_offsets`.
        source_factors: as `source_ids`, `[factors, source tokens]`: of each piece, the factors of its word; None: none.
        links: uint16 `[2, links]`, the alignments of all pairs one after another: source piece and target piece, from 0
            in each sentence; None: there are no alignments.
        link_offsets: int64 `[pairs + 1]`, as `source_offsets`.
    """

    source_ids: NDArray[np.integer]
    source_offsets: NDArray[np.int64]
    target_ids: NDArray[np.integer]
    target_offsets: NDArray[np.int64]
    source_factors: NDArray[np.integer] | None = None
    links: NDArray[np.uint16] | None = None
    link_offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    @property
    def source_lengths(self) -> NDArray[np.int64]:
        """int64 `[pairs]`, tokens without EOS."""
        return np.diff(self.source_offsets)

    @property
    def target_lengths(self) -> NDArray[np.int64]:
        """int64 `[pairs]`, tokens without EOS."""
        return np.diff(self.target_offsets)
