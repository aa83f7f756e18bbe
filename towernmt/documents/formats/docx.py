"""Word documents (`.docx`): text, tables, headers, footers, notes and text boxes.

Runs of the same look are joined, even if their revision numbers and spelling marks differ. Links are marks. Formulas
and the results of fields are not translated, except for links. Deleted text, comments, charts and diagrams are not
changed. Ruby text (furigana) is left out.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from lxml import etree

from towernmt.core.errors import DataError
from towernmt.documents.formats.office import Edge, Item, LinkField, OfficeDocument, Path, Shell, nest
from towernmt.documents.formats.office_archive import Archive

_KINDS = ("document.main", "template.main", "document.macroEnabled.main", "template.macroEnabledTemplate.main",
          "header", "footer", "footnotes", "endnotes")
"""Kinds of members with text that readers see."""
_TYPE = re.compile(r"application/vnd\.(?:openxmlformats-officedocument\.wordprocessingml|ms-word)\."
                   rf"({'|'.join(_KINDS)})\+xml")
_XML_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_AROUND = {"hyperlink": (), "ins": (), "moveTo": (), "smartTag": ("smartTagPr",), "customXml": ("customXmlPr",),
           "dir": (), "bdo": ()}
"""Elements around runs, with the names of their children that do not contain text."""
_DIVIDES = ("tab", "br", "cr", "ptab")
_SHOWN = ("fldSimple", "oMath")
"""Elements with words that are not translated: fields and formulas."""
_LEFT_OUT = ("proofErr", "lastRenderedPageBreak", "softHyphen")
"""Elements that programs create again: marks of spelling, old page breaks, possible hyphens."""
_INVISIBLE = ("", "bookmarkStart", "bookmarkEnd", "commentRangeStart", "commentRangeEnd", "commentReference",
              "annotationRef", "permStart", "permEnd", "del", "delText", "moveFrom", "moveFromRangeStart",
              "moveFromRangeEnd", "moveToRangeStart", "moveToRangeEnd")
"""Elements that readers do not see, within a paragraph or a run; "" stands for comments of XML."""
_EDGE = re.compile("(.+)(Start|End)")
"""Names of elements at the start and at the end of a range."""
_NO_LOOK = ("lang", "noProof")
"""Invisible properties of a run."""


class Look:
    """The properties of runs that look the same.

    Attributes:
        is_raised: whether the text is a superscript or a subscript.
    """

    def __init__(self, properties: etree._Element | None) -> None:
        self.properties = properties
        self.is_raised = any(_name(child) == "vertAlign" and any(value in ("superscript", "subscript") for value in
                                                                 child.attrib.values())
                             for child in (() if properties is None else properties))
        self._key = b"" if properties is None else b"".join(
            etree.tostring(child, method="c14n") for child in properties if _name(child) not in _NO_LOOK)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Look) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class _OfRun(NamedTuple):
    """A child of a run that is not text."""

    element: etree._Element
    look: Look


class _Whole(NamedTuple):
    """A field that is one item.

    Attributes:
        depth: number of containers around the field.
    """

    items: Sequence[Item]
    depth: int


class WordParagraphs:
    """The paragraphs of a tree; see `Paragraphs`."""

    def __init__(self, tree: etree._ElementTree) -> None:
        self._root = tree.getroot()
        self._w = f"{{{etree.QName(self._root).namespace}}}"

    def elements(self) -> Iterator[etree._Element]:
        """Yield the paragraphs, including those inside others, in text boxes."""
        yield from self._root.iter(f"{self._w}p")

    def items(self, paragraph: etree._Element) -> list[Item]:
        """Return text and other items of a paragraph."""
        return _with_fields(list(self._items(paragraph, ())))

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None:
        """Replace everything in a paragraph except its properties."""
        for child in list(paragraph):
            if child.tag != f"{self._w}pPr":
                paragraph.remove(child)
        nest(paragraph, items, self._add)

    def _items(self, parent: etree._Element, path: Path) -> Iterator[Item]:
        for child in parent:
            name = _name(child)
            if name == "r":
                yield from self._items_of_run(child, path)
            elif name in _AROUND:
                kept_children = [one for one in child if _name(one) in _AROUND[name]]
                yield from self._items(child, (*path, Shell(child, kept_children)))
            elif name == "sdt" and (content := child.find(f"{self._w}sdtContent")) is not None:
                kept_children = [one for one in child if one is not content]
                yield from self._items(content, (*path, Shell(child, kept_children, content.tag)))
            elif name not in ("pPr", "smartTagPr", "customXmlPr", *_LEFT_OUT):
                yield Item(child, path, _text(child) if name in _SHOWN else "", is_loose=True,
                           is_invisible=name in _INVISIBLE, edge=self._edge(child))

    def _items_of_run(self, run: etree._Element, path: Path) -> Iterator[Item]:
        properties = run.find(f"{self._w}rPr")
        look = Look(properties)
        vanish = None if properties is None else properties.find(f"{self._w}vanish")
        # Without a value, the text is hidden; the other values show text that its style hides.
        is_hidden = vanish is not None and vanish.get(f"{self._w}val") not in ("0", "false", "off")
        for child in run:
            name = _name(child)
            if name == "t" and not is_hidden:
                yield Item(child.text or "", (*path, look))
            elif name == "noBreakHyphen":
                yield Item("-", (*path, look))
            elif name == "ruby" and not is_hidden:      # without the reading above the text
                for base_run in child.iterfind(f"{self._w}rubyBase/{self._w}r"):
                    yield from self._items_of_run(base_run, path)
            elif name != "rPr" and name not in _LEFT_OUT:
                yield Item(_OfRun(child, look), path, divides=name in _DIVIDES, is_loose=True,
                           is_invisible=is_hidden or name in _INVISIBLE)

    def _edge(self, element: etree._Element) -> Edge | None:
        name, number = _name(element), element.get(f"{self._w}id")
        kind = _EDGE.fullmatch(name) if name in _INVISIBLE and number is not None else None
        return None if kind is None else Edge((kind[1], number), kind[2] == "Start")

    def _add(self, parent: etree._Element, items: Sequence[Item]) -> None:
        """Add a run for adjacent text, tabs and breaks of the same look, and other items."""
        def of_run(item: Item) -> tuple[bool, object]:
            if isinstance(item.content, _OfRun):
                return True, item.content.look if _name(item.content.element) in _DIVIDES else item.content
            return isinstance(item.content, str), next(iter(item.path[-1:]), None)

        for (is_run, look), group in groupby(items, of_run):
            if is_run:
                self._add_run(parent, look, list(group))
                continue
            for item in group:
                if isinstance(item.content, _Whole):
                    nest(parent, item.content.items, self._add, item.content.depth)
                else:
                    parent.append(item.content)

    def _add_run(self, parent: etree._Element, look: object, items: Sequence[Item]) -> None:
        run = etree.SubElement(parent, f"{self._w}r")
        look = look.look if isinstance(look, _OfRun) else look
        if isinstance(look, Look) and look.properties is not None:
            run.append(copy.deepcopy(look.properties))
        for is_text, group in groupby(items, lambda item: isinstance(item.content, str)):
            if not is_text:
                run.extend([item.content.element for item in group])
                continue
            element = etree.SubElement(run, f"{self._w}t")
            element.text = text = "".join(item.text for item in group)
            if text != text.strip():
                element.set(_XML_SPACE, "preserve")


def open_docx(content: bytes) -> OfficeDocument:
    """Return a Word document.

    Raises:
        DataError: the content is not a Word document, is damaged, or too large.
    """
    archive = Archive(content, ".docx")
    members = _members_with_text(archive)
    if not members:
        raise DataError("The file is not a .docx file: it contains no Word document.")
    return OfficeDocument(archive, members, WordParagraphs)


_CONTENT_TYPES = "[Content_Types].xml"
"""The member that gives the type of each member: by name, and for names that it does not list, by suffix."""


def _members_with_text(archive: Archive) -> list[str]:
    """Return the names of the members with text that readers see."""
    kinds = [kind for kind in archive.xml(_CONTENT_TYPES).getroot() if isinstance(kind.tag, str)]
    types = {kind.get("PartName", "").lstrip("/"): kind.get("ContentType", "") for kind in kinds
             if _name(kind) == "Override"}
    types_of_suffixes = {kind.get("Extension", "").lower(): kind.get("ContentType", "") for kind in kinds
                         if _name(kind) == "Default"}
    for name in archive.names:
        if name != _CONTENT_TYPES:
            types.setdefault(name, types_of_suffixes.get(name.rpartition(".")[2].lower(), ""))
    names = set(archive.names)
    return [name for name, kind in types.items() if name in names and _TYPE.fullmatch(kind)]


def _with_fields(items: list[Item]) -> list[Item]:
    """Return the items, with each complete field as one item, and the text of a link inside a `LinkField`."""
    result: list[Item] = []
    begins: list[int] = []
    for item in items:
        result.append(item)
        kind = _field_char(item)
        if kind == "begin":
            begins.append(len(result) - 1)
        elif kind == "end" and begins:
            begin = begins.pop()
            field, result = result[begin:], result[:begin]
            result += _field(field)
    return [item._replace(divides=True) if _field_char(item) else item for item in result]


def _field(items: list[Item]) -> list[Item]:
    """Return the items for those of a field, from its begin to its end."""
    path, depth = items[0].path, len(items[0].path)
    if any(item.path[:depth] != path for item in items):
        return items                            # the field begins and ends in different elements
    separate = next((index for index, item in enumerate(items) if _field_char(item) == "separate"), len(items) - 1)
    codes, result = items[:separate + 1], items[separate + 1:-1]
    if _instruction(codes).split()[:1] == ["HYPERLINK"] and result:
        field = LinkField(codes, items[-1:], depth)
        return [item._replace(path=(*path, field, *item.path[depth:])) for item in result]
    return [Item(_Whole(items, depth), path, "".join(item.text or item.shown for item in result), is_loose=True,
                 is_invisible=not result)]


def _instruction(items: Sequence[Item]) -> str:
    return "".join(item.content.element.text or "" for item in items
                   if isinstance(item.content, _OfRun) and _name(item.content.element) == "instrText")


def _field_char(item: Item) -> str | None:
    """Return "begin", "separate" or "end" if an item is a mark of a field."""
    if not isinstance(item.content, _OfRun) or _name(element := item.content.element) != "fldChar":
        return None
    return element.get(f"{{{etree.QName(element).namespace}}}fldCharType")


def _text(element: etree._Element) -> str:
    return "".join(text.text or "" for text in element.iter("{*}t"))


def _name(element: etree._Element) -> str:
    """Return a tag without its namespace; "" for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
