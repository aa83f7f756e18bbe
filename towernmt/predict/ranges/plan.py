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
from towernmt.dataflow.text.clean_text import one_line

TextPosition = Any
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
        self._position: TextPosition = None
        self._lines: Iterator[tuple[bytes, TextPosition]] | None = None

    @abstractmethod
    def begin(self) -> TextPosition:
        """Return the position of the first line.

        Raises:
            DataError: the text cannot be read.
        """

    def read(self, position: TextPosition, lines: int, lines_before: int = 0) -> list[bytes]:
        """Return lines; fewer than `lines` at the end of the text.

        Args:
            position: position of the first line.
            lines: number of lines.
            lines_before: number of lines before the position, for messages.

        Raises:
            DataError: they cannot be read.
        """
        if self._lines is None or not self._reach(position):
            self._lines = self._lines_from(position, lines_before)
        self._position, result = position, []
        try:
            for line, end in islice(self._lines, lines):
                result.append(line)
                self._position = end
        except BaseException:
            self._lines = None
            raise
        return result

    def close(self) -> None:
        """Close the file until the next read."""
        self._lines = None

    @property
    def position(self) -> TextPosition:
        """Position after the last line that was read."""
        return self._position

    def _reach(self, position: TextPosition) -> bool:
        """Return whether reading can continue to this position without opening the text again."""
        return bool(self._position == position)

    @abstractmethod
    def _lines_from(self, position: TextPosition, lines_before: int) -> Iterator[tuple[bytes, TextPosition]]:
        """Yield the lines from a position on, each with the position after it."""


class FileText(Text):
    """A file of lines, plain or compressed. A position is an offset into the (decompressed) bytes."""

    def __init__(self, storage: Storage, file: StoredFile) -> None:
        super().__init__()
        self.name, self.version = file.name, f"{file.size} {file.version}"
        self._storage, self._file = storage, file

    def begin(self) -> TextPosition:
        """See `Text.begin`."""
        return 0

    def _reach(self, position: TextPosition) -> bool:
        if split_compression(self.name)[1] is not None and self._lines is not None and self._position < position:
            for _, end in self._lines:
                self._position = end
                if self._position >= position:
                    break
        return super()._reach(position)

    def _lines_from(self, position: TextPosition, lines_before: int) -> Iterator[tuple[bytes, TextPosition]]:
        blocks = whole_lines(self._storage, self._file, position, lines_before)
        for line in chain.from_iterable(map(io.BytesIO, blocks)):
            position += len(line)
            yield line, position


class TableText(Text):
    """A column of a table, in the order of its key. A position is the cursor of the source.

    The plan contains the largest key at the time of the plan. Later rows with larger keys are not translated.
    """

    version = ""

    def __init__(self, source: DatabaseSource) -> None:
        super().__init__()
        self.name, self._source = source.name, source

    def begin(self) -> TextPosition:
        """See `Text.begin`."""
        return self._source.begin()

    def _lines_from(self, position: TextPosition, lines_before: int) -> Iterator[tuple[bytes, TextPosition]]:
        for cursor, pair in self._source.read(position):
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
    path = split_compression(text.name)[0] if isinstance(text, FileText) else text.name.partition("?")[0]
    return PurePosixPath(path).name


MIN_LINES = 500
"""Minimum number of lines of a range, except the last range of a text."""
MAX_RANGES = 10_000
"""Maximum number of ranges, not counting the last range of each text; longer texts have larger ranges."""
OUTDATED = "outdated"
"""Version, in a plan, of a text that may have changed. No text has this version, so the plan fits no texts."""


@dataclass(frozen=True)
class LineRange:
    """A range of lines of a text.

    Attributes:
        number: number of the range, from 0.
        output: index of its output.
        text: index of its text.
        first_line: number of its first line in the text, from 1.
        num_lines: number of lines.
        lines_before: number of lines that other texts have in the output before this text.
        position: position of its first line in the text.
        parallel_positions: position of its first line in each parallel file.
        fingerprint: fingerprint of the content and the numbers of all these lines.
    """

    number: int
    output: int
    text: int
    first_line: int
    num_lines: int
    lines_before: int
    position: TextPosition
    parallel_positions: list[TextPosition]
    fingerprint: str

    @property
    def last_line(self) -> int:
        """Number of the last line in the text."""
        return self.first_line + self.num_lines - 1


@dataclass(frozen=True)
class Plan:
    """All ranges of a translation.

    Attributes:
        versions: version of each text and each parallel file at the time of the plan, by name.
        lines_per_unit: number of lines of a unit, for which a fingerprint is computed.
        units_per_range: number of units of a range.
        ranges: the ranges, in the order of texts and lines.
    """

    versions: dict[str, str]
    lines_per_unit: int
    units_per_range: int
    ranges: list[LineRange]

    @property
    def lines(self) -> int:
        """Number of lines of all ranges."""
        return sum(line_range.num_lines for line_range in self.ranges)


class RangeLines(NamedTuple):
    """The lines of a range.

    Attributes:
        lines: lines of the text.
        parallel: lines of each parallel file.
    """

    lines: list[bytes]
    parallel: list[list[bytes]]


class _Unit(NamedTuple):
    """Consecutive lines of a text with their fingerprint; a range consists of complete units.

    Attributes:
        num_lines: number of lines.
        position: position of its first line in the text.
        parallel_positions: position of its first line in each parallel file.
        digest: SHA-256 of the lines of the text and of the parallel files.
    """

    num_lines: int
    position: TextPosition
    parallel_positions: list[TextPosition]
    digest: bytes


