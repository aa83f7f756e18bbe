r"""Subtitles, SubRip (`.srt`) and WebVTT (`.vtt`): the text of cues becomes segments.

- The lines of a cue are one text. Its translation is wrapped into the same number of lines, or into more if these are
  too long.
- Lines that begin with a dash belong to different speakers, and are translated separately.
- A sentence in several cues is translated as one, and divided between the cues in the proportions of the source. A cue
  without a final sign continues in the next one, if that comes soon, and if most cues of the file end with signs.
- Tags (`<i>`, `<font ...>`, `{\an8}`; in WebVTT voices, classes and times) around a complete cue are kept; other tags
  are marks of the segment.
- SubRip has a number, a line with times, and lines of text for each cue. WebVTT has blocks between blank lines. Cues
  are the blocks with times; notes, styles and regions are not translated.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.documents.formats.text_files import (
    Encode,
    JoinedLines,
    MarkedText,
    Pieces,
    Slot,
    decode_file,
    divide,
    has_words,
    join_lines,
    lines_with_ends,
    pair_tags,
)
from towernmt.documents.segments import Mark, Segment

_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w.-]*)[^<>\r\n]*>|<\d[\d:.]*>"
                  r"|\{\\[^{}\r\n]*\}|\{/?[A-Za-z]:[^{}\r\n]*\}")
_ENTITY = re.compile(r"&(?:amp|lt|gt|nbsp|lrm|rlm|quot|apos|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});")
_LINE_END = re.compile(r"[^\S\n]*\n[^\S\n]*")
_DASH = re.compile(r"[-‐–—](?=\s|[^\W\d_])\s*|\s+")


class Caption:
    """The lines of one speaker in a cue.

    Attributes:
        before, after: text around the words: tags of the complete text, a dash, white space.
        lines: the lines between them, with characters of `marks` for tags.
        between: a line end with the white space next to it.
    """

    def __init__(self, lines: Sequence[str], line_end: str, has_entities: bool) -> None:
        self.marks = MarkedText()
        content = "\n".join(lines)
        self._escapes = _escapes(content) if has_entities else {}
        text = self._with_marks(content, has_entities)
        self.before, text, self.after = self._around(text)
        self.lines = [line.strip() for line in text.split("\n")]
        space = _LINE_END.search(text)
        self.between = line_end if space is None else space[0].replace("\n", line_end)

    @property
    def has_marks(self) -> bool:
        """Whether there are tags among the words."""
        return any(self.marks.get(character) for line in self.lines for character in line)

    @property
    def words(self) -> str:
        """The text without tags, on one line."""
        return self.marks.plain(" ".join(self.lines))

    def file_text(self, line: str) -> str:
        """Return a line in the syntax of the file."""
        return "".join(part.translate(self._escapes) if isinstance(part, str) else part.content
                       for part in self.marks.segment(line) if isinstance(part, str | Mark))

    def _with_marks(self, text: str, has_entities: bool) -> str:
        found = list(_TAG.finditer(text))
        kinds = pair_tags([("close" if tag["close"] else "open", tag["name"].split(".")[0]) if tag["name"] else None
                           for tag in found])
        made, index = [], 0
        for tag, (kind, key) in zip(found, kinds, strict=True):
            made.append(_unescaped(text[index:tag.start()], has_entities))
            made.append(self.marks.add(Mark(kind, key, tag[0])))   # type: ignore[arg-type]
            index = tag.end()
        return "".join([*made, _unescaped(text[index:], has_entities)])

    def _around(self, text: str) -> tuple[str, str, str]:
        """Divide a text into the part before the words, the words, and the part after the words."""
        before, after = "", ""
        while text:
            first, last = self.marks.get(text[0]), self.marks.get(text[-1])
            if isinstance(first, Mark) and (first.kind == "single" or (
                    isinstance(last, Mark) and (last.kind, last.key) == ("close", first.key))):
                before += first.content
                text = text[1:]
                if first.kind == "open" and isinstance(last, Mark):
                    after, text = last.content + after, text[:-1]
            elif isinstance(last, Mark) and last.kind == "single":
                after, text = last.content + after, text[:-1]
            elif match := _DASH.match(text):
                before, text = before + match[0], text[match.end():]
            elif text[-1].isspace():
                after, text = text[-1] + after, text[:-1]
            else:
                break
        return before, text, after


def has_dash(line: str) -> bool:
    """Return whether a line begins with the dash of another speaker."""
    return re.match(r"\s*[-‐–—](?=\s|[^\W\d_])", _TAG.sub("", line)) is not None


def _unescaped(text: str, has_entities: bool) -> str:
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text) if has_entities else text


def _escapes(text: str) -> dict[int, str]:
    """Return the entities to write for characters: those of the text, unless it has the character itself, too."""
    found = {"<": "&lt;", "&": "&amp;"}
    for entity in _ENTITY.finditer(text):
        found.setdefault(html.unescape(entity[0]), entity[0])
    rest = _TAG.sub("", _ENTITY.sub("", text))
    return {ord(character): name for character, name in found.items() if character not in rest}


WIDEST_LINE = 42
"""Maximum width of a line in characters, unless the source has longer lines."""
LONGEST_PAUSE = 1.0
"""Maximum time between two cues with parts of one sentence, in seconds."""
MOST_CUES = 4
_ENDS = re.compile(r"[.!?…:;。！？؟۔।॥։።။។♪#)\]\"”“»*）」』】》’][^\w]*$")
_BEGINS = re.compile(r"[♪#(\[\"“„«…*（「『【《]|\.\.")


class Cue(NamedTuple):
    """A cue of a file.

    Attributes:
        first, after: index of its first line of text, and of the line after the last one.
        begin, end: times in seconds.
    """

    first: int
    after: int
    begin: float
    end: float


class _Speech(NamedTuple):
    """The caption of one speaker, with its position in the file.

    Attributes:
        between: text of the file between the previous caption and this one.
        is_alone: whether the cue has one speaker only.
    """

    between: str
    caption: Caption
    cue: Cue
    is_alone: bool

    def written(self, lines: Sequence[str]) -> str:
        """Return the text of the file for translated lines."""
        caption = self.caption
        return caption.before + caption.between.join(map(caption.file_text, lines)) + caption.after


def subtitle_document(lines: Sequence[str], cues: Sequence[Cue], has_entities: bool, encode: Encode) -> Pieces:
    """Return a subtitle file as a document.

    Args:
        lines: lines of the file, with their ends.
        cues: the cues.
        has_entities: whether the format has entities, such as `&amp;`.
        encode: encodes the translated text.
    """
    speeches: list[_Speech] = []
    index, rest = 0, ""
    line_end = next((line[len(line.rstrip("\r\n")):] for line in lines), "\n")
    for cue in cues:
        speakers = list(_speakers(lines, cue))
        for first, after in speakers:
            text = [line.rstrip("\r\n") for line in lines[first:after]]
            caption = Caption(text, line_end, has_entities)
            speeches.append(_Speech(rest + "".join(lines[index:first]), caption, cue, len(speakers) == 1))
            index, rest = after, lines[after - 1][len(text[-1]):]
    pieces: list[str | Slot] = []
    for group in _groups(speeches):
        pieces += [group[0].between, _slot(group)]
    return Pieces([*pieces, rest + "".join(lines[index:])], encode)


def _speakers(lines: Sequence[str], cue: Cue) -> Iterator[tuple[int, int]]:
    """Return the range of lines of each speaker in a cue."""
    begins = sorted({cue.first, *(number for number in range(cue.first, cue.after) if has_dash(lines[number]))})
    return zip(begins, [*begins[1:], cue.after], strict=True)


def _groups(speeches: Sequence[_Speech]) -> list[list[_Speech]]:
    """Return groups of captions; each group contains one sentence, or is a single caption."""
    has_signs = 2 * sum(_ENDS.search(one.caption.words) is not None for one in speeches) >= len(speeches)
    groups: list[list[_Speech]] = []
    for one in speeches:
        if has_signs and groups and len(groups[-1]) < MOST_CUES and _continues(groups[-1][-1], one):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _continues(one: _Speech, after: _Speech) -> bool:
    """Return whether a sentence continues in the next cue."""
    first, second = one.caption, after.caption
    return (one.is_alone and after.is_alone and 0 <= after.cue.begin - one.cue.end <= LONGEST_PAUSE
            and (first.before, first.after) == (second.before, second.after)
            and not first.has_marks and not second.has_marks
            and has_words(first.words) and has_words(second.words)
            and not _ENDS.search(first.words) and not _BEGINS.match(second.words))


def _slot(group: Sequence[_Speech]) -> Slot:
    """Return the slot of a group of captions."""
    texts = [join_lines(one.caption.lines) for one in group]
    marks = group[0].caption.marks              # a group of several captions has no marks
    if not any(has_words(one.caption.words) for one in group):
        return Slot([], lambda _: group[0].written(group[0].caption.lines))
    source = join_lines([text.text for text in texts])

    def write(translated: Sequence[Segment]) -> str:
        shares = divide(marks.text(translated[0]), source)
        written = []
        for one, text, share in zip(group, texts, shares, strict=True):
            widest = max(WIDEST_LINE, *(len(marks.plain(line)) for line in one.caption.lines))
            written += [one.between, one.written(_wrapped(share, text, widest))]
        return "".join(written[1:])             # the text before the first caption is not part of the slot

    return Slot([marks.segment(source.text)], write)


def _wrapped(text: str, source: JoinedLines, widest: int) -> list[str]:
    """Divide a text into as many lines as its source has, or into more if a line would be too wide."""
    lines = divide(text, source)
    number, most = len(lines), len(lines) + len(text) // widest + 2
    while max(map(len, lines)) > widest and number < most:
        lines = divide(text, JoinedLines(text, [len(text) * index // number for index in range(1, number)]))
        number += max(1, number // 50)      # a share of very many lines, since each division takes long for them
    return [line for line in lines if line] or [""]


_SRT_TIME = r"(\d{1,4}):(\d{1,2}):(\d{1,2}(?:[.,]\d{1,3})?)"
_SRT_CUE = re.compile(rf"\s*{_SRT_TIME}\s*-->\s*{_SRT_TIME}")


def _times(match: re.Match[str]) -> tuple[float, float]:
    """Return begin and end of a cue in seconds; the groups are hours, minutes and seconds of each."""
    groups = match.groups(default="0")
    begin, end = (int(hours) * 3600 + int(minutes) * 60 + float(seconds.replace(",", "."))
                  for hours, minutes, seconds in (groups[:3], groups[3:]))
    return begin, end


def open_srt(content: bytes) -> Pieces:
    """Return a SubRip file as a document.

    Raises:
        DataError: the file is not text, or contains no cues.
    """
    text, encode = decode_file(content)
    lines = lines_with_ends(text)
    times = [(number, match) for number, line in enumerate(lines) if (match := _SRT_CUE.match(line))]
    if lines and any(line.strip() for line in lines) and not times:
        raise DataError("The file has no subtitles: no line has times such as 00:00:01,000 --> 00:00:02,000.")
    cues = []
    for (number, match), after in zip(times, [*(number for number, _ in times), len(lines)][1:], strict=True):
        if after < len(lines) and after - 1 > number and lines[after - 1].strip().isdecimal():
            after -= 1                         # the number of the next cue
        begin, end = _times(match)
        first = number + 1
        for index in range(first, after + 1):  # a blank line within a cue divides it
            if index == after or not lines[index].strip():
                if index > first:
                    cues.append(Cue(first, index, begin, end))
                first = index + 1
    return subtitle_document(lines, cues, has_entities=False, encode=encode)


_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2}\.\d{1,3})"
_VTT_CUE = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")


def open_vtt(content: bytes) -> Pieces:
    """Return a WebVTT file as a document.

    Raises:
        DataError: the file is not a WebVTT file.
    """
    text, encode = decode_file(content)
    lines = lines_with_ends(text)
    if not lines or not re.match(r"WEBVTT(?:\s|$)", lines[0]):
        raise DataError("The file is not a WebVTT file: the first line must begin with WEBVTT.")
    cues, number = [], 0
    while number < len(lines):
        match = _VTT_CUE.match(lines[number])
        number += 1
        if match is None:
            continue
        first = number
        while number < len(lines) and lines[number].strip() and not _VTT_CUE.match(lines[number]):
            number += 1
        if number > first:
            cues.append(Cue(first, number, *_times(match)))
    return subtitle_document(lines, cues, has_entities=True, encode=encode)
