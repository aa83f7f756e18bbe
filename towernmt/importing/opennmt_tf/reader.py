"""Reads a model of OpenNMT-tf: a checkpoint of TensorFlow's, from whose shapes the settings follow, and word lists."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from towernmt.core.errors import CheckpointError, DataError, SettingsError
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, UNK
from towernmt.importing.checkpoint_parameters import open_checkpoint
from towernmt.importing.foreign_model import ForeignModel, ImportRequest
from towernmt.importing.opennmt_tf.config import find_files
from towernmt.importing.opennmt_tf.parameters import KERNEL, SOURCE, TARGET, our_weights
from towernmt.importing.parameters import Parameters
from towernmt.importing.pieces import PieceTable
from towernmt.importing.vocabularies import WORDS_NOTE, vocabularies_of
from towernmt.models.transformer.settings import TransformerSettings
from towernmt.predict.decoding.settings import SearchSettings

_SPECIAL = ["<blank>", "<s>", "</s>"]
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_USUAL_HEADS = {512: 8, 1024: 16, 64: 2}
"""By width: those of the catalogue's Transformers."""
_EPSILON = 1e-3
"""Of layer normalisation: Keras' default."""
_RELU_NOTE = ("OpenNMT-tf's checkpoints do not tell what is inside the feed-forward layers: relu is taken, as in all "
              "Transformers of its catalogue.")


def read(request: ImportRequest) -> ForeignModel:
    """Read a model.

    Raises:
        SettingsError: the path is not a model of OpenNMT-tf, or one that ours cannot express.
        DataError: a vocabulary or the configuration is damaged, or not the model's.
        CheckpointError: the checkpoint is damaged, or lacks a variable.
    """
    files = find_files(request)
    parameters = open_checkpoint(files.checkpoint, _our_business)
    s = _settings(parameters, request.heads)
    rows = [parameters.shape(SOURCE)[0], parameters.shape(TARGET if TARGET in parameters else SOURCE)[0]]
    tables = [_table(file, size) for file, size in zip(files.vocabularies, rows, strict=True)]
    if TARGET not in parameters and tables[0].pieces != tables[1].pieces:
        raise SettingsError(f"{files.checkpoint}: one table serves both languages, and their vocabularies differ: "
                            "name the one file that both share with --vocabularies FILE FILE.")
    source, target, tables = vocabularies_of(files.pieces, tables, s.tie_embeddings == "all")
    s = replace(s, source_vocab_size=source.size, target_vocab_size=target.size, source_end=files.source_end)
    weights = our_weights(parameters, s, *tables)
    notes = (_RELU_NOTE,) if files.pieces else (_RELU_NOTE, WORDS_NOTE)
    search = SearchSettings(beam_size=files.beam) if files.beam else SearchSettings()
    return ForeignModel(f"opennmt-tf {files.checkpoint.name}", s, weights, source, target, search, notes=notes)


def _our_business(name: str) -> str:
    """The name of a variable of the model; "" for those of the optimizer and of TensorFlow."""
    part = name.removesuffix(_VALUE)
    inside = part.startswith("model/") and part != name and ".OPTIMIZER_SLOT" not in part
    return part.removeprefix("model/") if inside else ""


def _settings(parameters: Parameters, heads: int | None) -> TransformerSettings:
    """What the shapes tell.

    Raises:
        SettingsError: the number of heads is not known, or the model is another than a Transformer.
    """
    if "encoder/layers/0/self_attention/layer/linear_queries/kernel" not in parameters:
        raise SettingsError(f"{parameters.origin}: it is not a Transformer of OpenNMT-tf 2 with one source and one "
                            "target: it cannot be imported.")
    depth, relative = parameters.shape(SOURCE)[1], "encoder/layers/0/self_attention/layer/relative_position_keys"
    positions: dict[str, Any] = {"first_position": 1}
    if relative in parameters:
        rows, size = parameters.shape(relative)
        positions, heads = {"positions": "relative", "max_distance": (rows - 1) // 2}, depth // size
    heads = heads or _USUAL_HEADS.get(depth)
    if not heads:
        raise SettingsError(f"{parameters.origin}: its width is {depth}, and OpenNMT-tf does not write down how many "
                            "attention heads it has: give --heads N (num_heads of the model's definition).")
    pre_norm = "encoder/layer_norm/gamma" in parameters
    return TransformerSettings(
        hidden_size=depth, filter_size=parameters.shape("encoder/layers/0/ffn/layer/inner/kernel")[1], heads=heads,
        encoder_layers=_layers(parameters, "encoder"), decoder_layers=_layers(parameters, "decoder"),
        preprocess="n" if pre_norm else "", postprocess="dr" if pre_norm else "drn", attention_biases=True,
        norm_epsilon=_EPSILON,
        guided_alignment_layer=_layers(parameters, "decoder"), tie_embeddings=_tie(parameters), **positions)


def _tie(parameters: Parameters) -> str:
    if KERNEL in parameters:
        return "none"
    return "target" if TARGET in parameters else "all"


def _layers(parameters: Parameters, stack: str) -> int:
    found = {int(match[1]) for name in parameters.names if (match := re.match(rf"{stack}/layers/(\d+)/", name))}
    if not found or found != set(range(len(found))):
        raise CheckpointError(f"{parameters.origin}: layers of the {stack} are missing: the checkpoint is damaged.")
    return len(found)


def _table(file: Path, rows: int) -> PieceTable:
    """The pieces of a vocabulary: a word a line, `<blank>`, `<s>` and `</s>` first; behind the last is `<unk>`."""
    try:
        lines = file.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: the vocabulary cannot be read, or is not UTF-8.") from error
    words = list(dict.fromkeys(line.rstrip("\r") for line in lines))  # a word that is there again is not counted
    if words[:len(_SPECIAL)] != _SPECIAL:
        raise DataError(f"{file}: it does not begin with <blank>, <s> and </s>: it is not a vocabulary of OpenNMT-tf "
                        "(one of SentencePiece has to go through its onmt-build-vocab).")
    if len(words) + 1 != rows:
        raise DataError(f"{file}: it has {len(words)} words, and the model {rows - 1}: is it this model's vocabulary?")
    named = [(f"<word {row}>" if word in ("", "<unk>", "<pad>") else word, row)
             for row, word in enumerate(words) if row >= len(_SPECIAL)]
    return PieceTable.of({PAD: 0, BOS: 1, EOS: 2, UNK: len(words)}, named)
