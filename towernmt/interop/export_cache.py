"""Exports of runs to CTranslate2, cached in the directory of the run or in the user's cache.

The cache does not depend on the code of the export: remove the folder `exports` of a run after a change of that code.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from towernmt import __version__
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.directories import is_export
from towernmt.core.errors import DataError
from towernmt.core.files import is_undamaged, user_cache, write_checksums
from towernmt.core.standard_streams import log_to_stderr
from towernmt.core.temporary_directories import temporary_directory
from towernmt.interop.ctranslate2_loader import FORMAT
from towernmt.interop.export import export_model
from towernmt.predict.lines.resumable import file_fingerprint

if TYPE_CHECKING:
    from towernmt.predict.trained_model import TrainedModel

log = logging.getLogger(__name__)

CACHE = "exports"
"""The directory of cached exports in a run."""
MAX_CACHED_EXPORTS = 4
"""Maximum number of cached exports, of which those used last are kept. The best checkpoint of a run changes while the
run is trained."""


class ExportSpec(NamedTuple):
    """The export to CTranslate2 that an engine needs.

    Attributes:
        run: the run to export.
        checkpoint: an argument for `SavedRun.checkpoint`, or the prefix of a checkpoint's files.
        averaged: whether to export the moving averages of the weights.
        precision: precision of the weights.
    """

    run: SavedRun
    checkpoint: str | None
    averaged: bool
    precision: str

    def prefix(self) -> str:
        """Return the prefix of the checkpoint's files."""
        if self.checkpoint is not None and Path(f"{self.checkpoint}.index").is_file():
            return self.checkpoint
        return self.run.checkpoint(self.checkpoint)

    def directories(self, prefix: str) -> list[Path]:
        """Return the possible directories of the cached export: in the run, and in the user's cache.

        The name contains a hash of everything that the export depends on.

        Raises:
            DataError: the checkpoint was removed.
        """
        parts = (__version__, self.averaged, file_fingerprint(self.run.settings_file),
                 file_fingerprint(Path(f"{prefix}.index")))
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
        name = f"{FORMAT}-{Path(prefix).parent.name}-{self.precision}-{digest}"
        run_hash = hashlib.sha256(str(self.run.path.resolve()).encode()).hexdigest()[:12]
        return [self.run.path / CACHE / name, *(cache / CACHE / run_hash / name for cache in _user_caches())]


def _user_caches() -> list[Path]:
    try:
        return [user_cache()]
    except RuntimeError:        # no home directory
        return []


def cached_export(spec: ExportSpec) -> Path | None:
    """Return the directory of the cached export of this checkpoint; None if it is missing or damaged.

    The modification time of the directory becomes the time of this use.

    Args:
        spec: the export, whose checkpoint is the prefix of its files.
    """
    try:
        directories = spec.directories(str(spec.checkpoint))
    except DataError:       # the checkpoint was removed
        return None
    directory = next(filter(is_undamaged, directories), None)
    if directory is not None:
        with suppress(OSError):     # the cache of another user, which only that user can change
            os.utime(directory)
    return directory


@contextmanager
def exported_run(spec: ExportSpec) -> Iterator[tuple[Path, str]]:
    """Export a run unless the export is cached, and return its directory and the prefix of its checkpoint.

    The directory may be removed after the context ends.

    Raises:
        CheckpointError: the checkpoint does not exist.
        UnsupportedModelError: CTranslate2 cannot express the model.
    """
    prefix = spec.prefix()
    directory = cached_export(spec._replace(checkpoint=prefix))
    if directory is not None:
        yield directory, prefix
        return
    log.info("%s: exporting %s in %s; the export is cached.", spec.run.name, Path(prefix).parent.name, spec.precision)
    with ExitStack() as stack:
        yield _export_into_cache(spec, stack)


def _export_into_cache(spec: ExportSpec, stack: ExitStack) -> tuple[Path, str]:
    """Export a run into its cache or the user's, or into a directory that exists as long as `stack`."""
    if "tensorpack" not in sys.modules:     # whose log would otherwise be between the translations on stdout
        log_to_stderr()
    from towernmt.predict.trained_model import TrainedModel  # imports TensorFlow and tensorpack

    with TrainedModel(spec.run, spec.checkpoint, device="cpu", averaged=spec.averaged) as trained:
        for directory in spec.directories(trained.checkpoint):
            try:
                export = _export(trained, spec, directory)
            except OSError as error:
                problem = f"{directory.parent} cannot be written ({error.strerror})"
                continue
            _remove_old_exports(export)
            return export, trained.checkpoint
        log.warning("%s, so the export is not cached: each start exports the model again.", problem)
        temporary = stack.enter_context(temporary_directory("export to CTranslate2"))
        return _export(trained, spec, temporary / "export"), trained.checkpoint


def _export(trained: TrainedModel, spec: ExportSpec, directory: Path) -> Path:
    """Export a model with checksums; a complete directory replaces a missing or damaged one."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    if directory.exists() and not is_undamaged(directory):
        shutil.rmtree(directory, ignore_errors=True)
    with temporary_directory("export to CTranslate2", directory.parent) as new:
        export = export_model(trained, FORMAT, new / "export", precision=spec.precision)
        write_checksums(export)
        try:
            return export.rename(directory)
        except OSError:
            if not is_undamaged(directory):
                raise
            return directory    # another process was faster, and may use its export already


def _remove_old_exports(newest: Path) -> None:
    """Remove the cached exports whose last use is the longest ago; an engine that uses one has it in memory."""
    others = [path for path in newest.parent.iterdir() if is_export(path) and path != newest]
    for path in sorted(others, key=_modification_time, reverse=True)[MAX_CACHED_EXPORTS - 1:]:
        shutil.rmtree(path, ignore_errors=True)


def _modification_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:     # another process has removed it
        return 0.0
