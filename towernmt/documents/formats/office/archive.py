"""The archive of an office document: its members within limits, and a copy of it with some of them exchanged."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping

from lxml import etree

from towernmt.core.errors import DataError

MOST_MEMBERS = 5_000
MOST_BYTES = 200_000_000
"""Of all members, unpacked."""
MOST_XML = 32_000_000
"""Bytes of a member with text."""
MOST_TAGS = 1_000_000
"""In a member: each takes far more memory than bytes."""


class Archive:
    """The members of a ZIP archive.

    Attributes:
        names: of the members.
    """

    def __init__(self, content: bytes, kind: str) -> None:
        """
        Args:
            kind: of the document, as messages name it.
        Raises:
            DataError: it is no archive, or one beyond the limits.
        """
        self._content, self._kind = content, kind
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
            raise DataError(f"The file is no {kind}, or a damaged one: it cannot be opened as a ZIP archive."
                            ) from error
        self.names = [member.filename for member in members]
        self._check(members)

    def xml(self, name: str) -> etree._ElementTree:
        """A member as a tree.

        Raises:
            DataError: it is missing or damaged, no XML, or has a document type, by which others attack.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(self._content)) as archive:
                if archive.getinfo(name).file_size > MOST_XML:
                    raise DataError(f"{name} has more than {MOST_XML // 1_000_000} MB: divide the document.")
                content = archive.read(name)
        except KeyError:
            raise DataError(f"The file is no {self._kind}: it has no member {name}.") from None
        except _BROKEN as error:
            raise self._damaged(name) from error
        if b"<!DOCTYPE" in content or b"<\0!\0D\0O\0C\0T\0Y\0P\0E" in content:
            raise DataError(f"{name} has a document type, which a {self._kind} has not: it is not read.")
        if content.count(b"<") > 2 * MOST_TAGS:
            raise DataError(f"{name} has more than {MOST_TAGS} elements: divide the document.")
        try:
            return etree.ElementTree(etree.fromstring(content, _parser()))
        except (etree.XMLSyntaxError, ValueError) as error:
            raise DataError(f"{name} in the file is no XML: {str(error)[:100]}.") from error

    def written(self, exchanged: Mapping[str, bytes]) -> bytes:
        """The archive with other contents of some members; all others keep theirs.

        Raises:
            DataError: a member is damaged.
        """
        made = io.BytesIO()
        with (zipfile.ZipFile(io.BytesIO(self._content)) as source,
              zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target):
            for member in source.infolist():
                try:
                    content = exchanged[member.filename] if member.filename in exchanged else source.read(member)
                except _BROKEN as error:
                    raise self._damaged(member.filename) from error
                target.writestr(_like(member), content)
        return made.getvalue()

    def _check(self, members: list[zipfile.ZipInfo]) -> None:
        if len(members) > MOST_MEMBERS:
            raise DataError(f"The file has {len(members)} members: more than {MOST_MEMBERS} are not read.")
        if len(set(self.names)) < len(self.names):
            raise DataError("The file has several members of one name, of which programs read different ones.")
        size = sum(member.file_size for member in members)
        if size > MOST_BYTES:
            raise DataError(f"The file has {size // 1_000_000} MB when it is unpacked: more than "
                            f"{MOST_BYTES // 1_000_000} MB are not read.")
        for member in members:
            if member.flag_bits & 1:
                raise DataError("The file is encrypted: save it without a password.")
            if member.filename.startswith(("/", "\\")) or ".." in member.filename.replace("\\", "/").split("/"):
                raise DataError("A member of the file has a path that leads out of it: the file is not read.")

    def _damaged(self, name: str) -> DataError:
        return DataError(f"The file is a damaged {self._kind}: {name[:100]} cannot be unpacked.")


_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def xml_bytes(tree: etree._ElementTree) -> bytes:
    """A tree as a member."""
    return etree.tostring(tree, xml_declaration=True, encoding="UTF-8", standalone=tree.docinfo.standalone)


def _parser() -> etree.XMLParser:
    return etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)


def _like(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """A member of the same name, date and kind."""
    made = zipfile.ZipInfo(member.filename, member.date_time)
    made.compress_type = member.compress_type if member.compress_type in (0, 8) else zipfile.ZIP_DEFLATED
    made.external_attr, made.create_system, made.comment = (
        member.external_attr, member.create_system, member.comment)
    return made
