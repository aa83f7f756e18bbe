"""The archive of an office document: its XML members are read within limits, and the others are copied."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from itertools import chain

from lxml import etree

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import OLD_OFFICE

MOST_MEMBERS = 5_000
MOST_BYTES = 200_000_000
"""Maximum size of all unpacked members together."""
MOST_XML = 32_000_000
"""Maximum size of a member with text, in bytes."""
MOST_TAGS = 1_000_000
"""Maximum number of elements in a member, since an element needs far more memory than its bytes."""


class Archive:
    """The members of a ZIP archive.

    Args:
        content: content of the file.
        kind: format of the document, for messages.

    Attributes:
        names: names of the members.

    Raises:
        DataError: the content is not a ZIP archive, or exceeds the limits.
    """

    def __init__(self, content: bytes, kind: str) -> None:
        self._content, self._kind = content, kind
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
            problem = (f"it has a password, or the format of old programs: save it without a password, as {kind}"
                       if content.startswith(OLD_OFFICE) else "it cannot be opened as a ZIP archive")
            raise DataError(f"The file is not a valid {kind} file: {problem}.") from error
        self.names = [member.filename for member in members]
        self._check(members)

    def read(self, name: str) -> bytes:
        """Return the content of a member.

        Raises:
            DataError: the member is missing, damaged or too large.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(self._content)) as archive:
                if archive.getinfo(name).file_size > MOST_XML:
                    raise DataError(f"{name} has more than {MOST_XML // 1_000_000} MB: divide the document.")
                return archive.read(name)
        except KeyError:
            raise DataError(f"The file is not a valid {self._kind} file: the member {name} is missing.") from None
        except _BROKEN as error:
            raise self._damaged(name) from error

    def xml(self, name: str) -> etree._ElementTree:
        """Parse a member as XML.

        Raises:
            DataError: the member cannot be read, is not XML, or has a document type, which is a security risk.
        """
        content = self.read(name)
        if b"<!DOCTYPE" in content or b"<\0!\0D\0O\0C\0T\0Y\0P\0E" in content:
            raise DataError(f"{name} has a document type, which {self._kind} files do not have: the file is not read.")
        if content.count(b"<") > 2 * MOST_TAGS:
            raise DataError(f"{name} has more than {MOST_TAGS} elements: divide the document.")
        try:
            return etree.ElementTree(parse_xml(content))
        except (etree.XMLSyntaxError, ValueError) as error:
            raise DataError(f"The member {name} is not valid XML: {str(error)[:100]}.") from error

    def written(self, exchanged: Mapping[str, bytes]) -> bytes:
        """Return the archive with new contents of some members; all others are copied.

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
            raise DataError(f"The file has {len(members)} members, and at most {MOST_MEMBERS} are allowed: divide the "
                            "document.")
        if len(set(self.names)) < len(self.names):
            raise DataError("The file has several members with the same name, so its content is ambiguous: save it "
                            "again.")
        size = sum(member.file_size for member in members)
        if size > MOST_BYTES:
            raise DataError(f"The unpacked file has {size:,} bytes, and at most {MOST_BYTES:,} bytes are allowed: "
                            "divide the document.")
        for member in members:
            if member.flag_bits & 1:
                raise DataError("The file is encrypted: save it without a password.")
            if member.filename.startswith(("/", "\\")) or ".." in member.filename.replace("\\", "/").split("/"):
                raise DataError("A member of the file has a path outside the archive: the file is not read.")

    def _damaged(self, name: str) -> DataError:
        return DataError(f"The {self._kind} file is damaged: {name[:100]} cannot be unpacked.")


_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def _like(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return an entry with the same name, date and attributes."""
    made = zipfile.ZipInfo(member.filename, member.date_time)
    made.compress_type = member.compress_type if member.compress_type in (0, 8) else zipfile.ZIP_DEFLATED
    made.external_attr, made.create_system, made.comment = (
        member.external_attr, member.create_system, member.comment)
    return made


def parse_xml(content: bytes) -> etree._Element:
    """Return the root of XML, without reading the files and addresses to which it refers.

    Raises:
        etree.XMLSyntaxError, ValueError: the content is not XML.
        DataError: the content declares entities, or refers to those of another file. Entities are not expanded, because
            that is a security risk, and without them the text would be incomplete.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    root = etree.fromstring(content, parser)
    document_type = root.getroottree().docinfo.internalDTD
    if document_type is not None:       # otherwise the parser refuses entities
        entity = next(chain(document_type.iterentities(), root.iter(etree.Entity)), None)
        if entity is not None:
            raise DataError(f"The XML has the entity '{entity.name[:100]}', and entities are not expanded: replace it "
                            "by its text, and remove its declaration.")
    return root
