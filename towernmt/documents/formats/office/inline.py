"""Paragraphs of office documents: text and things within formats and links, as segments and back.

Formats differ in how they write a bold word: one nests it, the other gives each run all its properties. Here a
paragraph is a row of items, each with the path of what is around it. A segment has its most frequent format without
marks, and marks where the path is another one. Tabs and line breaks divide a paragraph; what stands at the edges of a
segment stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from towernmt.documents.formats.pieces import has_words
from towernmt.documents.segments import Mark, Part, Segment, Shielded

Path = tuple[Hashable, ...]
"""What is around an item, the outermost first."""


class Item(NamedTuple):
    """A thing in a paragraph.

    Attributes:
        content: text, or what its format keeps.
        path: what is around it.
        shown: the text of a thing that readers see, as of a field.
        divides: whether segments end here.
        is_loose: whether it is the same in any format: what is around it is as long as it may be.
    """

    content: Any
    path: Path
    shown: str = ""
    divides: bool = False
    is_loose: bool = False

    @property
    def text(self) -> str:
        """Its text; none of a thing."""
        return self.content if isinstance(self.content, str) else ""


class Stretch:
    """Items that are translated together.

    Attributes:
        segment: they as a segment. The contents of its marks are numbers here.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._kept: list[Any] = []
        self._keys = 0
        parts, self._base = self._parts(_settled(items), 0)
        self.segment: Segment = tuple(_merged(parts))

    def items(self, translated: Segment) -> Iterator[Item]:
        """The items of a translation."""
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
        """The parts for items, and the path of those without marks.

        Args:
            depth: so much of the paths is the same for all.
        """
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
                parts += [Mark("open", key, content), *inner, Mark("close", key, content)]
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
    """A paragraph, taken apart.

    Attributes:
        segments: what of it is translated.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._items: list[Item | Stretch] = []
        for divides, group in groupby(items, lambda item: item.divides):
            there = list(group)
            self._items += there if divides else _trimmed(there)
        self.segments = [item.segment for item in self._items if isinstance(item, Stretch)]

    def items(self, translated: Sequence[Segment]) -> list[Item]:
        """Its items with other segments."""
        segments = iter(translated)
        return [one for item in self._items
                for one in (item.items(next(segments)) if isinstance(item, Stretch) else [item])]


def _trimmed(items: list[Item]) -> list[Item | Stretch]:
    """Items, those from the first word to the last as a stretch."""
    if not has_words("".join(item.text for item in items)):
        return list(items)
    first = next(place for place, item in enumerate(items) if item.text.strip() or item.shown)
    last = next(place for place in range(len(items) - 1, -1, -1) if items[place].text.strip() or items[place].shown)
    before, middle, behind = items[:first], items[first:last + 1], items[last + 1:]
    if start := middle[0].text[:len(middle[0].text) - len(middle[0].text.lstrip())]:
        before = [*before, middle[0]._replace(content=start)]
        middle[0] = middle[0]._replace(content=middle[0].text.lstrip())
    if end := middle[-1].text[len(middle[-1].text.rstrip()):]:
        behind = [middle[-1]._replace(content=end), *behind]
        middle[-1] = middle[-1]._replace(content=middle[-1].text.rstrip())
    return [*before, Stretch(middle), *behind]


def _settled(items: Sequence[Item]) -> list[Item]:
    """Items, loose ones with the path of their neighbours if these have the same."""
    behind: list[Path | None] = []
    path: Path | None = None
    for item in reversed(items):
        path = path if item.is_loose else item.path
        behind.append(path)
    made: list[Item] = []
    for item, after in zip(items, reversed(behind), strict=True):
        same = item.is_loose and made and after == made[-1].path
        made.append(item._replace(path=made[-1].path) if same else item)
    return made


def _most_frequent(groups: Sequence[tuple[Hashable, Sequence[Item]]], depth: int) -> Hashable:
    """The container that needs no marks: none if there is text outside of them, else that with most text, and no other
    containers in it."""
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
