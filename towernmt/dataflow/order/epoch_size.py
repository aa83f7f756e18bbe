"""What an epoch holds: batches, tokens and padding; counted from plans, or estimated before anything is planned."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from towernmt.dataflow.order.block_plan import BlockPlan, IntArray


@dataclass(frozen=True)
class EpochSize:
    """What an epoch holds, and the share of its positions that are padding.

    Attributes:
        batches, pairs: how many.
        source_tokens, target_tokens: tokens with EOS.
        source_positions, target_positions: sizes of the padded arrays.
    """

    batches: int = 0
    pairs: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    source_positions: int = 0
    target_positions: int = 0

    @property
    def source(self) -> float:
        """Share of the source positions that are padding, 0 to 1."""
        return 1 - self.source_tokens / self.source_positions

    @property
    def target(self) -> float:
        """Share of the target positions that are padding, 0 to 1."""
        return 1 - self.target_tokens / self.target_positions

    def mean_batch(self, batch_type: str) -> float:
        """How much a batch holds on average, in the unit of `batch_type` (of "longest", nearly)."""
        sizes = {"target": self.target_tokens, "source+target": self.source_positions + self.target_positions,
                 "longest": max(self.source_positions, self.target_positions), "sentences": self.pairs}
        return sizes[batch_type] / self.batches

    def times(self, factor: float) -> EpochSize:
        """The size of an epoch of a corpus that is `factor` times as large, rounded."""
        return EpochSize(*(round(count * factor) for count in astuple(self)))

    def __add__(self, other: EpochSize) -> EpochSize:
        return EpochSize(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return (f"{self.batches} batches of {self.pairs} pairs, {self.source_tokens} source and "
                f"{self.target_tokens} target tokens; padding {self.source:.1%} of the source positions, "
                f"{self.target:.1%} of the target positions")


def size_of_plan(plan: BlockPlan, source_lengths: IntArray, target_lengths: IntArray) -> EpochSize:
    """What the batches of one block hold.

    Args:
        plan: of the block.
        source_lengths, target_lengths: int64 `[pairs]`, tokens with EOS.
    """
    if not len(plan):
        return EpochSize()
    starts = np.sort(plan.starts)
    sentences = np.diff(starts, append=len(source_lengths))
    positions = [int(np.maximum.reduceat(lengths[plan.order], starts) @ sentences)
                 for lengths in (source_lengths, target_lengths)]
    return EpochSize(len(plan), len(source_lengths), int(source_lengths.sum()), int(target_lengths.sum()), *positions)
