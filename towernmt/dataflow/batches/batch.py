"""One global batch: pairs of a block as padded arrays, with the position in the order of the training data.

The order is a pure function of (seed, epoch, corpus), so the address of the next batch is enough to resume: one block
is reopened, nothing is replayed. If the block is a window of a stream, the position has the cursor at which the
window begins. The position travels with its batch through the queue, and the checkpoint stores that of the last batch
that was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.batches.block_plan import IntArray
from towernmt.dataflow.preparation.shards import PairBlock
from towernmt.dataflow.vocabulary.base import EOS, PAD


@dataclass(frozen=True)
class Batch:
    """One global batch. Sentences end with EOS, have no BOS, and are padded with PAD to the longest of the batch.

    Attributes:
        source: int32 `[batch, source length]`.
        source_length: int32 `[batch]`, tokens including EOS.
        target: int32 `[batch, target length]`.
        target_length: int32 `[batch]`, tokens including EOS.
        target_tokens: float32 `[]`, the sum of `target_length`.
        alignment: uint8 `[batch, target length, source length]`, 1 where a target subword and a source subword are
            aligned; EOS is never aligned. None if the batch has no alignments.

    If the source has factors, `source` is `[batch, source length, 1 + factors]`, with EOS and PAD in every stream.
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
        """Return the arrays in the order of the tower's input signature."""
        arrays = [self.source, self.source_length, self.target, self.target_length, self.target_tokens]
        return arrays if self.alignment is None else [*arrays, self.alignment]


def make_batch(block: PairBlock, pairs: IntArray, alignments: bool = False) -> Batch:
    """Return pairs of a block as padded arrays.

    Args:
        block: sentences without EOS.
        pairs: int64 `[batch]`, indices of pairs in the block.
        alignments: whether the batch contains the word alignments.

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
    """Return uint8 `[batch, target length, source length]`: 1 where two subwords are linked."""
    if block.links is None or block.link_offsets is None:
        raise DataError("The corpus has no word alignments. Prepare it with `towernmt prepare --alignments learn`.")
    begin = block.link_offsets[pairs]
    counts = block.link_offsets[pairs + 1] - begin  # [batch]
    ends = np.cumsum(counts)
    indices = np.arange(ends[-1]) + np.repeat(begin - ends + counts, counts)  # [links of the batch]
    source, target = block.links[:, indices]
    alignment = np.zeros((len(pairs), *lengths), np.uint8)
    alignment[np.repeat(np.arange(len(pairs)), counts), target, source] = 1
    return alignment


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
    """Return `[batch, width]`: the `width` ids from each of `begin` on. Values after the last id are undefined."""
    if not len(ids):
        return np.zeros((len(begin), width), ids.dtype)
    if begin.max() + width > len(ids):
        return ids[np.minimum(begin[:, None] + np.arange(width), len(ids) - 1)]
    # Element i consists of the `width` ids from i on, so NumPy copies a row as one element.
    overlapping: NDArray[np.void] = np.ndarray(
        len(ids) - width + 1, np.dtype((np.void, width * ids.itemsize)), ids, strides=ids.strides)
    return overlapping[begin].view(ids.dtype).reshape(len(begin), width)


class Position(NamedTuple):
    """The address of the next batch.

    Attributes:
        epoch: number of complete passes over the corpus.
        block: index in the epoch's (shuffled) order of blocks; not the index of the block in the corpus.
        batch: index in the block's (shuffled) order of batches.
        cursor: beginning of the block in its source, JSON-serialisable; None for prepared data, where `block` suffices.
        weights: the weights of a mixture that were set during training, as `WeightLog.since` returns them for the
            block, JSON-serialisable; None if none were set.
    """

    epoch: int = 0
    block: int = 0
    batch: int = 0
    cursor: Any = None
    weights: Any = None

    @property
    def begins_epoch(self) -> bool:
        """Return whether nothing of the epoch has been read. Such a position is valid under all settings."""
        return (self.block, self.batch, self.cursor) == (0, 0, None)

    def to_json(self) -> str:
        """Return the position as a JSON object on one line, without `cursor` and `weights` if they are None."""
        return json.dumps({name: value for name, value in self._asdict().items()
                           if value is not None or name not in ("cursor", "weights")})

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Return the position that `to_json` wrote.

        Raises:
            DataError: the text is not an object with the whole numbers epoch, block and batch, from 0, and optionally
                cursor and weights.
        """
        try:
            content = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise _not_a_position(text) from error
        if not isinstance(content, dict) or set(content) - {"cursor", "weights"} != {"epoch", "block", "batch"}:
            raise _not_a_position(text)
        if any(type(content[name]) is not int or content[name] < 0 for name in ("epoch", "block", "batch")):
            raise _not_a_position(text)
        return cls(**content)


def _not_a_position(text: object) -> DataError:
    shortened = repr(text)
    if len(shortened) > 80:
        shortened = shortened[:77] + "..."
    return DataError(f"{shortened} is not a data position; expected {Position().to_json()} with whole numbers. "
                     "The checkpoint's state file is damaged, or was not written by towernmt.")


def pad_sentences(sentences: Sequence[Sequence[Any]], streams: int = 1) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return all sentences in one array, each with EOS at its end, padded with PAD.

    Args:
        sentences: ids without EOS; at least one sentence. With several streams, tuples of ids.
        streams: number of ids of a subword (`Vocabulary.streams`).

    Returns:
        int32 `[batch, length]`, with several streams `[batch, length, streams]`; and int32 `[batch]`, the lengths
        including EOS.
    """
    lengths = np.array([len(ids) + 1 for ids in sentences], np.int32)  # [batch]
    depth = [] if streams == 1 else [streams]
    padded = np.full([len(sentences), lengths.max(), *depth], PAD, np.int32)  # [batch, length(, streams)]
    for row, ids in zip(padded, sentences, strict=True):
        if len(ids):
            row[:len(ids)] = ids
        row[len(ids)] = EOS
    return padded, lengths
