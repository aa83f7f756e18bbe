"""Catalogues of gettext, read again by polib."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.documents.formats.gettext import open_po
from towernmt.documents.segments import Segment

polib = pytest.importorskip("polib")

HEADER = r'''# Translators
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=0;\n"

'''
CATALOGUE = HEADER + r'''#. extracted
#: a.c:1
#, c-format
msgctxt "menu"
msgid "Open \"%s\" now"
msgstr ""

#: b
#, fuzzy
#| msgid "old"
msgid ""
"First line\n"
"\n"
"The second line, which is so long that it does not go on one line of the file.\n"
msgstr "alt"

msgid "done"
msgstr "fertig"

msgid "one file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#~ msgid "obsolete"
#~ msgstr "veraltet"
'''
TRANSLATED = HEADER + r'''#. extracted
#: a.c:1
#, fuzzy, c-format
msgctxt "menu"
msgid "Open \"%s\" now"
msgstr "OPEN \"%S\" NOW"

#: b
#, fuzzy
#| msgid "old"
msgid ""
"First line\n"
"\n"
"The second line, which is so long that it does not go on one line of the file.\n"
msgstr ""
"FIRST LINE\n"
"\n"
"THE SECOND LINE, WHICH IS SO LONG THAT IT DOES NOT GO ON ONE LINE OF THE "
"FILE.\n"

msgid "done"
msgstr "fertig"

#, fuzzy
msgid "one file"
msgid_plural "%d files"
msgstr[0] "ONE FILE"
msgstr[1] "%D FILES"
msgstr[2] "%D FILES"

#~ msgid "obsolete"
#~ msgstr "veraltet"
'''


def capitals(segments: list[Segment]) -> list[Segment]:
    return [tuple(part.upper() if isinstance(part, str) else part for part in segment) for segment in segments]


def translated(text: str, encoding: str = "utf-8") -> str:
    document = open_po(text.encode(encoding))
    return document.written(capitals(document.segments)).decode(encoding)


def test_what_has_no_translation_gets_a_fuzzy_one() -> None:
    assert open_po(CATALOGUE.encode()).segments == [
        ('Open "%s" now',), ("First line",),
        ("The second line, which is so long that it does not go on one line of the file.",), ("one file",),
        ("%d files",)]
    assert translated(CATALOGUE) == TRANSLATED
    assert translated(CATALOGUE.replace("\n", "\r\n")) == TRANSLATED.replace("\n", "\r\n")


def test_polib_reads_the_translations_and_all_else_as_it_was() -> None:
    before, after = polib.pofile(CATALOGUE), polib.pofile(translated(CATALOGUE))
    assert after.metadata == before.metadata and len(after) == len(before)
    for one, other in zip(before, after, strict=True):
        assert [getattr(one, name) for name in ("msgctxt", "msgid", "comment", "occurrences", "obsolete",
                                                "previous_msgid")] == [
            getattr(other, name) for name in ("msgctxt", "msgid", "comment", "occurrences", "obsolete",
                                              "previous_msgid")]
    assert [entry.msgid for entry in after.fuzzy_entries()] == [
        entry.msgid for entry in before if not entry.translated() and not entry.obsolete]
    assert after.find("one file").msgstr_plural == {0: "ONE FILE", 1: "%D FILES", 2: "%D FILES"}


@pytest.mark.parametrize(("forms", "expected"), [(1, ["%D B"]), (2, ["A", "%D B"]), (4, ["A", "%D B", "%D B", "%D B"])])
def test_there_are_as_many_plural_forms_as_the_header_says(forms: int, expected: list[str]) -> None:
    text = HEADER.replace("nplurals=3", f"nplurals={forms}") + (
        'msgid "a"\nmsgid_plural "%d b"\nmsgstr[0] ""\nmsgstr[1] ""\n')
    assert list(polib.pofile(translated(text)).find("a").msgstr_plural.values()) == expected


def test_the_headers_encoding_is_kept() -> None:
    text = HEADER.replace("UTF-8", "ISO-8859-1") + 'msgid "für"\nmsgstr ""\n'
    assert 'msgstr "FÜR"' in translated(text, "latin-1")
    document = open_po(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"U\+201C, which ISO8859-1 has not"):
        document.written([("“",)])


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"])
                        | st.sampled_from('\\"\n\t \'')), min_size=1, unique=True))
def test_any_text_comes_back(texts: list[str]) -> None:
    """What polib wrote, translated by itself, is what polib reads as translations."""
    catalogue = polib.POFile()
    catalogue.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    for text in texts:
        if text:
            catalogue.append(polib.POEntry(msgid=text))
    document = open_po(str(catalogue).encode())
    found = polib.pofile(document.written(document.segments).decode())
    assert [(entry.msgid, entry.msgstr) for entry in found] == [(text, text) for text in texts if text]


@pytest.mark.parametrize(("content", "sentence"), [
    (b"hello\n", "no catalogue of gettext: line 1"),
    (HEADER.replace("UTF-8", "KLINGON-1").encode(), "encoding KLINGON-1, which is not known"),
    (HEADER.encode() + b'msgid "a\nmsgstr ""\n', "line 7 is neither"),
    (HEADER.encode() + b'msgid "\xff"\nmsgstr ""\n', "not encoded as UTF-8")])
def test_what_is_broken_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        open_po(content)
