"""Gettext catalogues (`.po`): translate entries that have no translation or a fuzzy one, and mark them as fuzzy.

Everything else is unchanged: translated entries, comments, contexts, obsolete entries, the header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from gettext import c2py

from towernmt.dataflow.sources.po_entries import PoEntry, po_entries
from towernmt.documents.formats.catalogue_text import CatalogueText, format_strings
from towernmt.documents.formats.text_files import Pieces, Slot, declared_encoding, decode_file, lines_with_ends
from towernmt.documents.segments import Segment

_WIDTH = 78
_MOST_FORMS = 6
"""Maximum number of plural forms in a language."""
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPES = {ord(character): f"\\{name}" for name, character in (*_CONTROLS.items(), ("\\", "\\"), ('"', '"'))}
_CHARSET = re.compile(rb"charset=([\w.:-]+)")
_FORMS = re.compile(r"nplurals\s*=\s*(\d{1,3})\s*;\s*(?:plural\s*=\s*([^;\n]+))?")
_MARKER = re.compile(r"^X-Accelerator-Marker:\s*([&_~])", re.MULTILINE)
_NUMBERS = 201
"""Plural forms are compared for the numbers below this one."""


def _wants_translation(entry: PoEntry) -> bool:
    """Return whether an entry has no translation, or a fuzzy one."""
    return bool(entry.texts["msgid"]) and entry.translation >= 0 and (
        "fuzzy" in entry.flags or not any(entry.forms.values()))


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
    charset = _charset(content)
    text, encode = decode_file(content, charset)
    lines = lines_with_ends(text)
    entries = list(po_entries(lines, charset))
    header = next((entry.forms.get(0, "") for entry in entries if not entry.texts["msgid"]), "")
    forms = _Forms(header)
    marker = _MARKER.search(header)
    accelerators = marker[1] if marker else "&_"
    pieces: list[str | Slot] = []
    index = 0
    for entry in entries:
        if _wants_translation(entry):
            end = re.sub(r"[^\r\n]", "", lines[entry.translation]) or "\n"
            pieces += [_with_fuzzy(lines, index, entry, end),
                       _translation(entry, forms, accelerators, end)]
            index = entry.after
    return Pieces([*pieces, "".join(lines[index:])], encode)


def _charset(content: bytes) -> str:
    match = _CHARSET.search(content[:20_000])
    charset = match[1].decode("ascii") if match else "CHARSET"
    return "utf-8" if charset == "CHARSET" else declared_encoding(charset)  # CHARSET: in a template


def _with_fuzzy(lines: Sequence[str], first: int, entry: PoEntry, end: str) -> str:
    """Return the lines from `first` to the translation of an entry, with the flag fuzzy; `end` is the line end."""
    before = list(lines[first:entry.translation])
    if "fuzzy" not in entry.flags:
        number = next((number for number in entry.flag_lines if lines[number].startswith("#,")), None)
        if number is None:
            before.insert(min([*entry.flag_lines, entry.begin]) - first, f"#, fuzzy{end}")
        else:
            before[number - first] = lines[number].replace("#,", "#, fuzzy,", 1)
    return "".join(before)


def _translation(entry: PoEntry, forms: _Forms, accelerators: str, end: str) -> Slot:
    """Return a slot for the lines msgstr of an entry.

    The lines are empty if the translation does not have the placeholders of the source. `accelerators` are signs that
    mark the letter of a keyboard shortcut, and `end` is the line end.
    """
    kind = format_strings(entry.flags)
    single = CatalogueText(entry.texts["msgid"], kind, accelerators)
    if "msgid_plural" not in entry.texts:
        return Slot(single.segments, lambda translated: _quoted("msgstr", single.written(translated) or "", end))
    plural = CatalogueText(entry.texts["msgid_plural"], kind, accelerators)
    existing = len(entry.forms)
    split = len(single.segments)

    def write(translated: Sequence[Segment]) -> str:
        one, many = single.written(translated[:split]), plural.written(translated[split:])
        texts = [one if is_single else many for is_single in forms.are_single(existing)]
        if None in texts:
            texts = [""] * len(texts)
        return "".join(_quoted(f"msgstr[{form}]", text or "", end) for form, text in enumerate(texts))

    return Slot([*single.segments, *plural.segments], write)


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
