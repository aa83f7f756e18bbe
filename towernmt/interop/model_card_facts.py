"""Facts of a run for its model card: settings, training data, programs and validation scores."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from towernmt.checkpoint.checkpoint_files import CheckpointState
from towernmt.checkpoint.package_manifest import SHORTLIST
from towernmt.checkpoint.records import MADE_FROM, MADE_WITH, read_average_record
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import DataError
from towernmt.core.settings import load_yaml
from towernmt.dataflow.preparation.manifest import Manifest, read_manifest

_MACHINE_SPECIFIC_GROUPS = ("init",)
"""Groups of settings with paths on the machine of the training."""
_DATA_PATH = f"{MADE_FROM}.data_path"


def settings_for_card(run: SavedRun) -> dict[str, Any]:
    """Return the content of `settings.yaml` by groups, without paths on the machine of the training.

    The path of a shortlist is that of its file in the package.
    """
    flat = {key: value for key, value in load_yaml(run.settings_file).items()
            if key.split(".")[0] not in _MACHINE_SPECIFIC_GROUPS and key != _DATA_PATH}
    if flat.get("search.shortlist"):
        flat["search.shortlist"] = SHORTLIST
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *groups, name = key.split(".")
        group_settings = nested
        for group in groups:
            group_settings = group_settings.setdefault(group, {})
        group_settings[name] = value
    return nested


def training_data_facts(run: SavedRun) -> dict[str, Any]:
    """Return fingerprint, counts and preparation of the training data.

    If the prepared data were removed or changed since the training, only the fingerprint is returned.
    """
    saved = load_yaml(run.settings_file)
    fingerprint, data_path = saved.get(f"{MADE_FROM}.data"), saved.get(_DATA_PATH)
    facts: dict[str, Any] = {"fingerprint": fingerprint} if fingerprint else {}
    manifest = _manifest_at(data_path)
    if manifest is None or not fingerprint or manifest.fingerprint != fingerprint:
        return facts
    return {**facts, "pairs": manifest.pairs,
            "source_tokens": sum(shard.source_tokens for shard in manifest.shards),
            "target_tokens": sum(shard.target_tokens for shard in manifest.shards),
            "texts": manifest.inputs, "preparation": manifest.settings, "notes": manifest.notes}


def _manifest_at(path: Any) -> Manifest | None:
    if not isinstance(path, str) or not Path(path).is_dir():
        return None
    try:
        return read_manifest(path)
    except DataError:       # the directory was replaced since the training
        return None


def trained_with(run: SavedRun) -> dict[str, str]:
    """Return the versions of the programs that the run was trained with."""
    return {key.removeprefix(f"{MADE_WITH}."): str(value) for key, value in load_yaml(run.settings_file).items()
            if key.startswith(f"{MADE_WITH}.")}


def validation_scores(run: SavedRun, checkpoint: Path, state: CheckpointState | None) -> list[dict[str, Any]]:
    """Return BLEU and chrF of a checkpoint's validation during training; an empty list if it was not validated.

    Of averages, training validates only the one in `averaged/`.

    Args:
        run: the run.
        checkpoint: directory of the checkpoint.
        state: state of the checkpoint; None if another program wrote it.
    """
    if state is None:
        return []
    step = state.step
    if checkpoint.resolve().parent == run.averaged.resolve():
        record = read_average_record(run.averaged)
        figures = record.kept.scores if record and record.kept and record.kept.step == step else {}
    else:
        figures = {} if state.mean_of else _recorded_figures(run, step)
    signature = _logged_signature(run, step)
    signature_entry = {"signature": signature} if signature else {}
    metrics: list[tuple[str, str, dict[str, str]]] = [
        ("BLEU", "validation_bleu", signature_entry), ("chrF2", "validation_chrf", {})]
    return [{"test": "validation during training", "metric": metric, "score": round(figures[key], 4), **entry}
            for metric, key, entry in metrics if key in figures]


def _recorded_figures(run: SavedRun, step: int) -> dict[str, float]:
    """Return all figures that the training recorded for a step."""
    figures: dict[str, float] = {}
    for line in _lines(run.log / "stats.jsonl"):
        try:
            row = json.loads(line)
        except ValueError:      # a line that a killed process did not complete
            continue
        if isinstance(row, dict) and row.get("global_step") == step:
            figures.update({name: value for name, value in row.items() if isinstance(value, (int, float))})
    return figures


def _logged_signature(run: SavedRun, step: int) -> str | None:
    """Return the signature of BLEU that sacreBLEU reported for the first validation set, from the log."""
    pattern = re.compile(rf"Validation at step {step}: .*; (nrefs:\S+)$")
    matches = [match[1] for line in _lines(run.log / "log.log") if (match := pattern.search(line.rstrip()))]
    return matches[-1] if matches else None


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
