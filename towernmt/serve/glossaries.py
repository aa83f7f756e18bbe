"""Glossaries of callers: a name, and pairs of terms for each direction; optionally stored in a file.

Several servers may share a file. Each change holds a lock of the file, and is applied to what the file contains.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from towernmt.core.directories import try_lock
from towernmt.core.errors import DataError
from towernmt.core.files import write_text
from towernmt.core.structured_files import read_json
from towernmt.dataflow.text.language_codes import base_code
from towernmt.dataflow.text.word_segmentation import matching_form, words
from towernmt.predict.lines.terminology import Terminology
from towernmt.serve.glossary_entries import check_entry_count, terminology_of
from towernmt.serve.request_limits import RequestError, bad_request

MAX_GLOSSARIES = 1_000
"""Maximum number of glossaries of one caller."""
MAX_TOTAL_TERMS, MAX_TOTAL_CHARACTERS = 1_000_000, 50_000_000
"""Maximum number of terms, and of characters of names and terms, of all glossaries of a server together."""
MAX_REQUEST_GLOSSARIES = 10
"""Maximum number of glossaries of one request."""
MAX_CACHED_TERMINOLOGIES, MAX_CACHED_TERMS = 100, 500_000
"""Maximum number of terminologies that stay in memory between requests, and of their terms."""
_LOCK_SECONDS = 30.0    # time limit for the lock of the file, which another server holds while it writes
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dictionary:
    """The terms of one direction; language codes have no region."""

    source: str
    target: str
    entries: dict[str, str]


@dataclass(frozen=True)
class Glossary:
    """A glossary of one caller.

    Attributes:
        id: identifier in requests.
        owner: the caller, the only one who can read it.
        name: name that the caller chose.
        created: time of creation, ISO 8601.
        dictionaries: terms by direction.
    """

    id: str
    owner: str
    name: str
    created: str
    dictionaries: list[Dictionary]

    @cached_property
    def terms(self) -> int:
        """Number of terms that count towards the limit of the server; a glossary without terms counts as one."""
        return max(1, sum(len(dictionary.entries) for dictionary in self.dictionaries))

    @cached_property
    def characters(self) -> int:
        """Number of characters of the name and the terms."""
        return len(self.name) + sum(len(source) + len(target) for dictionary in self.dictionaries
                                    for source, target in dictionary.entries.items())

    def find(self, source: str, target: str) -> Dictionary:
        """Return the terms of a direction.

        Raises:
            RequestError: the glossary has no terms of this direction.
        """
        direction = base_code(source), base_code(target)
        for dictionary in self.dictionaries:
            if (dictionary.source, dictionary.target) == direction:
                return dictionary
        raise RequestError(404, f"This glossary has no terms from {direction[0]} to {direction[1]}.")


class _Stored(NamedTuple):
    """The glossaries by id, and the state of the file that contains them (`_state_of`)."""

    glossaries: dict[str, Glossary]
    file_state: tuple[int, ...] | None = None


class Glossaries:
    """All glossaries of a server. A change takes effect after it is written to the file.

    Args:
        file: file to store them in, or a symbolic link to it, which other servers may share; None keeps them in memory.

    Raises:
        DataError: the file is damaged, or cannot be written.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = None if file is None else Path(os.path.realpath(file))     # a symbolic link must stay
        self._lock = threading.Lock()
        self._stored = _Stored({})      # replaced as a whole, because threads read it without the lock
        self._terminologies: OrderedDict[tuple[str, ...], Terminology] = OrderedDict()
        self._terminologies_of = self._glossaries       # the glossaries that these terminologies belong to
        if self._file is not None:
            try:
                with _file_lock(self._file):
                    if self._file.is_file():
                        self._stored = _read(self._file)
                    self._write(self._glossaries)
            except OSError as error:
                raise DataError(f"--glossaries {file}: the file cannot be written ({error.strerror}): name a file in a "
                                "directory that the server may write to.") from None

    @property
    def _glossaries(self) -> dict[str, Glossary]:
        return self._stored.glossaries

    def owned_by(self, owner: str) -> list[Glossary]:
        """Return the glossaries of a caller, the oldest first."""
        self._refresh()
        owned = [glossary for glossary in self._glossaries.values() if glossary.owner == owner]
        return sorted(owned, key=lambda glossary: glossary.created)

    def get(self, owner: str, id: str) -> Glossary:
        """Return a caller's glossary.

        Raises:
            RequestError: the caller has no glossary with this id.
        """
        self._refresh()
        return _glossary_of(self._glossaries, owner, id)

    def add(self, owner: str, name: str, dictionaries: Sequence[Dictionary]) -> Glossary:
        """Store a new glossary.

        Raises:
            RequestError: two dictionaries have the same direction, the caller has too many glossaries, the server has
                no space for it, or the file cannot be written.
        """
        _check_directions(dictionaries)
        glossary = Glossary(secrets.token_hex(16), owner, name, datetime.now(UTC).isoformat(timespec="microseconds"),
                            list(dictionaries))
        with self._changing():
            if len(self.owned_by(owner)) >= MAX_GLOSSARIES:
                raise bad_request(f"You have {MAX_GLOSSARIES} glossaries already: delete one first.")
            return self._store(glossary)

    def change(self, glossary: Glossary, name: str | None, dictionaries: Sequence[Dictionary],
               merge: bool = True) -> Glossary:
        """Change the name or the terms of a glossary.

        Args:
            glossary: glossary to change.
            name: new name; None keeps the old one.
            dictionaries: new terms.
            merge: add the terms to the existing ones instead of replacing them.

        Raises:
            RequestError: two dictionaries have the same direction, the glossary was deleted meanwhile, would have too
                many terms, the server has no space for it, or the file cannot be written.
        """
        _check_directions(dictionaries)
        with self._changing():
            glossary = self.get(glossary.owner, glossary.id)     # another request may have changed it
            merged = {(dictionary.source, dictionary.target): dictionary for dictionary in glossary.dictionaries}
            for dictionary in dictionaries:
                old = merged.get((dictionary.source, dictionary.target))
                if merge and old is not None:
                    dictionary = replace(dictionary, entries={**old.entries, **dictionary.entries})
                    check_entry_count(len(dictionary.entries))
                    terminology_of(dictionary.entries)
                merged[dictionary.source, dictionary.target] = dictionary
            return self._store(replace(glossary, name=name or glossary.name, dictionaries=list(merged.values())))

    def remove(self, glossary: Glossary, dictionary: Dictionary | None = None) -> None:
        """Delete a glossary or its terms of one direction.

        Raises:
            RequestError: the glossary was deleted meanwhile, or the file cannot be written.
        """
        with self._changing():
            glossary = self.get(glossary.owner, glossary.id)
            if dictionary is None:
                self._save({id: other for id, other in self._glossaries.items() if id != glossary.id})
                return
            remaining = [other for other in glossary.dictionaries
                         if (other.source, other.target) != (dictionary.source, dictionary.target)]
            self._store(replace(glossary, dictionaries=remaining))

    def terminology(self, owner: str, ids: Sequence[str], source: str, target: str) -> Terminology:
        """Return the terms of glossaries for a search. If two translate a term differently, the first one counts.

        Raises:
            RequestError: there are too many glossaries, or one does not exist, or has no terms of this direction.
        """
        ids = list(dict.fromkeys(ids))
        if len(ids) > MAX_REQUEST_GLOSSARIES:
            raise bad_request(f"The request names {len(ids)} glossaries: name at most {MAX_REQUEST_GLOSSARIES}.")
        key = *ids, source, target
        with self._lock:        # otherwise old terms could be cached after another request has changed them
            self._refresh()
            glossaries = self._glossaries
            all_entries = [_glossary_of(glossaries, owner, id).find(source, target).entries for id in ids]
            if glossaries is not self._terminologies_of:
                self._terminologies.clear()
                self._terminologies_of = glossaries
            terminology = self._terminologies.get(key) or terminology_of(_joined_entries(all_entries))
            self._terminologies[key] = terminology
            self._terminologies.move_to_end(key)
            while len(self._terminologies) > MAX_CACHED_TERMINOLOGIES or self._cached_terms() > MAX_CACHED_TERMS:
                self._terminologies.popitem(last=False)
        return terminology

    def _cached_terms(self) -> int:
        return sum(len(terminology.terms) for terminology in self._terminologies.values())

    def _store(self, glossary: Glossary) -> Glossary:
        glossaries = {**self._glossaries, glossary.id: glossary}
        self._check_total("terms", MAX_TOTAL_TERMS, glossaries)
        self._check_total("characters", MAX_TOTAL_CHARACTERS, glossaries)
        self._save(glossaries)
        return glossary

    def _check_total(self, unit: Literal["terms", "characters"], maximum: int,
                     glossaries: Mapping[str, Glossary]) -> None:
        """Refuse a change after which all glossaries would have more terms or characters than the server has space for.

        A file that is over the limit at the start is accepted, and changes may reduce it.

        Raises:
            RequestError: the change exceeds the limit.
        """
        old, new = (sum(getattr(glossary, unit) for glossary in stored.values())
                    for stored in (self._glossaries, glossaries))
        if new > max(old, maximum):
            raise RequestError(507, f"All glossaries of this server may have {maximum} {unit} together, so nothing has "
                                    "changed: delete a glossary, or ask the server's administrator.")

    def _save(self, glossaries: dict[str, Glossary]) -> None:
        """Write all glossaries to the file and then use them.

        Raises:
            RequestError: the file cannot be written; nothing changes.
        """
        try:
            self._write(glossaries)
        except OSError as error:
            raise self._unsaved(error) from None

    def _write(self, glossaries: dict[str, Glossary]) -> None:
        """Write all glossaries to the file, if there is one, and then use them."""
        state = None
        if self._file is not None:
            content = [asdict(glossary) for glossary in glossaries.values()]
            write_text(self._file, json.dumps(content, ensure_ascii=False))
            state = _state_of(self._file)
        self._stored = _Stored(glossaries, state)

    def _unsaved(self, error: OSError) -> RequestError:
        """Log why the file cannot be written, and return the error for the caller."""
        log.error("%s: the glossaries cannot be saved: %s. Nothing has changed.", self._file, error.strerror)
        return RequestError(507, "The server cannot save glossaries at present, so nothing has changed: try again "
                                 "later, or ask its administrator.")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep other threads and servers from changing the glossaries while the block runs.

        Raises:
            RequestError: the file cannot be locked.
        """
        with self._lock, ExitStack() as stack:
            if self._file is not None:
                try:
                    stack.enter_context(_file_lock(self._file))
                except OSError as error:
                    raise self._unsaved(error) from None
                self._refresh()
            yield

    def _refresh(self) -> None:
        """Read the file again if another server has changed it.

        If it is damaged, log an error and keep the previous glossaries. The next change writes a missing file again.
        """
        if self._file is None:
            return
        state = _state_of(self._file)
        if state is None or state == self._stored.file_state:
            return
        try:
            self._stored = _read(self._file)
        except DataError as error:
            self._stored = self._stored._replace(file_state=state)      # the error is logged once for each change
            log.error("The file of glossaries was changed, but cannot be read: %s The server uses the previous "
                      "glossaries.", error)


def _glossary_of(glossaries: Mapping[str, Glossary], owner: str, id: str) -> Glossary:
    """Return a caller's glossary.

    Raises:
        RequestError: the caller has no glossary with this id.
    """
    glossary = glossaries.get(id)
    if glossary is None or glossary.owner != owner:
        raise RequestError(404, "This glossary does not exist.")
    return glossary


def _read(file: Path) -> _Stored:
    """Read a file of glossaries.

    Raises:
        DataError: the file cannot be read, or is damaged.
    """
    state = _state_of(file)     # before the file is read, because another server may replace it meanwhile
    return _Stored({glossary.id: glossary for glossary in read_json(file, list[Glossary], "Remove it.")}, state)


def _state_of(file: Path) -> tuple[int, ...] | None:
    """Return numbers that change when the file is replaced; None if it is missing."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@contextmanager
def _file_lock(file: Path) -> Iterator[None]:
    """Hold the lock `.NAME.lock` of a file while the block runs.

    Raises:
        OSError: the lock cannot be written, or another process holds it for too long.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    path = file.with_name(f".{file.name}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while not try_lock(descriptor):
            if time.monotonic() > end:
                raise OSError(errno.EAGAIN, "another process holds the lock", str(path))
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _check_directions(dictionaries: Sequence[Dictionary]) -> None:
    """Raise a RequestError if two dictionaries have the same direction."""
    directions = Counter((dictionary.source, dictionary.target) for dictionary in dictionaries)
    for (source, target), count in directions.items():
        if count > 1:
            raise bad_request(f"The request has {count} dictionaries from {source} to {target}: send one with all "
                              "terms.")


def _joined_entries(all_entries: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """Return the entries of several glossaries; of those with the same source words, the first one."""
    if len(all_entries) == 1:
        return all_entries[0]
    entries_by_words: dict[tuple[str, ...], tuple[str, str]] = {}
    for source, target in chain.from_iterable(entries.items() for entries in all_entries):
        entries_by_words.setdefault(tuple(words(matching_form(source))), (source, target))
    return dict(entries_by_words.values())
