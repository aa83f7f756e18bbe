"""What a run was made from and with: fingerprints of vocabulary, data and validation text, and versions.

`settings.yaml` has them under `made_from` and `made_with`, each checkpoint's `state.json` those of vocabulary and data
under `made_from`. Older runs have neither.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towernmt import __version__
from towernmt.core.errors import SettingsError

if TYPE_CHECKING:
    from towernmt.checkpoint.held import HeldCheckpoint
    from towernmt.dataflow.order.training_data import TrainingData
    from towernmt.dataflow.text.validation_set import ValidationSet

MADE_FROM, MADE_WITH = "made_from", "made_with"
"""The keys of `settings.yaml` that are no settings."""
_VOCABULARY_FILE = re.compile(r"(source|target|source_factor_\d+)\.(model|codes|pieces|words)")


def vocabulary_fingerprint(directory: Path) -> str:
    """32 hexadecimal digits of the vocabulary files in a directory; "" where there is none."""
    digest, found = hashlib.sha256(), False
    for file in sorted(directory.iterdir()) if directory.is_dir() else ():
        if _VOCABULARY_FILE.fullmatch(file.name):
            digest.update(f"{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
            found = True
    return digest.hexdigest()[:32] if found else ""


def fingerprints(data: TrainingData) -> dict[str, str]:
    """Of the vocabulary of data, and of the data themselves where they have one."""
    with tempfile.TemporaryDirectory() as place:
        data.copy_vocabularies(place)
        known = {"vocabulary": vocabulary_fingerprint(Path(place)), "data": getattr(data, "fingerprint", None)}
    return {name: value for name, value in known.items() if value}


def validation_fingerprint(sets: Iterable[ValidationSet]) -> str:
    """32 hexadecimal digits of names and texts of validation sets; "" for none."""
    told = [(one.name, list(one.source), [list(lines) for lines in one.references]) for one in sets]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32] if told else ""


def provenance(made_from: dict[str, str]) -> dict[str, dict[str, str]]:
    """What `settings.yaml` holds besides the settings: what the run is made from, and the versions."""
    return {MADE_FROM: made_from, MADE_WITH: versions()}


def versions() -> dict[str, str]:
    """Of towernmt, TensorFlow, NumPy and Python."""
    return {"towernmt": __version__, "tensorflow": importlib.metadata.version("tensorflow"),
            "numpy": importlib.metadata.version("numpy"), "python": platform.python_version()}


def without_provenance(content: dict[str, Any]) -> dict[str, Any]:
    """The settings in what `load_yaml` read."""
    return {key: value for key, value in content.items() if key.split(".")[0] not in (MADE_FROM, MADE_WITH)}


def recorded_fingerprints(content: dict[str, Any]) -> dict[str, str]:
    """The fingerprints in what `load_yaml` read."""
    return {name: str(content[key]) for name in ("vocabulary", "data") if (key := f"{MADE_FROM}.{name}") in content}


def check_vocabulary_of(held: HeldCheckpoint, vocabulary: Path) -> None:
    """Refuse a checkpoint that was made with another vocabulary than that of the run: its ids are other words.

    Args:
        vocabulary: the directory with that of the run.
    Raises:
        SettingsError: it was.
        CheckpointError: its `state.json` is damaged.
    """
    state = held.state()
    told = state.made_from.get("vocabulary") if state is not None else None
    if told is not None and told != vocabulary_fingerprint(vocabulary):
        raise SettingsError(f"{held.name} was trained with another vocabulary than that in {vocabulary}: put the run's "
                            "own vocabulary back, or name a checkpoint of this run.")
