"""What is around the text of a paragraph: elements that are there once, and how items go into them again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from lxml import etree

from towernmt.documents.formats.office.inline import Item


class Shell:
    """An element around text, as a link. Two of them are never the same.

    Attributes:
        kept: its children that are no text.
        inner: the tag of the element inside it that holds the text; None: it does itself.
    """

    def __init__(self, element: etree._Element, kept: Sequence[etree._Element] = (), inner: str | None = None) -> None:
        self._element, self.kept, self.inner = element, kept, inner

    def made(self) -> tuple[etree._Element, etree._Element]:
        """The element without its text, and where the text goes."""
        made = etree.Element(self._element.tag, self._element.attrib, self._element.nsmap)
        made.extend([copy.deepcopy(child) for child in self.kept])
        return made, made if self.inner is None else etree.SubElement(made, self.inner)


class Field(NamedTuple):
    """Things before and behind text that belong together, as a link that is written as a field.

    Attributes:
        depth: of what is around it.
    """

    before: Sequence[Item]
    behind: Sequence[Item]
    depth: int

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def nest(parent: etree._Element, items: Sequence[Item], add: Callable[[etree._Element, Sequence[Item]], None],
         depth: int = 0) -> None:
    """Put items into an element, inside what is around them.

    Args:
        add: writes items that are in no further shell or field.
    """
    def around(item: Item) -> Shell | Field | None:
        container = next(iter(item.path[depth:]), None)
        return container if isinstance(container, Shell | Field) else None

    for container, group in groupby(items, around):
        if isinstance(container, Shell):
            outer, inner = container.made()
            parent.append(outer)
            nest(inner, list(group), add, depth + 1)
        elif isinstance(container, Field):
            nest(parent, container.before, add, container.depth)
            nest(parent, list(group), add, depth + 1)
            nest(parent, container.behind, add, container.depth)
        else:
            add(parent, list(group))
