"""CSV files: quoting, headers, and resuming at the end of any record."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources.open_source import open_source
from towernmt.dataflow.sources.source import Pair

FIELDS = st.text(st.sampled_from('aß漢,;"\n \t\u2028\'')
                 | st.characters(codec="utf-8", exclude_characters="\r\0\ufeff"), max_size=6)


def pairs(uri: str) -> list[Pair]:
    source = open_source(uri)
    return [pair for _, pair in source.read(source.begin())]


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(FIELDS, FIELDS, FIELDS), max_size=6), compressed=st.booleans(),
       delimiter=st.sampled_from([",", ";", "\t"]), header=st.booleans(), end=st.sampled_from(["\n", "\r\n"]),
       quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), mark=st.sampled_from(["", "\ufeff"]))
def test_rows_written_by_the_csv_module_are_read_unchanged_from_any_cursor(
        rows: list[tuple[str, ...]], compressed: bool, delimiter: str, header: bool, end: str, quoting: int, mark: str,
        tmp_path_factory: pytest.TempPathFactory) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]
    writer.writerows([("en", "comment", "de")] * header + rows)
    path = tmp_path_factory.mktemp("csv") / ("x.csv.gz" if compressed else "x.csv")
    data = (mark + text.getvalue()).encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    columns = "source=de&target=en" if header else "columns=2,0"
    source = open_source(f"{path}?{columns}&delimiter={'tab' if delimiter == chr(9) else delimiter}")
    expected = [Pair(row[2], row[0]) for row in rows]
    items = list(source.read(source.begin()))
    assert [pair for _, pair in items] == expected
    assert source.count() == len(expected)
    for number, (cursor, _) in enumerate(items, 1):
        assert list(source.read(json.loads(json.dumps(cursor)))) == items[number:]


def test_several_files_have_a_header_each(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("de,en\neins,one\n")
    (tmp_path / "b.csv").write_text("en,de\ntwo,zwei\n")
    assert pairs(f"{tmp_path}/*.csv?source=de&target=en") == [("eins", "one"), ("zwei", "two")]
    assert pairs(f"{tmp_path}/*.csv?header=true") == [("eins", "one"), ("two", "zwei")]
    (tmp_path / "c.csv").write_text("")
    assert len(pairs(f"{tmp_path}/*.csv?source=de&target=en")) == 2


def test_blank_lines_are_no_records_and_an_empty_field_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('\na,b\n\n"",""\n\n')
    assert pairs(f"{tmp_path}/a.csv") == [("a", "b"), ("", "")]


@pytest.mark.parametrize(("text", "options", "message"), [
    ('a,b\n"c,d\ne,f\n', "", "line 2: the record that begins here is not valid CSV .*not closed"),
    ('a,b\n"c"d,e\n', "", "line 2: the record that begins here is not valid CSV"),
    ('"a\nx",b\nc;d\n', "", r"line 3: the record has 1 column, but column 1 .*delimiter=;"),
    ("de,en\na,b\n", "?source=De&target=en", "line 1: column 'De' is missing; the header has: de, en"),
    ('"d\ne",en\na,b\n', "?source=de&target=en", "line 1: column 'de' is missing; the header has: d e, en. Name"),
    ("de,de\na,b\n", "?source=de&target=en", "line 1: column 'de' is not unique"),
    ('a,b\n"' + ("x" * 999 + "\n") * 17_000 + '",c\n', "", "line 2: .*field larger than field limit"),
    ("a\rb,c\n", "", "line 1: the record that begins here is not valid CSV"),
])
def test_invalid_csv_is_refused_with_file_and_line(text: str, options: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode())
    with pytest.raises(DataError, match=f"x.csv {message}"):
        pairs(f"{path}{options}")


def test_pairs_before_an_error_are_returned_first(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'a,b\n"c\n\xff",d\n')
    source = open_source(str(path))
    items = source.read(source.begin())
    assert next(items)[1] == ("a", "b")
    with pytest.raises(DataError, match="line 3: byte 1 of the line .* is not UTF-8"):
        next(items)


def test_records_without_a_column_are_passed_over_if_asked(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\nc\nd,e\n")
    uri = f"{tmp_path}/x.csv?missing=skip"
    assert pairs(uri) == [("a", "b"), ("d", "e")]
    assert open_source(uri).count() == 2


@pytest.mark.parametrize("options", ["source=de", "source=de&target=en&columns=0,1", "delimiter=ab", "delimiter=%22"])
def test_options_that_cannot_be_are_refused(options: str) -> None:
    with pytest.raises(SettingsError):
        open_source(f"x.csv?{options}")


def test_a_field_may_be_as_long_as_a_line_of_text(tmp_path: Path) -> None:
    csv.field_size_limit(1 << 17)       # Python's default, which other tests have raised
    long = "x" * 200_000
    (tmp_path / "x.csv").write_text(f'{long},b\n"{long}",d\n')
    assert pairs(f"{tmp_path}/x.csv") == [(long, "b"), (long, "d")]
