"""Corrections of translations: read a file of `towernmt serve --suggestions`, and divide it for an adaptation.

The corrections are divided by a hash of their source: 70 % for training, 10 % for validation, and 20 % that are held
out for the comparison. A correction stays in its split while the file grows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import write_text
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.language_codes import parse_direction
from towernmt.dataflow.text.text_lines import read_lines

FIELDS = ("time", "model", "source", "translation", "suggestion")
"""The fields of a line of the file of `towernmt serve --suggestions`."""
HASH_TENTHS = {"test": range(2), "valid": range(2, 3), "train": range(3, 10)}
"""For each split of the corrections, the remainders of the hash of a source divided by ten."""
MIN_CORRECTIONS = {"test": 10, "valid": 5, "train": 20}
"""Minimum number of corrections of each split."""
_QUOTED = re.compile('"(?:[^"]|"")*"')
"""A field in quotes as in CSV, whose own quotes are doubled."""


class Correction(NamedTuple):
    """A source sentence and its corrected translation."""

    source: str
    suggestion: str


def read_corrections(file: str | Path, direction: str | None = None) -> tuple[str, list[Correction]]:
    """Return a direction and its corrections; of several corrections of the same source, the last one.

    A line whose suggestion equals the translation of the model is no correction. If it is the last line of its source,
    it also withdraws earlier corrections of this source with another suggestion.

    Args:
        file: file of `towernmt serve --suggestions`; the first line may have the names of the fields, and blank lines
            are skipped.
        direction: direction such as de-en, which the field `model` begins with, in any spelling; None if the file has
            only one.

    Raises:
        DataError: the file cannot be read, a line has other fields, or the file has several directions or no
            correction.
    """
    by_direction: dict[str, dict[str, str]] = {}
    is_first = True
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        fields = _fields(line)
        if len(fields) != len(FIELDS):
            raise DataError(f"{file} line {number}: {len(fields)} fields where {len(FIELDS)} were expected "
                            f"({', '.join(FIELDS)}, separated by tabs): pass a file of `towernmt serve --suggestions`.")
        is_header, is_first = is_first and tuple(fields) == FIELDS, False
        source, translation, suggestion = map(clean, fields[2:])
        if is_header or not source or not suggestion:
            continue
        pairs = by_direction.setdefault(_direction_name(fields[1].partition("=")[0]), {})
        if suggestion != translation:
            pairs[source] = suggestion
        elif pairs.get(source) != suggestion:
            pairs.pop(source, None)
    corrected = {name: pairs for name, pairs in by_direction.items() if pairs}
    if not corrected:
        raise DataError(f"{file} has no corrections: pass a file whose lines have a source and a suggestion that "
                        "differs from the translation.")
    names = ", ".join(sorted(corrected))
    if direction is None and len(corrected) > 1:
        raise DataError(f"{file} has corrections of several directions ({names}): select one with --direction.")
    name = next(iter(corrected)) if direction is None else _direction_name(direction)
    if name not in corrected:
        raise DataError(f"{file} has no corrections of the direction {direction}: pass --direction with one of those "
                        f"that it has ({names}), or another file.")
    return name, [Correction(source, suggestion) for source, suggestion in corrected[name].items()]


def _direction_name(text: str) -> str:
    """Return the usual spelling of a direction, such as de-en for DE_en; the text itself if it is no direction."""
    try:
        return str(parse_direction(text))
    except SettingsError:
        return text


def _fields(line: str) -> list[str]:
    """Return the fields of a line, without the quotes that a spreadsheet program has added when it saved the file.

    Spreadsheet programs put fields with quotes into quotes, or all fields. A server adds no quotes, so a sentence that
    is a quotation keeps its quotes.
    """
    fields = line.split("\t")
    all_are_quoted = len(fields) > 1 and _QUOTED.fullmatch(fields[1]) is not None      # the model never has quotes
    return [field[1:-1].replace('""', '"') if _is_quoted(field) or (all_are_quoted and _QUOTED.fullmatch(field))
            else field for field in fields]


def _is_quoted(field: str) -> bool:
    """Return whether a spreadsheet program has put a field into quotes, because it contains quotes."""
    return '""' in field[1:-1] and _QUOTED.fullmatch(field) is not None


def save_corrections(file: Path, direction: str, corrections: Iterable[Correction]) -> None:
    """Write corrections of one direction to a new file that `read_corrections` reads."""
    rows = ([f'"{text.replace(chr(34), 2 * chr(34))}"' if _is_quoted(text) else text for text in correction]
            for correction in corrections)
    write_text(file, "".join(f"\t{direction}\t{source}\t\t{suggestion}\n" for source, suggestion in rows))


def split_corrections(corrections: Sequence[Correction], file: str | Path) -> dict[str, list[Correction]]:
    """Return the corrections for training, validation and the comparison, by the names in `HASH_TENTHS`.

    Raises:
        DataError: a split has too few corrections.
    """
    splits: dict[str, list[Correction]] = {name: [] for name in HASH_TENTHS}
    for correction in corrections:
        remainder = int.from_bytes(hashlib.sha256(correction.source.encode()).digest()[:8], "big") % 10
        splits[next(name for name, tenths in HASH_TENTHS.items() if remainder in tenths)].append(correction)
    if any(len(splits[name]) < minimum for name, minimum in MIN_CORRECTIONS.items()):
        found, needed = (", ".join(str(numbers[name]) for name in ("train", "valid", "test")) for numbers in (
            {name: len(split) for name, split in splits.items()}, MIN_CORRECTIONS))
        raise DataError(f"{file} has {len(corrections)} different corrections, which is too few: {found} for training, "
                        f"validation and comparison, where at least {needed} are needed: collect more, usually about "
                        "100 in all.")
    return splits
