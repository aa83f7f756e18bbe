"""Translation catalogues (gettext) as a corpus: the messages of programs, with their translations."""

from __future__ import annotations

import gettext
import re
from collections.abc import Iterator, Sequence

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.formats.file_source import FileSource, Group
from towernmt.dataflow.sources.formats.messages import MO_BEGINNINGS, Catalogue, Message, parse_mo, parse_po
from towernmt.dataflow.sources.source import Cursor, Pair
from towernmt.dataflow.storage.compression import UnreadableError, read_bytes, split_compression
from towernmt.dataflow.storage.stored_files import Storage

LARGEST = 1 << 28


class Catalogues(FileSource):
    """The translated messages of `.po` and `.mo` files; a place is (pairs before it,).

    Fuzzy, untranslated and obsolete messages and the header are left out. A message with a plural gives several pairs:
    the singular with the form for one thing, and the plural with each other form. If the language has one form only,
    the message gives the plural with that form. A catalogue is read whole, since catalogues are small.

    Args:
        name: see `Source`.
        storage: where the files are.
        pattern: which ones.
        accelerators: the character that marks the shortcut letter of a menu entry ("&" in Qt and KDE, "_" in GTK). It
            is removed from a text that has it once, before a letter. "" leaves all texts as they are.
        reverse: the translation is the source, the message the target.
    """

    start = (0,)

    def __init__(self, name: str, storage: Storage, pattern: str, accelerators: str = "",
                 reverse: bool = False) -> None:
        super().__init__(name, storage, pattern)
        self.accelerators = accelerators
        self.reverse = reverse

    def _read(self, head: Sequence[object], group: Group, place: Sequence[int]) -> Iterator[tuple[Cursor, Pair]]:
        file, before = group[0], place[0]
        if file.size > LARGEST:
            raise DataError(f"{file.name}: {file.size} bytes are too many for a catalogue, which is read whole. Split "
                            f"it into files of up to {LARGEST >> 20} MiB.")
        try:
            data = b"".join(read_bytes(self.storage, file))
        except UnreadableError as error:
            raise error.at(file.name) from error
        compiled = data[:4] in MO_BEGINNINGS or split_compression(file.name)[0].endswith(".mo")
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
        """The text without its accelerator."""
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
    """The number of the plural form for one thing, by the header's formula; 0 without a formula."""
    match = re.search(r"Plural-Forms:.*?plural\s*=\s*([^;\n]+)", header)
    if match is None:
        return 0
    try:
        return int(gettext.c2py(match[1])(1))
    except ValueError:
        return 0
