"""The histogram of lengths: written, read, and sampled."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.corpus_statistics import PairLengths, parse_pair_lengths

LENGTHS = PairLengths(np.array([1, 2, 7]), np.array([3, 2, 5]), np.array([4, 1, 3]))


def test_saved_lengths_are_read_unchanged() -> None:
    assert LENGTHS.to_text() == "1\t3\t4\n2\t2\t1\n7\t5\t3\n"
    read = parse_pair_lengths(LENGTHS.to_text().encode(), "lengths.tsv")
    assert all(np.array_equal(value, vars(LENGTHS)[name]) for name, value in vars(read).items())


def test_a_sample_of_all_pairs_is_all_pairs_and_a_smaller_one_has_their_shares() -> None:
    assert Counter(zip(*map(np.ndarray.tolist, LENGTHS.sample(8)), strict=True)) == {(1, 3): 4, (2, 2): 1, (7, 5): 3}
    many = PairLengths(LENGTHS.source, LENGTHS.target, LENGTHS.pairs * 1000)
    assert Counter(zip(*map(np.ndarray.tolist, many.sample(80)), strict=True)) == {(1, 3): 40, (2, 2): 10, (7, 5): 30}


@pytest.mark.parametrize("content", [b"", b"1\t2\n", b"1\t2\tx\n", b"1\t2\t3\n1\t2\n", b"-1\t2\t3\n", b"1\t2\t0\n"])
def test_a_damaged_histogram_is_named(content: bytes) -> None:
    with pytest.raises(DataError, match=r"lengths\.tsv: .*Prepare the data again with --overwrite"):
        parse_pair_lengths(content, "lengths.tsv")
