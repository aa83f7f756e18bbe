"""A model of another system, converted to the settings, variable names and vocabularies of towernmt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from towernmt.core.errors import CheckpointError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.models.model_settings import TransformerSettings
from towernmt.predict.search.search_settings import SearchSettings

Weights = dict[str, np.ndarray]
"""The values of variables, by name."""
IMPOSSIBLE_LOGIT = -1000.0
"""The logit of pieces that the model does not know. Their probability is 0 in float32, and the loss stays small enough
if training continues with label smoothing, which weights all pieces."""


@dataclass(frozen=True)
class ImportRequest:
    """A request to import a model.

    Attributes:
        path: file or folder of the model.
        vocabularies: files of the source and target vocabulary; None to look for them next to the model.
        pieces: SentencePiece models or BPE codes of source and target; None to look for them.
        heads: number of attention heads, for systems whose files do not contain it; None for the usual number.
    """

    path: Path
    vocabularies: tuple[Path, Path] | None = None
    pieces: tuple[Path, Path] | None = None
    heads: int | None = None


@dataclass(frozen=True)
class ForeignModel:
    """A model of another system after conversion.

    Attributes:
        origin: system and file, for messages.
        settings: model settings, with the sizes of the vocabularies.
        weights: the value of each variable of towernmt, float32.
        source, target: the vocabularies.
        search: search settings of the other system, as far as its files contain them.
        copied_files: files that are copied into the run without a change, such as a model card and a licence.
        notes: differences from the original model, one sentence each.
    """

    origin: str
    settings: TransformerSettings
    weights: Mapping[str, np.ndarray]
    source: Vocabulary
    target: Vocabulary
    search: SearchSettings = field(default_factory=SearchSettings)
    copied_files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


class ForeignParameters:
    """The parameters of a foreign model, which are taken one by one, so that none is overlooked.

    Args:
        origin: the file, for messages.
        shapes: shapes of all parameters, by name.
        read: returns the value of a parameter by name.
    """

    def __init__(self, origin: str, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], Any]) -> None:
        self.origin = origin
        self._shapes, self._read = shapes, read
        self._taken: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The names of all parameters."""
        return list(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a parameter.

        Raises:
            CheckpointError: the parameter is missing.
        """
        if name not in self._shapes:
            raise CheckpointError(f"{self.origin}: the parameter {name} is missing: the file is incomplete, or the "
                                  "settings belong to another model.")
        return self._shapes[name]

    def take(self, name: str, *shape: int) -> np.ndarray:
        """Return the value of a parameter, float32.

        Args:
            name: name of the parameter.
            *shape: expected shape; dimensions of 1, which Marian adds, are ignored.

        Raises:
            CheckpointError: the parameter is missing, has another shape, or contains numbers that are not finite.
        """
        saved_shape = self.shape(name)
        if [size for size in saved_shape if size != 1] != [size for size in shape if size != 1]:
            raise CheckpointError(f"{self.origin}: the parameter {name} has the shape {list(saved_shape)}, but the "
                                  f"settings need {list(shape)}: use the settings of this model.")
        self._taken.add(name)
        value = np.asarray(self._read(name))
        if value.dtype.kind not in "f" or not np.isfinite(value).all():
            raise CheckpointError(f"{self.origin}: the parameter {name} contains values that are not finite numbers: "
                                  "the file is damaged, or the training diverged.")
        return value.astype(np.float32).reshape(shape)

    def drop(self, name: str) -> None:
        """Ignore a parameter that has no effect."""
        self._taken.add(name)

    def check_all_taken(self) -> None:
        """Check that all parameters were taken; otherwise the model has a component that towernmt does not support.

        Raises:
            CheckpointError: a parameter was not taken.
        """
        remaining = sorted(name for name in self._shapes if name not in self._taken)
        if remaining:
            others = f" and {len(remaining) - 1} more" if len(remaining) > 1 else ""
            raise CheckpointError(f"{self.origin}: the parameter {remaining[0]}{others} belongs to a component that "
                                  "the transformer of towernmt does not have: the model cannot be imported.")


LayerWeights = Callable[[ForeignParameters, TransformerSettings, str, int], Weights]
"""Returns the variables of a layer, by the stack ("encoder" or "decoder") and the number of the layer."""
NormWeights = Callable[[ForeignParameters, TransformerSettings, str, str], Weights]
"""Returns the variables of a normalisation, by the names of its scope in towernmt and in the other system."""


def transformer_weights(parameters: ForeignParameters, s: TransformerSettings, tables: Weights, layer: LayerWeights,
                        norm: NormWeights) -> Weights:
    """Return the values of all variables of a Transformer, and check that all parameters were used.

    Args:
        parameters: the parameters of the other system.
        s: settings of the model.
        tables: the variables outside the stacks.
        layer: converts a layer.
        norm: converts a normalisation.

    Raises:
        CheckpointError: a parameter is missing or unknown.
    """
    weights = dict(tables)
    for stack, layers in (("encoder", s.encoder_layers), ("decoder", s.decoder_layers)):
        for number in range(layers):
            weights |= layer(parameters, s, stack, number)
        if s.preprocess:
            weights |= norm(parameters, s, f"{stack}/final_norm", f"{stack}/layer_norm")
    parameters.check_all_taken()
    return {f"transformer/{name}": value for name, value in weights.items()}


class AttentionProjections(NamedTuple):
    """The projections of an attention layer.

    Attributes:
        query, key, value, output: kernels `[input depth, output depth]`.
        query_bias, value_bias, output_bias: biases `[output depth]`; zeros if the model has no biases.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    query_bias: np.ndarray
    value_bias: np.ndarray
    output_bias: np.ndarray

    def self_attention(self, scope: str) -> Weights:
        """Return the variables of a `SelfAttention` with that scope."""
        return {f"{scope}/qkv/kernel": np.concatenate([self.query, self.key, self.value], 1),
                f"{scope}/query_bias": self.query_bias, **self._end(scope)}

    def cross_attention(self, scope: str) -> Weights:
        """Return the variables of a `CrossAttention` with that scope."""
        return {f"{scope}/query/kernel": self.query, f"{scope}/query/bias": self.query_bias,
                f"{scope}/kv/kernel": np.concatenate([self.key, self.value], 1), **self._end(scope)}

    def _end(self, scope: str) -> Weights:
        return {f"{scope}/output/kernel": self.output,
                f"{scope}/output/bias": self.output_bias + self.value_bias @ self.output}
