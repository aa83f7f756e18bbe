"""Reading text files: line ends, encodings, and two files side by side."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.dataflow.text import read_chunks, read_lines, scan_pair
from towernmt.errors import DataError


@pytest.mark.parametrize(("content", "lines"), (
    (b"", []),
    (b"\n", [""]),
    (b"a", ["a"]),
    (b"a\n", ["a"]),
    (b"a\n\n", ["a", ""]),
    (b"a\r\nb\r\n", ["a", "b"]),
    (b"a\rb\n", ["a\rb"]),
    (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    ("a\u2028b\x0bc\x0cd\x1ce\x85f\n".encode(), ["a\u2028b\x0bc\x0cd\x1ce\x85f"]),
))
def test_lines_end_at_line_feeds_alone(content: bytes, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    assert list(read_lines(path)) == lines
    (tmp_path / "text.gz").write_bytes(gzip.compress(content))
    assert list(read_lines(tmp_path / "text.gz")) == lines


@settings(max_examples=100, deadline=None)
@given(lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"), max_size=5)),
       size=st.integers(1, 7), end=st.sampled_from(["\n", "\r\n"]))
def test_chunks_hold_every_line_once(lines: list[str], size: int, end: str,
                                     tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes("".join(line + end for line in lines).encode())
    chunks = list(read_chunks(path, size))
    assert [line for chunk in chunks for line in chunk.decode()] == lines
    assert [chunk.first_line for chunk in chunks] == list(range(1, len(lines) + 1, size))
    assert all(len(chunk.decode()) == chunk.lines for chunk in chunks)


def test_bytes_that_are_not_utf8_are_found_by_file_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin1.de"
    path.write_bytes(b"gut\n" * 9_000 + "früh\n".encode("latin-1") + b"gut\n")
    with pytest.raises(DataError, match=r"latin1\.de line 9001: byte 3 of the line \(0xfc\) is not "
                                         "UTF-8.*iconv"):
        list(read_lines(path))
    path.write_bytes(b"\xef\xbb\xbfab\xff\n")
    with pytest.raises(DataError, match="line 1: byte 3"):
        list(read_lines(path))


def test_utf16_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("früh\n".encode("utf-16"))
    with pytest.raises(DataError, match="the file is UTF-16.*iconv -f UTF-16"):
        list(read_lines(tmp_path / "text"))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.de: there is no such file"):
        list(read_lines(tmp_path / "none.de"))
    with pytest.raises(DataError, match="Is a directory"):
        list(read_lines(tmp_path))
    whole = gzip.compress(b"text\n" * 1000)
    for name, content in (("cut.gz", whole[:-10]), ("no.gz", b"text\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            list(read_lines(tmp_path / name))


@pytest.mark.parametrize("extra", (1, 5_000))
@pytest.mark.parametrize("longer", ("a", "b"))
def test_unequal_files_are_refused_with_the_line_where_the_shorter_ends(extra: int, longer: str,
                                                                        tmp_path: Path) -> None:
    for name in "ab":
        lines = 5_000 + (extra if name == longer else 0)
        (tmp_path / name).write_text("x\n" * lines)
    shorter = "b" if longer == "a" else "a"
    with pytest.raises(DataError, match=f"{shorter} ends at line 5000, but .*{longer} has {5000 + extra} "
                                        "lines"):
        scan_pair(tmp_path / "a", tmp_path / "b")


def test_a_missing_final_line_feed_is_no_missing_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\ny")
    (tmp_path / "b").write_bytes(b"x\r\ny\r\n")
    source, target = scan_pair(tmp_path / "a", tmp_path / "b")
    assert source.lines == target.lines == 2
    assert source.sha256 == hashlib.sha256(b"x\ny").hexdigest() and target.bytes == 6
