"""Import a THUMT model: hyper-parameters, checkpoint and vocabularies."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from towernmt.interop.foreign_model import (
    AttentionProjections,
    ForeignModel,
    ForeignParameters,
    ImportRequest,
    Weights,
    transformer_weights,
)
from towernmt.interop.foreign_vocabularies import WORDS_NOTE, PieceTable, vocabularies_of, vocabulary_lines
from towernmt.interop.imported_run import checkpoint_prefix, open_checkpoint
from towernmt.models.model_settings import TransformerSettings
from towernmt.predict.search.search_settings import SearchSettings

MODEL, TRAINING = "transformer.json", "params.json"
"""File names of the hyper-parameters of the model and of its training."""
_NORMS = ("none", "layer_norm", "", None)
_EMBEDDINGS = ("sqrt_depth", "none", "", None)


class HyperParameters:
    """Hyper-parameters by name; those of the model override those of the training.

    Raises:
        SettingsError: the hyper-parameters are missing, or belong to another architecture.
        DataError: the hyper-parameters cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / MODEL
        if not self.file.is_file():
            raise SettingsError(_why_missing(folder))
        training = folder / TRAINING
        self._values = {**(_read(training) if training.is_file() else {}), **_read(self.file)}

    def get(self, name: str, default: Any) -> Any:
        """Return a value, or THUMT's usual value if the files do not contain it."""
        return self._values.get(name, default)

    def number(self, name: str) -> int:
        """Return a required positive integer.

        Raises:
            DataError: the value is missing or not a positive integer.
        """
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(f"{self.file}: {name} is {value}, but must be a positive integer: the file is damaged.")
        return value

    def share(self, name: str) -> float:
        """Return a rate of dropout or smoothing, from 0 to below 1; 0 if the files do not contain it."""
        value = self._values.get(name, 0.0)
        return float(value) if isinstance(value, (int, float)) and 0 <= value < 1 else 0.0

    def refuse(self, reason: str) -> SettingsError:
        """Return the error that the model cannot be imported."""
        return SettingsError(f"{self.file}: {reason}: this model cannot be imported.")


def find_hyper_parameters(prefix: Path) -> HyperParameters:
    """Read the hyper-parameters next to a checkpoint, or in the parent folder for the best checkpoints in `eval/`.

    Raises:
        SettingsError: the hyper-parameters are missing.
        DataError: the hyper-parameters cannot be read.
    """
    parent = prefix.parent.parent
    return HyperParameters(parent if not (prefix.parent / MODEL).is_file() and (parent / MODEL).is_file()
                           else prefix.parent)


def find_vocabularies(request: ImportRequest, values: HyperParameters) -> tuple[Path, Path]:
    """Return the files of the source and target vocabulary: those of the request, or those of the training.

    Raises:
        SettingsError: a vocabulary is missing.
    """
    if request.vocabularies:
        return request.vocabularies
    names = values.get("vocab", None)
    if not isinstance(names, list) or len(names) != 2 or not all(isinstance(name, str) and name for name in names):
        raise SettingsError(f"{values.file.parent} has no {TRAINING} that names the vocabularies: pass --vocabularies "
                            "SOURCE TARGET.")
    return _find_vocabulary(values.file.parent, names[0]), _find_vocabulary(values.file.parent, names[1])


def _find_vocabulary(folder: Path, name: str) -> Path:
    """Return the path of a vocabulary, whose name may contain directories of the machine of the training.

    A file next to the model comes first, because the named path, or one in the working directory, may by now be the
    vocabulary of another model.
    """
    names = (Path(name).name,) if Path(name).is_absolute() else (name, Path(name).name)
    near = (other / path for other in (folder, folder.parent) for path in names)
    for path in (*near, Path(name)):
        if path.is_file():
            return path
    raise SettingsError(f"{folder / TRAINING}: the vocabulary {name} is missing: pass --vocabularies SOURCE TARGET.")


