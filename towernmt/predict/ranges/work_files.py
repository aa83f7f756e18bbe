"""The files of a work directory: their names, the records in them, and their removal."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from towernmt.core.directories import LOCK_FILE
from towernmt.core.structured_files import JSONError, Natural, load_json, typed_value
from towernmt.predict.ranges.plan import Plan

T = TypeVar("T")

FORMAT: Literal[3] = 3
MADE, PLAN, FINISHED, DONE = "made-by-towernmt", "plan.json", "finished.json", "done.json"
RANGES, JOINED = "ranges", "joined"
REMOVED = ".removed-"
"""In the last name of a directory that this program made."""
_FILES_OF_RANGE = re.compile(rf"(\d+|{re.escape(DONE)})(\.tmp)?|{re.escape(LOCK_FILE)}")
"""Names of the files in the folder of a range, and in those of the locks in `joined`."""
_FILES_OF_JOINED = re.compile(r"\d+\.json(\.tmp)?")


@dataclass(frozen=True)
class Done:
    """The record of a range that is done.

    Attributes:
        fingerprint: fingerprint of the lines that were translated.
        sha256: checksum of each result, one result for each file of the output.
        tokens: number of tokens of the translations.
        faults: faults of the lines; see `FaultCounts.as_json`.
    """

    fingerprint: str
    sha256: list[str]
    tokens: Natural
    faults: dict[str, Any]


@dataclass(frozen=True)
class JoinedRecord:
    """The record of an output that is written.

    Attributes:
        files: names of its files without their directories, whose paths may differ between machines.
        fingerprints: fingerprint of each of its ranges.
    """

    files: list[str]
    fingerprints: list[str]


@dataclass(frozen=True)
class PlanFile:
    """The content of plan.json."""

    format: Literal[3]
    task: dict[str, Any]
    plan: Plan


def with_checksum(content: Mapping[str, Any]) -> str:
    """Return JSON with the content and its checksum."""
    return json.dumps({"sha256": _checksum(content), "content": content})


def read_checked(text: bytes, kind: type[T]) -> T:
    """Return the content of a file that was written by `with_checksum`.

    Raises:
        JSONError: the content has another checksum or type.
    """
    outer = typed_value(load_json(text), dict[str, Any])
    content = outer.get("content")
    if outer.keys() != {"sha256", "content"} or outer["sha256"] != _checksum(content):
        raise JSONError("its checksum does not fit")
    return typed_value(content, kind)


def _checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def entries_of(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder; none if it is missing, because another process may remove it."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_work_files(directory: Path) -> None:
    """Remove all files of a finished translation; finished.json, by which the others are known, is the last one."""
    for folder in (directory / RANGES, directory / JOINED):
        for entry in entries_of(folder):
            if entry.is_dir():
                clear_folder(entry)
            elif _FILES_OF_JOINED.fullmatch(entry.name) and folder.name == JOINED:
                entry.unlink(missing_ok=True)
        with suppress(OSError):     # not there, or not empty: another process has a lock there, and removes it
            folder.rmdir()
    for name in (f"{PLAN}.tmp", FINISHED):
        (directory / name).unlink(missing_ok=True)


def discard_directory(removed: Path) -> None:
    """Remove a directory that this program made and moved out of the way; files of the user stay there."""
    if (removed / MADE).is_file():
        remove_work_files(removed)
        for name in (LOCK_FILE, MADE):
            (removed / name).unlink(missing_ok=True)
    with suppress(OSError):     # not empty, or gone
        removed.rmdir()


def is_foreign_entry(entry: Path) -> bool:
    """Return whether an entry of a directory without a plan is not what a killed process leaves there."""
    if entry.name in (MADE, LOCK_FILE, f"{PLAN}.tmp"):
        return not entry.is_file()
    if entry.name not in (RANGES, JOINED) or entry.is_symlink() or not entry.is_dir():
        return True
    return any(nested.name != LOCK_FILE for nested in entry.rglob("*") if nested.is_symlink() or not nested.is_dir())


def clear_folder(folder: Path) -> None:
    """Remove the files that were written for a range, and its folder unless it contains other files."""
    if folder.is_symlink():
        return
    with suppress(FileNotFoundError):
        for file in folder.iterdir():
            if _FILES_OF_RANGE.fullmatch(file.name) and not file.is_dir():
                file.unlink(missing_ok=True)
    with suppress(OSError):     # not empty, or gone
        folder.rmdir()
