"""WebVTT (`.vtt`): blocks between blank lines, of which cues have times; notes, styles and regions stay."""

from __future__ import annotations

import re

from towernmt.core.errors import DataError
from towernmt.documents.formats.pieces import Pieces
from towernmt.documents.formats.subtitles.captions import Cue, subtitles
from towernmt.documents.formats.text_file import decoded

_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{1,2}\.\d{1,3})"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")


def open_vtt(content: bytes) -> Pieces:
    """A file of WebVTT.

    Raises:
        DataError: it is none.
    """
    text, encode = decoded(content)
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    if not lines or not re.match(r"WEBVTT(?:\s|$)", lines[0]):
        raise DataError("The file is no WebVTT: its first line must begin with WEBVTT.")
    cues, number = [], 0
    while number < len(lines):
        found = _TIMES.match(lines[number])
        number += 1
        if found is None:
            continue
        first = number
        while number < len(lines) and lines[number].strip() and not _TIMES.match(lines[number]):
            number += 1
        if number > first:
            begin, end = (int(found[place] or 0) * 3600 + int(found[place + 1]) * 60 + float(found[place + 2])
                          for place in (1, 4))
            cues.append(Cue(first, number, begin, end))
    return subtitles(lines, cues, has_entities=True, encode=encode)
