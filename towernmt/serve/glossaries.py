"""Callers' glossaries: a name and, for each direction, source terms and target terms; kept in a file if wanted."""

from __future__ import annotations

import csv
import io
import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.core.files.atomic_files import write_text
from towernmt.core.files.json_files import read_json
from towernmt.predict.lexical.terminology import Term, Terminology
from towernmt.serve.languages import base_code
from towernmt.serve.refusal import Refusal, bad

MOST_GLOSSARIES, MOST_ENTRIES, LONGEST_TERM = 1_000, 10_000, 1_024
FORMATS = ("tsv", "csv")


@dataclass(frozen=True)
class Dictionary:
    """The terms of a direction; codes are of languages without regions."""

    source: str
    target: str
    entries: dict[str, str]


@dataclass(frozen=True)
class Glossary:
    """A caller's glossary.

    Attributes:
        number: by which requests name it.
        owner: the caller; nobody else sees it.
        created: when, as ISO 8601 has it.
    """

    number: str
    owner: str
    name: str
    created: str
    dictionaries: list[Dictionary]

    def find(self, source: str, target: str) -> Dictionary:
        """The terms of a direction.

        Raises:
            Refusal: it has none.
        """
        wanted = base_code(source), base_code(target)
        for one in self.dictionaries:
            if (one.source, one.target) == wanted:
                return one
        raise Refusal(404, f"This glossary has no terms from {wanted[0]} to {wanted[1]}.")


class Glossaries:
    """All glossaries of a server."""

    def __init__(self, file: Path | None = None) -> None:
        """
        Args:
            file: where they are kept; None: they go with the process.
        Raises:
            DataError: the file is damaged.
        """
        self._file, self._lock = file, threading.Lock()
        found = read_json(file, list[Glossary], "Remove it.") if file is not None and file.is_file() else []
        self._all = {one.number: one for one in found}

    def of(self, owner: str) -> list[Glossary]:
        """Those of a caller, the oldest first."""
        return sorted((one for one in self._all.values() if one.owner == owner), key=lambda one: one.created)

    def get(self, owner: str, number: str) -> Glossary:
        """A caller's glossary.

        Raises:
            Refusal: there is none of this number.
        """
        found = self._all.get(number)
        if found is None or found.owner != owner:
            raise Refusal(404, "There is no such glossary.")
        return found

    def add(self, owner: str, name: str, dictionaries: Sequence[Dictionary]) -> Glossary:
        """Keep a new one.

        Raises:
            Refusal: the caller has too many.
        """
        if len(self.of(owner)) >= MOST_GLOSSARIES:
            raise bad(f"You have {MOST_GLOSSARIES} glossaries already: delete one first.")
        made = Glossary(secrets.token_hex(16), owner, name, datetime.now(UTC).isoformat(timespec="microseconds"),
                        list(dictionaries))
        return self._put(made)

    def change(self, glossary: Glossary, name: str | None, dictionaries: Sequence[Dictionary],
               merge: bool = True) -> Glossary:
        """Another name, other terms.

        Args:
            merge: terms come to those that are there; else they take their place.
        """
        kept = {(one.source, one.target): one for one in glossary.dictionaries}
        for one in dictionaries:
            former = kept.get((one.source, one.target))
            if merge and former is not None:
                one = replace(one, entries={**former.entries, **one.entries})
            kept[one.source, one.target] = one
        return self._put(replace(glossary, name=name or glossary.name, dictionaries=list(kept.values())))

    def remove(self, glossary: Glossary, dictionary: Dictionary | None = None) -> None:
        """Forget a glossary, or the terms of one direction of it."""
        if dictionary is not None:
            self._put(replace(glossary, dictionaries=[one for one in glossary.dictionaries if one != dictionary]))
            return
        with self._lock:
            self._all.pop(glossary.number, None)
            self._write()

    def terminology(self, owner: str, numbers: Sequence[str], source: str, target: str) -> Terminology:
        """The terms of glossaries for a search; of two that say different things, the first counts.

        Raises:
            Refusal: there is no such glossary, or it has no terms of this direction.
        """
        entries: dict[str, str] = {}
        for number in numbers:
            entries = {**self.get(owner, number).find(source, target).entries, **entries}
        return terminology_of(entries)

    def _put(self, glossary: Glossary) -> Glossary:
        with self._lock:
            self._all[glossary.number] = glossary
            self._write()
        return glossary

    def _write(self) -> None:
        if self._file is not None:
            write_text(self._file, json.dumps([asdict(one) for one in self._all.values()], ensure_ascii=False))


def terminology_of(entries: Mapping[str, str]) -> Terminology:
    """Terms for a search.

    Raises:
        Refusal: a term cannot be looked for.
    """
    try:
        return Terminology(Term(source, target, where="the glossary") for source, target in entries.items())
    except DataError as error:
        raise bad(str(error)) from None


def read_entries(text: str, kind: str) -> dict[str, str]:
    """Terms as tab-separated or comma-separated values, a pair a line; further columns of the latter are languages.

    Raises:
        Refusal: a line is no pair, or a term is empty, too long or given twice.
    """
    if kind not in FORMATS:
        raise bad(f"'entries_format' must be one of {', '.join(FORMATS)}.")
    rows = (list(csv.reader(io.StringIO(text))) if kind == "csv"
            else [line.split("\t") for line in text.splitlines()])
    entries: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        if not any(field.strip() for field in row):
            continue
        columns = (2,) if kind == "tsv" else (2, 4)
        source, target = (row[0].strip(), row[1].strip()) if len(row) in columns else ("", "")
        if not source or not target or max(len(source), len(target)) > LONGEST_TERM:
            raise bad(f"Line {number} of the glossary is no pair of terms.")
        if source in entries:
            raise bad(f"Line {number} of the glossary has a source term that another line has.")
        entries[source] = target
    if not 0 < len(entries) <= MOST_ENTRIES:
        raise bad(f"A glossary has 1 to {MOST_ENTRIES} terms a direction, and not {len(entries)}.")
    terminology_of(entries)
    return entries


def written_entries(entries: Mapping[str, str]) -> str:
    """Terms as tab-separated values."""
    return "\n".join(f"{source}\t{target}" for source, target in entries.items())
