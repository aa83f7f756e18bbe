"""Office documents: read the paragraphs in an archive of XML members, and write the archive with translations.

- The members of an archive are read within limits. Members that are not translated are copied.
- Formats write a bold word differently: some nest elements, others repeat all properties in each run. Here a paragraph
  is a sequence of items, each with the path of the elements around it. The most frequent path of a segment needs no
  marks; text with another path gets marks. Tabs and line breaks divide a paragraph. Items at the edges of a segment
  keep their position.
- Elements around the text of a paragraph are kept, and translated items are nested into them again.
"""

from __future__ import annotations

import copy
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple, Protocol

from lxml import etree

from towernmt.core.errors import DataError
from towernmt.documents.formats.text_files import has_words
from towernmt.documents.segments import Mark, Part, Segment, Shielded

MOST_MEMBERS = 5_000
MOST_BYTES = 200_000_000
"""Maximum size of all unpacked members together."""
MOST_XML = 32_000_000
"""Maximum size of a member with text, in bytes."""
MOST_TAGS = 1_000_000
"""Maximum number of elements in a member, since an element needs far more memory than its bytes."""
_OLD_FORMAT = b"\xd0\xcf\x11\xe0"
"""Beginning of files of old programs such as `.doc`, and of files with a password."""


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
            problem = ("it has a password, or the format of old programs: save it again without these"
                       if content.startswith(_OLD_FORMAT) else "it cannot be opened as a ZIP archive")
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


Path = tuple[Hashable, ...]
"""The containers around an item, the outermost first."""


class Item(NamedTuple):
    """Text or another item of a paragraph.

    Attributes:
        content: text, or data of the format.
        path: the containers around the item.
        shown: text that readers see for an item that is not text, such as a field.
        divides: whether the item ends a segment.
        is_loose: whether the item may move into the containers of its neighbours.
    """

    content: Any
    path: Path
    shown: str = ""
    divides: bool = False
    is_loose: bool = False

    @property
    def text(self) -> str:
        """The text; "" for an item that is not text."""
        return self.content if isinstance(self.content, str) else ""


class Stretch:
    """Items that are translated together.

    Attributes:
        segment: the items as a segment. The contents of its marks are indices into the kept containers and items.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._kept: list[Any] = []
        self._keys = 0
        parts, self._base = self._parts(_settled(items), 0)
        self.segment: Segment = tuple(_merged(parts))

    def items(self, translated: Segment) -> Iterator[Item]:
        """Yield the items of a translation."""
        paths = [self._base]
        for part in translated:
            if isinstance(part, str):
                yield Item(part, paths[-1])
            elif isinstance(part, Shielded) and part.content is None:
                yield Item(part.text, paths[-1])
            elif isinstance(part, Shielded) or part.kind == "single":
                item = self._kept[part.content]
                is_there = paths[-1][:len(item.path)] == item.path
                yield item if is_there else item._replace(path=paths[-1])
            elif part.kind == "open":
                paths.append(self._kept[part.content])
            elif len(paths) > 1:
                paths.pop()

    def _parts(self, items: Sequence[Item], depth: int) -> tuple[list[Part], Path]:
        """Return the parts for items whose paths share the first `depth` containers, and the path without marks."""
        groups = [(container, list(group)) for container, group in groupby(
            items, lambda item: item.path[depth] if len(item.path) > depth else None)]
        if len(groups) == 1 and groups[0][0] is not None:
            return self._parts(items, depth + 1)
        plain = _most_frequent(groups, depth)
        path = (*items[0].path[:depth], *(() if plain is None else (plain,)))
        parts: list[Part] = []
        for container, group in groups:
            if container is None or container == plain:
                parts += [self._part(item) for item in group]
            else:
                inner, inner_path = self._parts(group, depth + 1)
                self._keys += 1
                key, content = self._keys, self._keep(inner_path)
                is_raised = getattr(container, "is_raised", False)
                parts += [Mark("open", key, content, is_raised), *inner, Mark("close", key, content)]
        return parts, path

    def _part(self, item: Item) -> Part:
        if isinstance(item.content, str):
            return item.content
        if item.shown:
            return Shielded(item.shown, self._keep(item))
        self._keys += 1
        return Mark("single", self._keys, self._keep(item))

    def _keep(self, thing: Any) -> int:
        self._kept.append(thing)
        return len(self._kept) - 1


class Paragraph:
    """A paragraph, divided into segments.

    Attributes:
        segments: the segments to translate.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._items: list[Item | Stretch] = []
        for divides, group in groupby(items, lambda item: item.divides):
            group_items = list(group)
            self._items += group_items if divides else _trimmed(group_items)
        self.segments = [item.segment for item in self._items if isinstance(item, Stretch)]

    def items(self, translated: Sequence[Segment]) -> list[Item]:
        """Return the items of the paragraph with translated segments."""
        segments = iter(translated)
        return [one for item in self._items
                for one in (item.items(next(segments)) if isinstance(item, Stretch) else [item])]


def _trimmed(items: list[Item]) -> list[Item | Stretch]:
    """Return the items, with those from the first word to the last one as a stretch."""
    if not has_words("".join(item.text for item in items)):
        return list(items)
    first = next(index for index, item in enumerate(items) if item.text.strip() or item.shown)
    last = next(index for index in range(len(items) - 1, -1, -1) if items[index].text.strip() or items[index].shown)
    before, middle, after = items[:first], items[first:last + 1], items[last + 1:]
    if start := middle[0].text[:len(middle[0].text) - len(middle[0].text.lstrip())]:
        before = [*before, middle[0]._replace(content=start)]
        middle[0] = middle[0]._replace(content=middle[0].text.lstrip())
    if end := middle[-1].text[len(middle[-1].text.rstrip()):]:
        after = [middle[-1]._replace(content=end), *after]
        middle[-1] = middle[-1]._replace(content=middle[-1].text.rstrip())
    return [*before, Stretch(middle), *after]


