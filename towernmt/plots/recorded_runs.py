"""Read the records of runs (scalars, settings, totals, size), and find the differences between runs."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.checkpoint.records import MADE_FROM, MADE_WITH
from towernmt.checkpoint.saved_run import SavedRun, open_run_checkpoint
from towernmt.core.directories import is_written
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.dataflow.text.clean_text import one_line

TOKENS, MINUTES = "target_tokens_trained", "minutes_trained"


def add_totals(rows: list[dict[str, float]]) -> None:
    """Add both totals to each row, if any row has them.

    Args:
        rows: rows in the order of their steps, modified in place.
    """
    for name in (TOKENS, MINUTES):
        _between(rows, name)


def _between(rows: list[dict[str, float]], name: str) -> None:
    """Add a missing total to rows, by interpolation over steps, or at the mean rate after the last known total."""
    recorded = [(row["global_step"], row[name]) for row in rows if name in row]
    if not recorded:
        return
    steps, totals = zip((0.0, 0.0), *recorded, strict=True) if recorded[0][0] > 0 else zip(*recorded, strict=True)
    rate = (totals[-1] - totals[0]) / (steps[-1] - steps[0]) if steps[-1] > steps[0] else 0.0
    for row in rows:
        if name not in row:
            beyond = max(0.0, row["global_step"] - steps[-1])
            row[name] = float(np.interp(row["global_step"], steps, totals)) + rate * beyond


def parameters(path: Path) -> int | None:
    """Return the number of parameters in the weights of a run's checkpoint; None without a readable checkpoint."""
    try:
        checkpoint = open_run_checkpoint(SavedRun(path))
        from towernmt.checkpoint.weights import weights_of_checkpoint  # imports TensorFlow

        shapes = checkpoint.shapes()
        return sum(math.prod(shapes[name]) for name in weights_of_checkpoint(checkpoint))
    except CheckpointError:
        return None


STATS = "stats.jsonl"
StepRow = dict[str, float]
"""The scalars that were recorded at one step, and `global_step`."""


@dataclass(frozen=True)
class RecordedRun:
    """The records of a run.

    Attributes:
        name: name of the run in comparisons.
        path: directory of the run.
        rows: one row of scalars per step, in the order of steps; with `target_tokens_trained` and `minutes_trained` if
            they are known or can be interpolated.
        settings: content of `settings.yaml`, by current dotted name; empty without that file.
        notes: notes for readers of the curves.
    """

    name: str
    path: Path
    rows: list[StepRow]
    settings: dict[str, Any]
    notes: list[str]

    def values(self, scalar: str) -> list[tuple[int, float]]:
        """Return step and value of each record of a scalar."""
        return [(int(row["global_step"]), row[scalar]) for row in self.rows if scalar in row]

    @property
    def scalars(self) -> set[str]:
        """The names of all recorded scalars."""
        return {name for row in self.rows for name in row}

    @property
    def last_step(self) -> int:
        """The last recorded step; 0 without records."""
        return int(self.rows[-1]["global_step"]) if self.rows else 0


def is_run(path: Path) -> bool:
    """Return whether a directory contains a run, or at least its records."""
    run = SavedRun(path)
    return run.exists() or (run.log / STATS).is_file()


def read_run(path: str | Path, name: str) -> RecordedRun:
    """Read the records of a run, which may still be training.

    Args:
        path: directory of the run.
        name: name of the run; characters of a path that are invalid in text become U+FFFD.

    Raises:
        SettingsError: `settings.yaml` is damaged.
    """
    run = SavedRun(path)
    notes = ["still training"] if is_written(run.path) else []
    file = run.log / STATS
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    rows, damaged, unfinished = read_rows(text)
    if not rows:
        notes.append("nothing is recorded yet")
    if damaged:
        lines = "1 damaged line" if damaged == 1 else f"{damaged} damaged lines"
        notes.append(f"without {lines} of {STATS}")
    if unfinished:
        notes.append(f"the last line of {STATS} is incomplete, and ignored")
    add_totals(rows)
    settings = run.saved_settings() if run.exists() else {}
    return RecordedRun(one_line(name), run.path, rows, settings, notes)


def read_rows(text: str) -> tuple[list[StepRow], int, bool]:
    """Parse the text of a `stats.jsonl`.

    The scalars of one step form one row. If steps go back, the run was resumed there, and the older records of repeated
    steps are dropped. Values that are not finite are ignored.

    Returns:
        the rows; the number of damaged lines; and whether the last line is incomplete, as after a killed process.
    """
    rows: list[StepRow] = []
    damaged, unfinished = 0, False
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is not None:
            _add(rows, row)
        elif number == len(lines):
            unfinished = True
        elif line.strip():
            damaged += 1
    return rows, damaged, unfinished


def _add(rows: list[StepRow], row: StepRow) -> None:
    step = row["global_step"]
    if rows and rows[-1]["global_step"] == step:
        rows[-1] = {**rows[-1], **row}
        return
    while rows and rows[-1]["global_step"] >= step:
        rows.pop()
    rows.append(row)