def settings_from_thumt(values: HyperParameters, relative_rows: int) -> TransformerSettings:
    """Return the settings of a model, except those of its embeddings and vocabularies.

    Args:
        values: the hyper-parameters.
        relative_rows: number of rows in the tables of relative positions; 0 if the model has none.

    Raises:
        SettingsError: the model has a component that towernmt does not support.
        DataError: a size is missing.
    """
    depth = values.number("hidden_size")
    for name in ("attention_key_channels", "attention_value_channels"):
        if values.get(name, 0) not in (0, None, depth):
            raise values.refuse(f"{name} is {values.get(name, 0)}, but attention of towernmt has the depth of the "
                                f"model, {depth}")
    preprocess, postprocess = values.get("layer_preprocess", "none"), values.get("layer_postprocess", "layer_norm")
    for name, mode in (("layer_preprocess", preprocess), ("layer_postprocess", postprocess)):
        if mode not in _NORMS:
            raise values.refuse(f"{name} is {mode}, but towernmt supports only none and layer_norm")
    dropout = values.share("residual_dropout")
    positions: dict[str, Any] = {}
    if relative_rows:
        positions = {"positions": "relative", "max_distance": (relative_rows - 1) // 2}
    return TransformerSettings(
        hidden_size=depth, filter_size=values.number("filter_size"), heads=values.number("num_heads"),
        encoder_layers=values.number("num_encoder_layers"), decoder_layers=values.number("num_decoder_layers"),
        preprocess="n" if preprocess == "layer_norm" else "",
        postprocess="drn" if postprocess == "layer_norm" else "dr",
        attention_biases=True, start="zero", guided_alignment_layer=values.number("num_decoder_layers"),
        residual_dropout=dropout, embedding_dropout=dropout, attention_dropout=values.share("attention_dropout"),
        activation_dropout=values.share("relu_dropout"), label_smoothing=values.share("label_smoothing"),
        **positions)


def embeddings_are_scaled(values: HyperParameters) -> bool:
    """Return whether embeddings are multiplied by the square root of the depth, as in towernmt.

    Raises:
        SettingsError: the embeddings are multiplied by another factor.
    """
    mode = values.get("multiply_embedding_mode", "sqrt_depth")
    if mode not in _EMBEDDINGS:
        raise values.refuse(f"multiply_embedding_mode is {mode}, but towernmt supports only none and sqrt_depth")
    return bool(mode == "sqrt_depth")


def thumt_search_settings(values: HyperParameters) -> SearchSettings:
    """Return the search settings of THUMT's validation; towernmt's defaults for missing values."""
    settings: dict[str, Any] = {}
    beam, alpha, extra_tokens = (values.get(name, None) for name in ("beam_size", "decode_alpha", "decode_length"))
    if isinstance(beam, int) and beam >= 1:
        settings["beam_size"] = beam
    if isinstance(alpha, (int, float)) and alpha >= 0:
        settings["length_penalty"] = float(alpha)
    if isinstance(extra_tokens, int) and extra_tokens >= 0:
        settings |= {"max_length_factor": 1.0, "max_length_constant": extra_tokens}
    return SearchSettings(**settings)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot read the hyper-parameters ({str(error).splitlines()[0]}).") from error
    if not isinstance(content, dict):
        raise DataError(f"{file} contains no hyper-parameters of THUMT: use the file that THUMT's training wrote.")
    return content


def _why_missing(folder: Path) -> str:
    others = sorted(file.stem for file in folder.glob("*.json") if file.name != TRAINING)
    if others:
        return (f"{folder} contains {others[0]}.json, but no {MODEL}: towernmt imports only THUMT models of the type "
                "transformer.")
    return (f"{folder} does not contain {MODEL}, which THUMT writes next to its checkpoints: put this file into the "
            "folder.")


SHARED, SOURCE, TARGET, SOFTMAX, BIAS = "weights", "source_embedding", "target_embedding", "softmax", "bias"
RELATIVE = "decoder/layer_0/self_attention/multihead_attention/rpr_k"


def thumt_embedding_ties(parameters: ForeignParameters, scaled: bool) -> str:
    """Return `model.tie_embeddings`. The source has a separate table, because THUMT adds a bias to its embeddings.

    If THUMT does not scale embeddings (`scaled`), those of towernmt are divided by the scale, and so the softmax has a
    separate table.
    """
    return "target" if scaled and SOFTMAX not in parameters else "none"


def _tables(parameters: ForeignParameters, s: TransformerSettings, scaled: bool, source: PieceTable,
            target: PieceTable) -> Weights:
    """Return the embeddings. THUMT adds a bias to the scaled source embeddings; here the table contains the bias."""
    depth, root = s.hidden_size, math.sqrt(s.hidden_size)
    source_name, target_name = (SHARED, SHARED) if SHARED in parameters else (SOURCE, TARGET)
    rows = parameters.shape(target_name)[0]
    source_table = parameters.take(source_name, parameters.shape(source_name)[0], depth)
    target_table = parameters.take(target_name, rows, depth)
    bias = parameters.take(BIAS, depth)
    scale = 1.0 if scaled else 1.0 / root
    weights = {"softmax_bias": target.reorder_bias(np.zeros(rows, np.float32)),
               "source_embedding": source.reorder_rows(source_table * np.float32(scale) + bias / np.float32(root)),
               "target_embedding": target.reorder_rows(target_table * np.float32(scale))}
    if s.tie_embeddings == "none":
        kernel = parameters.take(SOFTMAX, rows, depth) if SOFTMAX in parameters else target_table
        weights["softmax_embedding"] = target.reorder_rows(kernel)
    return weights


def _layer(parameters: ForeignParameters, s: TransformerSettings, stack: str, number: int) -> Weights:
    scope = foreign = f"{stack}/layer_{number}"
    foreign_part = f"{foreign}/self_attention"
    attention = _self_attention(parameters, s, f"{foreign_part}/multihead_attention")
    weights = attention.self_attention(f"{scope}/self_attention")
    weights |= _norms(parameters, s, f"{scope}/self_attention", foreign_part)
    if s.positions == "relative":       # THUMT's distance is query minus key, that of towernmt is key minus query
        rows = (2 * s.max_distance + 1, s.hidden_size // s.heads)
        weights |= {f"{scope}/self_attention/relative_{name}": parameters.take(
            f"{foreign_part}/multihead_attention/rpr_{name[0]}", *rows)[::-1] for name in ("keys", "values")}
    if stack == "decoder":
        foreign_part = f"{foreign}/encdec_attention"
        weights |= _cross_attention(parameters, s, f"{foreign_part}/multihead_attention").cross_attention(
            f"{scope}/source_attention")
        weights |= _norms(parameters, s, f"{scope}/source_attention", foreign_part)
    foreign_part = f"{foreign}/feed_forward"
    for name, layer, shape in (("inner", "input", (s.hidden_size, s.filter_size)),
                               ("outer", "output", (s.filter_size, s.hidden_size))):
        kernel, bias = _linear(parameters, f"{foreign_part}/ffn_layer/{layer}_layer/linear", *shape)
        weights |= {f"{scope}/feed_forward/{name}/kernel": kernel, f"{scope}/feed_forward/{name}/bias": bias}
    return weights | _norms(parameters, s, f"{scope}/feed_forward", foreign_part)


def _self_attention(parameters: ForeignParameters, s: TransformerSettings, scope: str) -> AttentionProjections:
    kernel, bias = _linear(parameters, f"{scope}/qkv_transform", s.hidden_size, 3 * s.hidden_size)
    query, key, value = np.split(kernel, 3, 1)
    query_bias, _, value_bias = np.split(bias, 3)
    return AttentionProjections(query, key, value, *_output(parameters, s, scope, query_bias, value_bias))


def _cross_attention(parameters: ForeignParameters, s: TransformerSettings, scope: str) -> AttentionProjections:
    query, query_bias = _linear(parameters, f"{scope}/q_transform", s.hidden_size, s.hidden_size)
    kernel, bias = _linear(parameters, f"{scope}/kv_transform", s.hidden_size, 2 * s.hidden_size)
    key, value = np.split(kernel, 2, 1)
    return AttentionProjections(query, key, value, *_output(parameters, s, scope, query_bias, np.split(bias, 2)[1]))


def _output(parameters: ForeignParameters, s: TransformerSettings, scope: str, query_bias: np.ndarray,
            value_bias: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    kernel, bias = _linear(parameters, f"{scope}/output_transform", s.hidden_size, s.hidden_size)
    return kernel, query_bias, value_bias, bias


def _linear(parameters: ForeignParameters, scope: str, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    return parameters.take(f"{scope}/matrix", inputs, outputs), parameters.take(f"{scope}/bias", outputs)


def _norms(parameters: ForeignParameters, s: TransformerSettings, scope: str, foreign: str) -> Weights:
    """Return the layer normalisations of a sublayer. THUMT numbers the second one in a scope."""
    weights = _norm(parameters, s, f"{scope}_pre_norm", f"{foreign}/layer_norm") if s.preprocess else {}
    if "n" in s.postprocess:
        weights |= _norm(parameters, s, f"{scope}_post_norm", f"{foreign}/layer_norm{'_1' if s.preprocess else ''}")
    return weights


def _norm(parameters: ForeignParameters, s: TransformerSettings, scope: str, foreign: str) -> Weights:
    return {f"{scope}/{name}": parameters.take(f"{foreign}/{name}", s.hidden_size) for name in ("scale", "offset")}


_SPECIAL = {PAD: ("pad", "<pad>"), EOS: ("eos", "<eos>"), UNK: ("unk", "<unk>"), BOS: ("bos", "<eos>")}
"""The hyper-parameter with the name of each special piece, and the usual name, by towernmt's id. Decoders begin with
zeros and do not read BOS, but the softmax may have a row for it."""


def read_thumt_pieces(file: Path, rows: int, values: HyperParameters) -> PieceTable:
    """Read the pieces of a vocabulary.

    Args:
        file: a vocabulary with a word on each line.
        rows: number of rows in the model's table.
        values: the hyper-parameters.

    Raises:
        DataError: the vocabulary cannot be read or belongs to another model.
    """
    words = [line.strip() for line in vocabulary_lines(file)]
    if values.get("append_eos", False):
        words.append(str(values.get("eos", "<eos>")))
    if len(words) != rows:
        raise DataError(f"{file} has {len(words)} words, but the model has {rows}: pass the vocabulary of this model.")
    row_of = {word: row for row, word in enumerate(words)}
    if len(row_of) != len(words):
        twice = next(word for row, word in enumerate(words) if row_of[word] != row)
        raise DataError(f"{file}: the word {twice} occurs twice, which THUMT does not allow: pass a vocabulary of "
                        "THUMT.")
    special: dict[int, int] = {}
    for id, (name, default_name) in _SPECIAL.items():
        word = str(values.get(name, default_name))
        if word in row_of and row_of[word] not in special.values():
            special[id] = row_of[word]
    for id in (EOS, UNK):
        if id not in special:
            raise DataError(f"{file} has no {values.get(*_SPECIAL[id])}, which all vocabularies of THUMT have: pass "
                            "a vocabulary of THUMT.")
    named = [(f"<word {row}>" if word in ("", *SPECIAL_PIECES) else word, row)
             for row, word in enumerate(words) if row not in special.values()]
    return PieceTable.of(special, named)


_KINDS = ("matrix", "bias", "scale", "offset", "rpr_k", "rpr_v", "weights", "source_embedding", "target_embedding",
          "softmax")
"""Last components of the model's variable names; variables of the optimizer have others."""


def read_thumt(request: ImportRequest) -> ForeignModel:
    """Read a THUMT model.

    Raises:
        SettingsError: the path is not a THUMT model, or towernmt does not support the model.
        DataError: a vocabulary or the hyper-parameters are damaged or belong to another model.
        CheckpointError: the checkpoint is damaged or lacks a variable.
    """
    if request.path.suffix == ".pt":
        raise SettingsError(f"{request.path} is a checkpoint of THUMT's PyTorch branch, which is not safe to read: "
                            "only models of its TensorFlow branch can be imported.")
    prefix = checkpoint_prefix(request.path, "THUMT")
    values = find_hyper_parameters(prefix)
    parameters = open_checkpoint(prefix, _parameter_name)
    scaled = embeddings_are_scaled(values)
    settings = replace(settings_from_thumt(values, parameters.shape(RELATIVE)[0] if RELATIVE in parameters else 0),
                       tie_embeddings=thumt_embedding_ties(parameters, scaled))
    names = (SHARED, SHARED) if SHARED in parameters else (SOURCE, TARGET)
    tables = [read_thumt_pieces(file, parameters.shape(name)[0], values)
              for file, name in zip(find_vocabularies(request, values), names, strict=True)]
    source, target, tables = vocabularies_of(request.pieces, tables, is_shared=False)
    settings = replace(settings, source_vocab_size=source.size, target_vocab_size=target.size)
    weights = transformer_weights(parameters, settings, _tables(parameters, settings, scaled, *tables), _layer,
                                  _norm)
    return ForeignModel(f"thumt {prefix.name}", settings, weights, source, target, thumt_search_settings(values),
                        notes=() if request.pieces else (WORDS_NOTE,))


def _parameter_name(name: str) -> str:
    """Return the parameter name for a variable name; "" for variables of optimizers, counters and losses."""
    scope, _, inside = name.partition("/")
    is_model_parameter = scope == "transformer" and inside.rpartition("/")[2] in _KINDS and "losses_avg" not in inside
    return inside if is_model_parameter else ""
