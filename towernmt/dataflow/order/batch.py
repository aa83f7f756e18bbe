"""One global batch: some pairs of a block as padded arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.order.block_plan import IntArray
from towernmt.dataflow.prepared.pair_block import PairBlock
from towernmt.dataflow.vocabulary.base import EOS, PAD


@dataclass(frozen=True)
class Batch:
    """One global batch. Sentences end with EOS, have no BOS, and are padded with PAD to the batch's longest.

    Attributes:
        source: int32 `[batch, source length]`.
        source_length: int32 `[batch]`, tokens with EOS.
        target: int32 `[batch, target length]`.
        target_length: int32 `[batch]`, tokens with EOS.
        target_tokens: float32 `[]`, the sum of `target_length`.
        alignment: uint8 `[batch, target length, source length]`, 1 where a target piece and a source piece are linked;
            never of EOS. None: not asked for.

    Where the source has factors, `source` is `[batch, source length, 1 + factors]`; EOS and PAD are so in all of them.
    """

    source: NDArray[np.int32]
    source_length: NDArray[np.int32]
    target: NDArray[np.int32]
    target_length: NDArray[np.int32]
    target_tokens: NDArray[np.float32]
    alignment: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def arrays(self) -> list[NDArray]:
        """The arrays in the order of the tower's input signature."""
        arrays = [self.source, self.source_length, self.target, self.target_length, self.target_tokens]
        return arrays if self.alignment is None else [*arrays, self.alignment]


def make_batch(block: PairBlock, pairs: IntArray, alignments: bool = False) -> Batch:
    """The padded arrays of some pairs of a block.

    Args:
        block: where the sentences are, without EOS.
        pairs: int64 `[batch]`, indices of the block's pairs.
        alignments: whether the batch has them.
    Raises:
        DataError: the block has no alignments.
    """
    source, source_length = _pad(block.source_ids, block.source_offsets, pairs)
    target, target_length = _pad(block.target_ids, block.target_offsets, pairs)
    tokens = np.array(target_length.sum(), dtype=np.float32)
    alignment = None
    if block.source_factors is not None:
        streams = [source, *(_pad(ids, block.source_offsets, pairs)[0] for ids in block.source_factors)]
        source = np.stack(streams, axis=-1)
    if alignments:
        alignment = _alignment(block, pairs, (target.shape[1], source.shape[1]))
    return Batch(source, source_length, target, target_length, tokens, alignment)


def _alignment(block: PairBlock, pairs: IntArray, lengths: tuple[int, int]) -> NDArray[np.uint8]:
    """uint8 `[batch, target length, source length]`."""
    if block.links is None or block.link_offsets is None:
        raise DataError("The corpus has no alignments: prepare it with `towernmt prepare --alignments FILE`.")
    begin = block.link_offsets[pairs]
    counts = block.link_offsets[pairs + 1] - begin  # [batch]
    ends = np.cumsum(counts)
    places = np.arange(ends[-1]) + np.repeat(begin - ends + counts, counts)  # [links of the batch]
    source, target = block.links[:, places]
    found = np.zeros((len(pairs), *lengths), np.uint8)
    found[np.repeat(np.arange(len(pairs)), counts), target, source] = 1
    return found


def _pad(ids: NDArray[np.integer], offsets: IntArray, rows: IntArray
         ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    begin = np.asarray(offsets)[rows]  # [batch]
    length = (np.asarray(offsets)[rows + 1] - begin).astype(np.int32)  # [batch], without EOS
    column = np.arange(int(length.max()) + 1, dtype=np.int32)  # [longest with EOS]
    # Copy whole rows first, then write PAD over the ids of the sentences that follow. Copying rows is several times as
    # fast as selecting ids, and sorted batches have little padding.
    padded = _rows(np.asarray(ids), begin, len(column)).astype(np.int32)
    np.copyto(padded, PAD, where=column >= length[:, None])
    padded[np.arange(len(rows)), length] = EOS
    return padded, length + np.int32(1)


def _rows(ids: NDArray[np.integer], begin: IntArray, width: int) -> NDArray[np.integer]:
    """`[batch, width]`: `width` ids from each of `begin` on; values after the last id have no meaning."""
    if not len(ids):
        return np.zeros((len(begin), width), ids.dtype)
    if begin.max() + width > len(ids):
        return ids[np.minimum(begin[:, None] + np.arange(width), len(ids) - 1)]
    # Element i is the `width` ids from i on, as one piece: NumPy then copies each row at once.
    overlapping: NDArray[np.void] = np.ndarray(
        len(ids) - width + 1, np.dtype((np.void, width * ids.itemsize)), ids, strides=ids.strides)
    return overlapping[begin].view(ids.dtype).reshape(len(begin), width)