def _row(line: str) -> StepRow | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or type(values.get("global_step")) is not int:
        return None
    return {name: value for name, value in values.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def all_scalars(runs: Iterable[RecordedRun]) -> set[str]:
    """Return the names of all scalars that any of the runs has recorded."""
    return set().union(*(run.scalars for run in runs))


def read_named_runs(texts: Sequence[str]) -> tuple[list[RecordedRun], list[str]]:
    """Read the runs of a command line, in order and each once, with unique names.

    The first name of a run counts. A run without a name is named after the end of its path, with as many components as
    distinguish the runs. Directories without a run, such as those that match a pattern, are ignored.

    Args:
        texts: `RUN`, `NAME=RUN`, or a pattern such as `'runs/*'`.

    Returns:
        the runs, and the directories without a run.

    Raises:
        SettingsError: a directory does not exist, two names are equal, or there is no run at all.
    """
    directories: dict[Path, str] = {}
    for text in texts:
        for name, path in _expanded(text):
            directories[path] = directories.get(path) or name
    without_run = [str(path) for path in directories if not is_run(path)]
    named = {path: name for path, name in directories.items() if is_run(path)}
    if not named:
        raise SettingsError(f"{', '.join(without_run)}: no run here (settings.yaml is missing); pass the --logdir of "
                            "`towernmt train`, or several.")
    short = dict(zip(named, short_names(list(named)), strict=True))
    runs = [read_run(path, name or short[path]) for path, name in named.items()]
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{name}: two runs have this name; give one of them another name with NAME=RUN.")
    return runs, without_run


def _expanded(text: str) -> list[tuple[str, Path]]:
    """Return name ("" for none) and path of each run of an argument."""
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists() or glob.glob(text):     # a path or a pattern may have an `=` in it
        name, path = "", text
    if Path(path).is_dir():
        return [(name, Path(path))]
    matches = sorted(match for match in map(Path, glob.glob(path)) if match.is_dir())
    if not matches:
        raise SettingsError(f"{path}: the directory does not exist; pass the --logdir of `towernmt train`.")
    if name and len(matches) > 1:
        raise SettingsError(f"{text}: {len(matches)} runs cannot have the same name; remove the name.")
    return [(name, match) for match in matches]


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the ends of paths, with as many components as distinguish them."""
    paths_in_components = [path.absolute().parts for path in paths]
    for count in range(1, max(map(len, paths_in_components), default=1) + 1):
        names = ["/".join(components[-count:]) for components in paths_in_components]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


NOT_RECORDED = "–"
_VALIDATION, _DATA, _SENTENCES = f"{MADE_FROM}.validation", f"{MADE_FROM}.data", "validation.sentences"
_PATHS = (f"{MADE_FROM}.data_path",)
"""Keys that are not compared, because a path says nothing about its content."""


@dataclass(frozen=True)
class Difference:
    """A difference between runs.

    Attributes:
        key: dotted key of `settings.yaml`.
        values: the value of each run, as text.
    """

    key: str
    values: list[str]

    @property
    def is_setting(self) -> bool:
        """Whether the key is a setting, not a fingerprint or a version."""
        return self.key.split(".")[0] not in (MADE_FROM, MADE_WITH)


def differences(runs: Sequence[RecordedRun]) -> list[Difference]:
    """Return the differences between runs, in the order of settings; runs without settings are ignored."""
    recorded = [run for run in runs if run.settings]
    keys = dict.fromkeys(key for run in recorded for key in run.settings if key not in _PATHS)
    result = []
    for key in keys:
        values = [shown(run.settings.get(key, _Missing)) for run in recorded]
        if len(set(values)) > 1:
            texts = iter(values)
            result.append(Difference(key, [next(texts) if run.settings else NOT_RECORDED for run in runs]))
    return result


def without_differences(runs: Sequence[RecordedRun]) -> str:
    """Return a sentence that replaces an empty table of differences."""
    if len(runs) == 1:
        return "There is one run, so nothing differs."
    if not all(run.settings for run in runs):
        return "Not all runs record their settings."
    return "Settings, data and versions are the same, as far as they are recorded."


class _Missing:
    """Placeholder for a setting that a run does not record."""


def shown(value: Any) -> str:
    """Return the value of a setting as text."""
    if value is _Missing:
        return NOT_RECORDED
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value)) or "none"
    return one_line(str(value))


def comparability(runs: Sequence[RecordedRun]) -> list[str]:
    """Return warnings on scores that may not be comparable because of different sentences, searches or tokens."""
    warnings = []
    recorded = [run for run in runs if run.settings]
    if _differs(_SENTENCES, recorded):
        warnings.append(f"Their {_SENTENCES} differ, so their scores may be of different sentences.")
    if all(_VALIDATION in run.settings for run in recorded):
        if _differs(_VALIDATION, recorded):
            warnings.append("Their validation sets differ in text, name or number, so their scores may be of different "
                         "sentences.")
    elif _differs(_DATA, recorded):
        warnings.append("Their data differ, and not all runs record their validation sets, so their scores may be of "
                     "different sentences.")
    if any(_differs(key, recorded) for run in recorded for key in run.settings if key.startswith("search.")):
        warnings.append("Their searches differ (search.*), so equal models may have different scores.")
    if _differs(f"{MADE_FROM}.vocabulary", recorded):
        warnings.append("Their vocabularies differ: losses, perplexities and speeds are of different tokens.")
    return warnings


def _differs(key: str, runs: Sequence[RecordedRun]) -> bool:
    """Return whether the runs that record a key differ in it."""
    return len({shown(run.settings[key]) for run in runs if key in run.settings}) > 1


def notes_on(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the notes on all runs; a note that several runs share is one sentence."""
    names_by_note: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            names_by_note.setdefault(note, []).append(run.name)
    return [*(f"{'All runs' if len(names) == len(runs) > 1 else ', '.join(names)}: {note}."
              for note, names in names_by_note.items()), *comparability(runs)]
