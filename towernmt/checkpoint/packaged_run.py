"""Open a package as a run; `open_run` accepts a run's directory or a package.

The first process that needs a package unpacks it into `packages/KEY` in the user's cache, completely or not at all.
Each process that opens the package compares every unpacked file with its SHA-256 in the package, and unpacks a damaged
or missing file again. The folder has the layout of a run, including the run's cached exports (`exports/`). The key
depends on the checksums of all files, so no two packages share a folder.
"""

from __future__ import annotations

import logging
import shutil
import weakref
from pathlib import Path
from typing import Any

from towernmt.checkpoint.checkpoint_files import UnwrittenCheckpointError, checkpoint_path, write_values
from towernmt.checkpoint.package_manifest import CARD, EXPORTS, SHORTLIST, WEIGHTS
from towernmt.checkpoint.package_reader import Package, is_package
from towernmt.checkpoint.records import MADE_FROM
from towernmt.checkpoint.saved_run import SavedRun, run_around
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.files import (
    CACHE_VARIABLE,
    has_package_manifest,
    is_undamaged,
    path_inside,
    sha256_of,
    user_cache,
    write_checksums,
)
from towernmt.core.foreign_models import import_advice
from towernmt.core.structured_files import read_json
from towernmt.core.temporary_directories import ScratchDirectory, complete_directory, temporary_directory
from towernmt.models.architectures import ARCHITECTURES

__all__ = ["PackagedRun", "is_package", "open_run"]

log = logging.getLogger(__name__)

_SHORTLIST_SETTING = "search.shortlist"


def open_run(location: str | Path | SavedRun, trust_code: bool = False) -> SavedRun:
    """Return the run in a directory or in a package.

    Args:
        location: the --logdir of a training, or a file of `towernmt package`; a `SavedRun` is returned unchanged.
        trust_code: whether the code of a custom model in a package may be executed.

    Raises:
        CheckpointError: `location` is a file, but not an undamaged package.
        SettingsError: `location` is a file of a model of another system.
    """
    if isinstance(location, SavedRun):
        return location
    if Path(location).is_file() and (is_package(location) or run_around(Path(location)) is None):
        if (advice := import_advice(Path(location))) is not None and not has_package_manifest(Path(location)):
            raise SettingsError(f"{location} {advice}")
        return PackagedRun(location, trust_code)
    return SavedRun(location)


