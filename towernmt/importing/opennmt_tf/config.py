"""OpenNMT-tf's configuration: where the checkpoint and the vocabularies are, and how the text was divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files.strict_yaml import load_strict
from towernmt.importing.checkpoint_parameters import checkpoint_prefix
from towernmt.importing.foreign_model import ImportRequest

_MODEL_KEYS = ("model", "sp_model_path", "sp_model")
"""What tokenizers call a SentencePiece model."""


@dataclass(frozen=True)
class OpenNMTFiles:
    """The parts of a model.

    Attributes:
        checkpoint: the prefix of its files.
        vocabularies: lists of words, of source and target.
        pieces: what divides source and target; None for text that is divided already.
        source_end: whether the encoder reads `</s>` behind the source.
        beam: hypotheses of its search; None where it does not tell.
    """

    checkpoint: Path
    vocabularies: tuple[Path, Path]
    pieces: tuple[Path, Path] | None
    source_end: bool
    beam: int | None


def find_files(request: ImportRequest) -> OpenNMTFiles:
    """Find the parts of a model.

    Args:
        request: its path is a configuration (.yml), a directory of checkpoints, or the prefix of one.
    Raises:
        SettingsError: something is not there, or is not told.
        DataError: the configuration cannot be read.
    """
    path = request.path
    config: Mapping[str, Any] = {}
    if path.suffix in (".yml", ".yaml"):
        config, path = _read(path), path.parent
        path = _find(path, [path], config.get("model_dir"), "model_dir") if config.get("model_dir") else path
    data = config.get("data") or {}
    if not isinstance(data, dict):
        raise DataError(f"{request.path}: `data` is no mapping: it is no configuration of OpenNMT-tf.")
    folders = [request.path.parent, path]
    named = [data.get(f"{side}_vocabulary") for side in ("source", "target")]
    if request.vocabularies is None and not all(named):
        raise SettingsError(f"{request.path}: it does not tell the vocabularies: name its configuration (.yml), or "
                            "give --vocabularies SOURCE TARGET.")
    found = request.vocabularies or tuple(_find(request.path, folders, name, f"the vocabulary {name}")
                                          for name in named)
    beam = (config.get("params") or {}).get("beam_width")
    return OpenNMTFiles(checkpoint_prefix(path, "OpenNMT-tf"), (found[0], found[1]),
                        request.pieces or _pieces(request.path, folders, data), _source_end(request.path, data),
                        beam if isinstance(beam, int) and beam > 0 else None)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = load_strict(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.MarkedYAMLError) as error:
        raise DataError(f"{file}: the configuration cannot be read ({str(error).splitlines()[0]}).") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: it is no configuration of OpenNMT-tf, which has `model_dir` and `data`.")
    return content


def _find(origin: Path, folders: list[Path], name: Any, what: str) -> Path:
    for place in (folder / str(name) for folder in folders):
        if place.exists():
            return place
    raise SettingsError(f"{origin}: {what} ({name}) is not there: it is looked for beside the configuration and in "
                        "model_dir.")


def _pieces(origin: Path, folders: list[Path], data: Mapping[str, Any]) -> tuple[Path, Path] | None:
    found = []
    for side in ("source", "target"):
        tokenization = data.get(f"{side}_tokenization")
        options = tokenization.get("params") if isinstance(tokenization, dict) else None
        if not isinstance(options, dict):
            return None
        name = next((options[key] for key in _MODEL_KEYS if key in options), None)
        if name is None or options.get("mode", "none") != "none":
            return None
        found.append(_find(origin, folders, name, f"the SentencePiece model of the {side}"))
    return found[0], found[1]


def _source_end(origin: Path, data: Mapping[str, Any]) -> bool:
    source, target = (data.get(f"{side}_sequence_controls") or {} for side in ("source", "target"))
    if source.get("start"):
        raise SettingsError(f"{origin}: source_sequence_controls has start: true: the encoder here reads no <s>; this "
                            "model cannot be imported.")
    if not target.get("start", True) or not target.get("end", True):
        raise SettingsError(f"{origin}: target_sequence_controls leaves out <s> or </s>, which decoders here need: "
                            "it cannot be imported.")
    return bool(source.get("end", False))
