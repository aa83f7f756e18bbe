"""Tasks that learn the alignments of a preparation, and the shards with them.

Two tasks learn an alignment model each, from source to target and from target to source, from a sample of the encoded
pairs. The links of a shard are those on which both agree. They are links of subwords, so they exist for languages that
write no spaces, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.preparation.alignment_model import AlignmentModel, aligned_pairs, count_cells
from towernmt.dataflow.preparation.encode_tasks import GroupedFile
from towernmt.dataflow.preparation.shards import (
    PairBlock,
    ShardInfo,
    every_pair,
    offsets_of_lengths,
    pair_range,
    reversed_block,
)
from towernmt.dataflow.preparation.tasks import NumberedTask, PreparationJob, atomic_output
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies

LARGEST_SAMPLE = 60_000_000
"""Maximum number of pairs of tokens in the sample, of about 16 bytes each while the model is learned."""
_PAIRS_PER_BLOCK = 4096
_LARGEST_RANGE = 1 << 21
"""Number of pairs of tokens that are indexed or aligned at once, of about 50 bytes each."""


@dataclass(frozen=True)
class LearnAlignments(NumberedTask):
    """Learns an alignment model from source to target (number 0) or from target to source (number 1)."""

    @property
    def title(self) -> str:
        return f"learning alignments from {('source to target', 'target to source')[self.number]}"

    def run(self) -> None:
        vocabularies = load_vocabularies(self.job.vocabularies)[:2]
        blocks = _sample(self.job)
        model = AlignmentModel.learn(map(reversed_block, blocks) if self.number else blocks,
                                     vocabularies[1 - self.number].size)
        with atomic_output(self.output) as unfinished:
            model.save(unfinished)


def _sample(job: PreparationJob) -> Iterator[PairBlock]:
    """Yield pairs of the first shards, which are a random sample of the text, at equal distances."""
    shards = cells = 0
    while shards < job.shards and cells < LARGEST_SAMPLE:
        lengths = [_lengths(GroupedFile(job.distributed(part), shards)) for part in range(job.parts)]
        cells += sum(count_cells(*side_lengths) for side_lengths in lengths)
        shards += 1
    step, pairs = max(1, -(-cells // LARGEST_SAMPLE)), 0
    for shard in range(shards):
        for block in _blocks(job, shard):
            yield from _divided(block if step == 1 else every_pair(block, -pairs % step, step))
            pairs += len(block)


def _blocks(job: PreparationJob, shard: int) -> Iterator[PairBlock]:
    """Yield the encoded pairs of a shard, in their order."""
    ids = job.id_dtype()
    for part in range(job.parts):
        group = GroupedFile(job.distributed(part), shard)
        source_lengths, target_lengths = _lengths(group)
        source_ids, target_ids = (np.frombuffer(group.read(column), ids) for column in (2, 3))
        pairs = PairBlock(source_ids, offsets_of_lengths(source_lengths),
                          target_ids, offsets_of_lengths(target_lengths))
        for first in range(0, len(pairs), _PAIRS_PER_BLOCK):
            yield pair_range(pairs, first, min(first + _PAIRS_PER_BLOCK, len(pairs)))


def _divided(block: PairBlock) -> Iterator[PairBlock]:
    """Yield the pairs of a block in ranges of about `_LARGEST_RANGE` pairs of tokens."""
    cells = (block.source_lengths + 1) * (block.target_lengths + 1)
    ranges = (np.cumsum(cells) - cells) // _LARGEST_RANGE
    edges = [0, *(np.flatnonzero(np.diff(ranges)) + 1).tolist(), len(block)]
    for first, last in pairwise(edges):
        yield pair_range(block, first, last)


def _lengths(group: GroupedFile) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the lengths of the source and of the target of each pair, in tokens."""
    return np.frombuffer(group.read(0), "<i4"), np.frombuffer(group.read(1), "<i4")


def with_learned_links(job: PreparationJob, shard: int, info: ShardInfo) -> tuple[ShardInfo, Iterator[bytes]]:
    """Return the entry and the arrays of a shard with the links that the models find.

    Args:
        job: the preparation.
        shard: index of the shard.
        info: the entry without links.
    """
    parts = [GroupedFile(job.distributed(part), shard) for part in range(job.parts)]
    alignments = [aligned_pairs(_model(job, 0), _model(job, 1), pairs)
                  for block in _blocks(job, shard) for pairs in _divided(block)]
    links = np.concatenate([np.zeros((2, 0), np.uint16), *(pair_links for pair_links, _ in alignments)], axis=1)
    counts = np.concatenate([np.zeros(0, np.int32), *(pair_counts for _, pair_counts in alignments)])
    lengths, remaining_columns = ((part.read(column) for column in columns for part in parts)
                                  for columns in (range(2), range(2, len(info.columns()))))
    arrays = chain(lengths, [counts.astype("<i4").tobytes()], remaining_columns, [links.astype("<u2").tobytes()])
    return replace(info, links=links.shape[1]), arrays


@lru_cache(maxsize=2)
def _model(job: PreparationJob, direction: int) -> AlignmentModel:
    return AlignmentModel.load(job.alignment_model(direction))
