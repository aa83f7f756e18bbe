"""Files made to hurt: each is refused with one sentence, soon, and without much memory."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping

import pytest

from towernmt.core.errors import DataError
from towernmt.documents.formats.office import archive
from towernmt.documents.formats.registry import opener_of

TYPES = (b'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/d.xml" '
         b'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>')
LAUGHS = b"<!DOCTYPE a [" + b'<!ENTITY l0 "lol">' + b"".join(
    f'<!ENTITY l{one} "{f"&l{one - 1};" * 10}">'.encode() for one in range(1, 12)) + b"]><a>&l11;</a>"
FILE_OUTSIDE = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'


def zipped(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return made.getvalue()


def both(content: bytes, **further: bytes) -> dict[str, bytes]:
    """The members of a document of either kind."""
    return {"[Content_Types].xml": TYPES, "d.xml": content, "content.xml": content, **further}


GOOD = zipped(both(b"<a/>"))
CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    "no archive": (lambda: b"hello", "no .*, or a damaged one"),
    "cut": (lambda: GOOD[:len(GOOD) // 2], "no .*, or a damaged one"),
    "empty": (lambda: b"", "no .*, or a damaged one"),
    "nothing in it": (lambda: zipped({"a": b""}), "it has no member"),
    "entities": (lambda: zipped(both(LAUGHS)), "has a document type"),
    "a file outside": (lambda: zipped(both(FILE_OUTSIDE)), "has a document type"),
    "a document type in UTF-16": (lambda: zipped(both(LAUGHS.decode().encode("utf-16"))), "has a document type"),
    "no XML": (lambda: zipped(both(b"<a><b></a>")), "is no XML"),
    "not even text": (lambda: zipped(both(bytes(range(256)))), "is no XML"),
    "too deep": (lambda: zipped(both(b"<a>" * 100_000 + b"</a>" * 100_000)), "is no XML"),
    "a bomb": (lambda: zipped(both(b"<a/>", zeros=bytes(archive.MOST_BYTES))), "when it is unpacked"),
    "a large member": (lambda: zipped(both(b"<a>" + bytes([32]) * archive.MOST_XML + b"</a>")), "more than 32 MB"),
    "very many elements": (lambda: zipped(both(b"<a>" + b"<b/>" * (2 * archive.MOST_TAGS) + b"</a>")), "has more than"),
    "very many members": (lambda: zipped({str(number): b"" for number in range(archive.MOST_MEMBERS + 1)}), "members"),
    "a path that leads out": (lambda: zipped(both(b"<a/>") | {"../../etc/x": b""}), "leads out of it"),
}


@pytest.mark.parametrize("suffix", [".docx", ".odt"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_refused(case: str, suffix: str) -> None:
    content, sentence = CASES[case]
    with pytest.raises(DataError, match=sentence) as refused:
        opener_of(f"x{suffix}")(content())
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)


def test_a_damaged_member_is_refused() -> None:
    place = GOOD.index(b"d.xml") + 5
    with pytest.raises(DataError, match="damaged"):
        opener_of("x.docx")(GOOD[:place] + b"\xff\xff\xff" + GOOD[place + 3:])


def test_two_members_of_one_name_are_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as file:
            file.writestr("a", b"")
            file.writestr("a", b"")
    with pytest.raises(DataError, match="several members of one name"):
        opener_of("x.odt")(made.getvalue())


@pytest.mark.parametrize("suffix", [".txt", ".srt", ".vtt", ".po", ".md"])
def test_binary_is_no_text(suffix: str) -> None:
    with pytest.raises(DataError):
        opener_of(f"x{suffix}")(GOOD)
