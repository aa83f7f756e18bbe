"""The systems that `towernmt evaluate` is to compare: runs, which translate the source first, and files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.predict.evaluation.comparison import System
from towernmt.predict.text_io import read_text


class SystemArgument(NamedTuple):
    """What `--system [NAME=]RUN_OR_FILE` says.

    Attributes:
        name: tells the system from the others.
        path: a run, one checkpoint of a run, or a file of translations.
    """

    name: str
    path: str

    @property
    def run(self) -> str | None:
        """The run's directory; None: it is a file."""
        if not Path(self.path).is_dir():
            return None
        return self.path if self.checkpoint is None else str(Path(self.path).parents[1])

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint, where the path is a directory `step-N` of a run."""
        return str(Path(self.path, "model")) if Path(self.path, "model.index").is_file() else None


def parse_systems(texts: Sequence[str]) -> list[SystemArgument]:
    """The systems in the order given, each under a name of its own.

    Raises:
        SettingsError: two have one name, or something is missing.
    """
    systems = [_parse(text) for text in texts]
    for i, system in enumerate(systems):
        if any(other.name == system.name for other in systems[:i]):
            raise SettingsError(f"--system {texts[i]}: there is a system '{system.name}' already; give this one "
                                f"another name, as --system NAME={system.path}.")
    return systems


def _parse(text: str) -> SystemArgument:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        name = path = text
    if not name or not path:
        raise SettingsError(f"--system {text}: expected NAME=RUN_OR_FILE, for example --system new=runs/de-en.")
    return SystemArgument(name, path)


def read_systems(systems: Iterable[SystemArgument], args: argparse.Namespace,
                 check_lines: Callable[[str, list[str]], None],
                 translate: Callable[[argparse.Namespace, str], System]) -> list[System]:
    """Read the files, then translate with the runs, one after the other; the systems stay in order.

    Args:
        systems: the first is the baseline.
        args: of the command line; `model` and `checkpoint` are set for each run.
        check_lines: refuses a file (its name, its lines) that does not fit the test set.
        translate: translates the source with the model that arguments name, under a name.
    """
    systems = list(systems)
    texts = {system.name: read_text(system.path) for system in systems if system.run is None}
    for system in systems:
        if system.run is None:
            check_lines(system.path, texts[system.name])
    return [System(system.name, texts[system.name]) if system.run is None else translate(
        argparse.Namespace(**{**vars(args), "model": [system.run],
                              "checkpoint": [system.checkpoint] if system.checkpoint else args.checkpoint}),
        system.name) for system in systems]
