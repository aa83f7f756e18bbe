"""The directory that a preparation is written to: the new one grows in `.preparing`, and takes its place at the end.

Until the new one is whole, the former one stays as it is. Then its files are exchanged for the new ones, the manifest
last. A process that is killed before that leaves the former preparation, and one killed while files are exchanged
leaves the new one in two places: the next reader or writer finishes the exchange. Files that no preparation writes are
never touched.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from towernmt.core.errors import DataError, DirectoryInUseError
from towernmt.core.files.atomic_files import flush_to_disk
from towernmt.core.files.directory_lock import DirectoryLock
from towernmt.dataflow.prepared.manifest import MANIFEST, VOCABULARIES, read_manifest

STAGE = ".preparing"
_SHARD = re.compile(r"shard-\d{5,}\.pairs(\.p\d+|\.tmp)?")
_OTHERS = re.compile(r"(manifest\.json|statistics\.(json|txt)|valid(-\d+)?\.(source|target(-\d+)?))(\.tmp)?")
_VOCABULARY = re.compile(
    VOCABULARIES + r"/((source|target)\.(model|codes|pieces|words)|source_factor_\d+\.words)(\.tmp)?")


class PrepareDirectory:
    """Where a preparation goes, for its one writer.

        with PrepareDirectory("data/de-en", overwrite=False) as place:
            ...                     # write a whole preparation into place.stage, the manifest last
            place.exchange()

    When the block ends, `stage` is gone; without `exchange`, the directory is as it was before.

    Args:
        directory: made if it is not there.
        overwrite: files with the names of ours may go though no preparation is known to have written them.
    Attributes:
        directory: the same.
        stage: an empty directory on the same disk, for the new preparation and whatever is needed for a while.
    Raises:
        DirectoryInUseError: somebody else writes there.
        DataError: the directory cannot be made, is that of a run, or holds files that the new ones would replace.
    """

    def __init__(self, directory: str | Path, overwrite: bool) -> None:
        self.directory = Path(directory)
        self.stage = self.directory / STAGE
        self._overwrite = overwrite
        self._made: list[Path] = []
        self._lock = DirectoryLock(self.directory, "towernmt prepare")
        self._ending = threading.Lock()

    def __enter__(self) -> PrepareDirectory:
        self._made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.directory}: cannot make the directory ({error.strerror}). "
                            "Choose another --output.") from error
        try:
            self._lock.acquire()
            if (self.stage / MANIFEST).exists():
                _exchange(self.directory)
            self._check()
            _remove_tree(self.stage)
            self.stage.mkdir()
        except BaseException:
            self._leave()
            raise
        return self

    def exchange(self) -> None:
        """Put the preparation in `stage` in the place of what is there. It must be whole."""
        with self._ending:
            try:
                self._check()
            except BaseException:
                (self.stage / MANIFEST).unlink()    # not whole any more: nobody is to finish this
                raise
            _exchange(self.directory)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with self._ending:
            try:
                if (self.stage / MANIFEST).exists():    # interrupted while files were exchanged
                    _exchange(self.directory)
                _remove_tree(self.stage)
            finally:
                self._leave()

    def abandon(self) -> None:
        """From another thread, right before the process ends: as if the block ended now, unless files are exchanged."""
        self._ending.acquire()      # for good
        if not self._lock.held:
            return
        if not (self.stage / MANIFEST).exists():
            _remove_tree(self.stage)
        self._leave()

    def _leave(self) -> None:
        self._lock.release()
        for path in self._made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()

    def _check(self) -> None:
        """Before anything is done: files can take their places, and none is lost that may be somebody's own."""
        if (self.directory / "settings.yaml").exists():
            raise DataError(f"{self.directory} is the directory of a run (it holds settings.yaml), whose vocabularies "
                            "would be replaced. Choose another --output.")
        own = own_files(self.directory)
        names = [path.relative_to(self.directory).as_posix() for path in own]
        in_the_way = _in_the_way(self.directory, own)
        if in_the_way is not None:
            raise DataError(f"{in_the_way} is in the way of the preparation, which has something else of this name. "
                            "Move it away, or choose another --output.")
        if not self._overwrite:
            refuse_foreign(names, str(self.directory))


def refuse_foreign(names: Sequence[str], place: str) -> None:
    """Names of ours where no preparation is known: not even one that was interrupted, which leaves shards.

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
    """Whether preparations write a file of this name, from their directory on."""
    return any(pattern.fullmatch(name) for pattern in (_SHARD, _OTHERS, _VOCABULARY))


def own_files(directory: Path) -> list[Path]:
    """What lies in a directory under names that preparations write; the manifest first."""
    found = [path for path in (*_entries(directory), *_entries(directory / VOCABULARIES))
             if is_own(path.relative_to(directory).as_posix())]
    return sorted(found, key=lambda path: (path.name != MANIFEST, path))


def _in_the_way(directory: Path, own: list[Path]) -> Path | None:
    """What is a folder, or a link to one, where a file is to be; or no folder, where one is to be."""
    folders = [path for path in (directory / STAGE, directory / VOCABULARIES) if os.path.lexists(path)]
    odd = [path for path in folders if path.is_symlink() or not path.is_dir()]
    return next(iter([*odd, *(path for path in own if path.is_dir())]), None)


def finish_exchange(directory: str | Path) -> None:
    """For readers: if a process was killed while it exchanged files, do what it left undone.

    Raises:
        DataError: files are being exchanged at this moment.
    """
    if not (Path(directory) / STAGE / MANIFEST).exists():
        return
    try:
        with DirectoryLock(directory, "finishing `towernmt prepare`"):
            if (Path(directory) / STAGE / MANIFEST).exists():
                _exchange(Path(directory))
    except DirectoryInUseError as error:
        raise DataError(f"{directory} is being replaced at this moment. {error}") from error


def _exchange(directory: Path) -> None:
    """What lies in the stage comes into its place; to be called again, if it did not come to its end."""
    stage = directory / STAGE
    in_the_way = _in_the_way(directory, own_files(directory))
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
    _remove_tree(stage)


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _remove_tree(path: Path) -> None:
    for _ in range(3):      # while a process ends, another of its threads may still write there
        shutil.rmtree(path, ignore_errors=True)
