"""Place the marks of a sentence in its translation.

A pair surrounds the atoms that are aligned with the atoms that it surrounds in the source. If these are scattered, it
surrounds the range with the best count of its own atoms minus other atoms. If no atom is aligned, it surrounds the
nearest word, so that a link is never empty. Pairs remain inside the same pairs as in the source. If a pair, or a pair
inside it, would have no word of its own, the pairs of the same parent get larger ranges next to each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from towernmt.documents.atom_alignment import TargetAtom
from towernmt.documents.segments import Mark, Tag
from towernmt.documents.source_sentences import Gap, SourceSentence

MAX_WORK = 300_000
"""Sum of the lengths of all pairs, in atoms, above which marks are placed by their relative position only."""
MAX_WORD_LENGTH = 64
"""Maximum length, in atoms, of a word that a pair around a part of it may surround."""
MAX_WORD_DISTANCE = 16
"""Maximum distance, in atoms, of a word that a pair without aligned words may surround."""


class AtomRange(NamedTuple):
    """A range of atoms in the translation; the end is exclusive."""

    start: int
    end: int


@dataclass(eq=False)
class _Node:
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
    children: list[_Node] = field(default_factory=list)
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


_Aligned = Sequence[tuple[_Node, Sequence[int]]]
"""Nodes that surround source atoms, each with the indices of the target atoms that are aligned with these."""


def place_marks(sentence: SourceSentence, atoms: Sequence[TargetAtom]) -> list[list[Mark]]:
    """Return the marks before each atom of a translation, and after the last one."""
    marks_before: list[list[Mark]] = [[] for _ in range(len(atoms) + 1)]
    root = _tree(sentence)
    if not root.children:
        return marks_before
    if _work(root) > MAX_WORK:
        for index, gap in enumerate(sentence.gaps):
            target_index = index * len(atoms) // len(sentence.atoms)
            marks_before[target_index].extend(item.mark for item in gap if isinstance(item, Tag))
        return marks_before
    _set_minimum_words(root)
    root.run = AtomRange(0, len(atoms))
    links = _SentenceAlignment(sentence, atoms)
    stack = [root]
    while stack:
        node = stack.pop()
        _place_children(node, links)
        stack += node.children
    _write_marks(root, marks_before)
    return marks_before


def _tree(sentence: SourceSentence) -> _Node:
    """Return the marks as a tree, whose root is the sentence."""
    tags = [(index, *tag_with_joints) for index, gap in enumerate(sentence.gaps) for tag_with_joints in _tags_of(gap)]
    root = _Node(0, len(sentence.atoms), -1)
    open_nodes = [root]
    opened_keys: set[int] = set()
    unopened = []
    for _, tag, _ in tags:
        if tag.role == "open":
            opened_keys.add(tag.mark.key)
        elif tag.role == "close" and tag.mark.key not in opened_keys:
            unopened.append(tag)
    for number in range(len(unopened)):
        open_nodes.append(_Node(0, root.end, number - len(unopened)))
        open_nodes[-2].children.append(open_nodes[-1])
    for order, (index, tag, joined) in enumerate(tags):
        if tag.role == "close":
            open_nodes[-1].end, open_nodes[-1].closing = index, tag.mark
            open_nodes.pop()
            continue
        node = _Node(index, root.end if tag.role == "open" else index, order, tag.mark, joined=joined)
        open_nodes[-1].children.append(node)
        if tag.role == "open":
            open_nodes.append(node)
    return root


def _tags_of(gap: Gap) -> list[tuple[Tag, tuple[bool, bool]]]:
    """Return the marks of a gap, and whether each touches the atom before the gap and the atom after it."""
    spaces = [index for index, item in enumerate(gap) if isinstance(item, str)]
    first, last = (spaces[0], spaces[-1]) if spaces else (len(gap), -1)
    return [(item, (index < first, index > last)) for index, item in enumerate(gap) if isinstance(item, Tag)]


def _work(root: _Node) -> int:
    work, stack = 0, [root]
    while stack:
        node = stack.pop()
        work += node.end - node.start
        stack += node.children
    return work


def _set_minimum_words(root: _Node) -> None:
    nodes = [root]
    for node in nodes:
        nodes += node.children
    for node in reversed(nodes):
        node.min_words = max(sum(child.min_words for child in node.children), int(node.start < node.end))


class _SentenceAlignment:
    """The alignment of a sentence with its translation, by source atoms."""

    def __init__(self, sentence: SourceSentence, atoms: Sequence[TargetAtom]) -> None:
        self.sentence, self.length = sentence, len(atoms)
        self.is_word = [atom.is_word for atom in atoms]
        self._of: list[list[int]] = [[] for _ in sentence.atoms]
        for index, atom in enumerate(atoms):
            for source in atom.sources:
                self._of[source].append(index)
        # Marks around words without a space between them could touch, as in `~~a~~~~b~~`.
        self._is_apart = [atom.is_word and (atom.space or not index) for index, atom in enumerate(atoms)]
        self._apart = list(accumulate(self._is_apart, initial=0))
        self._linked = list(accumulate((bool(atom.sources) for atom in atoms), initial=0))
        self._next = list(accumulate(reversed(self._of), lambda near, indices: min(indices, default=near),
                                     initial=self.length))[::-1]
        words = list(accumulate(sentence.spaces))
        self._word_start = [bisect_left(words, word) for word in words]
        self._word_end = [bisect_right(words, word) for word in words]

    def targets_of(self, start: int, end: int, run: AtomRange) -> list[int]:
        """Return the atoms of a range that are aligned with source atoms from `start` to `end`."""
        return sorted({index for indices in self._of[start:end] for index in indices if run.start <= index < run.end})

    def targets_of_words(self, node: _Node, run: AtomRange) -> list[int]:
        """Return the atoms of a range that are aligned with the complete words that a pair surrounds partly."""
        first, after = self._word_start[node.start], self._word_end[node.end - 1]
        return self.targets_of(first, after, run) if after - first <= node.end - node.start + MAX_WORD_LENGTH else []

    def aligned_between(self, before: int, after: int) -> int:
        """Return the number of aligned atoms between two atoms."""
        return self._linked[after] - self._linked[before + 1]

    def has_enough_words(self, node: _Node) -> bool:
        """Return whether the range of a node has enough words for the nodes inside it, or all of its aligned atoms."""
        start, end = node.run
        if start == end or node.min_words < 2:
            return end - start >= node.min_words
        if self._apart[end] - self._apart[start] >= node.min_words:
            return True
        aligned = self.targets_of(node.start, node.end, AtomRange(0, self.length))
        return bool(aligned) and start <= aligned[0] and aligned[-1] < end

    def word_starts(self, run: AtomRange) -> list[int]:
        """Return the words of a range that follow a space, and the first one of the translation."""
        return [index for index in range(*run) if self._is_apart[index]]

    def is_linked(self, index: int) -> bool:
        """Return whether an atom of the translation is aligned."""
        return self._linked[index + 1] > self._linked[index]

    def is_scattered(self, indices: Sequence[int]) -> bool:
        """Return whether other aligned atoms are between these."""
        return any(self.aligned_between(first, second) for first, second in zip(indices, indices[1:], strict=False))

    def insertion_index(self, node: _Node) -> int:
        """Return the index of the atom before which a mark without atoms goes.

        As a rule, this is the atom that follows the mark in the source. But a mark that touches only the word before it
        follows that word, such as a reference to a footnote.
        """
        index, atoms = node.start, self.sentence.atoms
        if not 0 < index < len(atoms):
            return 0 if index == 0 else self.length
        left, right = node.joined
        before, after = self._of[index - 1], self._of[index]
        if left and not (right and atoms[index].is_word) and before:
            return max(before) + 1
        if after:
            return min(after)
        if before:
            return max(before) + 1
        return self._next[index]


def _place_children(node: _Node, links: _SentenceAlignment) -> None:
    """Set the range of each child within the range of its parent."""
    around_all = next((child for child in node.children if child.start < child.end
                       and (child.start, child.end) == (node.start, node.end)), None)
    if around_all is not None:      # all other children have no atoms
        for child in node.children:
            index = node.run.start if child.order < around_all.order else node.run.end
            child.run = AtomRange(index, index)
        around_all.run = node.run
        return
    aligned = [(child, links.targets_of(child.start, child.end, node.run)) for child in node.children
               if child.start < child.end]
    taken: list[AtomRange] = []
    free = _place_continued_pairs(node, aligned, taken, links)
    not_placed = _place_complete_pairs(node, aligned, free, taken, links)
    if not all(links.has_enough_words(child) for child, _ in aligned):
        taken = _distribute_words(node, aligned, links) or taken
        free = AtomRange(max([node.run.start, *(child.run.end for child, _ in aligned if child.begins_before)]),
                         min([node.run.end, *(child.run.start for child, _ in aligned if child.ends_after)]))
    for child in not_placed:
        if child.run.start == child.run.end:
            child.end = child.start
    for child in node.children:
        if child.start == child.end:
            index = _index_outside(min(max(links.insertion_index(child), free.start), free.end), taken)
            child.run = AtomRange(index, index)


def _place_continued_pairs(node: _Node, aligned: _Aligned, taken: list[AtomRange],
                           links: _SentenceAlignment) -> AtomRange:
    """Set the ranges of the children that began in an earlier sentence, then of those that end in a later one.

    Args:
        node: the parent.
        aligned: the children that surround atoms.
        taken: the ranges of children, in order, to which theirs are added.
        links: the alignment.

    Returns:
        the range between them.
    """
    free = node.run
    for child, indices in aligned:
        if child.begins_before:
            _assign_range(child, AtomRange(free.start, _end_of_prefix(indices, free, links)), taken)
            free = AtomRange(child.run.end, free.end)
    for child, indices in aligned:
        if child.ends_after:
            _assign_range(child, AtomRange(_start_of_suffix(indices, free, links), free.end), taken)
            free = AtomRange(free.start, child.run.start)
    return free


def _place_complete_pairs(node: _Node, aligned: _Aligned, free: AtomRange, taken: list[AtomRange],
                          links: _SentenceAlignment) -> list[_Node]:
    """Set the ranges of the children with both marks, first of those whose aligned atoms are not scattered.

    Returns:
        the children whose own aligned atoms are not free; if no other word was found either, their range is empty.
    """
    pairs = [(child, indices) for child, indices in aligned if not child.begins_before and not child.ends_after]
    not_placed = []
    for child, indices in sorted(pairs, key=lambda pair: (links.is_scattered(pair[1]), -len(pair[1]))):
        run = _best_run(indices, taken, links)
        if run is None:
            not_placed.append(child)
        else:
            _assign_range(child, run, taken)
    for child in not_placed:
        run = _best_run(links.targets_of_words(child, node.run), taken, links) or _word_near(
            links.insertion_index(child), free, taken, links)
        _assign_range(child, run or AtomRange(0, 0), taken)
    return not_placed


def _assign_range(child: _Node, run: AtomRange, taken: list[AtomRange]) -> None:
    """Set the range of a child, and add it to the ranges of children unless it is empty."""
    child.run = run
    if run.start < run.end:
        insort(taken, run)


def _distribute_words(node: _Node, aligned: _Aligned, links: _SentenceAlignment) -> list[AtomRange]:
    """Give each child at least the number of words that it needs, in the order and near the place of its range.

    Args:
        node: the parent.
        aligned: the children that surround atoms.
        links: the alignment.

    Returns:
        the ranges in order; empty, and no range changes, if the range of the parent has too few words.
    """
    words = links.word_starts(node.run)
    words_left = sum(child.min_words for child, _ in aligned)
    if len(words) < words_left:
        return []
    requests = []
    ranges_of_words = [(bisect_left(words, child.run.start), bisect_left(words, child.run.end)) for child, _ in aligned]
    complete = {word for (child, _), (start, end) in zip(aligned, ranges_of_words, strict=True)
                if end - start >= child.min_words
                for word in range(start, end)}      # not taken from these children if other words are near
    for (child, indices), (start, end) in zip(aligned, ranges_of_words, strict=True):
        if end - start < child.min_words:
            near = [bisect_left(words, index) for index in indices or [links.insertion_index(child)]]
            start = max(near, key=lambda first: (-len(complete.intersection(range(first, first + child.min_words))),
                                                 sum(first <= word < first + child.min_words for word in near)))
            end = start + child.min_words
        sort_key = -1 if child.begins_before else len(words) + 1 if child.ends_after else start
        requests.append((sort_key, child.order, start, end, child))
    requests.sort(key=lambda request: request[:2])
    words_used, ranges = 0, [AtomRange(node.run.start, node.run.start)]
    for index, (_, _, start, end, child) in enumerate(requests):
        start = min(max(start, words_used), len(words) - words_left)
        words_left -= child.min_words
        next_start = requests[index + 1][2] if index + 1 < len(requests) else len(words)
        end = min(max(min(end, next_start), start + child.min_words), len(words) - words_left)
        if child.begins_before:
            child.run = AtomRange(node.run.start, words[end - 1] + 1 if end else node.run.start)
        elif child.ends_after:
            child.run = AtomRange(words[start] if start < len(words) else node.run.end, node.run.end)
        elif ([bisect_left(words, index) for index in child.run] != [start, end] or child.run.start < ranges[-1].end
              or child.run.end > [*words, node.run.end][end]):
            child.run = AtomRange(words[start], words[end - 1] + 1)
        words_used = end
        ranges.append(child.run)
    return [run for run in ranges if run.start < run.end]


def _best_run(indices: Sequence[int], taken: Sequence[AtomRange], links: _SentenceAlignment) -> AtomRange | None:
    """Return the free range with the largest number of these atoms minus other aligned atoms."""
    best_score, best_run, score, start, last, last_taken = 0, None, 0, 0, -1, -1
    for index in indices:
        range_index = bisect_right(taken, (index, links.length + 1)) - 1
        if range_index >= 0 and taken[range_index].end > index:
            continue
        cost = links.aligned_between(last, index) if last >= 0 else 0
        if score <= cost or range_index != last_taken or last < 0:
            score, start = 1, index
        else:
            score += 1 - cost
        last, last_taken = index, range_index
        if score > best_score:
            best_score, best_run = score, AtomRange(start, index + 1)
    return best_run


def _word_near(target: int, run: AtomRange, taken: Sequence[AtomRange], links: _SentenceAlignment) -> AtomRange | None:
    """Return the free word of a range that is nearest to an index, preferably one without alignment.

    Returns:
        None if no word is near.
    """
    def is_free(index: int) -> bool:
        range_index = bisect_right(taken, (index, links.length + 1)) - 1
        return links.is_word[index] and not (range_index >= 0 and taken[range_index].end > index)

    candidates = range(max(run.start, target - MAX_WORD_DISTANCE), min(run.end, target + MAX_WORD_DISTANCE))
    nearest = min(filter(is_free, candidates), default=None,
                  key=lambda index: (links.is_linked(index), abs(2 * index + 1 - 2 * target)))
    return None if nearest is None else AtomRange(nearest, nearest + 1)


def _end_of_prefix(indices: Sequence[int], run: AtomRange, links: _SentenceAlignment) -> int:
    """Return the end of the best range that begins with `run`, by the number of these atoms minus other ones."""
    best_score, end, score, last = -1, run.start, 0, run.start - 1
    for index in (index for index in indices if index in range(*run)):
        score += 1 - links.aligned_between(last, index)
        last = index
        if score > best_score:
            best_score, end = score, index + 1
    return end


def _start_of_suffix(indices: Sequence[int], run: AtomRange, links: _SentenceAlignment) -> int:
    """Return the start of the best range that ends with `run`, by the number of these atoms minus other ones."""
    best_score, start, score, last = -1, run.end, 0, run.end
    for index in (index for index in reversed(indices) if index in range(*run)):
        score += 1 - links.aligned_between(index, last)
        last = index
        if score > best_score:
            best_score, start = score, index
    return start


def _index_outside(index: int, taken: Sequence[AtomRange]) -> int:
    """Return an index, or the end of the occupied range that contains it."""
    range_index = bisect_right(taken, (index, -1)) - 1
    return taken[range_index].end if range_index >= 0 and taken[range_index].end > index else index


def _write_marks(root: _Node, marks_before: list[list[Mark]]) -> None:
    """Add all marks to the lists of their atoms, in an order in which pairs do not cross."""
    stack: list[_Node | tuple[int, Mark]] = [root]
    while stack:
        node = stack.pop()
        if not isinstance(node, _Node):
            marks_before[node[0]].append(node[1])
            continue
        if node.opening is not None:
            marks_before[node.run.start].append(node.opening)
        if node.closing is not None:
            stack.append((node.run.end, node.closing))
        stack += _in_order(node.children)


def _in_order(children: Iterable[_Node]) -> list[_Node]:
    """Return the children in reverse order."""
    return sorted(children, key=lambda child: (child.run, child.order), reverse=True)
