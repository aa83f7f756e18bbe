"""Malicious files: each is refused quickly, with one sentence, and without much memory."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping

import pytest

from towernmt.core.errors import DataError
from towernmt.documents.formats.document_formats import opener_of
from towernmt.documents.formats.office_archive import MOST_BYTES, MOST_MEMBERS, MOST_TAGS, MOST_XML

TYPES = (b'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/d.xml" '
         b'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>')
LAUGHS = b"<!DOCTYPE a [" + b'<!ENTITY l0 "lol">' + b"".join(
    f'<!ENTITY l{one} "{f"&l{one - 1};" * 10}">'.encode() for one in range(1, 12)) + b"]><a>&l11;</a>"
IN_UTF_32 = ('<?xml version="1.0" encoding="UTF-32"?><!DOCTYPE a [<!ENTITY dash "-">]>'
             "<a>A&dash;B</a>").encode("utf-32")
FILE_OUTSIDE = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'


def zipped(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return made.getvalue()


def both(content: bytes, **further: bytes) -> dict[str, bytes]:
    """Return the members of a document of each kind."""
    return {"[Content_Types].xml": TYPES, "d.xml": content, "content.xml": content, **further}


GOOD = zipped(both(b"<a/>"))


def with_password() -> bytes:
    """Return an archive whose first member is marked as encrypted, in its own header and in the directory."""
    content = bytearray(GOOD)
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(header) + flags] |= 1
    return bytes(content)


CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    "no archive": (lambda: b"hello", "not a valid .* file: it cannot be opened"),
    "cut": (lambda: GOOD[:len(GOOD) // 2], "not a valid .* file: it cannot be opened"),
    "old": (lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504),
            "has a password, or the format of old programs: save it without a password, as .(docx|odt)"),
    "a password": (with_password, "The file is encrypted: save it without a password"),
    "empty": (lambda: b"", "not a valid .* file: it cannot be opened"),
    "nothing in it": (lambda: zipped({"a": b""}), "the member .* is missing"),
    "entities": (lambda: zipped(both(LAUGHS)), "has a document type"),
    "a file outside": (lambda: zipped(both(FILE_OUTSIDE)), "has a document type"),
    "a document type in UTF-16": (lambda: zipped(both(LAUGHS.decode().encode("utf-16"))), "has a document type"),
    "entities in UTF-32": (lambda: zipped(both(IN_UTF_32)), "the entity 'dash', and entities are not expanded"),
    "no XML": (lambda: zipped(both(b"<a><b></a>")), "is not valid XML"),
    "not even text": (lambda: zipped(both(bytes(range(256)))), "is not valid XML"),
    "too deep": (lambda: zipped(both(b"<a>" * 100_000 + b"</a>" * 100_000)), "is not valid XML"),
    "a bomb": (lambda: zipped(both(b"<a/>", zeros=bytes(MOST_BYTES))), "unpacked file has"),
    "a large member": (lambda: zipped(both(b"<a>" + bytes([32]) * MOST_XML + b"</a>")), "more than 32 MB"),
    "very many elements": (lambda: zipped(both(b"<a>" + b"<b/>" * (2 * MOST_TAGS) + b"</a>")), "has more than"),
    "very many members": (lambda: zipped({str(number): b"" for number in range(MOST_MEMBERS + 1)}), "members"),
    "a path that leads out": (lambda: zipped(both(b"<a/>") | {"../../etc/x": b""}), "outside the archive"),
}


@pytest.mark.parametrize("suffix", [".docx", ".odt"])
@pytest.mark.parametrize("case", CASES)
def test_a_damaged_or_hostile_archive_is_refused_in_a_short_sentence(case: str, suffix: str) -> None:
    content, sentence = CASES[case]
    with pytest.raises(DataError, match=sentence) as refused:
        opener_of(f"x{suffix}")(content())
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)


def test_a_damaged_member_is_refused() -> None:
    index = GOOD.index(b"d.xml") + 5
    with pytest.raises(DataError, match="damaged"):
        opener_of("x.docx")(GOOD[:index] + b"\xff\xff\xff" + GOOD[index + 3:])


def test_an_odt_with_a_password_is_refused() -> None:
    manifest = b'<manifest:file-entry><manifest:encryption-data/></manifest:file-entry>'
    members = {"META-INF/manifest.xml": manifest, "content.xml": b"\x8f"}
    with pytest.raises(DataError, match="The file is encrypted: save it without a password"):
        opener_of("x.odt")(zipped(members))


def test_two_members_of_one_name_are_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as file:
            file.writestr("a", b"")
            file.writestr("a", b"")
    with pytest.raises(DataError, match="several members with the same name"):
        opener_of("x.odt")(made.getvalue())


@pytest.mark.parametrize("suffix", [".txt", ".srt", ".vtt", ".po", ".md"])
def test_an_archive_under_the_suffix_of_a_text_is_refused(suffix: str) -> None:
    with pytest.raises(DataError):
        opener_of(f"x{suffix}")(GOOD)
