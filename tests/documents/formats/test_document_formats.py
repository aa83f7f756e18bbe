"""The suffixes of each format, in upper and lower case."""

from __future__ import annotations

import pytest

from towernmt.core.errors import DataError
from towernmt.documents.formats.document_formats import have_same_format, opener_of

PO = b'msgid ""\nmsgstr ""\n\nmsgid "Haus"\nmsgstr ""\n'


@pytest.mark.parametrize(("names", "content"), [
    (("a.txt", "a.TEXT", "b.log"), b"Haus\n"), (("a.po", "a.pot", "a.b.POT"), PO),
    (("a.md", "a.Markdown", "a.mdown", "a.mkd", "a.mkdn", "a.qmd", "a.Rmd"), b"# Haus\n"),
    (("a.mdx", "a.MDX"), b"# Haus\n"),
    (("a.html", "a.HTM", "a.xhtml", "a.xht", "a.shtml", "c:\\\\x\\\\a.XHTML"), b"<p>Haus</p>"),
    (("a.srt", "a.SRT"), b"1\n00:00:01,000 --> 00:00:02,000\nHaus\n"),
    (("a.vtt", "a.VTT"), b"WEBVTT\n\n00:01.000 --> 00:02.000\nHaus\n")])
def test_a_file_is_opened_by_its_suffix_in_upper_or_lower_case(names: tuple[str, ...], content: bytes) -> None:
    for name in names:
        document = opener_of(name)(content)
        assert document.segments == [("Haus",)]
        assert have_same_format(names[0], name) and have_same_format(name, names[0])


@pytest.mark.parametrize("name", ["a", "md", ".txt", "a.xlf", "a.rst", "a.sbv"])
def test_other_files_are_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"\.txt, \.text, .*\.docx"):
        opener_of(name)
    assert not have_same_format("a.txt", name)


@pytest.mark.parametrize(("name", "sentence"), [
    ("a.doc", "old Word format and RTF files are not read: save them as .docx"), ("a.RTF", "save them as .docx"),
    ("c:\\x\\a.pdf", "PDF files and images are not read: convert them to .docx"), ("a.PNG", "convert them")])
def test_files_that_another_program_can_convert_are_refused_with_this_advice(name: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        opener_of(name)


def test_other_formats_are_not_the_same() -> None:
    assert not have_same_format("a.txt", "a.md") and not have_same_format("a.docx", "a.odt")
    assert not have_same_format("a.md", "a.mdx")
    for name, other in (("a.docm", "a.docx"), ("a.dotx", "a.docx"), ("a.ott", "a.odt")):
        assert not have_same_format(name, other) and not have_same_format(other, name)
        assert have_same_format(name, f"b{name}") and have_same_format(name, name.upper())
