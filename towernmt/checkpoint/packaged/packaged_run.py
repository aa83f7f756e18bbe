"""A package as a run: what reads a run reads a package, and `open_run` takes either."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from towernmt.checkpoint.files import checkpoint_path, write_values
from towernmt.checkpoint.packaged.manifest import CARD, SHORTLIST
from towernmt.checkpoint.packaged.reader import Package, is_package
from towernmt.checkpoint.packaged.unpacked import place_of, take_place, unpacked
from towernmt.checkpoint.provenance import MADE_FROM
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.state import FORMAT
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.files.json_files import read_json
from towernmt.models import ARCHITECTURES

__all__ = ["PackagedRun", "is_package", "open_run"]

_SHORTLIST_SETTING = "search.shortlist"


def open_run(place: str | Path | SavedRun, trust_code: bool = False) -> SavedRun:
    """The run in a directory or in a package.

    Args:
        place: the --logdir of a training, or a file of `towernmt package`; a run stays as it is.
        trust_code: whether the code of a model in a package may be executed.
    Raises:
        CheckpointError: it is a file, and no package, or a damaged one.
    """
    if isinstance(place, SavedRun):
        return place
    return PackagedRun(place, trust_code) if Path(place).is_file() else SavedRun(place)


class PackagedRun(SavedRun):
    """The run that is in a package; its files are in the folder of the package in the user's cache.

    Attributes:
        file: the package.
        manifest: what it says of itself.
    """

    def __init__(self, file: str | Path, trust_code: bool = False, cache: Path | None = None) -> None:
        """
        Args:
            file: of `towernmt package`.
            trust_code: whether the code of a model in it may be executed.
            cache: where its unpacked folder goes; by default with the user's others.
        Raises:
            CheckpointError: it is no package, or a damaged one.
        """
        self._package = Package(file)
        self.file, self.manifest, self._trust_code = Path(file), self._package.manifest, trust_code
        super().__init__(unpacked(self._package, self, cache))

    @property
    def name(self) -> str:
        """As of `SavedRun`: the package."""
        return str(self.file)

    @property
    def card(self) -> dict[str, Any]:
        """The model card: languages, licence, data, scores and more, as `model-card.json` has them."""
        return read_json(self.path / CARD, dict[str, Any], "Fetch the package again.", CheckpointError)

    @property
    def languages(self) -> tuple[str, str] | None:
        """Source and target language, as the card tells them; None: it does not."""
        told = self.card.get("languages")
        source, target = (told.get("source"), told.get("target")) if isinstance(told, dict) else (None, None)
        return (source, target) if isinstance(source, str) and isinstance(target, str) else None

    def saved_settings(self) -> dict[str, Any]:
        """As of `SavedRun`; a shortlist is the one in the package."""
        saved = super().saved_settings()
        if saved.get(_SHORTLIST_SETTING):
            saved[_SHORTLIST_SETTING] = str(self.path / SHORTLIST)
        return saved

    def architecture_to_load(self) -> str:
        """As of `SavedRun`.

        Raises:
            SettingsError: it is a model of one's own, whose code is not trusted.
        """
        name = self.architecture()
        if name not in ARCHITECTURES and not self._trust_code:
            raise SettingsError(f"{self.file} holds a model of its maker's own, {name}, whose code would be executed: "
                                "if you trust it, allow that by --trust-code (in Python trust_code=True).")
        return super().architecture_to_load()

    def included_export(self, format: str, precision: str | None = None) -> Path | None:
        """The directory of an export in the package.

        Args:
            format: of `towernmt export`.
            precision: of its weights; None: the first in that format.
        """
        for export in self.manifest.exports:
            if export.format == format and precision in (None, export.precision):
                return self.path / place_of(export.folder)
        return None

    def check_weights(self, averaged: bool) -> None:
        """As of `SavedRun`."""
        if self.manifest.averaged and not averaged:
            raise SettingsError(f"{self.file} holds the averaged weights alone: leave --last-weights out "
                                "(search.averaged), or take the run.")

    def _checkpoint_directory(self, which: str | None) -> Path:
        step = self.manifest.step
        place = checkpoint_path(self.checkpoints, step)
        if which is not None and which not in (place.name, str(place), str(place / "model")):
            raise CheckpointError(f"{self.file}: a package holds one checkpoint, {place.name}: leave out the name of "
                                  f"another ({which}).")
        if not (place / "model.index").is_file():
            self._write_checkpoint(step)
        return place

    def _write_checkpoint(self, step: int) -> None:
        """TensorFlow's files of the weights, whole or not there."""
        if self.checkpoints.is_dir():       # something has removed files in it
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        values = dict(self._package.weights())
        state: dict[str, Any] = {"format": FORMAT, "step": step, "position": None, "callbacks": {},
                                 "weights": sorted(values), MADE_FROM: {"vocabulary": self.manifest.vocabulary}}
        unfinished = Path(tempfile.mkdtemp(prefix="checkpoints.", dir=self.path))
        try:
            write_values(values, unfinished, step, state)
            take_place(unfinished, self.checkpoints)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
