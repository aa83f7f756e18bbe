"""The marks of a sentence as a tree: each pair contains the pairs and the single marks inside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from towernmt.documents.segments import Mark, Tag
from towernmt.documents.source_sentences import Gap, SourceSentence


class AtomRange(NamedTuple):
    """A range of atoms in the translation; the end is exclusive."""

    start: int
    end: int


@dataclass(eq=False)
class MarkNode:
    """A pair of marks, or a single mark, in the tree of a sentence.

    Attributes:
        start, end: range of source atoms inside the pair; a pair that continues in another sentence ends at the edge.
        order: index among all marks.
        opening, closing: the marks; None if the mark is in another sentence.
        joined: whether the mark touches the atom before it and the atom after it, without white space.
        children: nodes inside the pair, in order.
        min_words: minimum number of words in the translation, so that neither the pair nor a pair inside it is empty.
        run: range in the translation.
    """

    start: int
    end: int
    order: int
    opening: Mark | None = None
    closing: Mark | None = None
    joined: tuple[bool, bool] = (False, False)
    children: list[MarkNode] = field(default_factory=list)
    min_words: int = 0
    run: AtomRange = AtomRange(0, 0)

    @property
    def begins_before(self) -> bool:
        """Whether the pair begins in an earlier sentence."""
        return self.opening is None

    @property
    def ends_after(self) -> bool:
        """Whether the pair begins in this sentence and ends in a later one."""
        return self.opening is not None and self.closing is None


def tree_of_marks(sentence: SourceSentence) -> MarkNode:
    """Return the marks as a tree, whose root is the sentence."""
    tags = [(index, *tag_with_joints) for index, gap in enumerate(sentence.gaps) for tag_with_joints in _tags_of(gap)]
    root = MarkNode(0, len(sentence.atoms), -1)
    open_nodes = [root]
    opened_keys: set[int] = set()
    unopened = []
    for _, tag, _ in tags:
        if tag.role == "open":
            opened_keys.add(tag.mark.key)
        elif tag.role == "close" and tag.mark.key not in opened_keys:
            unopened.append(tag)
    for number in range(len(unopened)):
        open_nodes.append(MarkNode(0, root.end, number - len(unopened)))
        open_nodes[-2].children.append(open_nodes[-1])
    for order, (index, tag, joined) in enumerate(tags):
        if tag.role == "close":
            open_nodes[-1].end, open_nodes[-1].closing = index, tag.mark
            open_nodes.pop()
            continue
        node = MarkNode(index, root.end if tag.role == "open" else index, order, tag.mark, joined=joined)
        open_nodes[-1].children.append(node)
        if tag.role == "open":
            open_nodes.append(node)
    return root


def _tags_of(gap: Gap) -> list[tuple[Tag, tuple[bool, bool]]]:
    """Return the marks of a gap, and whether each touches the atom before the gap and the atom after it."""
    spaces = [index for index, item in enumerate(gap) if isinstance(item, str)]
    first, last = (spaces[0], spaces[-1]) if spaces else (len(gap), -1)
    return [(item, (index < first, index > last)) for index, item in enumerate(gap) if isinstance(item, Tag)]


def total_length(root: MarkNode) -> int:
    """Return the sum of the lengths of all pairs, in source atoms."""
    length, stack = 0, [root]
    while stack:
        node = stack.pop()
        length += node.end - node.start
        stack += node.children
    return length


def set_minimum_words(root: MarkNode) -> None:
    """Set `min_words` of all nodes."""
    nodes = [root]
    for node in nodes:
        nodes += node.children
    for node in reversed(nodes):
        node.min_words = max(sum(child.min_words for child in node.children), int(node.start < node.end))


def write_marks(root: MarkNode, marks_before: list[list[Mark]]) -> None:
    """Add all marks to the lists of their atoms, in an order in which pairs do not cross."""
    stack: list[MarkNode | tuple[int, Mark]] = [root]
    while stack:
        node = stack.pop()
        if not isinstance(node, MarkNode):
            marks_before[node[0]].append(node[1])
            continue
        if node.opening is not None:
            marks_before[node.run.start].append(node.opening)
        if node.closing is not None:
            stack.append((node.run.end, node.closing))
        stack += _in_order(node.children)


def _in_order(children: Iterable[MarkNode]) -> list[MarkNode]:
    """Return the children in reverse order."""
    return sorted(children, key=lambda child: (child.run, child.order), reverse=True)
