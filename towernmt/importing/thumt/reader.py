"""Reads a model of THUMT: a checkpoint of TensorFlow's, the hyper-parameters beside it, and word lists."""

from __future__ import annotations

from dataclasses import replace

from towernmt.core.errors import SettingsError
from towernmt.importing.checkpoint_parameters import checkpoint_prefix, open_checkpoint
from towernmt.importing.foreign_model import ForeignModel, ImportRequest
from towernmt.importing.parameters import Parameters
from towernmt.importing.thumt.hyper_parameters import (
    HyperParameters,
    embeddings_are_scaled,
    find_hyper_parameters,
    find_vocabularies,
    search_settings,
    transformer_settings,
)
from towernmt.importing.thumt.parameters import RELATIVE, SHARED, SOURCE, TARGET, our_weights, tie_of
from towernmt.importing.thumt.vocabulary import read_table
from towernmt.importing.vocabularies import WORDS_NOTE, vocabularies_of

_KINDS = ("matrix", "bias", "scale", "offset", "rpr_k", "rpr_v", "weights", "source_embedding", "target_embedding",
          "softmax")
"""The last parts of the names of a model's variables; those of an optimizer's have another."""


def read(request: ImportRequest) -> ForeignModel:
    """Read a model.

    Raises:
        SettingsError: the path is not a model of THUMT, or one that ours cannot express.
        DataError: a vocabulary or the hyper-parameters are damaged, or not the model's.
        CheckpointError: the checkpoint is damaged, or lacks a variable.
    """
    if request.path.suffix == ".pt":
        raise SettingsError(f"{request.path}: this is a checkpoint of THUMT's PyTorch branch, which only unpickling "
                            "could read: models of its TensorFlow branch can be imported.")
    prefix = checkpoint_prefix(request.path, "THUMT")
    values = find_hyper_parameters(prefix)
    _check_heads(request, values)
    parameters = open_checkpoint(prefix, _our_business)
    scaled = embeddings_are_scaled(values)
    settings = replace(transformer_settings(values, parameters.shape(RELATIVE)[0] if RELATIVE in parameters else 0),
                       tie_embeddings=tie_of(parameters, scaled))
    tables = [read_table(file, _rows(parameters, name), values) for file, name in zip(
        find_vocabularies(request, values), (SOURCE, TARGET), strict=True)]
    source, target, tables = vocabularies_of(request.pieces, tables, one=False)
    settings = replace(settings, source_vocab_size=source.size, target_vocab_size=target.size)
    weights = our_weights(parameters, settings, scaled, *tables)
    return ForeignModel(f"thumt {prefix.name}", settings, weights, source, target, search_settings(values),
                        notes=() if request.pieces else (WORDS_NOTE,))


def _our_business(name: str) -> str:
    """The name of a variable of the model within its scope; "" for those of optimizers, counters and losses."""
    scope, _, inside = name.partition("/")
    ours = scope == "transformer" and inside.rpartition("/")[2] in _KINDS and "losses_avg" not in inside
    return inside if ours else ""


def _rows(parameters: Parameters, name: str) -> int:
    return parameters.shape(SHARED if SHARED in parameters else name)[0]


def _check_heads(request: ImportRequest, values: HyperParameters) -> None:
    if request.heads is not None and request.heads != values.number("num_heads"):
        raise SettingsError(f"--heads {request.heads}: {values.file} says {values.number('num_heads')}: leave --heads "
                            "out.")
