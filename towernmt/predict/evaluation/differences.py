"""Words that one text has and another has not, marked in the text (difflib's alignment)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from difflib import SequenceMatcher

from towernmt.predict.evaluation.words import word_spans, words

Segments = list[str]
"""A text in parts, in turns what is also in the other and what is not; the first part, which may be empty, is. An empty
part of the second kind is a gap: the other has words there."""


def marked(text: str, others: Sequence[str]) -> Segments:
    """A text, with the words apart that the most similar of the others has not in their place, and with its gaps."""
    mine = words(text)
    best = max((_Match(mine, words(other)) for other in others), key=lambda match: sum(match.matched))
    return _segments(text, best.matched, best.gaps)


def marked_where_no_other(text: str, others: Sequence[str]) -> Segments:
    """A text, with the words apart that none of the others has in their place."""
    mine = words(text)
    found = [_Match(mine, words(other)).matched for other in others]
    return _segments(text, [any(matches) for matches in zip(*found, strict=True)], set())


class _Match:
    """An alignment of words with those of another text.

    Attributes:
        matched: of each word, whether the other has it in its place.
        gaps: before which words (behind the last: their number) only the other has words.
    """

    def __init__(self, mine: Sequence[str], other: Sequence[str]) -> None:
        self.matched, self.gaps = [False] * len(mine), set()
        end_of_mine = end_of_other = 0
        for block in SequenceMatcher(None, mine, other, autojunk=False).get_matching_blocks():
            if block.a == end_of_mine and block.b > end_of_other:
                self.gaps.add(block.a)
            end_of_mine, end_of_other = block.a + block.size, block.b + block.size
            self.matched[block.a:end_of_mine] = [True] * block.size


def _segments(text: str, matched: Sequence[bool], gaps: Set[int]) -> Segments:
    """Neighbouring words of one kind are one part; what is between two parts belongs to the one that is matched."""
    segments, end, same = [""], 0, True
    for i, ((start, stop), is_matched) in enumerate(zip(word_spans(text), matched, strict=True)):
        if i in gaps:
            segments[-1] += text[end:start]
            segments += ["", ""]
            end = start
        if is_matched == same:
            segments[-1] += text[end:stop]
        elif is_matched:
            segments.append(text[end:stop])
        else:
            segments[-1] += text[end:start]
            segments.append(text[start:stop])
        end, same = stop, is_matched
    if end < len(text):
        segments += [""] * (not same)
        segments[-1] += text[end:]
    return [*segments, ""] if len(matched) in gaps else segments
