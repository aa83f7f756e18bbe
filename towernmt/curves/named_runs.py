"""The runs that a command line names: `[NAME=]RUN`, and patterns."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from towernmt.core.errors import SettingsError
from towernmt.curves.recorded_run import RecordedRun, is_run, read_run


def read_named_runs(texts: Sequence[str]) -> tuple[list[RecordedRun], list[str]]:
    """The runs in the order given, each once, and each under a name of its own: the first that it is given.

    A name that is not given is the end of the path, as much of it as tells the runs apart. Of directories that a
    pattern (this program's, or the shell's) takes in, those without a run are left out.

    Args:
        texts: `RUN`, `NAME=RUN`, or a pattern such as `'runs/*'`.
    Returns:
        the runs, and the directories that hold none.
    Raises:
        SettingsError: there is no such directory, two names are the same, or there is no run at all.
    """
    places: dict[Path, str] = {}
    for text in texts:
        for name, path in _expanded(text):
            places[path] = places.get(path) or name
    others = [str(path) for path in places if not is_run(path)]
    found = {path: name for path, name in places.items() if is_run(path)}
    if not found:
        raise SettingsError(f"{', '.join(others)}: no run here (settings.yaml is missing); pass the --logdir of a "
                            "`towernmt train`, or several.")
    short = dict(zip(found, short_names(list(found)), strict=True))
    runs = [read_run(path, name or short[path]) for path, name in found.items()]
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{name}: two runs have that name; give one of them another, as NAME=RUN.")
    return runs, others


def _expanded(text: str) -> list[tuple[str, Path]]:
    """Name ("" for none) and path of each run that an argument names."""
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        name, path = "", text
    if Path(path).is_dir():
        return [(name, Path(path))]
    found = sorted(place for place in map(Path, glob.glob(path)) if place.is_dir())
    if not found:
        raise SettingsError(f"{path}: there is no such directory; pass the --logdir of a `towernmt train`.")
    if name and len(found) > 1:
        raise SettingsError(f"{text}: {len(found)} runs cannot have one name; leave out the name.")
    return [(name, place) for place in found]


def short_names(paths: Sequence[Path]) -> list[str]:
    """The ends of paths, as many parts as make them differ."""
    parts = [path.absolute().parts for path in paths]
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
