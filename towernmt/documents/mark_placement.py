"""Place the marks of a sentence in its translation.

A pair surrounds the atoms that are aligned with the atoms that it surrounds in the source. If these are scattered, it
surrounds the range with the best count of its own atoms minus other atoms. If no atom is aligned, it surrounds the
nearest word, so that a link is never empty. Pairs remain inside the same pairs as in the source. If a pair, or a pair
inside it, would have no word of its own, the pairs of the same parent get larger ranges next to each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import accumulate

from towernmt.documents.atom_alignment import TargetAtom
from towernmt.documents.mark_tree import (
    AtomRange,
    MarkNode,
    set_minimum_words,
    total_length,
    tree_of_marks,
    write_marks,
)
from towernmt.documents.segments import Mark, Tag
from towernmt.documents.source_sentences import SourceSentence

MAX_WORK = 300_000
"""Sum of the lengths of all pairs, in atoms, above which marks are placed by their relative position only."""
MAX_WORD_LENGTH = 64
"""Maximum length, in atoms, of a word that a pair around a part of it may surround."""
MAX_WORD_DISTANCE = 16
"""Maximum distance, in atoms, of a word that a pair without aligned words may surround."""


_Aligned = Sequence[tuple[MarkNode, Sequence[int]]]
"""Nodes that surround source atoms, each with the indices of the target atoms that are aligned with these."""


def place_marks(sentence: SourceSentence, atoms: Sequence[TargetAtom]) -> list[list[Mark]]:
    """Return the marks before each atom of a translation, and after the last one."""
    marks_before: list[list[Mark]] = [[] for _ in range(len(atoms) + 1)]
    root = tree_of_marks(sentence)
    if not root.children:
        return marks_before
    if total_length(root) > MAX_WORK:
        for index, gap in enumerate(sentence.gaps):
            target_index = index * len(atoms) // len(sentence.atoms)
            marks_before[target_index].extend(item.mark for item in gap if isinstance(item, Tag))
        return marks_before
    set_minimum_words(root)
    root.run = AtomRange(0, len(atoms))
    links = _SentenceAlignment(sentence, atoms)
    stack = [root]
    while stack:
        node = stack.pop()
        _place_children(node, links)
        stack += node.children
    write_marks(root, marks_before)
    return marks_before


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

    def targets_of_words(self, node: MarkNode, run: AtomRange) -> list[int]:
        """Return the atoms of a range that are aligned with the complete words that a pair surrounds partly."""
        first, after = self._word_start[node.start], self._word_end[node.end - 1]
        return self.targets_of(first, after, run) if after - first <= node.end - node.start + MAX_WORD_LENGTH else []

    def aligned_between(self, before: int, after: int) -> int:
        """Return the number of aligned atoms between two atoms."""
        return self._linked[after] - self._linked[before + 1]

    def has_enough_words(self, node: MarkNode) -> bool:
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

    def insertion_index(self, node: MarkNode) -> int:
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


def _place_children(node: MarkNode, links: _SentenceAlignment) -> None:
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


def _place_continued_pairs(node: MarkNode, aligned: _Aligned, taken: list[AtomRange],
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


def _place_complete_pairs(node: MarkNode, aligned: _Aligned, free: AtomRange, taken: list[AtomRange],
                          links: _SentenceAlignment) -> list[MarkNode]:
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


def _assign_range(child: MarkNode, run: AtomRange, taken: list[AtomRange]) -> None:
    """Set the range of a child, and add it to the ranges of children unless it is empty."""
    child.run = run
    if run.start < run.end:
        insort(taken, run)


def _distribute_words(node: MarkNode, aligned: _Aligned, links: _SentenceAlignment) -> list[AtomRange]:
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
