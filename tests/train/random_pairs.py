"""A corpus of random pairs in memory."""

from __future__ import annotations

import numpy as np

from towernmt.dataflow.preparation.shards import PairBlock


class RandomPairs:
    """A corpus of blocks of 60 pairs.

    Args:
        num_blocks: number of the blocks.
    """

    length_ratio = 1.0

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def read_block(self, index: int) -> PairBlock:
        random = np.random.default_rng(index)
        sides = []
        for _ in range(2):
            lengths = random.integers(1, 9, 60)
            sides += [random.integers(4, 50, lengths.sum()).astype(np.int32),
                      np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)]
        return PairBlock(*sides)
