"""OpenDocument text (`.odt`): the text, tables, headers and footers, notes, text boxes, tables of contents.

Spans with the same properties are one, whatever their names and numbers of revisions. Links are marks. Fields keep what
they show. Comments and what was deleted stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lxml import etree

from towernmt.core.errors import DataError
from towernmt.documents.formats.office.archive import Archive
from towernmt.documents.formats.office.inline import Item, Path
from towernmt.documents.formats.office.nesting import Shell, nest
from towernmt.documents.formats.office.package import OfficeDocument

_MEMBERS = ("content.xml", "styles.xml")
_NAMES = {name: f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in ("text", "style", "office")}
_TEXT, _STYLE, _OFFICE = _NAMES["text"], _NAMES["style"], _NAMES["office"]
_AROUND = tuple(_TEXT + name for name in ("span", "a", "meta"))
_DIVIDES = (f"{_TEXT}tab", f"{_TEXT}line-break")
_NOT_READ = tuple(_OFFICE + name for name in ("annotation", "tracked-changes")) + (f"{_TEXT}tracked-changes",)
_FIELDS = ("date", "time", "page-number", "page-count", "file-name", "author-name", "title", "chapter", "sequence",
           "sequence-ref", "reference-ref", "bookmark-ref", "note-ref", "variable-get", "variable-set",
           "user-field-get", "expression", "subject", "creator", "database-display", "ruby")
_WHITE = re.compile("[ \t\r\n]+")
_REVISION = "rsid"
"""What a property is called by which programs tell revisions apart."""
MOST_SPACES = 1000
"""In one element `text:s`."""


class Span(Shell):
    """A span; those with the same properties are the same."""

    def __init__(self, element: etree._Element, key: str) -> None:
        super().__init__(element)
        self._key = key

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

    def elements(self) -> Iterator[etree._Element]:
        """Paragraphs and headings: those inside another, in a note or text box, too."""
        left_out = {paragraph for name in _NOT_READ for part in self._root.iter(name)
                    for paragraph in part.iter(f"{_TEXT}p", f"{_TEXT}h")}
        for paragraph in self._root.iter(f"{_TEXT}p", f"{_TEXT}h"):
            if paragraph not in left_out:
                yield paragraph

    def items(self, paragraph: etree._Element) -> list[Item]:
        """Text and things of a paragraph."""
        return list(self._items(paragraph, ()))

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None:
        """Exchange what is in a paragraph."""
        attributes = dict(paragraph.attrib)
        paragraph.clear(keep_tail=True)
        paragraph.attrib.update(attributes)
        nest(paragraph, list(_with_spaces(items)), _add)

    def _items(self, parent: etree._Element, path: Path) -> Iterator[Item]:
        if parent.text:
            yield Item(_WHITE.sub(" ", parent.text), path)
        for child in parent:
            if child.tag in _AROUND:
                yield from self._items(child, (*path, *self._container(child)))
            elif child.tag == f"{_TEXT}s":
                yield Item(" " * min(int(child.get(f"{_TEXT}c", "1")), MOST_SPACES), path)
            else:
                yield Item(child, path, _shown(child), child.tag in _DIVIDES)
            if child.tail:
                yield Item(_WHITE.sub(" ", child.tail), path)

    def _container(self, element: etree._Element) -> list[Shell]:
        """What an element is around its text; nothing if nobody sees it."""
        name = element.get(f"{_TEXT}style-name")
        if element.tag != f"{_TEXT}span" or len(element.attrib) > 1 or name is None:
            return [Shell(element)]
        look = self._looks.get(name)
        if look == "":
            return []
        return [Span(element, name if look is None else look)]


def open_odt(content: bytes) -> OfficeDocument:
    """A text document of OpenDocument.

    Raises:
        DataError: it is none, is damaged, or too large.
    """
    archive = Archive(content, ".odt")
    if "content.xml" not in archive.names:
        raise DataError("The file is no .odt: it has no member content.xml.")
    return OfficeDocument(archive, [name for name in _MEMBERS if name in archive.names], OpenDocumentParagraphs)


def _look(style: etree._Element) -> str:
    """What can be seen of an automatic style; nothing where it only tells revisions apart."""
    told = [f"{child.tag} {name} {value}" for child in style for name, value in sorted(child.attrib.items())
            if not name.endswith(_REVISION)]
    further = [etree.tostring(one, method="c14n").decode() for child in style for one in child]
    parent = style.get(f"{_STYLE}parent-style-name")
    return "\n".join([*([parent] if parent else []), *told, *further])


def _shown(element: etree._Element) -> str:
    """What readers see of a field; nothing of other things."""
    if not isinstance(element.tag, str) or element.tag.removeprefix(_TEXT) not in _FIELDS:
        return ""
    return "".join(element.itertext())


def _with_spaces(items: Sequence[Item]) -> Iterator[Item]:
    """Items, spaces that would be taken for one as elements."""
    is_behind_space = True
    for item in items:
        if not isinstance(item.content, str):
            yield item
            is_behind_space = item.divides
            continue
        for part in re.findall(" +|[^ ]+", item.content):
            is_space = part[0] == " "
            literal = part if not is_space else "" if is_behind_space else " "
            if literal:
                yield item._replace(content=literal)
            if count := len(part) - len(literal):
                yield item._replace(content=_Spaces(count))
            is_behind_space = is_space


class _Spaces(int):
    """So many spaces in a row."""


def _add(parent: etree._Element, items: Sequence[Item]) -> None:
    """Write text and things."""
    for item in items:
        if isinstance(item.content, _Spaces):
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
