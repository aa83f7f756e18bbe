"""Values of `--system`: runs, packages, checkpoints, ensembles and files of translations to compare."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from towernmt.checkpoint.package_reader import is_package
from towernmt.checkpoint.saved_run import run_around
from towernmt.core.errors import SettingsError
from towernmt.evaluate.comparison import System
from towernmt.predict.lines.text_io import read_text


class SystemArgument(NamedTuple):
    """A value of `--system [NAME=]RUN_OR_FILE`.

    Attributes:
        name: unique name of the system.
        path: a run, a package, one checkpoint of a run, several of these joined by `+` as an ensemble, or a file of
            translations.
    """

    name: str
    path: str

    @property
    def runs(self) -> list[str]:
        """The runs and packages; empty for a file of translations.

        Raises:
            SettingsError: a checkpoint is not inside a run.
        """
        return [str(self._run_of(path) if _is_checkpoint(path) else path) for path in self._paths()]

    def checkpoints(self, default: str | None) -> list[str | None]:
        """Return the checkpoint of each run; `default` if the path names only the run."""
        return [str(path / "model") if _is_checkpoint(path) else default for path in self._paths()]

    def _run_of(self, checkpoint: Path) -> Path:
        """Return the directory of the run that contains a checkpoint, relative if the path of the checkpoint is."""
        run = run_around(checkpoint)
        if run is None:
            raise SettingsError(f"--system {self.path}: the checkpoint {checkpoint} is not inside a run, which has its "
                                "vocabulary and settings: pass a checkpoint in the directory of its run.")
        return next((parent for parent in checkpoint.parents if os.path.abspath(parent) == str(run.path)), run.path)

    def _paths(self) -> list[Path]:
        paths = [Path(self.path)] if Path(self.path).exists() else [Path(text) for text in self.path.split("+")]
        return paths if all(path.is_dir() or is_package(path) for path in paths) else []


def _is_checkpoint(path: Path) -> bool:
    return (path / "model.index").is_file()


def parse_systems(texts: Sequence[str]) -> list[SystemArgument]:
    """Return the systems of `--system`, in order.

    Raises:
        SettingsError: two systems have one name, or a name or path is missing.
    """
    systems = [_parse(text) for text in texts]
    for i, system in enumerate(systems):
        if any(earlier_system.name == system.name for earlier_system in systems[:i]):
            raise SettingsError(f"--system {texts[i]}: two systems have the name '{system.name}': pass another name, "
                                f"as in --system NAME={system.path}.")
    return systems


def _parse(text: str) -> SystemArgument:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists() or all(Path(member).exists() for member in text.split("+")):
        name = path = text      # a path may have an `=` in it
    if not name or not path:
        raise SettingsError(f"--system {text}: expected NAME=RUN_OR_FILE, for example --system new=runs/de-en.")
    return SystemArgument(name, path)


def read_systems(systems: Iterable[SystemArgument], args: argparse.Namespace,
                 check_lines: Callable[[str, list[str]], None],
                 translate: Callable[[argparse.Namespace, str], System]) -> list[System]:
    """Read the files, translate with each run in turn, and return the systems in order.

    Args:
        systems: arguments of `--system`; the first is the baseline.
        args: parsed options; `model` and `checkpoint` are set for each run.
        check_lines: called with the name and the lines of a file; refuses lines that do not fit the test set.
        translate: called with options and a name; translates the source with the model of the options.
    """
    systems = list(systems)
    texts = {system.name: read_text(system.path) for system in systems if not system.runs}
    for system in systems:
        if not system.runs:
            check_lines(system.path, texts[system.name])
    default = args.checkpoint[0] if args.checkpoint else None
    return [translate(argparse.Namespace(**{**vars(args), "model": system.runs,
                                            "checkpoint": system.checkpoints(default)}), system.name)
            if system.runs else System(system.name, texts[system.name]) for system in systems]
