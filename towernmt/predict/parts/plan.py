"""The plan of a long translation: its parts, each a run of lines of one text.

A part begins where a window of lines begins when one process translates the text, and holds whole windows. So its
batches, and with them the bytes, are the same. All texts are read once for the plan: it knows how many lines there
are, where each part begins, and the fingerprint of its lines, by which a text is known again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.predict.parts.texts import Place, Text

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
