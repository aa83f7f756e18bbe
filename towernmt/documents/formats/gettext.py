"""Catalogues of gettext (`.po`): entries without a translation, or with a fuzzy one, get one, which is marked as fuzzy.

All else stays as it is: what is translated already, comments, contexts, obsolete entries, the header.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from towernmt.core.errors import DataError
from towernmt.documents.formats.pieces import Pieces, Place
from towernmt.documents.formats.plain import pieces_of
from towernmt.documents.formats.text_file import decoded
from towernmt.documents.segments import Segment

_WIDTH = 78
_MOST_FORMS = 6
"""Plural forms of the languages that have most of them."""
_KEYWORD = re.compile(r"\s*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d{1,2}\])?)\s*(?=\")")
_STRING = re.compile(r'\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*')
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|(.))")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPES = {ord(character): f"\\{name}" for name, character in (*_CONTROLS.items(), ("\\", "\\"), ('"', '"'))}
_CHARSET = re.compile(rb"charset=([\w.:-]+)")
_FORMS = re.compile(r"nplurals\s*=\s*(\d+)")


@dataclass
class _Entry:
    """An entry; lines are by their numbers.

    Attributes:
        texts: by their keywords.
        begin: its first line that is no comment, nor tells a former msgid.
        flags: its line of flags.
        translation, behind: its lines msgstr.
    """

    texts: dict[str, str] = field(default_factory=dict)
    begin: int = -1
    flags: int | None = None
    translation: int = -1
    behind: int = -1

    def wants_translation(self, lines: Sequence[str]) -> bool:
        """Whether it has none, or a fuzzy one."""
        if not self.texts.get("msgid") or self.translation < 0:
            return False
        is_fuzzy = self.flags is not None and "fuzzy" in re.split(r"[,\s]+", lines[self.flags])
        return is_fuzzy or not any(text for keyword, text in self.texts.items() if keyword.startswith("msgstr"))


def open_po(content: bytes) -> Pieces:
    """A catalogue.

    Raises:
        DataError: it is none.
    """
    text, encode = decoded(content, _charset(content))
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    entries = list(_entries(lines))
    header = next((entry.texts.get("msgstr", "") for entry in entries if entry.texts.get("msgid") == ""), "")
    named = _FORMS.search(header)
    pieces: list[str | Place] = []
    place = 0
    for entry in entries:
        if entry.wants_translation(lines):
            end = re.sub(r"[^\r\n]", "", lines[entry.translation]) or "\n"
            flags = entry.begin if entry.flags is None else entry.flags
            pieces += ["".join(lines[place:flags]), _fuzzy(lines, entry, end),
                       "".join(lines[flags + (entry.flags is not None):entry.translation]),
                       _translation(entry, int(named[1]) if named else None, end)]
            place = entry.behind
    return Pieces([*pieces, "".join(lines[place:])], encode)


def _charset(content: bytes) -> str:
    found = _CHARSET.search(content[:20_000])
    charset = found[1].decode("ascii") if found else "CHARSET"
    if charset == "CHARSET":                    # as templates have it
        return "utf-8"
    try:
        return codecs.lookup(charset).name
    except LookupError:
        raise DataError(f"The header names the encoding {charset[:40]}, which is not known here.") from None


def _entries(lines: Sequence[str]) -> Iterator[_Entry]:
    """The entries of a catalogue.

    Raises:
        DataError: a line is neither a comment nor a text in quotes.
    """
    entry, keyword = _Entry(), ""
    for number, line in enumerate(lines):
        found = _KEYWORD.match(line)
        begins = found is not None and found[1] in ("msgctxt", "msgid")
        if entry.translation >= 0 and (begins or not line.strip() or line.lstrip().startswith("#")):
            yield entry
            entry, keyword = _Entry(), ""
        if line.lstrip().startswith("#"):
            if line.startswith("#,"):
                entry.flags = number
            elif line.startswith("#|") and entry.begin < 0:
                entry.begin = number
            continue
        if not line.strip():
            continue
        if found is not None:
            keyword = found[1]
            entry.texts[keyword] = ""
            if entry.begin < 0:
                entry.begin = number
            if keyword.startswith("msgstr") and entry.translation < 0:
                entry.translation = number
        text = _unquoted(line[found.end() if found else 0:])
        if not keyword or text is None:
            raise DataError(f"The file is no catalogue of gettext: line {number + 1} is neither a comment, nor msgid, "
                            "msgstr or more text in quotes.")
        entry.texts[keyword] += text
        entry.behind = number + 1
    if entry.translation >= 0:
        yield entry


def _fuzzy(lines: Sequence[str], entry: _Entry, end: str) -> str:
    """The line of flags of an entry that was translated by a program."""
    if entry.flags is None:
        return f"#, fuzzy{end}"
    line = lines[entry.flags]
    return line if "fuzzy" in re.split(r"[,\s]+", line) else line.replace("#,", "#, fuzzy,", 1)


def _translation(entry: _Entry, forms: int | None, end: str) -> Place:
    """The lines msgstr of an entry.

    Args:
        forms: plural forms that the header names; None: none.
    """
    single = Pieces(pieces_of(entry.texts["msgid"]))
    if "msgid_plural" not in entry.texts:
        return Place(single.segments, lambda translated: _quoted("msgstr", single.text(translated), end))
    plural = Pieces(pieces_of(entry.texts["msgid_plural"]))
    there = sum(keyword.startswith("msgstr[") for keyword in entry.texts)
    number = min(max(forms or there or 2, 1), _MOST_FORMS)
    split = len(single.segments)

    def write(translated: Sequence[Segment]) -> str:
        one, many = single.text(translated[:split]), plural.text(translated[split:])
        return "".join(_quoted(f"msgstr[{form}]", one if form == 0 and number > 1 else many, end)
                       for form in range(number))

    return Place([*single.segments, *plural.segments], write)


def _unquoted(line: str) -> str | None:
    """The text of strings in quotes; None: there are none, or something else is there."""
    texts, place = [], 0
    while place < len(line):
        found = _STRING.match(line, place)
        if found is None:
            return None
        texts.append(found[1])
        place = found.end()
    return _ESCAPE.sub(_unescaped, "".join(texts)) if texts else None


def _unescaped(escape: re.Match[str]) -> str:
    octal, hexadecimal, character = escape.groups()
    if character is not None:
        return _CONTROLS.get(character, character)
    return chr(int(octal, 8) if octal else int(hexadecimal, 16))


def _quoted(keyword: str, text: str, end: str) -> str:
    """A text as gettext writes it: on one line, or a line for each of its own, wrapped."""
    whole = text.translate(_ESCAPES)
    if len(keyword) + len(whole) + 3 <= _WIDTH and "\n" not in text[:-1]:
        return f'{keyword} "{whole}"{end}'
    lines = [f'{keyword} ""']
    for line in text.splitlines(keepends=True) if "\n" in text else [text]:
        row = ""
        for word in re.findall(r"[^ ]* +|[^ ]+", line.translate(_ESCAPES)):
            if row and len(row) + len(word.rstrip(" ")) + 2 > _WIDTH:
                lines.append(f'"{row}"')
                row = ""
            row += word
        lines.append(f'"{row}"')
    return end.join([*lines, ""])
