"""Where the marks of a sentence go in its translation.

A pair surrounds the atoms that are linked with those it surrounded. Where these are scattered, it surrounds the run of
them that has the most of its own and the fewest of others. A pair stays within the pair that it was in, and beside
those it was beside, so that the tree of the marks is that of the source.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from towernmt.documents.alignment import TargetAtom
from towernmt.documents.segments import Mark
from towernmt.documents.sentences import Gap, SourceSentence, Tag

MOST_WORK = 300_000
"""Atoms in pairs, one counted for each pair around it, beyond which marks are placed by their share of the sentence."""

LONGEST_WORD = 64
"""Atoms; of a longer word, a pair that surrounded a part of it does not come to surround the whole."""


class Run(NamedTuple):
    """Atoms of the translation: the first, and behind the last."""

    start: int
    end: int


@dataclass(eq=False)
class _Node:
    """A pair of marks, or a mark that stands alone.

    Attributes:
        start, end: before which atoms of the source it begins and ends; 0 and their number where that is outside.
        order: among all marks.
        opening, closing: what is written; None: nothing in this sentence.
        joined: whether no white space is between it and the atom before, and the one behind; of what has no atoms.
        children: what is inside, in order.
        run: where it goes.
    """

    start: int
    end: int
    order: int
    opening: Mark | None = None
    closing: Mark | None = None
    joined: tuple[bool, bool] = (False, False)
    children: list[_Node] = field(default_factory=list)
    run: Run = Run(0, 0)


def placed(sentence: SourceSentence, atoms: Sequence[TargetAtom]) -> list[list[Mark]]:
    """The marks before each atom of a translation, and behind the last."""
    found: list[list[Mark]] = [[] for _ in range(len(atoms) + 1)]
    root = _tree(sentence)
    if not root.children:
        return found
    if _work(root) > MOST_WORK:
        for place, gap in enumerate(sentence.gaps):
            there = place * len(atoms) // len(sentence.atoms)
            found[there].extend(thing.mark for thing in gap if isinstance(thing, Tag))
        return found
    root.run = Run(0, len(atoms))
    links = _Links(sentence, atoms)
    waiting = [root]
    while waiting:
        node = waiting.pop()
        _place_children(node, links)
        waiting += node.children
    _write(root, found)
    return found


def _tree(sentence: SourceSentence) -> _Node:
    """The marks as a tree; the root stands for the sentence."""
    tags = [(place, *found) for place, gap in enumerate(sentence.gaps) for found in _tags_of(gap)]
    root = _Node(0, len(sentence.atoms), -1)
    path = [root]
    inside: set[int] = set()
    from_before = []
    for _, tag, _ in tags:
        if tag.role == "open":
            inside.add(tag.mark.key)
        elif tag.role == "close" and tag.mark.key not in inside:
            from_before.append(tag)
    for number in range(len(from_before)):
        path.append(_Node(0, root.end, number - len(from_before)))
        path[-2].children.append(path[-1])
    for order, (place, tag, joined) in enumerate(tags):
        if tag.role == "close":
            path[-1].end, path[-1].closing = place, tag.mark
            path.pop()
            continue
        node = _Node(place, root.end if tag.role == "open" else place, order, tag.mark,
                     joined=joined)
        path[-1].children.append(node)
        if tag.role == "open":
            path.append(node)
    return root


def _tags_of(gap: Gap) -> list[tuple[Tag, tuple[bool, bool]]]:
    """The marks of a gap, and whether white space is before and behind them."""
    spaces = [place for place, thing in enumerate(gap) if isinstance(thing, str)]
    first, last = (spaces[0], spaces[-1]) if spaces else (len(gap), -1)
    return [(thing, (place < first, place > last)) for place, thing in enumerate(gap) if isinstance(thing, Tag)]


def _work(root: _Node) -> int:
    work, waiting = 0, [root]
    while waiting:
        node = waiting.pop()
        work += node.end - node.start
        waiting += node.children
    return work


class _Links:
    """The links of a sentence and its translation, from the source."""

    def __init__(self, sentence: SourceSentence, atoms: Sequence[TargetAtom]) -> None:
        self.sentence, self.length = sentence, len(atoms)
        self._of: list[list[int]] = [[] for _ in sentence.atoms]
        for place, atom in enumerate(atoms):
            for source in atom.sources:
                self._of[source].append(place)
        self._linked = list(accumulate((bool(atom.sources) for atom in atoms), initial=0))
        self._next = list(accumulate(reversed(self._of), lambda near, places: min(places, default=near),
                                     initial=self.length))[::-1]
        words = list(accumulate(sentence.spaces))
        self._first = [bisect_left(words, word) for word in words]
        self._behind = [bisect_right(words, word) for word in words]

    def inside(self, start: int, end: int, run: Run) -> list[int]:
        """The atoms of a run that are linked with one of the source's from `start` to `end`."""
        return sorted({place for places in self._of[start:end] for place in places if run.start <= place < run.end})

    def of_the_words(self, node: _Node, run: Run) -> list[int]:
        """The same for all atoms of the words of which a pair surrounds a part."""
        first, behind = self._first[node.start], self._behind[node.end - 1]
        return self.inside(first, behind, run) if behind - first <= node.end - node.start + LONGEST_WORD else []

    def others(self, before: int, behind: int) -> int:
        """How many linked atoms are between two."""
        return self._linked[behind] - self._linked[before + 1]

    def is_scattered(self, places: Sequence[int]) -> bool:
        """Whether linked atoms of others are between them."""
        return any(self.others(one, other) for one, other in zip(places, places[1:], strict=False))

    def place_of(self, node: _Node) -> int:
        """Before which atom something without atoms goes: as a rule, that which the source has behind it.

        What is joined to the word before it, and not to one behind it, follows that, as a reference to a footnote does.
        """
        place, atoms = node.start, self.sentence.atoms
        if not 0 < place < len(atoms):
            return 0 if place == 0 else self.length
        left, right = node.joined
        before, behind = self._of[place - 1], self._of[place]
        if left and not (right and atoms[place].is_word) and before:
            return max(before) + 1
        if behind:
            return min(behind)
        if before:
            return max(before) + 1
        return self._next[place]


