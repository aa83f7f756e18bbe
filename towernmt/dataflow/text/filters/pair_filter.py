"""Which pairs are kept, and why the others are dropped: by their lengths, their text, and as duplicates."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.text.filters.duplicates import DUPLICATE_REASONS
from towernmt.dataflow.text.filters.text_filters import TEXT_REASONS, TextFilters

LENGTH_REASONS = {
    "empty source": "nothing but white space on the source side",
    "empty target": "nothing but white space on the target side",
    "long source": "more source tokens than the limit",
    "long target": "more target tokens than the limit",
    "length ratio": "one side has too many times the tokens of the other",
}
DROP_REASONS = {**LENGTH_REASONS, **TEXT_REASONS, **DUPLICATE_REASONS}
"""Why a pair is dropped; the first reason that holds is the one that counts."""
REASON_CODES = {reason: code for code, reason in enumerate(DROP_REASONS)}


@dataclass(frozen=True)
class PairFilter:
    """Which pairs are kept.

    Attributes:
        max_length: most tokens of either side, without BOS and EOS.
        max_length_ratio: most tokens of the longer side for each token of the shorter one.
        texts: filters on the text of a pair.
        duplicates: one of `filters.duplicates.DUPLICATES`. It says which keys of pairs are computed;
            `prepare.tasks` looks them up and drops the pairs.
    """

    max_length: int
    max_length_ratio: float
    texts: TextFilters = field(default_factory=TextFilters)
    duplicates: str = "keep"

    def reasons(self, source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64]
                ) -> NDArray[np.int8]:
        """int8 `[pairs]`: index into DROP_REASONS, or -1 for a pair that is kept."""
        longer = np.maximum(source_lengths, target_lengths)
        shorter = np.minimum(source_lengths, target_lengths)
        conditions = [source_lengths == 0, target_lengths == 0, source_lengths > self.max_length,
                      target_lengths > self.max_length, longer > self.max_length_ratio * shorter]
        return np.select(conditions, range(len(conditions)), default=-1).astype(np.int8)

    def count_reasons(self, source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64]) -> dict[str, int]:
        """Reason to number of pairs that are dropped for it."""
        reasons = self.reasons(source_lengths, target_lengths)
        return {name: count for code, name in enumerate(DROP_REASONS) if (count := int((reasons == code).sum()))}
