"""Tables for reviewers: changes are recognised."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest

from towernmt.documents.alignment.document_pairs import (
    ReviewRow,
    ScoredPair,
    is_unchanged_review,
    read_review,
    review_lines,
)

ROWS = [ReviewRow(True, "1-1", "a and b", "1", "1", ScoredPair('Sie sagte "ja".', "She said yes.", 0.8)),
        ReviewRow(False, "1-0", "a and b", "2", "", ScoredPair("Es regnete.", "", 0.0)),
        ReviewRow(False, "1-1", "a and b", "3", "2", ScoredPair("Anna kam.", "Paul went.", 0.05))]
TABLE = "\n".join(review_lines(ROWS)) + "\n"


def test_a_table_is_unchanged_until_a_reviewer_changes_it() -> None:
    assert is_unchanged_review(TABLE) and is_unchanged_review("")


def test_a_spreadsheet_program_may_change_quotes_line_ends_and_numbers() -> None:
    text = io.StringIO()
    csv.writer(text, delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerows(
        csv.reader(io.StringIO(TABLE.replace("0.800", "0,8")), delimiter="\t"))
    assert text.getvalue() != TABLE and is_unchanged_review(text.getvalue())


def test_a_table_may_have_fields_of_any_length() -> None:
    long = 'wort "und" ' * 30_000
    row = ReviewRow(True, "1-1", "a and b", "1", "1", ScoredPair(long, "words", 0.5))
    table = "\n".join(review_lines([row])) + "\n"
    assert is_unchanged_review(table)
    assert list(read_review(table, "r.tsv")) == [ScoredPair(long.strip(), "words", 0.5)]


@pytest.mark.parametrize("change", [
    lambda text: text.replace("\nno\t", "\nyes\t", 1),
    lambda text: text.replace("Paul", "Anna"),
    lambda text: text.replace("ja", "nein"),
    lambda text: "".join(text.splitlines(keepends=True)[:-1]),
    lambda text: text.replace("checksum\t", "").replace("keep", "checksum\tkeep"),
    lambda text: "\n".join(line.rstrip("\t") for line in text.split("\n")),
    lambda text: text.replace('""', '"'),
    lambda text: "a letter\n"])
def test_changes_are_recognised(change: Callable[[str], str]) -> None:
    assert change(TABLE) != TABLE and not is_unchanged_review(change(TABLE))
