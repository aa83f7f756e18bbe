"""The systems whose models are imported, the function that reads each, and the system of a path. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from towernmt.core.errors import SettingsError

if TYPE_CHECKING:
    from towernmt.interop.foreign_model import ForeignModel, ImportRequest


class ForeignFormat(NamedTuple):
    """A system whose models can be imported.

    Attributes:
        help: one line that describes the path of a model.
        function: "module:function" of the reader, which takes an `ImportRequest` and returns a `ForeignModel`. If a
            model cannot be imported, it raises a `TowerNMTError` that names the cause.
    """

    help: str
    function: str

    def read(self, request: ImportRequest) -> ForeignModel:
        """Read a model of this system.

        Raises:
            TowerNMTError: see `function`.
            SettingsError: the request contradicts the files of the model.
        """
        reader: Callable[[ImportRequest], ForeignModel] = resolve_name(self.function)
        model = reader(request)
        if request.heads not in (None, model.settings.heads):
            raise SettingsError(f"--heads {request.heads}: the model has {model.settings.heads} attention heads: leave "
                                "out --heads.")
        return model


FORMATS: dict[str, ForeignFormat] = {
    "marian": ForeignFormat("Marian's .npz, or the folder of an OPUS-MT model",
                            "towernmt.interop.marian_import:read_marian"),
    "opennmt-tf": ForeignFormat("OpenNMT-tf's configuration (.yml), or its directory or prefix of checkpoints",
                                "towernmt.interop.opennmt_tf_import:read_opennmt_tf"),
    "thumt": ForeignFormat("THUMT's directory or prefix of checkpoints of its TensorFlow branch, with transformer.json",
                           "towernmt.interop.thumt_import:read_thumt"),
}


def foreign_format(name: str) -> ForeignFormat:
    """Return the system with a name.

    Raises:
        SettingsError: the name is unknown.
    """
    if name not in FORMATS:
        raise SettingsError(f"--from {name}: choose one of {', '.join(FORMATS)}.")
    return FORMATS[name]


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
