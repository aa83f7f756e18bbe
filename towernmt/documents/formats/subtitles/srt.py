"""SubRip (`.srt`): a number, a line with times, and lines of text."""

from __future__ import annotations

import re

from towernmt.core.errors import DataError
from towernmt.documents.formats.pieces import Pieces
from towernmt.documents.formats.subtitles.captions import Cue, subtitles
from towernmt.documents.formats.text_file import decoded

_TIMES = re.compile(r"\s*(\d+):(\d{1,2}):(\d{1,2}(?:[.,]\d{1,3})?)\s*-->\s*(\d+):(\d{1,2}):(\d{1,2}(?:[.,]\d{1,3})?)")


def open_srt(content: bytes) -> Pieces:
    """A file of SubRip.

    Raises:
        DataError: it is none.
    """
    text, encode = decoded(content)
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    times = [(number, found) for number, line in enumerate(lines) if (found := _TIMES.match(line))]
    if lines and any(line.strip() for line in lines) and not times:
        raise DataError("The file has no subtitles: no line has times as 00:00:01,000 --> 00:00:02,000.")
    cues = []
    for (number, found), behind in zip(times, [*(number for number, _ in times), len(lines)][1:], strict=True):
        if behind < len(lines) and behind - 1 > number and lines[behind - 1].strip().isdecimal():
            behind -= 1                         # the number of the next cue
        begin, end = (int(found[place]) * 3600 + int(found[place + 1]) * 60 + float(found[place + 2].replace(",", "."))
                      for place in (1, 4))
        first = number + 1
        for place in range(first, behind + 1):  # a blank line within a cue divides it
            if place == behind or not lines[place].strip():
                if place > first:
                    cues.append(Cue(first, place, begin, end))
                first = place + 1
    return subtitles(lines, cues, has_entities=False, encode=encode)
