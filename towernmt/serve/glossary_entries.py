"""The terms of one direction of a glossary, as callers send them: tab-separated or comma-separated values."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.column_files import read_csv
from towernmt.predict.lines.terminology import Term, Terminology
from towernmt.serve.request_limits import bad_request

MAX_ENTRIES, MAX_TERM_CHARACTERS = 10_000, 1_024
FORMATS = ("tsv", "csv")
_LINE_END = re.compile("\r\n|\r|\n")
_TSV_DELIMITER = re.compile("[\t\r\n]")
"""Characters that a quoted field of comma-separated values may contain, but not a field of `format_entries`."""


def terminology_of(entries: Mapping[str, str]) -> Terminology:
    """Return the terminology of pairs of terms.

    Raises:
        RequestError: a term cannot be used.
    """
    return _terminology([Term(source, target, where="the glossary") for source, target in entries.items()])


def read_entries(text: str, format: str, check: Callable[[Terminology], None] = lambda _: None) -> dict[str, str]:
    """Read pairs of terms from tab-separated or comma-separated values, one pair per line.

    Comma-separated values may have two more columns, the languages.

    Args:
        text: content of the glossary.
        format: one of `FORMATS`.
        check: raises a `DataError` if a term cannot be used.

    Raises:
        RequestError: a line is not a pair, or its term is empty, too long, a duplicate, or cannot be used.
    """
    if format not in FORMATS:
        raise bad_request(f"'entries_format' must be one of {', '.join(FORMATS)}.")
    terms: dict[str, Term] = {}
    for number, row in _rows(text.removeprefix("\ufeff"), format):
        if not any(field.strip() for field in row):
            continue
        columns = (2,) if format == "tsv" else (2, 4)
        source, target = (row[0].strip(), row[1].strip()) if len(row) in columns else ("", "")
        if not source or not target or max(len(source), len(target)) > MAX_TERM_CHARACTERS or (
                _TSV_DELIMITER.search(source + target)):
            raise bad_request(f"Line {number} of the glossary is not a pair of terms with 1 to {MAX_TERM_CHARACTERS} "
                              "characters, without tabs and line breaks.")
        if source in terms:
            raise bad_request(f"Line {number} of the glossary repeats the source term of an earlier line.")
        terms[source] = Term(source, target, where=f"Line {number} of the glossary")
    check_entry_count(len(terms))
    terminology = _terminology(list(terms.values()))
    try:
        check(terminology)
    except DataError as error:
        raise bad_request(str(error)) from None
    return {source: term.target for source, term in terms.items()}


def _rows(text: str, format: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line of each row and the fields of the row.

    Raises:
        RequestError: the text is not valid CSV.
    """
    if format == "tsv":
        for number, line in enumerate(_LINE_END.split(text), start=1):
            yield number, line.split("\t")
        return
    reader = read_csv(io.StringIO(text, newline=""))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise bad_request(f"Line {reader.line_num} of the glossary is not valid CSV: {error}.") from None


def _terminology(terms: Sequence[Term]) -> Terminology:
    try:
        return Terminology(terms)
    except DataError as error:
        raise bad_request(str(error)) from None


def check_entry_count(entries: int) -> None:
    """Raise a RequestError if a glossary may not have this number of terms."""
    if not 0 < entries <= MAX_ENTRIES:
        raise bad_request(f"A glossary must have 1 to {MAX_ENTRIES} terms per direction, but has {entries}.")


def format_entries(entries: Mapping[str, str]) -> str:
    """Return terms as tab-separated values."""
    return "\n".join(f"{source}\t{target}" for source, target in entries.items())
