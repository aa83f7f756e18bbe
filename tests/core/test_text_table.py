"""The columns of a text table have equal width and the requested alignment."""

from __future__ import annotations

import pytest

from towernmt.core.text_table import align_columns

ROWS = [["", "pairs", "", "trouble"], ["[1]", "1,200", "", "none"], ["news", "7", "", ""]]


@pytest.mark.parametrize(("alignment", "expected"), [
    ("<>", ["      pairs    trouble", "[1]   1,200       none", "news      7"]),
    ("<", ["      pairs    trouble", "[1]   1,200    none", "news  7"]),
    (">>><", ["      pairs    trouble", " [1]  1,200    none", "news      7"]),
    ("><>>>>>", ["      pairs    trouble", " [1]  1,200       none", "news  7"])])
def test_each_column_has_the_width_of_its_longest_cell_and_the_alignment_of_its_sign(
        alignment: str, expected: list[str]) -> None:
    assert align_columns(ROWS, alignment) == expected


def test_a_table_without_rows_has_no_lines() -> None:
    assert align_columns([]) == []
