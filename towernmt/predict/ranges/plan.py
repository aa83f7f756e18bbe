"""The texts of a long translation, and the plan of its ranges of lines."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.sources.database_table import DatabaseSource
from towernmt.dataflow.sources.database_uri import parse_database_uri
from towernmt.dataflow.sources.line_files import whole_lines
from towernmt.dataflow.sources.open_source import names_database, open_storage
from towernmt.dataflow.storage.stored_files import Storage, StoredFile, split_compression
from towernmt.dataflow.text.text_lines import one_line

Place = Any
"""Position of a line in a text: a small JSON value whose meaning depends on the kind of text."""


class Text(ABC):
    """A sequence of lines of bytes, each with its newline (the last line of a file may lack it).

    Consecutive reads do not seek, so a compressed file is decompressed only once.

    Attributes:
        name: name in messages and in the names of outputs.
        version: a value that changes with the content; "" if changes cannot be detected.
    """

    name: str
    version: str

    def __init__(self) -> None:
        self._at: Place = None
        self._lines: Iterator[tuple[bytes, Place]] | None = None

    @abstractmethod
    def begin(self) -> Place:
        """Return the position of the first line.

        Raises:
            DataError: the text cannot be read.
        """

    def read(self, place: Place, lines: int, before: int = 0) -> list[bytes]:
        """Return lines; fewer than `lines` at the end of the text.

        Args:
            place: position of the first line.
            lines: number of lines.
            before: number of lines before the position, for messages.

        Raises:
            DataError: they cannot be read.
        """
        if self._lines is None or not self._reach(place):
            self._lines = self._lines_from(place, before)
        self._at, found = place, []
        try:
            for line, end in islice(self._lines, lines):
                found.append(line)
                self._at = end
        except BaseException:
            self._lines = None
            raise
        return found

    def close(self) -> None:
        """Close the file until the next read."""
        self._lines = None

    @property
    def place(self) -> Place:
        """Position after the last line that was read."""
        return self._at

    def _reach(self, place: Place) -> bool:
        """Return whether reading can continue to this position without opening the text again."""
        return bool(self._at == place)

    @abstractmethod
    def _lines_from(self, place: Place, before: int) -> Iterator[tuple[bytes, Place]]:
        """Yield the lines from a position on, each with the position after it."""


class FileText(Text):
    """A file of lines, plain or compressed. A position is an offset into the (decompressed) bytes."""

    def __init__(self, storage: Storage, file: StoredFile) -> None:
        super().__init__()
        self.name, self.version = file.name, f"{file.size} {file.version}"
        self._storage, self._file = storage, file

    def begin(self) -> Place:
        """See `Text.begin`."""
        return 0

    def _reach(self, place: Place) -> bool:
        if split_compression(self.name)[1] is not None and self._lines is not None and self._at < place:
            for _, end in self._lines:
                self._at = end
                if self._at >= place:
                    break
        return super()._reach(place)

    def _lines_from(self, place: Place, before: int) -> Iterator[tuple[bytes, Place]]:
        blocks = whole_lines(self._storage, self._file, place, before)
        for line in chain.from_iterable(map(io.BytesIO, blocks)):
            place += len(line)
            yield line, place


class TableText(Text):
    """A column of a table, in the order of its key. A position is the cursor of the source.

    The plan contains the largest key at the time of the plan. Later rows with larger keys are not translated.
    """

    version = ""

    def __init__(self, source: DatabaseSource) -> None:
        super().__init__()
        self.name, self._source = source.name, source

    def begin(self) -> Place:
        """See `Text.begin`."""
        return self._source.begin()

    def _lines_from(self, place: Place, before: int) -> Iterator[tuple[bytes, Place]]:
        for cursor, pair in self._source.read(place):
            yield one_line(pair.source).encode("utf-8") + b"\n", cursor


def open_texts(uris: Sequence[str]) -> list[Text]:
    """Open the texts of URIs in their order; the files of a pattern are sorted by name.

    Args:
        uris: paths and `s3://bucket/key`, with wildcards; or tables (`sqlite:///mono.db?table=lines&source=text`), of
            which the column `source` is read.

    Raises:
        SettingsError: a URI is invalid.
        DataError: no file matches, a server cannot be reached, or a text occurs twice.
    """
    texts: list[Text] = []
    for uri in uris:
        if names_database(uri):
            table = parse_database_uri(uri)
            texts.append(TableText(DatabaseSource(dataclasses.replace(table, target=table.source))))
        else:
            storage, pattern = open_storage(uri)
            texts += [FileText(storage, file) for file in storage.list(pattern)]
    for name, count in Counter(text.name for text in texts).items():
        if count > 1:
            raise DataError(f"{name} is an input twice: remove one of them.")
    return texts


def short_name(text: Text) -> str:
    """Return the name of a text without directories and without the suffix of a compression."""
    place = split_compression(text.name)[0] if isinstance(text, FileText) else text.name.partition("?")[0]
    return PurePosixPath(place).name


LEAST_LINES = 500
"""Minimum number of lines of a part, except the last part of a text."""
MOST_PARTS = 10_000
"""Maximum number of parts, not counting the last part of each text; longer texts have larger parts."""


@dataclass(frozen=True)
class Part:
    """A range of lines of a text.

    Attributes:
        number: number of the part, from 0.
        output: index of its output.
        text: index of its text.
        first: number of its first line in the text, from 1.
        lines: number of lines.
        before: number of lines that other texts have in the output before this text.
        place: position of its first line in the text.
        beside: position of its first line in each parallel file.
        fingerprint: fingerprint of the content and the numbers of all these lines.
    """

    number: int
    output: int
    text: int
    first: int
    lines: int
    before: int
    place: Place
    beside: list[Place]
    fingerprint: str


@dataclass(frozen=True)
class Plan:
    """All parts of a translation.

    Attributes:
        versions: version of each text and each parallel file at the time of the plan, by name.
        unit: number of lines of a unit, for which a fingerprint is computed.
        units: number of units of a part.
        parts: the parts, in the order of texts and lines.
    """

    versions: dict[str, str]
    unit: int
    units: int
    parts: list[Part]

    @property
    def lines(self) -> int:
        """Number of lines of all parts."""
        return sum(part.lines for part in self.parts)


class PartLines(NamedTuple):
    """The lines of a part.

    Attributes:
        lines: lines of the text.
        beside: lines of each parallel file.
    """

    lines: list[bytes]
    beside: list[list[bytes]]


class _Unit(NamedTuple):
    lines: int
    place: Place
    beside: list[Place]
    digest: bytes


def make_plan(texts: Sequence[Text], beside: Sequence[Text], outputs: Sequence[int], window: int,
              units: int | None = None) -> Plan:
    """Read all texts, and divide them into parts.

    Args:
        texts: the texts to translate.
        beside: parallel files, with one line for each line of all texts, in their order.
        outputs: index of the output of each text; texts with the same output are adjacent.
        window: number of lines of a translation window.
        units: number of units of a part, from the old plan that this plan replaces; None to compute it (see
            `MOST_PARTS`).

    Raises:
        DataError: a text cannot be read, or a parallel file has a different number of lines.
    """
    unit = _unit(window)
    places = [text.begin() for text in beside]
    read = [list(_units(text, beside, places, unit)) for text in texts]
    for text, place in zip(beside, places, strict=True):
        if text.read(place, 1):
            raise DataError(f"{text.name} has more lines than there are to translate, "
                            f"{sum(one.lines for found in read for one in found):,}: remove the others.")
    units = units or max(1, -(-sum(map(len, read)) // MOST_PARTS))
    parts: list[Part] = []
    before, output = 0, 0
    for number, (found, goes_to) in enumerate(zip(read, outputs, strict=True)):
        if goes_to != output:
            before, output = 0, goes_to
        first = 1
        for start in range(0, len(found), units):
            group = found[start:start + units]
            lines = sum(one.lines for one in group)
            parts.append(Part(len(parts), output, number, first, lines, before, group[0].place, group[0].beside,
                              _fingerprint(first, before, (one.digest for one in group))))
            first += lines
        before += first - 1
    return Plan(text_versions(texts, beside), unit, units, parts)


def text_versions(texts: Sequence[Text], beside: Sequence[Text]) -> dict[str, str]:
    """Return the version of each text and each parallel file, by name."""
    return {text.name: text.version for text in (*texts, *beside)}


def is_plan_of(plan: Plan, texts: Sequence[Text], beside: Sequence[Text], window: int) -> bool:
    """Return whether a plan fits the texts, as far as their versions tell."""
    return plan.unit == _unit(window) and list(plan.versions.items()) == list(text_versions(texts, beside).items())


class PartReader:
    """Reads the lines of parts.

    Args:
        plan: the plan.
        texts: the texts; see `make_plan`.
        beside: the parallel files.
    """

    def __init__(self, plan: Plan, texts: Sequence[Text], beside: Sequence[Text]) -> None:
        self._plan, self._texts, self._beside = plan, texts, beside
        self._open: Text | None = None

    def read(self, part: Part) -> PartLines:
        """Return the lines of a part.

        Raises:
            DataError: they cannot be read, or have changed since the plan was made.
        """
        text = self._texts[part.text]
        if self._open is not None and self._open is not text:
            self._open.close()      # there may be more texts than files can be open
        self._open = text
        before = part.first - 1
        found = PartLines(text.read(part.place, part.lines, before),
                          [file.read(place, part.lines, part.before + before)
                           for file, place in zip(self._beside, part.beside, strict=True)])
        if _fingerprint(part.first, part.before, _digests(found, self._plan.unit)) != part.fingerprint:
            raise DataError(f"{text.name} lines {part.first} to {before + part.lines} have changed since the "
                            "translation was planned: start the same command again, which makes a new plan and keeps "
                            "the parts that have not changed.")
        return found


def _unit(window: int) -> int:
    """Return the number of lines of a unit: complete windows of at least `LEAST_LINES` lines."""
    return window * -(-LEAST_LINES // window)


def _units(text: Text, beside: Sequence[Text], places: list[Place], unit: int) -> Iterator[_Unit]:
    """Yield the units of a text; `places`, the positions in the parallel files, advance with them."""
    place, before = text.begin(), 0
    while lines := text.read(place, unit, before):
        found = PartLines(lines, [file.read(at, len(lines)) for file, at in zip(beside, places, strict=True)])
        for file, other in zip(beside, found.beside, strict=True):
            if len(other) < len(lines):
                raise DataError(f"{file.name} has no line for {text.name} line {before + len(other) + 1}: add a line "
                                "for each line to translate.")
        digest, = _digests(found, unit)
        yield _Unit(len(lines), place, list(places), digest)
        place, before = text.place, before + len(lines)
        places[:] = [file.place for file in beside]


def _digests(found: PartLines, unit: int) -> Iterator[bytes]:
    for start in range(0, len(found.lines), unit):
        digest = hashlib.sha256(b"".join(found.lines[start:start + unit]))
        for other in found.beside:
            digest.update(b"\0" + b"".join(other[start:start + unit]))
        yield digest.digest()


def _fingerprint(first: int, before: int, digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"%d %d " % (first, before) + b"".join(digests)).hexdigest()[:32]
