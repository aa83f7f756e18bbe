"""Subtitles as segments: the words of cues, and how their translations go into the cues' lines.

- The lines of a cue are one text, which is wrapped again: into as many lines, or more where these would be too long.
- Lines that begin with a dash are each somebody's: they are translated by themselves.
- A sentence over several cues is translated as one, and divided between them by the shares of the source. A cue without
  a sign at its end goes on in the next one, if that comes soon, and if most cues of the file end with signs.
- Tags around a whole cue stay there; others within it are marks of the segment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from towernmt.documents.formats.pieces import Pieces, Place, has_words
from towernmt.documents.formats.subtitles.tags import Caption, has_dash
from towernmt.documents.formats.text_file import Encode
from towernmt.documents.formats.wrapping import Joined, divided, joined
from towernmt.documents.segments import Segment

WIDEST_LINE = 42
"""Characters of a line that people can read, unless the cue's own lines are longer."""
LONGEST_PAUSE = 1.0
"""Seconds between two cues with one sentence, at most."""
MOST_CUES = 4
_ENDS = re.compile(r"[.!?…:;。！？♪#)\]\"”“»*][^\w]*$")
_BEGINS = re.compile(r"[♪#(\[\"“„«…*]|\.\.")


class Cue(NamedTuple):
    """A cue of a file.

    Attributes:
        first, behind: its lines of text, by their numbers in the file.
        begin, end: in seconds.
    """

    first: int
    behind: int
    begin: float
    end: float


class _Said(NamedTuple):
    """What one says in a cue.

    Attributes:
        between: the text of the file between what was said before, and this.
        is_alone: whether nobody else speaks in the cue.
    """

    between: str
    caption: Caption
    cue: Cue
    is_alone: bool

    def written(self, lines: Sequence[str]) -> str:
        """The text of the file for other lines."""
        caption = self.caption
        return caption.before + caption.between.join(map(caption.file_text, lines)) + caption.behind


def subtitles(lines: Sequence[str], cues: Sequence[Cue], has_entities: bool, encode: Encode) -> Pieces:
    """A file of subtitles as a document.

    Args:
        lines: of the file, with their ends.
        has_entities: whether characters may be written by name, as `&amp;`.
    """
    said: list[_Said] = []
    place, rest = 0, ""
    line_end = next((line[len(line.rstrip("\r\n")):] for line in lines), "\n")
    for cue in cues:
        speakers = list(_speakers(lines, cue))
        for first, behind in speakers:
            text = [line.rstrip("\r\n") for line in lines[first:behind]]
            caption = Caption(text, line_end, has_entities)
            said.append(_Said(rest + "".join(lines[place:first]), caption, cue, len(speakers) == 1))
            place, rest = behind, lines[behind - 1][len(text[-1]):]
    pieces: list[str | Place] = []
    for group in _groups(said):
        pieces += [group[0].between, _place(group)]
    return Pieces([*pieces, rest + "".join(lines[place:])], encode)


def _speakers(lines: Sequence[str], cue: Cue) -> Iterator[tuple[int, int]]:
    """The lines of each who speaks in a cue."""
    begins = sorted({cue.first, *(number for number in range(cue.first, cue.behind) if has_dash(lines[number]))})
    return zip(begins, [*begins[1:], cue.behind], strict=True)


def _groups(said: Sequence[_Said]) -> list[list[_Said]]:
    """Captions, those of one sentence together."""
    has_signs = 2 * sum(_ENDS.search(one.caption.words) is not None for one in said) >= len(said)
    groups: list[list[_Said]] = []
    for one in said:
        if has_signs and groups and len(groups[-1]) < MOST_CUES and _goes_on(groups[-1][-1], one):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _goes_on(one: _Said, after: _Said) -> bool:
    """Whether a sentence goes on in the next cue."""
    first, second = one.caption, after.caption
    return (one.is_alone and after.is_alone and 0 <= after.cue.begin - one.cue.end <= LONGEST_PAUSE
            and (first.before, first.behind) == (second.before, second.behind)
            and not first.has_marks and not second.has_marks
            and has_words(first.words) and has_words(second.words)
            and not _ENDS.search(first.words) and not _BEGINS.match(second.words))


def _place(group: Sequence[_Said]) -> Place:
    """The place of captions with one sentence, or of one caption."""
    texts = [joined(one.caption.lines) for one in group]
    marks = group[0].caption.marks              # several captions have none
    if not any(has_words(one.caption.words) for one in group):
        return Place([], lambda _: group[0].written(group[0].caption.lines))
    source = joined([text.text for text in texts])

    def write(translated: Sequence[Segment]) -> str:
        shares = divided(marks.text(translated[0]), source)
        written = []
        for one, text, share in zip(group, texts, shares, strict=True):
            widest = max(WIDEST_LINE, *(len(marks.plain(line)) for line in one.caption.lines))
            written += [one.between, one.written(_wrapped(share, text, widest))]
        return "".join(written[1:])             # what is between the former place and this is a piece of its own

    return Place([marks.segment(source.text)], write)


def _wrapped(text: str, source: Joined, widest: int) -> list[str]:
    """The lines of a cue: as many as its source has, or more if a line would be too wide."""
    lines = divided(text, source)
    for number in range(len(lines), len(lines) + len(text) // widest + 2):
        if max(map(len, lines)) <= widest:
            break
        lines = divided(text, Joined(text, [len(text) * place // number for place in range(1, number)]))
    return [line for line in lines if line] or [""]
