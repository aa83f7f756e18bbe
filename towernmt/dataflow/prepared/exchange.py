"""The exchange: how a new preparation, finished in `.preparing`, takes the place of the former one.

The files of the former preparation are exchanged for the new ones, the manifest last. A process that is killed
meanwhile leaves the new preparation in two places: the next reader or writer finishes the exchange. Files that no
preparation writes are never touched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from towernmt.core.errors import DataError, DirectoryInUseError
from towernmt.core.files.atomic_files import flush_to_disk
from towernmt.core.files.directory_lock import DirectoryLock
from towernmt.dataflow.prepared.manifest import MANIFEST, VOCABULARIES, read_manifest

STAGE = ".preparing"
_SHARD = re.compile(r"shard-\d{5,}\.pairs(\.p\d+|\.tmp)?")
_OTHERS = re.compile(
    r"(manifest\.json|statistics\.(json|txt)|lengths\.tsv|valid(-\d+)?\.(source|target(-\d+)?))(\.tmp)?")
_VOCABULARY = re.compile(
    VOCABULARIES + r"/((source|target)\.(model|codes|pieces|words)|source_factor_\d+\.words)(\.tmp)?")


def refuse_foreign(names: Sequence[str], place: str) -> None:
    """Refuse a directory with files of our names but no trace of a preparation (an interrupted one leaves shards).

    Args:
        names: that are there, see `is_own`.
        place: the directory, for the message.
    Raises:
        DataError: the files may be somebody's own.
    """
    began = any(_SHARD.fullmatch(name) or name == MANIFEST for name in names)
    if names and not began:
        raise DataError(f"{place} holds {names[0]}, but no preparation: the file may be somebody's own, and would be "
                        "replaced. Choose another --output, or pass --overwrite.")


def is_own(name: str) -> bool:
    """Whether preparations write a file of this name (relative to their directory)."""
    return any(pattern.fullmatch(name) for pattern in (_SHARD, _OTHERS, _VOCABULARY))


def own_files(directory: Path) -> list[Path]:
    """What lies in a directory under names that preparations write; the manifest first."""
    found = [path for path in (*_entries(directory), *_entries(directory / VOCABULARIES))
             if is_own(path.relative_to(directory).as_posix())]
    return sorted(found, key=lambda path: (path.name != MANIFEST, path))


def find_in_the_way(directory: Path, own: list[Path]) -> Path | None:
    """A folder, or a link to one, where a file has to be written, or a file where a folder has to be; None: neither."""
    folders = [path for path in (directory / STAGE, directory / VOCABULARIES) if os.path.lexists(path)]
    odd = [path for path in folders if path.is_symlink() or not path.is_dir()]
    return next(iter([*odd, *(path for path in own if path.is_dir())]), None)


def finish_exchange(directory: str | Path) -> None:
    """Finish an exchange during which a process was killed; readers call this first.

    Raises:
        DataError: files are being exchanged at this moment.
    """
    if not (Path(directory) / STAGE / MANIFEST).exists():
        return
    try:
        with DirectoryLock(directory, "finishing `towernmt prepare`"):
            if (Path(directory) / STAGE / MANIFEST).exists():
                exchange(Path(directory))
    except DirectoryInUseError as error:
        raise DataError(f"{directory} is being replaced at this moment. {error}") from error


def exchange(directory: Path) -> None:
    """Put the files of the stage into their places. If this was interrupted, calling it again finishes it."""
    stage = directory / STAGE
    in_the_way = find_in_the_way(directory, own_files(directory))
    if in_the_way is not None:
        raise DataError(f"{in_the_way} is in the way of the preparation, which is to take its place. Move it away.")
    manifest = read_manifest(stage)
    lost = [name for name in manifest.names() if not (stage / name).exists() and not (directory / name).exists()]
    if lost:
        raise DataError(f"{stage}: the preparation that was to take its place lacks {lost[0]}. Remove {stage}.")
    kept = {directory / name for name in (*manifest.names(), MANIFEST)}
    for path in own_files(directory):
        if path not in kept:
            path.unlink()
    (directory / VOCABULARIES).mkdir(exist_ok=True)
    for name in manifest.names():
        if (stage / name).exists():     # else it is in its place already
            os.replace(stage / name, directory / name)
    flush_to_disk(directory / VOCABULARIES)
    flush_to_disk(directory)
    os.replace(stage / MANIFEST, directory / MANIFEST)
    flush_to_disk(directory)
    remove_tree(stage)


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def remove_tree(path: Path) -> None:
    """Remove a folder and what it holds, as far as that is possible."""
    for _ in range(3):      # while a process ends, another of its threads may still write there
        shutil.rmtree(path, ignore_errors=True)
