"""The entries of a gettext catalogue (`.po`), with the lines on which they are written.

`message_catalogues` reads sentence pairs from them, and `documents.formats.gettext` replaces the lines of translations.
The parser is written here since Python's gettext does not read `.po`, and polib splits lines at every Unicode line end,
which breaks messages that contain one. The manual of GNU gettext describes the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from towernmt.core.errors import DataError

_TEXT = r'[^"\\]*(?:\\.[^"\\]*)*'
_STRING = re.compile(rf'"({_TEXT})"')
_LINE = re.compile(r"\s*(?:(msgctxt|msgid_plural|msgid|msgstr|domain)\s*(?:\[\s*(\d{1,3})\s*\])?\s*)?"
                   rf'"({_TEXT})"(?P<others>(?:\s*"{_TEXT}")*)\s*\Z')
_ESCAPED_BYTE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3}))")
_ESCAPE = re.compile(rf"((?:{_ESCAPED_BYTE.pattern})+)|\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "\\": "\\",
            "'": "'", "?": "?"}


@dataclass
class PoEntry:
    """An entry of a catalogue. Lines are their indices.

    Attributes:
        texts: the texts of `msgctxt`, `msgid`, `msgid_plural` and `domain`, by keyword.
        forms: the translations: `msgstr` with the number 0, and each `msgstr[n]` with its number.
        flags: the names of the flags, such as "fuzzy".
        flag_lines: lines of the flags.
        begin: first line that is neither a comment nor a previous msgid; -1 if there is none.
        translation: first line of a translation; -1 if there is none.
        after: the line after the last one of the entry.
    """

    texts: dict[str, str] = field(default_factory=dict)
    forms: dict[int, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    flag_lines: list[int] = field(default_factory=list)
    begin: int = -1
    translation: int = -1
    after: int = -1


def po_entries(lines: Sequence[str], charset: str, name: str = "") -> Iterator[PoEntry]:
    """Yield the entries of a catalogue, also the header, whose msgid is empty. Obsolete entries are left out.

    An entry ends before the first comment after its translation, or at the next entry.

    Args:
        lines: the lines, with or without their ends.
        charset: the encoding of the catalogue, in which escaped bytes are decoded.
        name: name of the file, for messages; "" if a caller adds it.

    Raises:
        DataError: a line is not valid; the message names it.
    """
    location = f"{name} line" if name else "Line"
    entry, keyword, form = PoEntry(), "", 0
    for number, line in enumerate(lines):
        if not (stripped := line.lstrip()):
            continue
        if stripped.startswith("#"):
            if entry.translation >= 0:
                yield entry
                entry, keyword = PoEntry(), ""
            _add_comment(entry, number, stripped)
            if stripped.startswith("#~") and not entry.texts:
                entry = PoEntry()       # the flags before an obsolete entry are not those of the next entry
            continue
        match = _LINE.match(line)
        if match is None or not (match[1] or keyword):
            raise DataError(f"{location} {number + 1}: not a valid line of a .po file. Fix it (`msgfmt --check` shows "
                            "details).")
        if match[1]:
            if entry.translation >= 0 and match[1] in ("msgid", "msgctxt", "domain"):
                yield entry
                entry = PoEntry()
            keyword, form = match[1], int(match[2] or 0)
            is_translation = keyword == "msgstr"
            if is_translation and (form in entry.forms or "msgid" not in entry.texts) or keyword in entry.texts:
                raise DataError(f"{location} {number + 1}: {keyword} is not expected here. Fix the entry (`msgfmt "
                                "--check` shows details).")
            if is_translation and entry.translation < 0:
                entry.translation = number
            if entry.begin < 0:
                entry.begin = number
        text = "".join([match[3], *_STRING.findall(match["others"])]) if match["others"] else match[3]
        if "\\" in text:
            text = _unescaped(text, charset, f"{location} {number + 1}")
        if keyword == "msgstr":
            entry.forms[form] = entry.forms.get(form, "") + text
        else:
            entry.texts[keyword] = entry.texts.get(keyword, "") + text
        entry.after = number + 1
    if "msgid" in entry.texts:
        yield entry


def _add_comment(entry: PoEntry, number: int, line: str) -> None:
    if line.startswith(("#,", "#=")):       # gettext writes flags such as c-format after `#=`, too
        entry.flag_lines.append(number)
        entry.flags += filter(None, re.split(r"[,=\s]+", line.lstrip("#")))
    elif line.startswith("#|") and entry.begin < 0:
        entry.begin = number


def _unescaped(text: str, charset: str, location: str) -> str:
    """Return a string without escapes. Consecutive escaped bytes are a text in the encoding of the catalogue."""

    def unescape(match: re.Match[str]) -> str:
        if match[1] is None:
            return _ESCAPES.get(match[4], match[0])
        data = bytes(int(digits, 16) if digits else int(octal, 8) & 0xFF
                     for digits, octal in _ESCAPED_BYTE.findall(match[1]))
        return decode_text(data, charset, location)

    return _ESCAPE.sub(unescape, text)


def decode_text(data: bytes, charset: str, name: str, is_file: bool = False) -> str:
    """Return a message, or the text of a whole file, in the encoding of its header.

    Args:
        data: the bytes.
        charset: the encoding.
        name: the file or its line, for the message.
        is_file: whether the bytes are those of the file.

    Raises:
        DataError: the bytes have another encoding.
    """
    try:
        return data.decode(charset)
    except UnicodeDecodeError as error:
        before = data[:error.start]
        if is_file:
            name = f"{name} line {before.count(10) + 1}"
            before = before.rpartition(b"\n")[2]
        problem = f"byte {len(before) + 1} of {'the line' if is_file else 'a message'} (0x{data[error.start]:02x})"
    except UnicodeError:        # of encodings that do not report the position
        problem = "a message"
    raise DataError(f"{name}: {problem} is not {charset.upper()}, the encoding in the header. Fix the catalogue.")
