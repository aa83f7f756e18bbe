"""What differs between runs: settings, data, versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from towernmt.checkpoint.provenance import MADE_FROM, MADE_WITH
from towernmt.curves.recorded_run import RecordedRun

NOT_RECORDED = "–"
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
    return str(value)


def comparability(runs: Sequence[RecordedRun]) -> list[str]:
    """Sentences on scores that cannot be compared, since they are not of the same sentences or searches."""
    found = []
    told = [run for run in runs if run.settings]
    texts = {_validated_on(run, told) for run in told}
    if len(texts) > 1:
        found.append("The runs were validated on different sentences, so their scores are not of the same text.")
    if any(_differs(key, told) for run in told for key in run.settings if key.startswith("search.")):
        found.append("Their searches differ (search.*), and so may the scores of equal models.")
    if _differs(f"{MADE_FROM}.vocabulary", told):
        found.append("Their vocabularies differ: losses, perplexities and speeds are of different tokens.")
    return found


def _differs(key: str, runs: Sequence[RecordedRun]) -> bool:
    """Whether those of the runs that record it differ in it; another version need not record all that one does."""
    return len({shown(run.settings[key]) for run in runs if key in run.settings}) > 1


def _validated_on(run: RecordedRun, others: Sequence[RecordedRun]) -> tuple[str, str]:
    """What tells one validation text from another: that of the data, where a run does not record that of the text."""
    keys = [f"{MADE_FROM}.validation", f"{MADE_FROM}.data"]
    key = next((key for key in keys if all(key in other.settings for other in others)), "")
    return str(run.settings.get(key)), shown(run.settings.get("validation.sentences"))
