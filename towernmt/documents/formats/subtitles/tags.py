"""Tags in subtitles: `<i>`, `<font ...>`, `{\\an8}`; in WebVTT voices, classes, times, and characters by name."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from towernmt.documents.formats.marked_text import MarkedText, paired
from towernmt.documents.segments import Mark

_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w.-]*)[^<>\r\n]*>|<\d[\d:.]*>"
                  r"|\{\\[^{}\r\n]*\}|\{/?[A-Za-z]:[^{}\r\n]*\}")
_ENTITY = re.compile(r"&(?:amp|lt|gt|nbsp|lrm|rlm|quot|apos|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});")
_LINE_END = re.compile(r"[^\S\n]*\n[^\S\n]*")
_DASH = re.compile(r"[-‐–—](?=\s|[^\W\d_])\s*|\s+")


class Caption:
    """What one says in a cue: lines with tags.

    Attributes:
        before, behind: what is around the words: tags of the whole, a dash, white space.
        lines: between them; marks are characters of `marks`.
        between: the end of a line, and the white space beside it.
    """

    def __init__(self, lines: Sequence[str], line_end: str, has_entities: bool) -> None:
        self.marks = MarkedText()
        content = "\n".join(lines)
        self._escapes = _escapes(content) if has_entities else {}
        text = self._with_marks(content, has_entities)
        self.before, text, self.behind = self._around(text)
        self.lines = [line.strip() for line in text.split("\n")]
        space = _LINE_END.search(text)
        self.between = line_end if space is None else space[0].replace("\n", line_end)

    @property
    def has_marks(self) -> bool:
        """Whether there are any among the words."""
        return any(self.marks.get(character) for line in self.lines for character in line)

    @property
    def words(self) -> str:
        """Without marks."""
        return self.marks.plain(" ".join(self.lines))

    def file_text(self, line: str) -> str:
        """A line as the file has it."""
        return "".join(part.translate(self._escapes) if isinstance(part, str) else part.content
                       for part in self.marks.segment(line) if isinstance(part, str | Mark))

    def _with_marks(self, text: str, has_entities: bool) -> str:
        found = list(_TAG.finditer(text))
        kinds = paired([("close" if tag["close"] else "open", tag["name"].split(".")[0]) if tag["name"] else None
                        for tag in found])
        made, place = [], 0
        for tag, (kind, key) in zip(found, kinds, strict=True):
            made.append(_unescaped(text[place:tag.start()], has_entities))
            made.append(self.marks.add(Mark(kind, key, tag[0])))   # type: ignore[arg-type]
            place = tag.end()
        return "".join([*made, _unescaped(text[place:], has_entities)])

    def _around(self, text: str) -> tuple[str, str, str]:
        """What is around the words, as the file has it, and the words."""
        before, behind = "", ""
        while text:
            first, last = self.marks.get(text[0]), self.marks.get(text[-1])
            if isinstance(first, Mark) and (first.kind == "single" or (
                    isinstance(last, Mark) and (last.kind, last.key) == ("close", first.key))):
                before += first.content
                text = text[1:]
                if first.kind == "open" and isinstance(last, Mark):
                    behind, text = last.content + behind, text[:-1]
            elif isinstance(last, Mark) and last.kind == "single":
                behind, text = last.content + behind, text[:-1]
            elif found := _DASH.match(text):
                before, text = before + found[0], text[found.end():]
            elif text[-1].isspace():
                behind, text = text[-1] + behind, text[:-1]
            else:
                break
        return before, text, behind


def has_dash(line: str) -> bool:
    """Whether somebody else begins to speak here."""
    return re.match(r"\s*[-‐–—](?=\s|[^\W\d_])", _TAG.sub("", line)) is not None


def _unescaped(text: str, has_entities: bool) -> str:
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text) if has_entities else text


def _escapes(text: str) -> dict[int, str]:
    """How characters are written: as the text has them, if it has them by name alone."""
    found = {"<": "&lt;", "&": "&amp;"}
    for entity in _ENTITY.finditer(text):
        found.setdefault(html.unescape(entity[0]), entity[0])
    rest = _TAG.sub("", _ENTITY.sub("", text))
    return {ord(character): name for character, name in found.items() if character not in rest}
