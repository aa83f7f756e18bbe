"""`towernmt train --help-settings`: every setting, or those of a group or part of a name, and what presets set."""

from __future__ import annotations

import difflib
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.settings import all_keys, describe, former_settings
from towernmt.models import settings_and_presets
from towernmt.run.settings import FACTS


def settings_text(settings: Any, part: str = "") -> str:
    """The settings whose names contain `part`, with their values and meanings, and the presets as far as they set them.

    Where no name of today contains it, those of which a former name does.

    Args:
        settings: of a run.
        part: of a name, such as `schedule`, `dropout` or `train.batch`; "" for all.
    Raises:
        SettingsError: no setting has that in its name.
    """
    rows = [row for row in describe(settings) if row[0] not in FACTS]
    chosen = [row for row in rows if part.lower() in row[0].lower()]
    if not chosen:
        former = _formerly(settings, part)
        chosen = [(key, value, f"{meaning} Formerly {former[key]}.") for key, value, meaning in rows if key in former]
    if not chosen:
        near = difflib.get_close_matches(part, {word for key, *_ in rows for word in (key, *key.split("."))}, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise SettingsError(f"--help-settings {part}: no setting has that in its name{hint}")
    text = "".join(f"{key}={value}\n    {meaning}\n" for key, value, meaning in chosen)
    return text + _presets_text(settings.architecture, {key for key, *_ in chosen})


def _formerly(settings: Any, part: str) -> dict[str, str]:
    """The settings whose former keys contain `part`: key to former key."""
    former, known = former_settings(settings), all_keys(settings)
    return {new: old for old in former.renamed if part.lower() in old and (new := former.new_key(old, known))}


def _presets_text(architecture: str, keys: set[str]) -> str:
    """What each preset of an architecture sets of these keys; "" if none sets any."""
    lines = []
    for name, values in settings_and_presets(architecture)[1].items():
        assignments = [f"{key}={value}" for key, value in values.items() if f"model.{key}" in keys]
        if assignments or not values:
            lines.append(f"  --preset {name}: {' '.join(assignments) or 'the defaults'}\n")
    return f"Presets of {architecture} (in the group model):\n{''.join(lines)}" if "=" in "".join(lines) else ""
