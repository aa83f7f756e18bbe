"""The systems that `towernmt evaluate` is to compare: runs, which translate the source first, and files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from towernmt.checkpoint.packaged.packaged_run import is_package
from towernmt.core.errors import SettingsError
from towernmt.predict.evaluation.comparison import System
from towernmt.predict.text_io import read_text


class SystemArgument(NamedTuple):
    """What `--system [NAME=]RUN_OR_FILE` says.

    Attributes:
        name: tells the system from the others.
        path: a run, a package, one checkpoint of a run, several of these joined by `+` as an ensemble, or a file of
            translations.
    """

    name: str
    path: str

    @property
    def runs(self) -> list[str]:
        """The runs and packages; none: it is a file of translations."""
        return [str(place.parents[1] if _is_checkpoint(place) else place) for place in self._places()]

    def checkpoints(self, default: str | None) -> list[str | None]:
        """The checkpoint of each run; `default` where the path names only the run."""
        return [str(place / "model") if _is_checkpoint(place) else default for place in self._places()]

    def _places(self) -> list[Path]:
        places = [Path(self.path)] if Path(self.path).exists() else [Path(part) for part in self.path.split("+")]
        return places if all(place.is_dir() or is_package(place) for place in places) else []


def _is_checkpoint(place: Path) -> bool:
    return (place / "model.index").is_file()


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
    texts = {system.name: read_text(system.path) for system in systems if not system.runs}
    for system in systems:
        if not system.runs:
            check_lines(system.path, texts[system.name])
    default = args.checkpoint[0] if args.checkpoint else None
    return [translate(argparse.Namespace(**{**vars(args), "model": system.runs,
                                            "checkpoint": system.checkpoints(default)}), system.name)
            if system.runs else System(system.name, texts[system.name]) for system in systems]
