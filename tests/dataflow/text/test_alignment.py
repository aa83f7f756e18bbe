"""Alignments in the Pharaoh format, and links of words as links of subwords."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.text.pharaoh_alignments import link_tokens, parse_links
from towernmt.dataflow.text.text_lines import Chunk

places = st.lists(st.integers(0, 5), max_size=9).map(sorted)


def lines(*text: str, first: int = 1) -> Chunk:
    return Chunk("a.links", first, len(text), "".join(line + "\n" for line in text).encode())


@given(links=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))), source=places, target=places)
def test_pieces_are_linked_where_their_words_are(links: set[tuple[int, int]], source: list[int], target: list[int]
                                                 ) -> None:
    found = link_tokens(sorted(links), source, target)
    assert found.dtype == np.uint16 and found.shape[0] == 2
    matrix = np.zeros((len(source), len(target)), int)
    np.add.at(matrix, tuple(found), 1)
    expected = [[int((one, other) in links) for other in target] for one in source]
    assert matrix.tolist() == expected


def test_links_are_read_once_each_and_a_line_may_have_none() -> None:
    assert parse_links(lines("1-0 0-0\t1-0 ", ""), [2, 3], [1, 1]) == [[(0, 0), (1, 0)], []]


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(DataError, match=f"^a.links line 1: '{'9' * 40}' is not a word alignment"):
        parse_links(lines("9" * 5000 + "-0"), [3], [4])


@pytest.mark.parametrize("item", ["1", "1-", "-1", "0:0", "0-0-0", "a-b", "0–0", "٠-٠", "1.5-0"])
def test_what_is_no_link_is_refused_with_file_and_line(item: str) -> None:
    with pytest.raises(DataError, match=f"^a.links line 8: '{item}' is not a word alignment: expected .* `0-0 1-2`"):
        parse_links(lines("0-0", f"0-0 {item}", first=7), [3, 3], [3, 3])


@pytest.mark.parametrize("item", ["3-0", "0-4", "99-99"])
def test_a_link_behind_the_last_word_is_refused(item: str) -> None:
    with pytest.raises(DataError, match=f"^a.links line 1: the word alignment {item} .* has 3 source and 4 target"
                       ):
        parse_links(lines(f"2-3 {item}"), [3], [4])
