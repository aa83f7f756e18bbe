"""OpenDocument text (`.odt`): text, tables, headers, footers, notes, text boxes and tables of contents.

Spans with the same properties are joined, even if their names and revision numbers differ. Links are marks. The text of
fields, comments and deleted text are not translated. Ruby text (furigana) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lxml import etree

from towernmt.core.errors import DataError
from towernmt.documents.formats.office import Edge, Item, OfficeDocument, Path, Shell, nest
from towernmt.documents.formats.office_archive import Archive

_MEMBERS, _MANIFEST = ("content.xml", "styles.xml"), "META-INF/manifest.xml"
_NAMES = {name: f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in ("text", "style", "office")}
_TEXT, _STYLE, _OFFICE = _NAMES["text"], _NAMES["style"], _NAMES["office"]
_AROUND = tuple(_TEXT + name for name in ("span", "a", "meta"))
_DIVIDES = (f"{_TEXT}tab", f"{_TEXT}line-break")
_NOT_READ = tuple(_OFFICE + name for name in ("annotation", "tracked-changes")) + (f"{_TEXT}tracked-changes",)
_FIELDS = ("date", "time", "page-number", "page-count", "file-name", "author-name", "title", "chapter", "sequence",
           "sequence-ref", "reference-ref", "bookmark-ref", "note-ref", "variable-get", "variable-set",
           "user-field-get", "expression", "subject", "creator", "database-display")
_INVISIBLE = frozenset(_TEXT + name + end for end in ("", "-start", "-end") for name in (
    "bookmark", "reference-mark", "toc-mark", "alphabetical-index-mark", "user-index-mark", "change")) | {
        f"{_TEXT}soft-page-break", f"{_OFFICE}annotation", f"{_OFFICE}annotation-end"}
"""Elements that readers do not see."""
_IDENTIFIERS = (f"{_TEXT}name", f"{_TEXT}id", f"{_TEXT}change-id", f"{_OFFICE}name")
"""Attributes that the start and the end of a range have in common."""
_WHITE = re.compile("[ \t\r\n]+")
_COUNT = re.compile(r"\d{1,9}")
_RAISED = re.compile(r"text-position (?!0)\S")
"""A property of `_look` that raises or lowers text."""
_REVISION = "rsid"
"""End of the names of properties with revision numbers."""
MOST_SPACES = 1000
"""Maximum number of spaces in one element `text:s`."""


class Span(Shell):
    """A span; spans with the same properties are equal.

    Attributes:
        is_raised: whether the text is raised or lowered.
    """

    def __init__(self, element: etree._Element, key: str) -> None:
        super().__init__(element)
        self._key = key
        self.is_raised = _RAISED.search(key) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Span) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class OpenDocumentParagraphs:
    """The paragraphs of a tree; see `Paragraphs`."""

    def __init__(self, tree: etree._ElementTree) -> None:
        self._root = tree.getroot()
        self._looks = {style.get(f"{_STYLE}name", ""): _look(style)
                       for styles in self._root.iter(f"{_OFFICE}automatic-styles") for style in styles
                       if style.get(f"{_STYLE}family") == "text"}
        self._follows_space = True      # whether a space would repeat the one before it, or begin a paragraph

    def elements(self) -> Iterator[etree._Element]:
        """Yield paragraphs and headings, including those inside others, in notes and text boxes."""
        left_out = {paragraph for name in _NOT_READ for part in self._root.iter(name)
                    for paragraph in part.iter(f"{_TEXT}p", f"{_TEXT}h")}
        for paragraph in self._root.iter(f"{_TEXT}p", f"{_TEXT}h"):
            if paragraph not in left_out:
                yield paragraph

    def items(self, paragraph: etree._Element) -> list[Item]:
        """Return text and other items of a paragraph."""
        self._follows_space = True
        return list(self._items(paragraph, ()))

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None:
        """Replace the items of a paragraph."""
        attributes = dict(paragraph.attrib)
        paragraph.clear(keep_tail=True)
        paragraph.attrib.update(attributes)
        nest(paragraph, list(_with_spaces(items)), _add)

    def _items(self, parent: etree._Element, path: Path) -> Iterator[Item]:
        yield from self._text(parent.text, path)
        for child in parent:
            if child.tag in _AROUND:
                yield from self._items(child, (*path, *self._container(child)))
            elif child.tag == f"{_TEXT}ruby":       # without the reading above the text
                for base in child.iterchildren(f"{_TEXT}ruby-base"):
                    yield from self._items(base, path)
            elif child.tag == f"{_TEXT}s":
                count = child.get(f"{_TEXT}c", "1")
                self._follows_space = False
                yield Item(" " * min(int(count) if _COUNT.fullmatch(count) else 1, MOST_SPACES), path)
            else:
                self._follows_space = False
                yield Item(child, path, _shown(child), child.tag in _DIVIDES,
                           is_invisible=child.tag in _INVISIBLE or not isinstance(child.tag, str), edge=_edge(child))
            yield from self._text(child.tail, path)

    def _text(self, text: str | None, path: Path) -> Iterator[Item]:
        """Yield text as readers see it: white space is one space, and is left out where a space would repeat."""
        seen = _WHITE.sub(" ", text or "")
        if self._follows_space:
            seen = seen.removeprefix(" ")
        if seen:
            self._follows_space = seen.endswith(" ")
            yield Item(seen, path)

    def _container(self, element: etree._Element) -> list[Shell]:
        """Return the container for an element around text; an empty list if the element is invisible."""
        name = element.get(f"{_TEXT}style-name")
        if element.tag != f"{_TEXT}span" or len(element.attrib) > 1 or name is None:
            return [Shell(element)]
        look = self._looks.get(name)
        if look == "":
            return []
        return [Span(element, name if look is None else look)]


def open_odt(content: bytes) -> OfficeDocument:
    """Return an OpenDocument text.

    Raises:
        DataError: the content is not an OpenDocument text, is damaged or encrypted, or too large.
    """
    archive = Archive(content, ".odt")
    if _MANIFEST in archive.names and b":encryption-data" in archive.read(_MANIFEST):
        raise DataError("The file is encrypted: save it without a password.")
    if "content.xml" not in archive.names:
        raise DataError("The file is not a valid .odt file: the member content.xml is missing.")
    return OfficeDocument(archive, [name for name in _MEMBERS if name in archive.names], OpenDocumentParagraphs)


def _look(style: etree._Element) -> str:
    """Return the visible properties of an automatic style; "" if the style only has a revision number."""
    visible = [f"{child.tag} {name} {value}" for child in style for name, value in sorted(child.attrib.items())
               if not name.endswith(_REVISION)]
    further = [etree.tostring(one, method="c14n").decode() for child in style for one in child]
    parent = style.get(f"{_STYLE}parent-style-name")
    return "\n".join([*([parent] if parent else []), *visible, *further])


def _shown(element: etree._Element) -> str:
    """Return the text of a field; "" for other elements."""
    if not isinstance(element.tag, str) or element.tag.removeprefix(_TEXT) not in _FIELDS:
        return ""
    return "".join(element.itertext())


def _edge(element: etree._Element) -> Edge | None:
    """Return which edge of a range an element is: of a comment, a bookmark, a change, or an entry of an index."""
    identifier = next((value for name in _IDENTIFIERS if (value := element.get(name)) is not None), None)
    if identifier is None or element.tag not in _INVISIBLE:
        return None
    if element.tag == f"{_OFFICE}annotation":
        return Edge((element.tag, identifier), True)
    kind, _, edge = element.tag.rpartition("-")
    return Edge((kind, identifier), edge == "start") if edge in ("start", "end") else None


def _with_spaces(items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items, with repeated spaces, which readers of XML would join, as `_SpaceRun`."""
    follows_space = True
    for item in items:
        if not isinstance(item.content, str):
            yield item
            follows_space = item.divides
            continue
        for part in re.findall(" +|[^ ]+", item.content):
            is_space = part[0] == " "
            literal = part if not is_space else "" if follows_space else " "
            if literal:
                yield item._replace(content=literal)
            if count := len(part) - len(literal):
                yield item._replace(content=_SpaceRun(count))
            follows_space = is_space


class _SpaceRun(int):
    """A number of adjacent spaces."""


def _add(parent: etree._Element, items: Sequence[Item]) -> None:
    """Add text and other items to an element."""
    for item in items:
        if isinstance(item.content, _SpaceRun):
            element = etree.SubElement(parent, f"{_TEXT}s")
            if item.content > 1:
                element.set(f"{_TEXT}c", str(int(item.content)))
        elif not isinstance(item.content, str):
            item.content.tail = None
            parent.append(item.content)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + item.content
        else:
            parent.text = (parent.text or "") + item.content
