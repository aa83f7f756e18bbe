"""Translation catalogues of GNU gettext as a source: `.po` (text) and `.mo` (compiled), with a parser of `.mo`.

The parser is written here since Python's gettext keeps the contents of `.mo` private. The manual of GNU gettext
describes the format (chapter "The Format of GNU MO Files").
"""

from __future__ import annotations

import codecs
import gettext
import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.po_entries import decode_text, po_entries
from towernmt.dataflow.sources.source import Cursor, FileSource, Group, Pair
from towernmt.dataflow.storage.stored_files import Storage, UnreadableError, read_bytes, split_compression
from towernmt.dataflow.text.text_lines import Chunk

LARGEST_CATALOGUE = 1 << 28


class Catalogues(FileSource):
    """The translated messages of `.po` and `.mo` files. A position is (pairs before it,).

    Fuzzy, untranslated and obsolete messages and the header are left out. A message with a plural gives several pairs:
    the singular with the form for one thing, and the plural with each other form. If the language has only one form,
    the message gives the plural with that form. A catalogue is read completely, since catalogues are small.

    Args:
        name: see `Source`.
        storage: gives access to the files.
        pattern: path or URL of the files, possibly with wildcards.
        accelerators: the character that marks the shortcut letter of a menu entry ("&" in Qt and KDE, "_" in GTK). It
            is removed from a text that contains it once, before a letter. "" leaves all texts unchanged.
        reverse: use the translation as source and the message as target.
    """

    start = (0,)

    def __init__(self, name: str, storage: Storage, pattern: str, accelerators: str = "",
                 reverse: bool = False) -> None:
        super().__init__(name, storage, pattern)
        self.accelerators = accelerators
        self.reverse = reverse

    def _read(self, head: Sequence[object], group: Group, position: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        file, before = group[0], position[0]
        if file.size > LARGEST_CATALOGUE:
            raise DataError(f"{file.name}: the catalogue has {file.size} bytes, but is read into memory completely. "
                            f"Split it into files of up to {LARGEST_CATALOGUE >> 20} MiB.")
        try:
            data = b"".join(read_bytes(self.storage, file))
        except UnreadableError as error:
            raise error.at(file.name) from error
        compiled = data[:4] in MO_BYTE_ORDERS or split_compression(file.name)[0].endswith(".mo")
        catalogue = (parse_mo if compiled else parse_po)(data, file.name)
        for number, pair in enumerate(self._pairs(catalogue), 1):
            if number > before:
                yield [*head, number], pair

    def _pairs(self, catalogue: Catalogue) -> Iterator[Pair]:
        singular = _singular_form(catalogue.header)
        for message in catalogue.messages:
            for text, translation in _both_sides(message, singular):
                if text.strip() and translation.strip():
                    pair = Pair(self._plain(text), self._plain(translation))
                    yield Pair(pair.target, pair.source) if self.reverse else pair

    def _plain(self, text: str) -> str:
        """Return the text without its accelerator."""
        if not self.accelerators or text.count(self.accelerators) != 1:
            return text
        marker = re.escape(self.accelerators)
        text = re.sub(rf"\s*\({marker}\w\)", "", text)      # East Asian menus add the letter: (&F)
        return re.sub(rf"{marker}(?=\w)", "", text)


def _both_sides(message: Message, singular: int) -> Iterator[tuple[str, str]]:
    forms = message.translations
    if message.plural is None:
        yield message.text, forms[0]
    elif len(forms) == 1:
        yield message.plural, forms[0]
    else:
        for form, translation in enumerate(forms):
            yield message.text if form == singular else message.plural, translation


def _singular_form(header: str) -> int:
    """Return the index of the plural form for one thing, by the header's formula; 0 without a formula."""
    match = re.search(r"Plural-Forms:.*?plural\s*=\s*([^;\n]+)", header)
    if match is None:
        return 0
    try:
        return int(gettext.c2py(match[1])(1))
    except (ValueError, ArithmeticError):   # not a formula, or it divides by zero
        return 0


MO_BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
"""The byte order of a `.mo` file, in the notation of `struct`, by the magic number at its beginning."""


class Message(NamedTuple):
    """A message with its translations.

    Attributes:
        text: the msgid.
        plural: the msgid_plural, or None.
        translations: the msgstr, or each msgstr[n].
    """

    text: str
    plural: str | None
    translations: list[str]


class Catalogue(NamedTuple):
    """The content of a catalogue: the header, which has lines `Field: value`, and the messages without the header."""

    header: str
    messages: list[Message]


def parse_po(data: bytes, name: str) -> Catalogue:
    """Parse a `.po` file. Fuzzy and obsolete messages are left out.

    Raises:
        DataError: the data are not a `.po` file; the message names the line.
    """
    charset = _charset(data.decode("latin-1"))
    if codecs.lookup(charset).name == "utf-8":
        lines = Chunk(name, 1, 0, data).decode()
    else:
        lines = decode_text(data, charset, name, is_file=True).split("\n")
    return _catalogue([
        Message(entry.texts["msgid"], entry.texts.get("msgid_plural"),
                [entry.forms[form] for form in sorted(entry.forms)] or [""])
        for entry in po_entries(lines, charset, name) if not (entry.texts["msgid"] and "fuzzy" in entry.flags)])


def parse_mo(data: bytes, name: str) -> Catalogue:
    """Parse a `.mo` file.

    Raises:
        DataError: the data are not a `.mo` file, or are damaged.
    """
    order = MO_BYTE_ORDERS.get(data[:4])
    if order is None:
        raise DataError(f"{name}: the file does not begin with the magic number of a .mo file. Check the file.")
    try:
        texts = list(_mo_texts(data, order))
    except (struct.error, ValueError):
        raise DataError(f"{name}: the .mo file is damaged: its tables refer to bytes after its end. Restore the file "
                        "from a good copy.") from None
    header = next((translation for text, translation in texts if not text), b"")
    charset = _charset(header.decode("latin-1"))
    messages = []
    for text, translation in texts:
        singular, _, plural = decode_text(text, charset, name).rpartition("\4")[2].partition("\0")
        translations = decode_text(translation, charset, name).split("\0")
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
    """Return the encoding that a catalogue's header names; UTF-8 if it names none or an unknown one."""
    match = re.search(r"Content-Type:[^\n]*?charset=([\w.:-]+)", text, re.IGNORECASE)
    charset = match[1] if match else "utf-8"
    try:
        "".encode(charset)      # fails for Python's codecs that are not encodings of text, too, such as hex
    except (LookupError, UnicodeError):
        return "utf-8"
    return codecs.lookup(charset).name
