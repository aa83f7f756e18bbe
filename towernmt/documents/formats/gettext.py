"""Gettext catalogues (`.po`): translate entries that have no translation or a fuzzy one, and mark them as fuzzy.

Everything else is unchanged: translated entries, comments, contexts, obsolete entries, the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from gettext import c2py

from towernmt.core.errors import DataError
from towernmt.documents.formats.catalogue_text import CatalogueText, format_strings
from towernmt.documents.formats.text_files import Pieces, Slot, declared_encoding, decode_file, lines_with_ends
from towernmt.documents.segments import Segment

_WIDTH = 78
_MOST_FORMS = 6
"""Maximum number of plural forms in a language."""
_KEYWORD = re.compile(r"\s*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d{1,2}\])?)\s*(?=\")")
_STRING = re.compile(r'\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*')
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|(.))")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPES = {ord(character): f"\\{name}" for name, character in (*_CONTROLS.items(), ("\\", "\\"), ('"', '"'))}
_CHARSET = re.compile(rb"charset=([\w.:-]+)")
_FORMS = re.compile(r"nplurals\s*=\s*(\d{1,3})\s*;\s*(?:plural\s*=\s*([^;\n]+))?")
_MARKER = re.compile(r"^X-Accelerator-Marker:\s*([&_~])", re.MULTILINE)
_NUMBERS = 201
"""Plural forms are compared for the numbers below this one."""


@dataclass
class _Entry:
    """An entry of a catalogue, with indices of its lines.

    Attributes:
        texts: the texts by keyword.
        begin: first line that is neither a comment nor a previous msgid.
        flags: lines of flags.
        translation: first line of msgstr.
        after: line after the last one of msgstr.
    """

    texts: dict[str, str] = field(default_factory=dict)
    begin: int = -1
    flags: list[int] = field(default_factory=list)
    translation: int = -1
    after: int = -1

    def named_flags(self, lines: Sequence[str]) -> list[str]:
        """Return the flags of the entry."""
        return [flag for number in self.flags for flag in re.split(r"[,=\s]+", lines[number].lstrip("#"))]

    def wants_translation(self, lines: Sequence[str]) -> bool:
        """Return whether the entry has no translation, or a fuzzy one."""
        if not self.texts.get("msgid") or self.translation < 0:
            return False
        return "fuzzy" in self.named_flags(lines) or not any(
            text for keyword, text in self.texts.items() if keyword.startswith("msgstr"))


class _Forms:
    """The plural forms of a catalogue.

    Attributes:
        number: number of forms; None if the header does not contain it.
    """

    def __init__(self, header: str) -> None:
        named = _FORMS.search(header)
        self.number = int(named[1]) if named else None
        self._numbers: dict[int, set[int]] | None = None
        if named and named[2]:
            self._numbers = _numbers_of_forms(named[2].strip().rstrip("\\").strip())

    def are_single(self, existing: int) -> list[bool]:
        """Return, for each form, whether it has the translation of `msgid` instead of that of `msgid_plural`.

        This holds only for a form of the number 1 alone. `msgid` may be "one file", which would be wrong for the other
        numbers of a form, such as 21 and 31 in Russian.

        Args:
            existing: number of forms in the entry, for catalogues whose header does not contain the number.
        """
        number = min(max(self.number or existing or 2, 1), _MOST_FORMS)
        if self._numbers is None:
            return [form == 0 and number > 1 for form in range(number)]
        numbers = [self._numbers.get(form, set()) for form in range(number)]
        return [of_form == {1} for of_form in numbers]


def _numbers_of_forms(expression: str) -> dict[int, set[int]] | None:
    """Return the numbers of each plural form by the expression of a header; None if it is not valid."""
    forms: dict[int, set[int]] = {}
    try:
        form_of = c2py(expression)
        for number in range(_NUMBERS):
            forms.setdefault(int(form_of(number)), set()).add(number)
    except (ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return forms


def open_po(content: bytes) -> Pieces:
    """Return a catalogue as a document.

    Raises:
        DataError: the content is not a valid catalogue.
    """
    text, encode = decode_file(content, _charset(content))
    lines = lines_with_ends(text)
    entries = list(_entries(lines))
    header = next((entry.texts.get("msgstr", "") for entry in entries if entry.texts.get("msgid") == ""), "")
    forms = _Forms(header)
    marker = _MARKER.search(header)
    accelerators = marker[1] if marker else "&_"
    pieces: list[str | Slot] = []
    index = 0
    for entry in entries:
        if entry.wants_translation(lines):
            end = re.sub(r"[^\r\n]", "", lines[entry.translation]) or "\n"
            pieces += [_with_fuzzy(lines, index, entry, end),
                       _translation(entry, forms, accelerators, entry.named_flags(lines), end)]
            index = entry.after
    return Pieces([*pieces, "".join(lines[index:])], encode)


def _charset(content: bytes) -> str:
    match = _CHARSET.search(content[:20_000])
    charset = match[1].decode("ascii") if match else "CHARSET"
    return "utf-8" if charset == "CHARSET" else declared_encoding(charset)  # CHARSET: in a template


def _entries(lines: Sequence[str]) -> Iterator[_Entry]:
    """Yield the entries of a catalogue.

    Raises:
        DataError: a line is not valid.
    """
    entry, keyword = _Entry(), ""
    for number, line in enumerate(lines):
        match = _KEYWORD.match(line)
        begins = match is not None and match[1] in ("msgctxt", "msgid")
        if entry.translation >= 0 and (begins or not line.strip() or line.lstrip().startswith("#")):
            yield entry
            entry, keyword = _Entry(), ""
        if line.lstrip().startswith("#"):
            if line.startswith(("#,", "#=")):      # gettext writes flags such as c-format after `#=`, too
                entry.flags.append(number)
            elif line.startswith("#~") and not entry.texts:
                entry = _Entry()        # the flags before an obsolete entry are not those of the next entry
            elif line.startswith("#|") and entry.begin < 0:
                entry.begin = number
            continue
        if not line.strip():
            continue
        if match is not None:
            keyword = match[1]
            entry.texts[keyword] = ""
            if entry.begin < 0:
                entry.begin = number
            if keyword.startswith("msgstr") and entry.translation < 0:
                entry.translation = number
        text = _unquoted(line[match.end() if match else 0:])
        if not keyword or text is None:
            raise DataError(f"The file is not a valid gettext catalogue: line {number + 1} is not a comment, a msgid, "
                            "a msgstr or a text in quotes.")
        entry.texts[keyword] += text
        entry.after = number + 1
    if entry.translation >= 0:
        yield entry


def _with_fuzzy(lines: Sequence[str], first: int, entry: _Entry, end: str) -> str:
    """Return the lines from `first` to the translation of an entry, with the flag fuzzy; `end` is the line end."""
    before = list(lines[first:entry.translation])
    if "fuzzy" not in entry.named_flags(lines):
        number = next((number for number in entry.flags if lines[number].startswith("#,")), None)
        if number is None:
            before.insert(min([*entry.flags, entry.begin]) - first, f"#, fuzzy{end}")
        else:
            before[number - first] = lines[number].replace("#,", "#, fuzzy,", 1)
    return "".join(before)


def _translation(entry: _Entry, forms: _Forms, accelerators: str, flags: Sequence[str], end: str) -> Slot:
    """Return a slot for the lines msgstr of an entry.

    The lines are empty if the translation does not have the placeholders of the source. `accelerators` are signs that
    mark the letter of a keyboard shortcut, and `end` is the line end.
    """
    kind = format_strings(flags)
    single = CatalogueText(entry.texts["msgid"], kind, accelerators)
    if "msgid_plural" not in entry.texts:
        return Slot(single.segments, lambda translated: _quoted("msgstr", single.written(translated) or "", end))
    plural = CatalogueText(entry.texts["msgid_plural"], kind, accelerators)
    existing = sum(keyword.startswith("msgstr[") for keyword in entry.texts)
    split = len(single.segments)

    def write(translated: Sequence[Segment]) -> str:
        one, many = single.written(translated[:split]), plural.written(translated[split:])
        texts = [one if is_single else many for is_single in forms.are_single(existing)]
        if None in texts:
            texts = [""] * len(texts)
        return "".join(_quoted(f"msgstr[{form}]", text or "", end) for form, text in enumerate(texts))

    return Slot([*single.segments, *plural.segments], write)


def _unquoted(line: str) -> str | None:
    """Return the text of the strings in quotes on a line; None if the line has anything else or no strings."""
    texts, index = [], 0
    while index < len(line):
        match = _STRING.match(line, index)
        if match is None:
            return None
        texts.append(match[1])
        index = match.end()
    return _ESCAPE.sub(_unescaped, "".join(texts)) if texts else None


def _unescaped(escape: re.Match[str]) -> str:
    octal, hexadecimal, character = escape.groups()
    if character is not None:
        return _CONTROLS.get(character, character)
    return chr(int(octal, 8) if octal else int(hexadecimal, 16))


def _quoted(keyword: str, text: str, end: str) -> str:
    """Return a text as gettext writes it: on one line, or wrapped, with a new line after each line end of the text."""
    escaped_text = text.translate(_ESCAPES)
    if len(keyword) + len(escaped_text) + 3 <= _WIDTH and "\n" not in text[:-1]:
        return f'{keyword} "{escaped_text}"{end}'
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
