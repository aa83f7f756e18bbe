"""Read and write Marian's `.npz` files, with the positions that CTranslate2's converter needs in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml


def save_npz(file: Path, parameters: dict[str, np.ndarray], options: dict[str, Any]) -> None:
    """Write parameters and options."""
    text = yaml.safe_dump(options).encode() + b"\0"
    np.savez(file, **parameters, **{"special:model.yml": np.frombuffer(text, np.int8)})


def read_npz(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the parameters and options of a model."""
    arrays = dict(np.load(file))
    return arrays, yaml.safe_load(arrays.pop("special:model.yml").tobytes()[:-1])


def save_for_converter(file: Path, parameters: dict[str, np.ndarray], options: dict[str, Any]) -> None:
    """Write a model with its sinusoids as `Wpos`, for CTranslate2's converter, whose own differ from Marian's."""
    depth = options["dim-emb"]
    angles = np.arange(60)[:, None] / 10000 ** (np.arange(depth // 2) / (depth // 2 - 1))
    sines = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
    save_npz(file, {**parameters, "Wpos": sines}, options)
