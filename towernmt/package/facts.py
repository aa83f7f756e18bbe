"""What the program knows of a run for its card: data, preparation, settings, validation, versions, date."""

from __future__ import annotations

import datetime
import json
import os
import re
from pathlib import Path
from typing import Any

from towernmt.checkpoint.best_record import read_average_record
from towernmt.checkpoint.provenance import MADE_FROM, MADE_WITH, without_provenance
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.state import STATE
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.settings import load_yaml
from towernmt.dataflow.prepared.manifest import Manifest, read_manifest

EPOCH = "SOURCE_DATE_EPOCH"
_ELSEWHERE = ("init",)
"""Groups of settings that name places on the machine of the training."""
_DATA_PATH = f"{MADE_FROM}.data_path"


def settings_to_tell(run: SavedRun) -> dict[str, Any]:
    """What `settings.yaml` holds, by groups, without the places on the machine of the training."""
    flat = {key: value for key, value in load_yaml(run.settings_file).items()
            if key.split(".")[0] not in _ELSEWHERE and key != _DATA_PATH}
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *groups, name = key.split(".")
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return nested


def training_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings alone, as a card tells them."""
    return without_provenance(settings)


def training_data(run: SavedRun) -> dict[str, Any]:
    """Fingerprint, counts and preparation of the data, as far as they are known here.

    The data are looked for where the training found them; if they are not there any more, or are others, the
    fingerprint is all.
    """
    saved = load_yaml(run.settings_file)
    fingerprint, place = saved.get(f"{MADE_FROM}.data"), saved.get(_DATA_PATH)
    told: dict[str, Any] = {"fingerprint": fingerprint} if fingerprint else {}
    manifest = _manifest_at(place)
    if manifest is None or not fingerprint or manifest.fingerprint != fingerprint:
        return told
    return {**told, "pairs": manifest.pairs,
            "source_tokens": sum(shard.source_tokens for shard in manifest.shards),
            "target_tokens": sum(shard.target_tokens for shard in manifest.shards),
            "texts": manifest.inputs, "preparation": manifest.settings or {}, "notes": manifest.notes}


def _manifest_at(place: Any) -> Manifest | None:
    if not isinstance(place, str) or not Path(place).is_dir():
        return None
    try:
        return read_manifest(place)
    except DataError:       # something else is there by now
        return None


def trained_with(run: SavedRun) -> dict[str, str]:
    """The versions that the run was trained with."""
    return {key.removeprefix(f"{MADE_WITH}."): str(value) for key, value in load_yaml(run.settings_file).items()
            if key.startswith(f"{MADE_WITH}.")}


def validation_scores(run: SavedRun, checkpoint: Path, step: int) -> list[dict[str, Any]]:
    """What the training recorded of the validation of a checkpoint: BLEU and chrF; none where there was no validation.

    Args:
        checkpoint: its directory.
        step: of the checkpoint.
    """
    record = read_average_record(run.averaged) if checkpoint.parent == run.averaged else None
    found = _recorded_figures(run, step) if record is None or record.kept is None else record.kept.scores
    signature = _logged_signature(run, step)
    return [{"test": "validation during training", "metric": metric, "score": round(found[key], 4), **more}
            for metric, key, more in (("BLEU", "validation_bleu", {"signature": signature} if signature else {}),
                                      ("chrF2", "validation_chrf", {})) if key in found]


def _recorded_figures(run: SavedRun, step: int) -> dict[str, float]:
    """All figures of a step."""
    found: dict[str, float] = {}
    for line in _lines(run.log / "stats.jsonl"):
        try:
            row = json.loads(line)
        except ValueError:      # the end of a line that a killed process wrote
            continue
        if isinstance(row, dict) and row.get("global_step") == step:
            found.update({name: value for name, value in row.items() if isinstance(value, (int, float))})
    return found


def _logged_signature(run: SavedRun, step: int) -> str | None:
    """sacreBLEU's signature of BLEU, as the log tells it of the first validation set."""
    pattern = re.compile(rf"Validation at step {step}: .*; (nrefs:\S+)$")
    matches = [match[1] for line in _lines(run.log / "log.log") if (match := pattern.search(line.rstrip()))]
    return matches[-1] if matches else None


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []


def card_date(given: str | None, checkpoint: Path) -> str:
    """The date of the card: never today's, so that the same run gives the same package.

    Args:
        given: YYYY-MM-DD; else `SOURCE_DATE_EPOCH` counts, else when the checkpoint was written.
        checkpoint: its directory.
    Raises:
        SettingsError: it is no date.
    """
    if given is not None:
        try:
            return datetime.date.fromisoformat(given).isoformat()
        except ValueError:
            raise SettingsError(f"--date {given}: expected a date as 2026-12-24.") from None
    epoch = os.environ.get(EPOCH)
    try:
        seconds = float(int(epoch)) if epoch else (checkpoint / STATE).stat().st_mtime
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        if epoch:
            raise SettingsError(f"{EPOCH}={epoch}: expected seconds since 1970.") from None
        raise
