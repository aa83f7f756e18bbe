"""The histogram of a corpus over (source length, target length): batches and padding can be estimated from it alone.

It is the file `lengths.tsv` of a preparation; preparations of earlier versions lack it. A line has the tokens of the
source, the tokens of the target (both without EOS), and how many pairs are so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError

LENGTHS = "lengths.tsv"


@dataclass(frozen=True)
class PairLengths:
    """How many pairs have which lengths; each combination once.

    Attributes:
        source, target: int64 `[combinations]`, tokens without EOS.
        pairs: int64 `[combinations]`, how many pairs.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    pairs: NDArray[np.int64]

    def to_text(self) -> str:
        """The content of the file."""
        return "".join(f"{source}\t{target}\t{pairs}\n" for source, target, pairs in zip(
            self.source.tolist(), self.target.tolist(), self.pairs.tolist(), strict=True))

    def sample(self, pairs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lengths of so many pairs that stand for all: every n-th in the order of length.

        Returns:
            int64 `[pairs]` each: source and target tokens without EOS. With `pairs` as many as there are, all.
        """
        order = np.lexsort((self.source - self.target, np.maximum(self.source, self.target)))
        ends = np.cumsum(self.pairs[order])
        places = (np.arange(pairs) * 2 + 1) * int(ends[-1]) // (2 * pairs)
        chosen = order[np.searchsorted(ends, places, side="right")]
        return self.source[chosen], self.target[chosen]


def parse_pair_lengths(content: bytes, name: str) -> PairLengths:
    """The content of `lengths.tsv`; `name` is for messages.

    Raises:
        DataError: it is damaged.
    """
    try:
        rows = np.array([line.split(b"\t") for line in content.splitlines()]).astype(np.int64)  # [combinations, 3]
        source, target, pairs = rows.T
    except ValueError as error:
        raise DataError(f"{name}: not three whole numbers a line. Run `towernmt prepare` again.") from error
    if not len(pairs) or rows.min() < 0 or not pairs.sum():
        raise DataError(f"{name}: no histogram of lengths. Run `towernmt prepare` again.")
    return PairLengths(source, target, pairs)
