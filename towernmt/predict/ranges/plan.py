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
"""Where a line of a text begins: a small value that JSON has, which the text understands."""


class Text(ABC):
    """Lines of bytes, each with its "\\n" (the last line of a file as it is).

    Who reads on from where the last reading ended costs no seek: a compressed file is decompressed once.

    Attributes:
        name: for messages and for the names of outputs.
        version: changes when the content does; "" where that cannot be seen.
    """

    name: str
    version: str

    def __init__(self) -> None:
        self._at: Place = None
        self._lines: Iterator[tuple[bytes, Place]] | None = None

    @abstractmethod
    def begin(self) -> Place:
        """The place of the first line.

        Raises:
            DataError: the text cannot be read.
        """

    def read(self, place: Place, lines: int, before: int = 0) -> list[bytes]:
        """So many lines from a place on, or as many as there are.

        Args:
            place: the beginning of a line.
            lines: how many.
            before: how many lines there are before, for messages.
        Raises:
            DataError: they cannot be read.
        """
        if self._lines is None or not self._reach(place):
            self._lines = self._lines_from(place, before)
        self._at, found = place, []
        try:
            for line, behind in islice(self._lines, lines):
                found.append(line)
                self._at = behind
        except BaseException:
            self._lines = None
            raise
        return found

    def close(self) -> None:
        """Keep nothing open until the next reading."""
        self._lines = None

    @property
    def place(self) -> Place:
        """Behind what was read last."""
        return self._at

    def _reach(self, place: Place) -> bool:
        """Whether what is open comes to this place without a new beginning."""
        return bool(self._at == place)

    @abstractmethod
    def _lines_from(self, place: Place, before: int) -> Iterator[tuple[bytes, Place]]:
        """The lines from a place on, each with the place behind it."""


class FileText(Text):
    """A file of lines, plain or compressed; a place is an offset into the (decompressed) bytes."""

    def __init__(self, storage: Storage, file: StoredFile) -> None:
        super().__init__()
        self.name, self.version = file.name, f"{file.size} {file.version}"
        self._storage, self._file = storage, file

    def begin(self) -> Place:
        """See `Text.begin`."""
        return 0

    def _reach(self, place: Place) -> bool:
        if split_compression(self.name)[1] is not None and self._lines is not None and self._at < place:
            for _, behind in self._lines:
                self._at = behind
                if self._at >= place:
                    break
        return super()._reach(place)

    def _lines_from(self, place: Place, before: int) -> Iterator[tuple[bytes, Place]]:
        blocks = whole_lines(self._storage, self._file, place, before)
        for line in chain.from_iterable(map(io.BytesIO, blocks)):
            place += len(line)
            yield line, place


class TableText(Text):
    """A column of a table, in the order of its key; a place is the cursor of the source.

    The plan has the largest key that was there when it was made: rows with larger ones are no part of it.
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
    """The texts that are named, in this order; those of a pattern by name.

    Args:
        uris: paths and `s3://bucket/key`, with wildcards; or tables (`sqlite:///mono.db?table=lines&source=text`), of
            which the column `source` is read.
    Raises:
        SettingsError: a URI that cannot be.
        DataError: nothing matches, a place cannot be reached, or a text is named twice.
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
            raise DataError(f"{name} is named twice as an input: leave one out.")
    return texts


def short_name(text: Text) -> str:
    """The name of a text without folders and without the ending of a compression."""
    place = split_compression(text.name)[0] if isinstance(text, FileText) else text.name.partition("?")[0]
    return PurePosixPath(place).name


LEAST_LINES = 500
"""Of a part, unless a text ends."""
MOST_PARTS = 10_000
"""More lines make larger parts."""


@dataclass(frozen=True)
class Part:
    """Some lines of a text.

    Attributes:
        number: of the part, from 0.
        output: which output has its lines, from 0.
        text: which text it is of, from 0.
        first: the number of its first line in the text, from 1.
        lines: how many.
        before: lines of other texts that the output has before those of this text.
        place: of its first line in the text.
        beside: the same in each of the files with a line for each line.
        fingerprint: of all these lines, and of the numbers that they have.
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
        versions: of each text and each file beside them, by name, when they were read.
        unit: lines by which fingerprints are made.
        units: so many of them are a part.
        parts: in the order of texts and lines.
    """

    versions: dict[str, str]
    unit: int
    units: int
    parts: list[Part]

    @property
    def lines(self) -> int:
        """Of all parts."""
        return sum(part.lines for part in self.parts)


class PartLines(NamedTuple):
    """What a part is made of.

    Attributes:
        lines: of the text.
        beside: of each file with a line for each line.
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
    """Read all texts, and cut them into parts.

    Args:
        texts: what is translated.
        beside: files with a line for each line of all texts, in their order.
        outputs: for each text, which output has it; those of one output follow one another.
        window: of the translation, in lines.
        units: as of an earlier plan that this one takes the place of; None: so that there are `MOST_PARTS` at most,
            and one more a text.
    Raises:
        DataError: a text cannot be read, or a file beside them has another number of lines.
    """
    unit = _unit(window)
    places = [text.begin() for text in beside]
    read = [list(_units(text, beside, places, unit)) for text in texts]
    for text, place in zip(beside, places, strict=True):
        if text.read(place, 1):
            raise DataError(f"{text.name} has more lines than there are to translate, "
                            f"{sum(one.lines for found in read for one in found):,}: write one for each.")
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
    return Plan(versions(texts, beside), unit, units, parts)


def versions(texts: Sequence[Text], beside: Sequence[Text]) -> dict[str, str]:
    """What `Plan.versions` has."""
    return {text.name: text.version for text in (*texts, *beside)}


def is_plan_of(plan: Plan, texts: Sequence[Text], beside: Sequence[Text], window: int) -> bool:
    """Whether texts are those of a plan, as far as that is seen without reading them."""
    return plan.unit == _unit(window) and list(plan.versions.items()) == list(versions(texts, beside).items())


class PartReader:
    """Reads the lines of parts.

    Args:
        plan, texts, beside: as of `make_plan`.
    """

    def __init__(self, plan: Plan, texts: Sequence[Text], beside: Sequence[Text]) -> None:
        self._plan, self._texts, self._beside = plan, texts, beside
        self._open: Text | None = None

    def read(self, part: Part) -> PartLines:
        """The lines.

        Raises:
            DataError: they cannot be read, or are others than those of the plan.
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
            raise DataError(f"{text.name} lines {part.first} to {before + part.lines} are others than when the "
                            "translation was planned: start the same command again, which plans anew and keeps what "
                            "is still right.")
        return found


def _unit(window: int) -> int:
    """Whole windows, of so many lines as are worth being handed out."""
    return window * -(-LEAST_LINES // window)


def _units(text: Text, beside: Sequence[Text], places: list[Place], unit: int) -> Iterator[_Unit]:
    """Those of a text; `places` move on with it."""
    place, before = text.begin(), 0
    while lines := text.read(place, unit, before):
        found = PartLines(lines, [file.read(at, len(lines)) for file, at in zip(beside, places, strict=True)])
        for file, other in zip(beside, found.beside, strict=True):
            if len(other) < len(lines):
                raise DataError(f"{file.name} has no line for {text.name} line {before + len(other) + 1}: write a line "
                                "for each line that is translated.")
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
