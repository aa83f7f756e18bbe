"""Common functions of text formats: encodings, slots for translations, wrapped lines, and inline marks."""

from __future__ import annotations

import bisect
import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import wide_encoding
from towernmt.documents.segments import Mark, Part, Segment, Shielded

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
          (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
"""Byte order marks; UTF-32 comes first because its mark begins with that of UTF-16."""
_BINARY = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Control characters that do not occur in text; ESC and form feed may occur."""
_END_OF_FILE = "\x1a"
"""Ctrl-Z, with which DOS programs end a text."""
_LONGEST_SAMPLE = 1 << 16
"""Number of bytes from which an encoding is guessed."""

Encode = Callable[[str], bytes]


def decode_file(content: bytes, encoding: str | None = None) -> tuple[str, Encode]:
    """Return the text of a file, and a function that encodes the translated text.

    The byte order mark, and the Ctrl-Z at the end of a DOS file, do not belong to the text, but are written again.

    Args:
        content: content of the file.
        encoding: encoding that the file declares; None for the encoding of its byte order mark, or UTF-8. Single-byte
            encodings are not detected, because they cannot be distinguished reliably.

    Raises:
        DataError: the content is not text, or has another encoding.
    """
    mark, encoding = next(((mark, name) for mark, name in _MARKS if content.startswith(mark)),
                          (b"", encoding or "utf-8"))
    try:
        text = content[len(mark):].decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _wide_text(content, mark) or DataError(
            f"The file is not encoded as {encoding.upper()} (line {line}): save it as UTF-8, for example by `iconv -f "
            "WINDOWS-1252 -t UTF-8`.") from None
    ending = text[len(text.rstrip(_END_OF_FILE)):]
    text = text.removesuffix(ending)
    if match := _BINARY.search(text):
        raise _wide_text(content, mark) or DataError(
            f"The file is not text: line {text.count(chr(10), 0, match.start()) + 1} has the character "
            f"U+{ord(match[0]):04X}.")

    def encode(written: str) -> bytes:
        try:
            return mark + (written + ending).encode(encoding)
        except UnicodeEncodeError as error:
            raise DataError(f"The translation has the character U+{ord(written[error.start]):04X}, which "
                            f"{encoding.upper()} cannot encode: save the file as UTF-8 first.") from None

    return text, encode


def _wide_text(content: bytes, mark: bytes) -> DataError | None:
    """Return the error for a file that is probably UTF-16 or UTF-32 without a byte order mark; None for others."""
    wide = None if mark else wide_encoding(content[:_LONGEST_SAMPLE])
    if wide is None:
        return None
    return DataError(f"The file seems to be {wide} without a byte order mark: save it as UTF-8, for example by `iconv "
                     f"-f {wide} -t UTF-8`.")


_PROBE = "charset=".ljust(80, "a")      # longer than the encoding IDNA allows


def declared_encoding(name: str) -> str:
    """Return the encoding that a file declares in ASCII characters.

    Raises:
        DataError: the encoding is unknown, or does not encode the declaration as ASCII, as UTF-16.
    """
    try:
        is_possible = _PROBE.encode(name) == _PROBE.encode("ascii")
    except (LookupError, UnicodeError):
        is_possible = False
    if not is_possible:
        raise DataError(f"The file declares the encoding {name[:40]}, which is unknown, or is not the encoding of the "
                        "declaration: save the file as UTF-8, and declare UTF-8.")
    return codecs.lookup(name).name


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def lines_with_ends(text: str) -> list[str]:
    r"""Return the lines of a text with their ends (`\n`, `\r\n` or `\r`), which together are the text."""
    return _LINE.findall(text)


_LETTER = re.compile(r"[^\W\d_]")


class Slot(NamedTuple):
    """A range of a text that is translated.

    Attributes:
        segments: the segments of the range.
        write: returns the text of the range for the translated segments.
    """

    segments: Sequence[Segment]
    write: Callable[[Sequence[Segment]], str]


@dataclass
class Pieces:
    """A `Document` of slots and text that is not translated.

    Attributes:
        pieces: slots and text, in order.
        encode: encodes the translated text.
    """

    pieces: list[str | Slot] = field(default_factory=list)
    encode: Encode = str.encode

    @property
    def segments(self) -> list[Segment]:
        """The segments of all slots."""
        return [segment for piece in self.pieces if isinstance(piece, Slot) for segment in piece.segments]

    def text(self, translated: Sequence[Segment]) -> str:
        """Return the text with translated segments."""
        left = iter(translated)
        return "".join(piece if isinstance(piece, str) else piece.write([next(left) for _ in piece.segments])
                       for piece in self.pieces)

    def written(self, translated: Sequence[Segment]) -> bytes:
        """Return the encoded text with translated segments."""
        return self.encode(self.text(translated))


def has_words(text: str) -> bool:
    """Return whether a text has a letter, and so needs a translation."""
    return _LETTER.search(text) is not None


NARROWEST, WIDEST = 40, 100
"""Range of widths, in characters, at which people and programs wrap text."""
_BEGINNING = 40
"""Number of characters that decide whether a line may begin at a position."""
_SPACE = re.compile(" +")
_FIRST_WORD = re.compile(r"\S+")


class JoinedLines(NamedTuple):
    """The text of several lines.

    Attributes:
        text: the text, with spaces in place of line ends, except in scripts without spaces.
        ends: index of the end of each line except the last one.
    """

    text: str
    ends: Sequence[int]


def join_lines(lines: Sequence[str]) -> JoinedLines:
    """Join lines to one text."""
    parts, ends, length = [lines[0]], [], len(lines[0])
    for line, after in pairwise(lines):
        ends.append(length)
        between = "" if line and after and _is_wide(line[-1]) and _is_wide(after[0]) else " "
        parts += [between, after]
        length += len(between) + len(after)
    return JoinedLines("".join(parts), ends)


def was_wrapped(line: str, after: str, width: int) -> bool:
    """Return whether a line was wrapped at a width: the first word of the line after it does not fit into it."""
    word = _FIRST_WORD.match(after)
    return word is not None and len(line) + 1 + len(word[0]) > width >= len(line)


def wrapped_lines(text: str, width: int, may_begin: Callable[[str], bool] = bool) -> list[str]:
    """Wrap a text at a width.

    Args:
        text: the text.
        width: maximum width of a line in characters; a longer word gets a separate line.
        may_begin: returns whether a line may begin with a text.
    """
    lines: list[str] = []
    begin = 0
    spaces = [(match.start(), match.end()) for match in _SPACE.finditer(text)
              if may_begin(text[match.end():match.end() + _BEGINNING])]
    for here, following in pairwise([*spaces, (len(text), len(text))]):
        if following[0] - begin > width:
            lines.append(text[begin:here[0]])
            begin = here[1]
    return [*lines, text[begin:]]


def divide(text: str, source: JoinedLines, may_begin: Callable[[str], bool] = bool) -> list[str]:
    """Divide a text into the same number of lines as its source, in about the same proportions.

    Args:
        text: the text.
        source: the lines of the source.
        may_begin: returns whether a line may begin with a text.

    Returns:
        The lines; the last ones are empty if the text has too few words.
    """
    indices = [index for index in _line_bounds(text) if may_begin(text[index[1]:index[1] + _BEGINNING])]
    lines: list[str] = []
    begin = first = 0
    for number, wanted in enumerate(source.ends):
        last = len(indices) - (len(source.ends) - number)     # leave one index for each line that follows
        if first >= len(indices):
            break
        index = wanted * len(text) / max(len(source.text), 1)
        found = bisect.bisect_left(indices, (index, 0), first)
        if found == len(indices) or (found > first and index - indices[found - 1][0] <= indices[found][0] - index):
            found -= 1
        found = max(min(found, last), first)
        end, start = indices[found]
        lines.append(text[begin:end])
        begin, first = start, found + 1
    return [*lines, text[begin:], *[""] * (len(source.ends) - len(lines))]


def _line_bounds(text: str) -> list[tuple[int, int]]:
    """Return the indices at which a line may end, each with the index at which the next line begins."""
    found = [(space.start(), space.end()) for space in _SPACE.finditer(text) if 0 < space.start() and
             space.end() < len(text)]
    found += [(index, index) for index in range(1, len(text)) if _is_wide(text[index - 1]) and _is_wide(text[index])
              and not unicodedata.category(text[index]).startswith("P")]
    return sorted(found)


def _is_wide(character: str) -> bool:
    """Return whether a character belongs to a script without spaces, such as Chinese or Japanese."""
    return unicodedata.east_asian_width(character) in "WF" and not "\uac00" <= character <= "\ud7a3"


_FIRST, _LAST = "\U00100000", "\U0010fffd"
"""Range of private-use characters that represent marks."""


class MarkedText:
    """The marks and shielded words that private-use characters of a text represent."""

    def __init__(self) -> None:
        self._things: dict[str, Mark | Shielded] = {}

    def add(self, thing: Mark | Shielded) -> str:
        """Return a new character that represents a mark or shielded words."""
        character = chr(ord(_FIRST) + len(self._things))
        if character > _LAST:
            return thing.text if isinstance(thing, Shielded) else ""
        self._things[character] = thing
        return character

    def get(self, character: str) -> Mark | Shielded | None:
        """Return the mark or words that a character represents; None for an ordinary character."""
        return self._things.get(character)

    def segment(self, text: str) -> Segment:
        """Convert a text to a segment."""
        parts: list[Part] = []
        begin = 0
        for index, character in enumerate(text):
            if (thing := self._things.get(character)) is not None:
                parts += [part for part in (text[begin:index], thing) if part != ""]
                begin = index + 1
        return tuple(part for part in (*parts, text[begin:]) if part != "")

    def text(self, segment: Segment) -> str:
        """Convert a segment to a text."""
        return "".join(part if isinstance(part, str) else self.add(part) for part in segment)

    def plain(self, text: str) -> str:
        """Return a text without marks."""
        return "".join(character for character in text if character not in self._things)


def pair_tags(tags: Sequence[tuple[str, Any] | None]) -> list[tuple[str, int]]:
    """Return the kind and key of each tag; an opening tag and the next closing tag with the same name are a pair.

    Args:
        tags: ("open" or "close", name) for each tag; None for a single tag.
    """
    result: list[tuple[str, int]] = [("single", number) for number in range(len(tags))]
    opened: list[int] = []
    open_names: Counter[Any] = Counter()
    for number, tag in enumerate(tags):
        if tag is None:
            continue
        kind, name = tag
        if kind == "open":
            opened.append(number)
            open_names[name] += 1
            continue
        while open_names[name]:
            other = opened.pop()
            opened_name = (tags[other] or ("", None))[1]
            open_names[opened_name] -= 1
            if opened_name == name:
                result[other], result[number] = ("open", other), ("close", other)
                break
    return result
