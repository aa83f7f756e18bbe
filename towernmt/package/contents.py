"""What of a run goes into a package: settings, vocabularies, code, weights; and no more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from towernmt.checkpoint.packaged.manifest import (
    CODE,
    SETTINGS,
    SHORTLIST,
    VOCABULARY,
    WEIGHTS,
    Precision,
    WeightInfo,
)
from towernmt.checkpoint.packaged.stored_weights import npy, store
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.models import ARCHITECTURES


def run_members(run: SavedRun, settings: Mapping[str, Any]) -> dict[str, bytes | Path]:
    """The files of a run but for its weights, by their names in the package.

    Args:
        settings: as `facts.settings_to_tell` gives them.
    Raises:
        SettingsError: the shortlist that the settings name is not there.
    """
    settings = {**settings}
    members: dict[str, bytes | Path] = {}
    shortlist = settings.get("search", {}).get("shortlist")
    if shortlist:
        if not Path(shortlist).is_file():
            raise SettingsError(f"search.shortlist={shortlist}: there is no such file, which the package would hold: "
                                f"put it back, or leave it out in {run.settings_file}.")
        settings["search"] = {**settings["search"], "shortlist": SHORTLIST}
        members[SHORTLIST] = Path(shortlist)
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    members = {SETTINGS: text.encode(), **members, **files_below(run.vocabulary, VOCABULARY)}
    return members if run.architecture() in ARCHITECTURES else {**members, **files_below(run.code, CODE)}


def files_below(directory: Path, name: str) -> dict[str, bytes | Path]:
    """All files of a directory under this name, in an order that does not change."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"{name}/{path.relative_to(directory).as_posix()}": path for path in files}


def weight_members(weights: Mapping[str, np.ndarray], precision: Precision, checkpoint: str
                   ) -> tuple[dict[str, WeightInfo], dict[str, bytes]]:
    """The weights in this precision: what the manifest tells of them, and their files.

    Args:
        checkpoint: for messages.
    Raises:
        CheckpointError: a value is not finite.
    """
    told: dict[str, WeightInfo] = {}
    files: dict[str, bytes] = {}
    for name, value in sorted(weights.items()):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise CheckpointError(f"{checkpoint}: the variable '{name}' has values that are not finite: training has "
                                  "diverged; take an earlier checkpoint.")
        stored = store(value, precision)
        file, scales = f"{WEIGHTS}/{name}.npy", f"{WEIGHTS}/{name}.scales.npy"
        files[file] = npy(stored.values)
        if stored.scales is not None:
            files[scales] = npy(stored.scales)
        told[name] = WeightInfo(file, stored.stored, list(value.shape), None if stored.scales is None else scales)
    return told, files
