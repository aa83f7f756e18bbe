"""The messages of translation catalogues: GNU gettext's `.po` (text) and `.mo` (compiled).

Both parsers are our own. Python's gettext does not read `.po`, and keeps what it reads of `.mo` private. polib splits
lines at every character that Unicode calls a line end, and so breaks messages that hold one. The manual of GNU gettext
describes the formats (chapters "The Format of PO Files" and "The Format of GNU MO Files").
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.text.chunks import Chunk

MO_BEGINNINGS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
"""The first bytes of a `.mo` file, and the byte order that they mean (as `struct` writes it)."""


class Message(NamedTuple):
    """One translated message.

    Attributes:
        text: the msgid.
        plural: the msgid_plural, or None.
        translations: the msgstr, or each msgstr[n].
    """

    text: str
    plural: str | None
    translations: list[str]


class Catalogue(NamedTuple):
    """What a catalogue holds: the header, a text of lines `Field: value`, and the messages without it."""

    header: str
    messages: list[Message]


def parse_po(data: bytes, name: str) -> Catalogue:
    """The messages of a `.po` file that are in use: neither fuzzy nor obsolete.

    Raises:
        DataError: not a `.po` file, with the line.
    """
    charset = _charset(data.decode("latin-1"))
    if codecs.lookup(charset).name == "utf-8":
        lines = Chunk(name, 1, 0, data).decode()
    else:
        lines = [line.removesuffix("\r") for line in _decode(data, charset, name).split("\n")]
    return _catalogue(_PoParser(name).parse(lines))


def parse_mo(data: bytes, name: str) -> Catalogue:
    """The messages of a `.mo` file.

    Raises:
        DataError: not a `.mo` file, or damaged.
    """
    order = MO_BEGINNINGS.get(data[:4])
    if order is None:
        raise DataError(f"{name}: it does not begin as a .mo file does. Check the file.")
    try:
        texts = list(_mo_texts(data, order))
    except (struct.error, ValueError):
        raise DataError(f"{name}: the .mo file is damaged: its tables point behind its end. Restore the file from a "
                        "good copy.") from None
    header = next((translation for text, translation in texts if not text), b"")
    charset = _charset(header.decode("latin-1"))
    messages = []
    for text, translation in texts:
        singular, _, plural = _decode(text, charset, name).rpartition("\4")[2].partition("\0")
        translations = _decode(translation, charset, name).split("\0")
        messages.append(Message(singular, plural or None, translations if plural else translations[:1]))
    return _catalogue(messages)


def _catalogue(messages: list[Message]) -> Catalogue:
    header = next((message.translations[0] for message in messages if not message.text), "")
    return Catalogue(header, [message for message in messages if message.text])


def _mo_texts(data: bytes, order: str) -> Iterator[tuple[bytes, bytes]]:
    _, count, *tables = struct.unpack_from(f"{order}4I", data, 4)
    if max(tables) + 8 * count > len(data):
        raise ValueError
    for i in range(count):
        entry = []
        for table in tables:
            length, offset = struct.unpack_from(f"{order}2I", data, table + 8 * i)
            if offset + length > len(data):
                raise ValueError
            entry.append(data[offset:offset + length])
        yield entry[0], entry[1]


def _charset(text: str) -> str:
    """The encoding that a catalogue's header names; UTF-8 where it names none that is known."""
    match = re.search(r"Content-Type:[^\n]*?charset=([\w.:-]+)", text, re.IGNORECASE)
    try:
        return codecs.lookup(match[1]).name if match else "utf-8"
    except LookupError:
        return "utf-8"


def _decode(data: bytes, charset: str, name: str) -> str:
    try:
        return data.decode(charset)
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: byte {error.start + 1} of a message (0x{data[error.start]:02x}) is not "
                        f"{charset.upper()}, which the header names. Mend the catalogue.") from None


_LINE = re.compile(r'\s*(?:(msgctxt|msgid_plural|msgid|msgstr|domain)\s*(?:\[\s*(\d+)\s*\])?\s*)?'
                   r'"((?:[^"\\]|\\.)*)"\s*\Z')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "\\": "\\",
            "'": "'", "?": "?"}


class _PoParser:
    """Reads the lines once. An entry ends at the next entry, or at a comment after it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[Message] = []
        self._begin_entry()

    def parse(self, lines: list[str]) -> list[Message]:
        for number, line in enumerate(lines, 1):
            if line.startswith("#"):
                self._comment(line)
            elif line.strip():
                self._string(line, number)
        self._end_entry()
        return self.messages

    def _begin_entry(self) -> None:
        self.parts: dict[str, list[str]] = {}      # "msgid", "msgstr 0", ...
        self.current = ""
        self.fuzzy = False

    def _comment(self, line: str) -> None:
        if self.parts:
            self._end_entry()
        if line.startswith(("#,", "#=")):
            self.fuzzy = self.fuzzy or "fuzzy" in re.split(r"[,=\s]+", line)

    def _string(self, line: str, number: int) -> None:
        match = _LINE.match(line)
        if match is None or not (match[1] or self.current):
            raise DataError(f"{self.name} line {number}: this is no line of a .po file. Mend it (`msgfmt --check` "
                            "tells more).")
        keyword, index, text = match.groups()
        if keyword:
            if keyword in ("msgid", "msgctxt", "domain") and any(part.startswith("msgstr") for part in self.parts):
                self._end_entry()
            self.current = f"msgstr {index or 0}" if keyword == "msgstr" else keyword
            if self.current in self.parts or (keyword == "msgstr" and "msgid" not in self.parts):
                raise DataError(f"{self.name} line {number}: {keyword} is not expected here. Mend the entry (`msgfmt "
                                "--check` tells more).")
            self.parts[self.current] = []
        self.parts[self.current].append(_ESCAPE.sub(_unescaped, text))

    def _end_entry(self) -> None:
        text = "".join(self.parts.get("msgid", ()))
        if "msgid" in self.parts and not (self.fuzzy and text):
            plural = "".join(self.parts["msgid_plural"]) if "msgid_plural" in self.parts else None
            forms = sorted((int(part.split()[1]), part) for part in self.parts if part.startswith("msgstr"))
            self.messages.append(Message(text, plural, ["".join(self.parts[part]) for _, part in forms] or [""]))
        self._begin_entry()


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code.startswith("x") and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[:1].isdigit() and code[0] < "8":
        return chr(int(code, 8) & 0xFF)
    return _ESCAPES.get(code, match[0])