class PackagedRun(SavedRun):
    """The run in a package, whose files are unpacked into the user's cache.

    Args:
        file: a file of `towernmt package`.
        trust_code: whether the code of a custom model may be executed.
        cache: the directory of the unpacked folder; None: `packages` in the user's cache.

    Attributes:
        file: the package.
        manifest: the content of its manifest.

    Raises:
        CheckpointError: `file` is not a package, or is damaged.
    """

    def __init__(self, file: str | Path, trust_code: bool = False, cache: Path | None = None) -> None:
        self._package = Package(file)
        self.file, self.manifest, self._trust_code = Path(file), self._package.manifest, trust_code
        super().__init__(unpacked(self._package, self, cache))
        self._has_checkpoint = False        # becomes true after a check of the checksums

    @property
    def name(self) -> str:
        """The name of the package, for messages."""
        return str(self.file)

    @property
    def card(self) -> dict[str, Any]:
        """The content of `model-card.json`: languages, licence, data, scores and more."""
        return read_json(self.path / CARD, dict[str, Any], "Download the package again.", CheckpointError)

    @property
    def languages(self) -> tuple[str, str] | None:
        """Source and target language of the model card, or None."""
        languages = self.card.get("languages")
        source, target = (languages.get("source"), languages.get("target")) if isinstance(languages, dict) else (
            None, None)
        return (source, target) if isinstance(source, str) and isinstance(target, str) else None

    @property
    def source_prefix(self) -> str:
        """Text before each source line according to the model card, or ""; see `LineOptions`."""
        prefix = self.card.get("source_prefix")
        return prefix if isinstance(prefix, str) else ""

    def saved_settings(self) -> dict[str, Any]:
        """Return the settings, with the path of the unpacked shortlist."""
        saved = super().saved_settings()
        if saved.get(_SHORTLIST_SETTING):
            saved[_SHORTLIST_SETTING] = str(self.path / SHORTLIST)
        return saved

    def architecture_to_load(self) -> str:
        """Return the architecture for loading.

        Raises:
            SettingsError: it is a custom model whose code is not trusted.
        """
        name = self.architecture()
        if name not in ARCHITECTURES and not self._trust_code:
            raise SettingsError(f"{self.file} contains the code of the custom model {name}, which would be executed: "
                                "if you trust it, pass --trust-code (in Python: trust_code=True).")
        return super().architecture_to_load()

    def included_export(self, format: str, precision: str | None = None) -> Path | None:
        """Return the directory of an export in the package, or None.

        Args:
            format: a format of `towernmt export`.
            precision: the precision of the weights; None: the first export in that format.
        """
        for export in self.manifest.exports:
            if export.format == format and precision in (None, export.precision):
                return self.path / unpacked_name(export.folder)
        return None

    def check_weights(self, averaged: bool) -> None:
        """Refuse the weights of the last update if the package has only averaged weights."""
        if self.manifest.averaged and not averaged:
            raise SettingsError(f"{self.file} contains only the averaged weights: remove --last-weights (set "
                                "search.averaged=true), or use the run.")

    def checkpoint_prefix(self, which: str | None = None) -> str:
        """Return the prefix of the checkpoint's TensorFlow files, which exist after a call of `checkpoint`.

        Raises:
            CheckpointError: the requested checkpoint is not that of the package.
        """
        path = checkpoint_path(self.checkpoints, self.manifest.step)
        if which is not None and which not in (path.name, str(path), str(path / "model")):
            raise CheckpointError(f"{self.file} contains only the checkpoint {path.name}, not {which}: do not choose a "
                                  "checkpoint.")
        return str(path / "model")

    def _checkpoint_directory(self, which: str | None) -> Path:
        path = Path(self.checkpoint_prefix(which)).parent
        if not self._has_checkpoint:
            self._write_checkpoint(self.manifest.step)
        self._has_checkpoint = (path / "model.index").is_file()
        return path

    def _write_checkpoint(self, step: int) -> None:
        """Write the weights as TensorFlow's files with checksums, unless an undamaged checkpoint exists.

        Raises:
            CheckpointError: the package is damaged, or its folder cannot be written.
        """
        if self.checkpoints.exists():   # checked once: another process may complete it at any moment
            if is_undamaged(self.checkpoints):
                return
            log.warning("%s: writing %s in the cache again, because it is damaged.", self.file, self.checkpoints)
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        values = dict(self._package.weights())
        state: dict[str, Any] = {"step": step, "position": None, "callbacks": {},
                                 "weights": sorted(values), MADE_FROM: {"vocabulary": self.manifest.vocabulary}}
        try:
            with complete_directory(self.checkpoints, f"unpacking the weights of {self.file.name}") as unfinished:
                write_values(values, unfinished, step, state)
                write_checksums(unfinished)
        except (OSError, UnwrittenCheckpointError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.reason
            raise CheckpointError(f"{self.file}: the weights cannot be unpacked in {self.path} ({reason}). "
                                  f"Free disk space there, or set {CACHE_VARIABLE} to a writable folder.") from error


FOLDER = "packages"
_INCLUDED = "included"


def unpacked(package: Package, user: object, cache: Path | None = None) -> Path:
    """Return the folder with all files of a package except its weights, each checked.

    Args:
        package: the package.
        user: if the cache cannot be written, the folder is temporary and is removed together with this object.
        cache: the directory of such folders; None: `packages` in the user's cache.

    Raises:
        CheckpointError: the package is damaged.
    """
    try:
        parent = cache or user_cache() / FOLDER
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _unpack_once(package, parent / package.key)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        log.warning("%s: the cache for the unpacked package cannot be written (%s), so each process unpacks it again. "
                    "Set %s to a writable folder.", package.path, reason, CACHE_VARIABLE)
    scratch = ScratchDirectory(f"unpacking {package.path.name}")
    weakref.finalize(user, scratch.remove)
    try:
        _unpack(package, scratch.path)
    except OSError as error:
        raise CheckpointError(f"{package.path}: cannot be unpacked in {scratch.path} ({error.strerror}). Free disk "
                              "space there, or set TMPDIR to another directory.") from error
    return scratch.path


def unpacked_name(name: str) -> str:
    """Return the unpacked path of a file; exports get another folder, because the run writes its own exports there."""
    return f"{_INCLUDED}/{name.removeprefix(f'{EXPORTS}/')}" if name.startswith(f"{EXPORTS}/") else name


def _unpack_once(package: Package, folder: Path) -> Path:
    if folder.is_dir() and not folder.is_symlink():
        try:
            _restore_damaged(package, folder)
            return folder
        except OSError as error:
            log.warning("%s: unpacking it again, because its folder cannot be repaired (%s).", package.path,
                        error.strerror)
            shutil.rmtree(folder, ignore_errors=True)
    elif folder.is_symlink() or folder.is_file():
        folder.unlink()
    with complete_directory(folder, f"unpacking {package.path.name}") as unfinished:
        _unpack(package, unfinished)
    return folder


def _restore_damaged(package: Package, folder: Path) -> None:
    """Unpack missing and damaged files again; other processes may read the folder meanwhile.

    Raises:
        OSError: a file cannot be replaced.
    """
    for name, member in package.manifest.members.items():
        file = folder / unpacked_name(name)
        if _is_weight(name) or sha256_of(file) == member.sha256:
            continue
        log.warning("%s: unpacking %s in the cache again, because it is missing or damaged.", package.path, file)
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary_directory(f"unpacking {package.path.name}", folder) as unfinished:
            copy = unfinished / file.name
            with open(copy, "wb") as stream:
                stream.writelines(package.chunks(name))
            copy.replace(file)


def _unpack(package: Package, folder: Path) -> None:
    for name in package.names():
        if _is_weight(name):
            package.check(name)     # its values are read when the checkpoint is written
            continue
        path = path_inside(folder, unpacked_name(name), str(package.path))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(package.chunks(name))


def _is_weight(name: str) -> bool:
    return name.startswith(f"{WEIGHTS}/")
