"""Words that one text has and another has not, marked in the text (difflib's alignment)."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from towernmt.predict.evaluation.words import word_spans, words

Segments = list[str]
"""A text in parts, in turns what is also in the other and what is not; the first part, which may be empty, is."""


def marked(text: str, others: Sequence[str]) -> Segments:
    """A text, with the words apart that the most similar of the others has not in their place."""
    mine = words(text)
    best = max((_matched(mine, words(other)) for other in others), key=sum, default=[False] * len(mine))
    return _segments(text, best)


def marked_where_no_other(text: str, others: Sequence[str]) -> Segments:
    """A text, with the words apart that none of the others has in their place."""
    mine = words(text)
    found = [_matched(mine, words(other)) for other in others]
    return _segments(text, [any(matches) for matches in zip(*found, strict=True)])


def _matched(mine: Sequence[str], others: Sequence[str]) -> list[bool]:
    """For each word of `mine`, whether it stands in `others` too, in the order of an alignment."""
    matched = [False] * len(mine)
    for block in SequenceMatcher(None, mine, others, autojunk=False).get_matching_blocks():
        matched[block.a:block.a + block.size] = [True] * block.size
    return matched


def _segments(text: str, matched: Sequence[bool]) -> Segments:
    """Neighbouring words of one kind are one part; what is between two parts belongs to the one that is matched."""
    segments, end, same = [""], 0, True
    for (start, stop), is_matched in zip(word_spans(text), matched, strict=True):
        if is_matched == same:
            segments[-1] += text[end:stop]
        elif is_matched:
            segments.append(text[end:stop])
        else:
            segments[-1] += text[end:start]
            segments.append(text[start:stop])
        end, same = stop, is_matched
    if same:
        segments[-1] += text[end:]
    elif end < len(text):
        segments.append(text[end:])
    return segments
