"""Reads a Marian model: its `.npz` with the settings inside, its vocabularies, and what stands beside them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.files.strict_yaml import load_strict
from towernmt.export.marian.binary import MODEL_OPTIONS
from towernmt.importing.foreign_model import ForeignModel, ImportRequest
from towernmt.importing.marian.files import find_files
from towernmt.importing.marian.options import search_settings, transformer_settings
from towernmt.importing.marian.parameters import our_weights, table_names, tie_of
from towernmt.importing.marian.vocabulary import read_table
from towernmt.importing.parameters import Parameters
from towernmt.importing.vocabularies import WORDS_NOTE, vocabularies_of

_DAMAGED = (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def read(request: ImportRequest) -> ForeignModel:
    """Read a model.

    Raises:
        SettingsError: the path is not a Marian model, or one that ours cannot express.
        DataError: a vocabulary is damaged, or not the model's.
        CheckpointError: the `.npz` is damaged, or lacks a parameter.
    """
    files = find_files(request)
    parameters, options = _open(files.model)
    tie = tie_of(parameters)
    tables = [read_table(file, parameters.shape(name)[0])
              for file, name in zip(files.vocabularies, table_names(parameters), strict=True)]
    if tie == "all" and tables[0].pieces != tables[1].pieces:
        raise SettingsError(f"{files.model}: one table serves both languages, and their vocabularies differ: name the "
                            "one file that both share with --vocabularies FILE FILE.")
    pieces = files.pieces or (files.vocabularies if files.vocabularies[0].suffix == ".spm" else None)
    source, target, tables = vocabularies_of(pieces, tables, tie == "all")
    settings = transformer_settings(options, str(files.model), tie_embeddings=tie, source_vocab_size=source.size,
                                    target_vocab_size=target.size)
    weights = our_weights(parameters, settings, *tables)
    return ForeignModel(f"marian {files.model.name}", settings, weights, source, target,
                        search_settings(files.decoder), files.kept, () if pieces else (WORDS_NOTE,))


def _open(file: Path) -> tuple[Parameters, Mapping[str, Any]]:
    """The parameters, read when they are asked for, and the options."""
    if file.suffix == ".bin":
        raise SettingsError(f"{file}: this is Marian's binary format, whose weights are rounded for one processor: "
                            "import the .npz that it was made from.")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            text = arrays[MODEL_OPTIONS].tobytes().rstrip(b"\0").decode("utf-8")
            values = {name: arrays[name] for name in arrays.files if name != MODEL_OPTIONS}
        options = load_strict(text)
    except (*_DAMAGED, yaml.MarkedYAMLError, AttributeError) as error:
        raise CheckpointError(f"{file}: it is not a Marian model in .npz with {MODEL_OPTIONS} inside, or a damaged one "
                              f"({str(error).splitlines()[0] if str(error) else type(error).__name__}).") from error
    if not isinstance(options, dict):
        raise CheckpointError(f"{file}: {MODEL_OPTIONS} inside holds no settings: the file is damaged.")
    shapes = {name: value.shape for name, value in values.items()}
    return Parameters(str(file), shapes, values.__getitem__), options
