"""What differs between runs: settings, data, versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from towernmt.checkpoint.provenance import MADE_FROM, MADE_WITH
from towernmt.curves.recorded_run import RecordedRun
from towernmt.dataflow.text.cleaning import one_line

NOT_RECORDED = "–"
_VALIDATION, _DATA, _SENTENCES = f"{MADE_FROM}.validation", f"{MADE_FROM}.data", "validation.sentences"
_PLACES = (f"{MADE_FROM}.data_path",)
"""Where something lies says nothing of what it is."""


@dataclass(frozen=True)
class Difference:
    """Something in which runs differ.

    Attributes:
        key: of `settings.yaml`, with dots.
        values: of each run, as text.
    """

    key: str
    values: list[str]

    @property
    def is_setting(self) -> bool:
        """Whether it is a setting, and not what the run was made from or with."""
        return self.key.split(".")[0] not in (MADE_FROM, MADE_WITH)


def differences(runs: Sequence[RecordedRun]) -> list[Difference]:
    """All in which the runs differ, in the order of the settings; runs without settings differ in nothing."""
    told = [run for run in runs if run.settings]
    keys = dict.fromkeys(key for run in told for key in run.settings if key not in _PLACES)
    found = []
    for key in keys:
        values = [shown(run.settings.get(key, _Missing)) for run in told]
        if len(set(values)) > 1:
            texts = iter(values)
            found.append(Difference(key, [next(texts) if run.settings else NOT_RECORDED for run in runs]))
    return found


def without_differences(runs: Sequence[RecordedRun]) -> str:
    """A sentence for what stands in place of the differences where none are found."""
    if len(runs) == 1:
        return "There is one run, so nothing differs."
    if not all(run.settings for run in runs):
        return "Not all runs record their settings."
    return "Settings, data and versions are the same, as far as they are recorded."


class _Missing:
    """Stands for what a run does not record."""


def shown(value: Any) -> str:
    """A setting's value as text."""
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
    """Sentences on scores that cannot be compared, or may not be: they are of other sentences, searches or tokens."""
    found = []
    told = [run for run in runs if run.settings]
    if _differs(_SENTENCES, told):
        found.append(f"Their {_SENTENCES} differ, so their scores may be of different sentences.")
    if all(_VALIDATION in run.settings for run in told):
        if _differs(_VALIDATION, told):
            found.append("Their validation sets differ in text, name or number, so their scores may be of different "
                         "sentences.")
    elif _differs(_DATA, told):
        found.append("Their data differ, and not all runs record their validation sets, so their scores may be of "
                     "different sentences.")
    if any(_differs(key, told) for run in told for key in run.settings if key.startswith("search.")):
        found.append("Their searches differ (search.*), and so may the scores of equal models.")
    if _differs(f"{MADE_FROM}.vocabulary", told):
        found.append("Their vocabularies differ: losses, perplexities and speeds are of different tokens.")
    return found


def _differs(key: str, runs: Sequence[RecordedRun]) -> bool:
    """Whether those of the runs that record it differ in it; another version need not record all that one does."""
    return len({shown(run.settings[key]) for run in runs if key in run.settings}) > 1
