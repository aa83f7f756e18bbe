"""An office document: its members with text, paragraph by paragraph, and the archive with their translations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from lxml import etree

from towernmt.documents.formats.office.archive import Archive, xml_bytes
from towernmt.documents.formats.office.inline import Item
from towernmt.documents.formats.office.inline import Paragraph as Items
from towernmt.documents.segments import Segment


class Paragraphs(Protocol):
    """How a format writes paragraphs; made for one tree."""

    def elements(self) -> Iterable[etree._Element]:
        """The paragraphs of the tree."""
        ...

    def items(self, paragraph: etree._Element) -> list[Item]:
        """What is in a paragraph, without the paragraphs inside it."""
        ...

    def write(self, paragraph: etree._Element, items: Sequence[Item]) -> None:
        """Exchange what is in a paragraph."""
        ...


class OfficeDocument:
    """A `Document` in an archive.

    Trees are read again to be written: they are large, and a document waits for its translation without them.

    Attributes:
        segments: what is translated.
    """

    def __init__(self, archive: Archive, members: Sequence[str], kind: type) -> None:
        """
        Args:
            members: those with text.
            kind: `Paragraphs` of a tree.
        """
        self._archive, self._members, self._kind = archive, members, kind
        self.segments = [segment for name in members for _, _, items in self._paragraphs(archive.xml(name))
                         for segment in items.segments]

    def written(self, translated: Sequence[Segment]) -> bytes:
        """The archive with other segments."""
        left = iter(translated)
        exchanged = {}
        for name in self._members:
            tree = self._archive.xml(name)
            for kind, paragraph, items in self._paragraphs(tree):
                if items.segments:
                    kind.write(paragraph, items.items([next(left) for _ in items.segments]))
            exchanged[name] = xml_bytes(tree)
        return self._archive.written(exchanged)

    def _paragraphs(self, tree: etree._ElementTree) -> list[tuple[Paragraphs, etree._Element, Items]]:
        """All are taken apart before the first is written: one may be inside another."""
        kind: Paragraphs = self._kind(tree)
        return [(kind, paragraph, Items(kind.items(paragraph))) for paragraph in kind.elements()]