def make_plan(texts: Sequence[Text], parallel: Sequence[Text], outputs: Sequence[int], window: int,
              units_per_range: int | None = None) -> Plan:
    """Read all texts, and divide them into ranges.

    Args:
        texts: the texts to translate.
        parallel: parallel files, with one line for each line of all texts, in their order.
        outputs: index of the output of each text; texts with the same output are adjacent.
        window: number of lines of a translation window.
        units_per_range: number of units of a range, from the old plan that this plan replaces; None to compute it (see
            `MAX_RANGES`).

    Raises:
        DataError: a text cannot be read, or a parallel file has a different number of lines.
    """
    lines_per_unit = _lines_per_unit(window)
    positions = [text.begin() for text in parallel]
    units_of_texts = [list(_units(text, parallel, positions, lines_per_unit)) for text in texts]
    for text, position in zip(parallel, positions, strict=True):
        if text.read(position, 1):
            total = sum(unit.num_lines for units in units_of_texts for unit in units)
            raise DataError(f"{text.name} has more lines than there are to translate, {total:,}: remove the others.")
    units_per_range = units_per_range or max(1, -(-sum(map(len, units_of_texts)) // MAX_RANGES))
    ranges: list[LineRange] = []
    lines_before, output = 0, 0
    for index, (units, output_of_text) in enumerate(zip(units_of_texts, outputs, strict=True)):
        if output_of_text != output:
            lines_before, output = 0, output_of_text
        first_line = 1
        for start in range(0, len(units), units_per_range):
            group = units[start:start + units_per_range]
            num_lines = sum(unit.num_lines for unit in group)
            fingerprint = _fingerprint(first_line, lines_before, (unit.digest for unit in group))
            ranges.append(LineRange(len(ranges), output, index, first_line, num_lines, lines_before, group[0].position,
                                    group[0].parallel_positions, fingerprint))
            first_line += num_lines
        lines_before += first_line - 1
    return Plan(text_versions(texts, parallel), lines_per_unit, units_per_range, ranges)


def text_versions(texts: Sequence[Text], parallel: Sequence[Text]) -> dict[str, str]:
    """Return the version of each text and each parallel file, by name."""
    return {text.name: text.version for text in (*texts, *parallel)}


def is_plan_of(plan: Plan, texts: Sequence[Text], parallel: Sequence[Text], window: int) -> bool:
    """Return whether a plan fits the texts, as far as their versions tell."""
    versions = text_versions(texts, parallel)
    return plan.lines_per_unit == _lines_per_unit(window) and list(plan.versions.items()) == list(versions.items())


class RangeReader:
    """Reads the lines of ranges.

    Args:
        plan: the plan.
        texts: the texts; see `make_plan`.
        parallel: the parallel files.
    """

    def __init__(self, plan: Plan, texts: Sequence[Text], parallel: Sequence[Text]) -> None:
        self._plan, self._texts, self._parallel = plan, texts, parallel
        self._open: Text | None = None

    def read(self, line_range: LineRange) -> RangeLines:
        """Return the lines of a range.

        Raises:
            DataError: they cannot be read, or have changed since the plan was made.
        """
        text = self._texts[line_range.text]
        if self._open is not None and self._open is not text:
            self._open.close()      # there may be more texts than files can be open
        self._open = text
        first_line, num_lines, lines_before = line_range.first_line, line_range.num_lines, line_range.lines_before
        lines = RangeLines(text.read(line_range.position, num_lines, first_line - 1),
                           [file.read(position, num_lines, lines_before + first_line - 1)
                            for file, position in zip(self._parallel, line_range.parallel_positions, strict=True)])
        fingerprint = _fingerprint(first_line, lines_before, _digests(lines, self._plan.lines_per_unit))
        if fingerprint != line_range.fingerprint:
            raise DataError(f"{text.name} lines {first_line} to {line_range.last_line} have changed since the "
                            "translation was planned: start the same command again, which makes a new plan and keeps "
                            "the ranges that have not changed.")
        return lines


def _lines_per_unit(window: int) -> int:
    """Return the number of lines of a unit: complete windows of at least `MIN_LINES` lines."""
    return window * -(-MIN_LINES // window)


def _units(text: Text, parallel: Sequence[Text], positions: list[TextPosition], lines_per_unit: int) -> Iterator[_Unit]:
    """Yield the units of a text; `positions`, those in the parallel files, advance with them."""
    position, lines_before = text.begin(), 0
    while lines := text.read(position, lines_per_unit, lines_before):
        unit = RangeLines(lines, [file.read(parallel_position, len(lines))
                                  for file, parallel_position in zip(parallel, positions, strict=True)])
        for file, parallel_lines in zip(parallel, unit.parallel, strict=True):
            if len(parallel_lines) < len(lines):
                line = lines_before + len(parallel_lines) + 1
                raise DataError(f"{file.name} has no line for {text.name} line {line}: add a line for each line to "
                                "translate.")
        digest, = _digests(unit, lines_per_unit)
        yield _Unit(len(lines), position, list(positions), digest)
        position, lines_before = text.position, lines_before + len(lines)
        positions[:] = [file.position for file in parallel]


def _digests(lines: RangeLines, lines_per_unit: int) -> Iterator[bytes]:
    """Yield the SHA-256 of each unit of a range."""
    for start in range(0, len(lines.lines), lines_per_unit):
        digest = hashlib.sha256(b"".join(lines.lines[start:start + lines_per_unit]))
        for parallel_lines in lines.parallel:
            digest.update(b"\0" + b"".join(parallel_lines[start:start + lines_per_unit]))
        yield digest.digest()


def _fingerprint(first_line: int, lines_before: int, digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"%d %d " % (first_line, lines_before) + b"".join(digests)).hexdigest()[:32]
