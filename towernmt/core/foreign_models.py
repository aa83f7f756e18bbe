"""Recognise the models of other systems by their files. `towernmt.interop.import_formats` names their readers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from towernmt.core.directories import directory_kind

_OF_OPENNMT_TF = re.compile(r"^(?:model_dir|data):", re.M)
_OF_MARIAN = re.compile(r"^(?:models|vocabs):", re.M)
_MARIAN_SUFFIXES = (".npz", ".bin", ".npz.gz", ".bin.gz", ".safetensors")
"""Suffixes of Marian's models, and of compressed or converted ones, which the reader refuses by name."""
_THUMT_SETTINGS = "transformer.json"


def detect_system(path: Path) -> tuple[str, Path] | None:
    """Return the system whose model is at a path, and the path for its reader; None if no system is recognised.

    File names decide, and for YAML files their first keys.

    Args:
        path: a file, a directory, or the prefix of a checkpoint.
    """
    if path.is_dir():
        return _system_of_directory(path)
    if path.name.endswith(_MARIAN_SUFFIXES) and path.is_file():
        return "marian", path
    if path.suffix in (".yml", ".yaml") and path.is_file():
        return ("opennmt-tf", path) if _has_key(path, _OF_OPENNMT_TF) else (
            ("marian", path.parent) if _has_key(path, _OF_MARIAN) else None)
    if Path(f"{path}.index").is_file():
        return _system_of_checkpoints(path.parent), path
    return None


def import_advice(path: Path) -> str | None:
    """Return the end of a message on a model of another system that is passed instead of a run; None for other paths.

    Args:
        path: see `detect_system`. The files of a run have similar names, but are not such a model.
    """
    detected = detect_system(path)
    if detected is None or directory_kind(path) is not None or directory_kind(path.parent) is not None:
        return None
    system, model = detected
    command = f"towernmt import {shlex.quote(str(model))} --from {system} --output RUN"
    return f"looks like a model of another system: import it with `{command}`, and pass RUN."


def _system_of_directory(path: Path) -> tuple[str, Path] | None:
    if (path / _THUMT_SETTINGS).is_file():
        return "thumt", path
    configs = [file for file in sorted([*path.glob("*.yml"), *path.glob("*.yaml")]) if _has_key(file, _OF_OPENNMT_TF)]
    if len(configs) == 1:
        return "opennmt-tf", configs[0]
    if (path / "checkpoint").is_file():
        return _system_of_checkpoints(path), path
    files = [*(file for suffix in _MARIAN_SUFFIXES for file in path.glob(f"*{suffix}")), *(
        file for file in path.glob("*.yml") if _has_key(file, _OF_MARIAN))]
    return ("marian", path) if files else None


def _system_of_checkpoints(folder: Path) -> str:
    settings = (folder / _THUMT_SETTINGS, folder.parent / _THUMT_SETTINGS)
    return "thumt" if any(file.is_file() for file in settings) else "opennmt-tf"


def _has_key(file: Path, keys: re.Pattern[str]) -> bool:
    """Return whether a YAML file of at most 1 MB has one of these keys at its first level."""
    if not file.is_file() or file.stat().st_size > 1_000_000:
        return False
    return keys.search(file.read_text(encoding="utf-8", errors="replace")) is not None
