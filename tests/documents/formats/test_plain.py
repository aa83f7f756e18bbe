"""Plain text: lines and wrapped paragraphs, in the encoding and with the line ends of the file."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.documents import fake_translator as fakes
from towernmt.core.errors import DataError
from towernmt.documents.formats.plain import Lines, open_text
from towernmt.documents.formats.text_files import Pieces

WRAPPED = """Das ist ein Absatz, der nach ungefähr siebzig Zeichen umgebrochen wurde,
wie es viele Programme tun. Er hat mehrere Zeilen, von denen keine
länger ist.

- Ein Punkt der Liste, der auch lang genug ist, um umgebrochen zu werden
  und dann hier weitergeht.

Kurz
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_wrapped_paragraphs_are_one_segment_and_wrapped_again(encoding: str, end: str) -> None:
    content = WRAPPED.replace("\n", end).encode(encoding)
    document = open_text(content)
    assert document.segments == [
        ("Das ist ein Absatz, der nach ungefähr siebzig Zeichen umgebrochen wurde, wie es viele Programme tun. Er hat "
         "mehrere Zeilen, von denen keine länger ist.",),
        ("Ein Punkt der Liste, der auch lang genug ist, um umgebrochen zu werden und dann hier weitergeht.",),
        ("Kurz",)]
    assert document.written(document.segments) == content
    longer = document.written([("A much longer translation of this paragraph, which needs some more words than its "
                                "source had, goes on three lines of the same width.",), ("Item",), ("Short",)])
    assert longer.decode(encoding).split(end) == [
        "A much longer translation of this paragraph, which needs some more words",
        "than its source had, goes on three lines of the same width.", "", "- Item", "", "Short", ""]


def test_lines_that_were_not_wrapped_stay_lines() -> None:
    text = "Rosen sind rot\nVeilchen sind blau\n\n  * Zucker ist süß \n-----\n1. Mai\n12,50\n"
    document = open_text(text.encode())
    assert document.segments == [("Rosen sind rot",), ("Veilchen sind blau",), ("Zucker ist süß",), ("1. Mai",)]
    assert document.written(fakes.capital_segments(document.segments)).decode() == text.upper()


@pytest.mark.parametrize("open_as", [lambda text: open_text(text.encode()), Lines])
def test_the_cells_of_a_line_with_tabs_are_segments(open_as: Callable[[str], Pieces]) -> None:
    document = open_as("Hund\tKatze\t\n\tEin Haus. Eine Tür.\n")
    assert document.segments == [("Hund",), ("Katze",), ("Ein Haus. Eine Tür.",)]
    assert document.text(fakes.capital_segments(document.segments)) == "HUND\tKATZE\t\n\tEIN HAUS. EINE TÜR.\n"


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]) | st.sampled_from(" \t\n\r-")),
                max_size=12), st.sampled_from(["", " ", "\n", "\r\n"]))
def test_what_is_translated_by_itself_is_the_same_bytes(texts: list[str], between: str) -> None:
    content = between.join(texts).encode()
    document = open_text(content)
    assert document.written(document.segments) == content


@settings(deadline=None)
@given(st.lists(st.lists(st.text("abcdefgh,.", min_size=1, max_size=12), min_size=1, max_size=60), max_size=5),
       st.integers(40, 90))
def test_paragraphs_of_any_width_are_the_same_bytes(paragraphs: list[list[str]], width: int) -> None:
    import textwrap

    text = "\n\n".join(textwrap.fill(" ".join(words), width) for words in paragraphs) + "\n"
    document = open_text(text.encode())
    assert document.written(document.segments) == text.encode()


@pytest.mark.parametrize(("content", "sentence"), [
    ("Zürich".encode("latin-1"), r"not encoded as UTF-8 \(line 1\)"),
    (b"a\n\xff\n", r"UTF-8 \(line 2\)"),
    ("a".encode("utf-16-le"), r"not text: line 1 has the character U\+0000"),
    ("Ein Haus.\n".encode("utf-16-le"), "seems to be UTF-16LE without a byte order mark: .* `iconv -f UTF-16LE"),
    ("Grüße aus Köln.\n".encode("utf-16-be"), "seems to be UTF-16BE"),
    (b"\xef\xbb\xbfa\n\xff", r"not encoded as UTF-8 \(line 2\)"),
    ("Ein Haus.\n".encode("utf-32-le"), "seems to be UTF-32"),
    (b"Ein Haus.\x1aEine T", r"not text: line 1 has the character U\+001A"),
    (bytes(range(256)), "no text|not encoded")])
def test_what_is_no_text_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        open_text(content)


@pytest.mark.parametrize("content", [
    b"Ein Haus.\r\nEine Katze.\r\n\x1a", "\ufeffEin Haus.\nEine Katze.\x1a\x1a".encode("utf-16-le")])
def test_the_end_of_a_dos_file_does_not_belong_to_its_text(content: bytes) -> None:
    document = open_text(content)
    assert document.segments == [("Ein Haus.",), ("Eine Katze.",)]
    assert document.written(document.segments) == content


def test_a_line_of_50_mb_is_one_segment() -> None:
    content = b"wort " * 10_000_000
    document = open_text(content)
    assert len(document.segments) == 1 and document.written(document.segments) == content
