"""THUMT's hyper-parameters, which it writes beside its checkpoints, as our settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from towernmt.core.errors import DataError, SettingsError
from towernmt.importing.foreign_model import ImportRequest
from towernmt.models.transformer.settings import TransformerSettings
from towernmt.predict.decoding.settings import SearchSettings

MODEL, TRAINING = "transformer.json", "params.json"
"""The files with the hyper-parameters of the model, and of its training."""
_NORMS = ("none", "layer_norm", "", None)
_EMBEDDINGS = ("sqrt_depth", "none", "", None)


class HyperParameters:
    """Hyper-parameters by name; those of the model go before those of the training.

    Args:
        folder: that they lie in.
    Raises:
        SettingsError: they are not there, or are those of another architecture.
        DataError: they cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / MODEL
        if not self.file.is_file():
            raise SettingsError(_why_missing(folder))
        training = folder / TRAINING
        self._values = {**(_read(training) if training.is_file() else {}), **_read(self.file)}

    def get(self, name: str, usual: Any) -> Any:
        """The value, or the usual one of THUMT where it is not written down."""
        return self._values.get(name, usual)

    def number(self, name: str) -> int:
        """A whole number above 0 that the model must have.

        Raises:
            DataError: it is something else.
        """
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(f"{self.file}: {name} is {value}, and must be a whole number above 0: the file is damaged.")
        return value

    def share(self, name: str) -> float:
        """A share from 0 to below 1, by which training drops or smooths; 0 where it is not told."""
        value = self._values.get(name, 0.0)
        return float(value) if isinstance(value, (int, float)) and 0 <= value < 1 else 0.0

    def refuse(self, reason: str) -> SettingsError:
        """The error that the model cannot be imported."""
        return SettingsError(f"{self.file}: {reason}: this model cannot be imported.")


def find_hyper_parameters(prefix: Path) -> HyperParameters:
    """Those beside a checkpoint; of one in `eval/`, where THUMT keeps the best, those in the folder above.

    Raises:
        SettingsError: they are not there.
        DataError: they cannot be read.
    """
    above = prefix.parent.parent
    return HyperParameters(above if not (prefix.parent / MODEL).is_file() and (above / MODEL).is_file()
                           else prefix.parent)


def find_vocabularies(request: ImportRequest, values: HyperParameters) -> tuple[Path, Path]:
    """The vocabularies of source and target: those that are named, or those that training was given.

    Raises:
        SettingsError: they are not there.
    """
    if request.vocabularies:
        return request.vocabularies
    named = values.get("vocab", None)
    if not isinstance(named, list) or len(named) != 2 or not all(isinstance(name, str) and name for name in named):
        raise SettingsError(f"{values.file.parent}: no {TRAINING} there tells the vocabularies: give --vocabularies "
                            "SOURCE TARGET.")
    folder = values.file.parent
    found = [next((place for place in (Path(name), folder / name, folder.parent / name, folder / Path(name).name,
                                       folder.parent / Path(name).name) if place.is_file()), None) for name in named]
    for name, place in zip(named, found, strict=True):
        if place is None:
            raise SettingsError(f"{folder / TRAINING}: the vocabulary {name} is not there, nor beside the model: give "
                                "--vocabularies SOURCE TARGET.")
    return found[0], found[1]  # type: ignore[return-value]


def transformer_settings(values: HyperParameters, relative: int) -> TransformerSettings:
    """The settings of a model, but for its tables and vocabularies.

    Args:
        relative: rows of its tables of relative positions; 0 for none.
    Raises:
        SettingsError: the model has a part that ours does not have.
        DataError: a size is missing.
    """
    depth = values.number("hidden_size")
    for name in ("attention_key_channels", "attention_value_channels"):
        if values.get(name, 0) not in (0, None, depth):
            raise values.refuse(f"{name} is {values.get(name, 0)}, and attention here has the depth of the model, "
                                f"{depth}")
    before, after = values.get("layer_preprocess", "none"), values.get("layer_postprocess", "layer_norm")
    for name, mode in (("layer_preprocess", before), ("layer_postprocess", after)):
        if mode not in _NORMS:
            raise values.refuse(f"{name} is {mode}, and is known here as none or layer_norm")
    dropout = values.share("residual_dropout")
    positions: dict[str, Any] = {"positions": "relative", "max_distance": (relative - 1) // 2} if relative else {}
    return TransformerSettings(
        hidden_size=depth, filter_size=values.number("filter_size"), heads=values.number("num_heads"),
        encoder_layers=values.number("num_encoder_layers"), decoder_layers=values.number("num_decoder_layers"),
        preprocess="n" if before == "layer_norm" else "", postprocess="drn" if after == "layer_norm" else "dr",
        attention_biases=True, start="zero", guided_alignment_layer=values.number("num_decoder_layers"),
        residual_dropout=dropout, embedding_dropout=dropout, attention_dropout=values.share("attention_dropout"),
        activation_dropout=values.share("relu_dropout"), label_smoothing=values.share("label_smoothing"),
        **positions)


def embeddings_are_scaled(values: HyperParameters) -> bool:
    """Whether embeddings are multiplied with the root of the depth, as ours are.

    Raises:
        SettingsError: something else is done to them.
    """
    mode = values.get("multiply_embedding_mode", "sqrt_depth")
    if mode not in _EMBEDDINGS:
        raise values.refuse(f"multiply_embedding_mode is {mode}, and is known here as none or sqrt_depth")
    return bool(mode == "sqrt_depth")


def search_settings(values: HyperParameters) -> SearchSettings:
    """How its training validated; our own defaults for what is not told."""
    found: dict[str, Any] = {}
    beam, alpha, longer = (values.get(name, None) for name in ("beam_size", "decode_alpha", "decode_length"))
    if isinstance(beam, int) and beam >= 1:
        found["beam_size"] = beam
    if isinstance(alpha, (int, float)) and alpha >= 0:
        found["length_penalty"] = float(alpha)
    if isinstance(longer, int) and longer >= 0:
        found |= {"max_length_factor": 1.0, "max_length_constant": longer}
    return SearchSettings(**found)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: the hyper-parameters cannot be read ({str(error).splitlines()[0]}).") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: it holds no hyper-parameters of THUMT: take the file that its training wrote.")
    return content


def _why_missing(folder: Path) -> str:
    others = sorted(file.stem for file in folder.glob("*.json") if file.name != TRAINING)
    if others:
        return (f"{folder}: there is {others[0]}.json and no {MODEL}: of THUMT's models the transformer alone can be "
                "imported.")
    return (f"{folder}: there is no {MODEL}, which THUMT writes beside its checkpoints: put it there, since it tells "
            "what the model is like.")
