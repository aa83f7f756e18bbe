"""The paragraphs of office documents: read them as items, and write the items of their translations.

- Formats write a bold word differently: some nest elements, others repeat all properties in each run. Here a paragraph
  is a sequence of items, each with the path of the elements around it. The most frequent path of a segment needs no
  marks; text with another path gets marks, and so does the text of a comment or a bookmark. Tabs and line breaks
  divide a paragraph. Other items at the edges of a segment keep their position.
- Elements around the text of a paragraph are kept, and translated items are nested into them again.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from lxml import etree

from towernmt.documents.formats.office_archive import Archive
from towernmt.documents.formats.text_files import has_words
from towernmt.documents.segments import Mark, Part, Segment, Shielded

Path = tuple[Hashable, ...]
"""The containers around an item, the outermost first."""


class Edge(NamedTuple):
    """The start or the end of a range of text, such as that of a comment or a bookmark.

    Attributes:
        key: what the start and the end have in common.
        is_start: whether this is the start.
    """

    key: Hashable
    is_start: bool


class Item(NamedTuple):
    """Text or another item of a paragraph.

    Attributes:
        content: text, or data of the format.
        path: the containers around the item.
        shown: text that readers see for an item that is not text, such as a field.
        divides: whether the item ends a segment.
        is_loose: whether the item may move into the containers of its neighbours.
        is_invisible: whether readers do not see the item, as a bookmark or deleted text, so it does not divide a word.
        edge: the start or the end of a range, for an invisible item; otherwise None.
    """

    content: Any
    path: Path
    shown: str = ""
    divides: bool = False
    is_loose: bool = False
    is_invisible: bool = False
    edge: Edge | None = None

    @property
    def text(self) -> str:
        """The text; "" for an item that is not text."""
        return self.content if isinstance(self.content, str) else ""


class _RangeStart(NamedTuple):
    """The start of a range in the parts of a segment.

    Attributes:
        position: index of the opening mark.
        mark: the opening mark.
        around: key of the pair around the start.
        filled: number of parts before the start that are not white space or marks.
    """

    position: int
    mark: Mark
    around: int
    filled: int


class Stretch:
    """Items that are translated together.

    Attributes:
        segment: the items as a segment. The contents of its marks are indices into the kept containers and items, or
            None.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._kept: list[Any] = []
        self._keys = 0
        self._ranges: list[int] = []    # contents of the marks of ranges
        parts, self._base = self._parts(_settled(items), 0)
        self.segment: Segment = tuple(_merged(self._with_ranges(parts)))

    def items(self, translated: Segment) -> Iterator[Item]:
        """Yield the items of a translation. Ranges that lost all their text, so it lacks their marks, come last."""
        contents = {part.content for part in translated if isinstance(part, Mark)}
        lost = [Mark("single", 0, content) for content in self._ranges if content not in contents]
        paths = [self._base]
        for part in (*translated, *lost):
            if isinstance(part, str):
                yield Item(part, paths[-1])
            elif isinstance(part, Shielded) and part.content is None:
                yield Item(part.text, paths[-1])
            elif part.content is None:
                continue                        # the end of an invisible item
            elif isinstance(kept := self._kept[part.content], Item) or isinstance(part, Shielded):
                is_there = paths[-1][:len(kept.path)] == kept.path
                yield kept if is_there else kept._replace(path=paths[-1])
            elif part.kind == "open":
                paths.append(kept)
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
                parts += [part for item in group for part in self._parts_of_item(item)]
            else:
                inner, inner_path = self._parts(group, depth + 1)
                self._keys += 1
                key, content = self._keys, self._keep(inner_path)
                is_raised = getattr(container, "is_raised", False)
                parts += [Mark("open", key, content, is_raised), *inner, Mark("close", key, content)]
        return parts, path

    def _parts_of_item(self, item: Item) -> list[Part]:
        """Return the part for an item; for an invisible one, a pair of marks with nothing inside."""
        if isinstance(item.content, str):
            return [item.content]
        if item.shown:
            return [Shielded(item.shown, self._keep(item))]
        self._keys += 1
        if item.is_invisible:
            return [Mark("open", self._keys, self._keep(item)), Mark("close", self._keys, None)]
        return [Mark("single", self._keys, self._keep(item))]

    def _with_ranges(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Yield the parts, with one pair of marks, instead of two, for the start and the end of a range around text.

        A range that crosses another pair keeps two.
        """
        result: list[Part | None] = list(parts)
        around = [0]            # keys of the pairs around a part
        filled = 0
        starts: dict[Hashable, _RangeStart] = {}
        for index, part in enumerate(parts):
            if not isinstance(part, Mark):
                filled += not isinstance(part, str) or bool(part.strip())
                continue
            edge = self._edge(part)
            if edge is not None and edge.is_start:
                starts.pop(edge.key, None)
                starts[edge.key] = _RangeStart(index, part, around[-1], filled)
            elif edge is not None and (start := starts.get(edge.key)) is not None:
                if start.around == around[-1] and start.filled < filled:
                    while starts.popitem()[0] != edge.key:
                        pass    # a range that begins inside and ends outside would cross this one
                    result[start.position + 1] = result[index + 1] = None
                    result[index] = Mark("close", start.mark.key, part.content)
                    self._ranges += [start.mark.content, part.content]
                else:
                    del starts[edge.key]
            if part.kind == "open":
                around.append(part.key)
            elif part.kind == "close":
                around.pop()
        return (part for part in result if part is not None)

    def _edge(self, mark: Mark) -> Edge | None:
        """Return the start or the end of a range for the opening mark of an invisible item; otherwise None."""
        item = self._kept[mark.content] if mark.kind == "open" else None
        return item.edge if isinstance(item, Item) else None

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
    """Return the items, with those from the first word to the last one as a stretch, and the ranges around them."""
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
    first, last = len(before) - _partners(reversed(before), middle), _partners(after, middle)
    return [*before[:first], Stretch([*before[first:], *middle, *after[:last]]), *after[last:]]


def _partners(beside: Iterable[Item], middle: Sequence[Item]) -> int:
    """Return how many items next to others are the starts or the ends of ranges whose other edges are among those."""
    edges = {(item.edge.key, item.edge.is_start, item.path) for item in middle if item.edge is not None}
    count = 0
    for item in beside:
        if item.edge is None or (item.edge.key, not item.edge.is_start, item.path) not in edges:
            break
        count += 1
    return count


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


def _merged(parts: Iterable[Part]) -> Iterator[Part]:
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
