"""Length buckets: sentence pairs of similar length share a batch, so that little of it is padding.

The scheme is Sockeye's (Hieber et al. 2017, "Sockeye: A Toolkit for Neural Machine Translation"): the
target bounds are (w, 2w, 3w, ...) up to the longest sentence, the source bounds follow from them by
the corpus's mean length ratio, and a pair goes to the smallest bucket that fits both of its sides.
All lengths here are tokens with EOS, which are the positions a sentence takes in a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError, SettingsError


@dataclass(frozen=True)
class Buckets:
    """Bounds of the buckets, ascending; a bucket holds lengths up to and including its bounds.

    Attributes:
        source_bounds: int64 `[buckets]`, tokens with EOS.
        target_bounds: int64 `[buckets]`, tokens with EOS.
    """

    source_bounds: NDArray[np.int64]
    target_bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.target_bounds)

    def assign(self, source_lengths: NDArray[np.integer], target_lengths: NDArray[np.integer]
               ) -> NDArray[np.int64]:
        """The bucket of each pair.

        Args:
            source_lengths: `[pairs]`, tokens with EOS.
            target_lengths: `[pairs]`, tokens with EOS.
        Returns:
            int64 `[pairs]`: the smallest bucket that fits both sides. The last bucket also takes what
            fits nowhere: lengths are filtered once, when the corpus is prepared, and never here.
        """
        bucket = np.maximum(np.searchsorted(self.source_bounds, source_lengths),
                            np.searchsorted(self.target_bounds, target_lengths))
        return np.minimum(bucket, len(self) - 1)


def define_buckets(width: int, max_length: int, length_ratio: float) -> Buckets:
    """Buckets by target width, with source bounds by the mean length ratio.

    Args:
        width: step of the target bounds in tokens; 0 makes one bucket of everything (no bucketing).
        max_length: bound of the last bucket on the target side, tokens with EOS.
        length_ratio: the corpus's mean of source length / target length.
    Raises:
        SettingsError: width below 0 or max_length below 1.
        DataError: a ratio that is not a positive number.
    """
    if width < 0:
        raise SettingsError(f"bucket_width={width}: expected a number of tokens, or 0 for no bucketing.")
    if max_length < 1:
        raise SettingsError(f"max_length={max_length}: expected at least 1 token.")
    if not (math.isfinite(length_ratio) and length_ratio > 0):
        raise DataError(f"The corpus's mean length ratio (source/target) is {length_ratio}, which is not a "
                        "positive number; its statistics are damaged: prepare it again.")
    target = np.arange(width, max_length + width, width, dtype=np.int64) if width else np.array([max_length])
    target = np.minimum(target, max_length)
    source = np.maximum(np.ceil(target * length_ratio - 1e-9), 1).astype(np.int64)
    return Buckets(source, target.astype(np.int64))
