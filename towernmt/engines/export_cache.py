"""Exports of a run that an engine reads: made when first asked for, and kept in the run."""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from towernmt import __version__
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import SettingsError
from towernmt.export.exporter import DESCRIPTION, export_model
from towernmt.predict.lines.journal import fingerprint

if TYPE_CHECKING:
    from towernmt.predict.trained_model import TrainedModel

log = logging.getLogger(__name__)

CACHE = "exports"
"""The directory in a run."""
KEPT = 4
"""Exports in it, the newest; a run that is still trained has another best checkpoint again and again."""


class Wanted(NamedTuple):
    """An export that an engine reads.

    Attributes:
        run: what is exported.
        checkpoint: as `SavedRun.checkpoint` takes it, or the prefix of one.
        averaged: whether the moving averages of the weights are taken.
        format: of `towernmt export`.
        precision: of the weights.
    """

    run: SavedRun
    checkpoint: str | None
    averaged: bool
    format: str
    precision: str

    def prefix(self) -> str:
        """The prefix of the checkpoint's files."""
        if self.checkpoint is not None and Path(f"{self.checkpoint}.index").is_file():
            return self.checkpoint
        return self.run.checkpoint(self.checkpoint)

    def place(self, prefix: str) -> Path:
        """Where its export is kept. The name holds what it depends on, the content of the checkpoint as well.

        Raises:
            OSError: the checkpoint has gone.
        """
        parts = (__version__, self.averaged, fingerprint(self.run.settings_file), fingerprint(Path(f"{prefix}.index")))
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
        return self.run.path / CACHE / f"{self.format}-{Path(prefix).parent.name}-{self.precision}-{digest}"


@contextmanager
def exported(wanted: Wanted) -> Iterator[tuple[Path, str]]:
    """The directory of an export, and the prefix of its checkpoint. It may be gone after the context.

    Raises:
        CheckpointError: there is no such checkpoint.
        SettingsError: the format cannot express the model.
    """
    prefix = wanted.prefix()
    try:
        place = wanted.place(prefix)
    except FileNotFoundError:       # a training that runs has removed it: the exporter looks again
        place = None
    if place is not None and (place / DESCRIPTION).is_file():
        yield place, prefix
        return
    log.info("%s: exporting %s in %s, which is done once.", wanted.run.name, Path(prefix).parent.name, wanted.precision)
    with tempfile.TemporaryDirectory(prefix="towernmt-") as temporary, redirect_stdout(sys.stderr):
        place, prefix = _exported_now(wanted, Path(temporary) / "export")
        yield place, prefix


def _exported_now(wanted: Wanted, otherwise: Path) -> tuple[Path, str]:
    """As `exported`.

    Args:
        otherwise: where the export goes if the run cannot be written.
    """
    from towernmt.predict.trained_model import TrainedModel  # imports TensorFlow; tensorpack logs to stdout

    with TrainedModel(wanted.run, wanted.checkpoint, device="cpu", averaged=wanted.averaged) as trained:
        try:
            place = _export(trained, wanted, wanted.place(trained.checkpoint))
        except OSError as error:
            log.warning("%s cannot be written (%s), so the export is not kept: it is made again each time.",
                        wanted.run.path / CACHE, error.strerror)
            place = _export(trained, wanted, otherwise)
        _forget_old(place)
        return place, trained.checkpoint


def _export(trained: TrainedModel, wanted: Wanted, place: Path) -> Path:
    try:
        place.parent.mkdir(exist_ok=True)
        return export_model(trained, wanted.format, place, precision=wanted.precision)
    except (SettingsError, OSError):
        if (place / DESCRIPTION).is_file():     # another process was faster
            return place
        raise


def _forget_old(newest: Path) -> None:
    """Keep the newest exports alone. An engine that reads one has it in memory."""
    others = [path for path in newest.parent.iterdir() if (path / DESCRIPTION).is_file() and path != newest]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT - 1:]:
        shutil.rmtree(path, ignore_errors=True)