def _settled(items: Sequence[Item]) -> list[Item]:
    """Return the items; a loose item gets the path of its neighbours if both have the same path."""
    paths_after: list[Path | None] = []
    path: Path | None = None
    for item in reversed(items):
        path = path if item.is_loose else item.path
        paths_after.append(path)
    result: list[Item] = []
    for item, after in zip(items, reversed(paths_after), strict=True):
        same = item.is_loose and result and after == result[-1].path
        result.append(item._replace(path=result[-1].path) if same else item)
    return result


def _most_frequent(groups: Sequence[tuple[Hashable, Sequence[Item]]], depth: int) -> Hashable:
    """Return the container that needs no marks: the one with most text among those without containers inside.

    Returns:
        None if text is outside of all containers.
    """
    if any(container is None and any(item.text for item in group) for container, group in groups):
        return None
    nested = {container for container, group in groups if any(len(item.path) > depth + 1 for item in group)}
    amounts: Counter[Hashable] = Counter()
    for container, group in groups:
        if container is not None and container not in nested:
            amounts[container] += sum(len(item.text) for item in group)
    return amounts.most_common(1)[0][0] if amounts else None


def _merged(parts: Sequence[Part]) -> Iterator[Part]:
    for is_text, group in groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            yield "".join(group)    # type: ignore[arg-type]
        else:
            yield from group


class Shell:
    """An element around text, such as a link. Two shells are never equal.

    Attributes:
        kept_children: children of the element that do not contain text.
        inner: tag of the child that contains the text; None if the element itself contains it.
    """

    def __init__(self, element: etree._Element, kept_children: Sequence[etree._Element] = (),
                 inner: str | None = None) -> None:
        self._element, self.kept_children, self.inner = element, kept_children, inner

    def made(self) -> tuple[etree._Element, etree._Element]:
        """Return a copy of the element without its text, and the element into which the text goes."""
        made = etree.Element(self._element.tag, self._element.attrib, self._element.nsmap)
        made.extend([copy.deepcopy(child) for child in self.kept_children])
        return made, made if self.inner is None else etree.SubElement(made, self.inner)


class LinkField(NamedTuple):
    """The items before and after the text of a link that is written as a field.

    Attributes:
        depth: number of containers around the field.
    """

    before: Sequence[Item]
    after: Sequence[Item]
    depth: int

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def nest(parent: etree._Element, items: Sequence[Item], add: Callable[[etree._Element, Sequence[Item]], None],
         depth: int = 0) -> None:
    """Add items to an element, inside the shells and fields of their paths.

    Args:
        parent: the element.
        items: the items.
        add: adds items without further shells or fields to an element.
        depth: number of containers that are written already.
    """
    def around(item: Item) -> Shell | LinkField | None:
        container = next(iter(item.path[depth:]), None)
        return container if isinstance(container, Shell | LinkField) else None

    for container, group in groupby(items, around):
        if isinstance(container, Shell):
            outer, inner = container.made()
            parent.append(outer)
            nest(inner, list(group), add, depth + 1)
        elif isinstance(container, LinkField):
            nest(parent, container.before, add, container.depth)
            nest(parent, list(group), add, depth + 1)
            nest(parent, container.after, add, container.depth)
        else:
            add(parent, list(group))


class Paragraphs(Protocol):
    """The paragraphs of a tree, as a format reads and writes them."""

    def elements(self) -> Iterable[etree._Element]:
        """Return the elements of the paragraphs."""
        ...

    def items(self, paragraph: etree._Element) -> list[Item]:
        """Return the items of a paragraph, without the paragraphs inside it."""
        ...

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None:
        """Replace the items of a paragraph."""
        ...


class OfficeDocument:
    """A `Document` in an archive.

    XML trees are large, so they are not kept during the translation, but parsed again.

    Args:
        archive: the archive.
        members: names of the members with text.
        kind: class that implements `Paragraphs`.

    Attributes:
        segments: the segments to translate.
    """

    def __init__(self, archive: Archive, members: Sequence[str], kind: type) -> None:
        self._archive, self._members, self._kind = archive, members, kind
        self.segments = [segment for name in members for _, _, items in self._paragraphs(archive.xml(name))
                         for segment in items.segments]

    def written(self, translated: Sequence[Segment]) -> bytes:
        """Return the archive with translated segments."""
        left = iter(translated)
        exchanged = {}
        for name in self._members:
            tree = self._archive.xml(name)
            for kind, paragraph, items in self._paragraphs(tree):
                if items.segments:
                    kind.write(paragraph, items.items([next(left) for _ in items.segments]))
            exchanged[name] = etree.tostring(tree, xml_declaration=True, encoding="UTF-8",
                                             standalone=tree.docinfo.standalone)
        return self._archive.written(exchanged)

    def _paragraphs(self, tree: etree._ElementTree) -> list[tuple[Paragraphs, etree._Element, Paragraph]]:
        """Return all paragraphs; they are read before any is written, since one may be inside another."""
        kind: Paragraphs = self._kind(tree)
        return [(kind, paragraph, Paragraph(kind.items(paragraph))) for paragraph in kind.elements()]