def _place_children(node: _Node, links: _Links) -> None:
    """Give each child its run within that of its parent."""
    around_all = next((child for child in node.children if child.start < child.end
                       and (child.start, child.end) == (node.start, node.end)), None)
    if around_all is not None:      # beside it are none but those without atoms
        for child in node.children:
            place = node.run.start if child.order < around_all.order else node.run.end
            child.run = Run(place, place)
        around_all.run = node.run
        return
    taken: list[Run] = []

    def take(child: _Node, run: Run) -> None:
        child.run = run
        if run.start < run.end:
            insort(taken, run)

    rest = [(child, links.inside(child.start, child.end, node.run)) for child in node.children
            if child.start < child.end]
    ended = [(child, places) for child, places in rest if child.opening is None]
    begun = [(child, places) for child, places in rest if child.closing is None and child.opening is not None]
    free = node.run
    for child, places in ended:
        take(child, Run(free.start, _end_of_start(places, free, links)))
        free = Run(child.run.end, free.end)
    for child, places in begun:
        take(child, Run(_start_of_end(places, free, links), free.end))
        free = Run(free.start, child.run.start)
    whole = [(links.is_scattered(places), -len(places), child, places) for child, places in rest
             if child.opening is not None and child.closing is not None]
    nothing = []
    for _, _, child, places in sorted(whole, key=lambda one: one[:2]):
        run = _best_run(places, taken, links)
        if run is None:
            nothing.append(child)
        else:
            take(child, run)
    for child in nothing:
        run = _best_run(links.of_the_words(child, node.run), taken, links)
        if run is None:
            child.end = child.start
        else:
            take(child, run)
    for child in node.children:
        if child.start == child.end:
            place = _outside(min(max(links.place_of(child), free.start), free.end), taken)
            child.run = Run(place, place)


def _best_run(places: Sequence[int], taken: Sequence[Run], links: _Links) -> Run | None:
    """The run with the most of these atoms, less others; none of it is taken."""
    best, best_run, score, start, last, room = 0, None, 0, 0, -1, -1
    for place in places:
        number = bisect_right(taken, (place, links.length + 1)) - 1
        if number >= 0 and taken[number].end > place:
            continue
        cost = links.others(last, place) if last >= 0 else 0
        if score <= cost or number != room or last < 0:
            score, start = 1, place
        else:
            score += 1 - cost
        last, room = place, number
        if score > best:
            best, best_run = score, Run(start, place + 1)
    return best_run


def _end_of_start(places: Sequence[int], run: Run, links: _Links) -> int:
    """Where a run ends that begins with the sentence and has the most of these atoms, less others."""
    best, end, score, last = -1, run.start, 0, run.start - 1
    for place in (place for place in places if place in range(*run)):
        score += 1 - links.others(last, place)
        last = place
        if score > best:
            best, end = score, place + 1
    return end


def _start_of_end(places: Sequence[int], run: Run, links: _Links) -> int:
    """Where a run begins that ends with the sentence and has the most of these atoms, less others."""
    best, start, score, last = -1, run.end, 0, run.end
    for place in (place for place in reversed(places) if place in range(*run)):
        score += 1 - links.others(place, last)
        last = place
        if score > best:
            best, start = score, place
    return start


def _outside(place: int, taken: Sequence[Run]) -> int:
    """The place itself, or the end of the run that it is inside of."""
    number = bisect_right(taken, (place, -1)) - 1
    return taken[number].end if number >= 0 and taken[number].end > place else place


def _write(root: _Node, found: list[list[Mark]]) -> None:
    """Put all marks before their atoms, in an order that nests."""
    waiting: list[_Node | tuple[int, Mark]] = [root]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _Node):
            found[node[0]].append(node[1])
            continue
        if node.opening is not None:
            found[node.run.start].append(node.opening)
        if node.closing is not None:
            waiting.append((node.run.end, node.closing))
        waiting += _in_order(node.children)


def _in_order(children: Iterable[_Node]) -> list[_Node]:
    """The last one first."""
    return sorted(children, key=lambda child: (child.run, child.order), reverse=True)
