"""Import an OpenNMT-tf model: configuration, checkpoint and vocabularies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from towernmt.core.errors import CheckpointError, DataError, SettingsError
from towernmt.core.structured_files import load_strict, read_yaml_text
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, UNK
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

_MODEL_KEYS = ("model", "sp_model_path", "sp_model")
"""Tokenizer options with the path of a SentencePiece model."""


@dataclass(frozen=True)
class OpenNMTFiles:
    """The files and options of an OpenNMT-tf model.

    Attributes:
        checkpoint: prefix of the checkpoint's files.
        vocabularies: lists of source and target words.
        pieces: SentencePiece models of source and target; None for text that is already divided.
        source_end: whether the encoder reads `</s>` after the source.
        params: `params` of the configuration, which contains the search settings; None without a configuration.
    """

    checkpoint: Path
    vocabularies: tuple[Path, Path]
    pieces: tuple[Path, Path] | None
    source_end: bool
    params: Mapping[str, Any] | None


def find_opennmt_tf_files(request: ImportRequest) -> OpenNMTFiles:
    """Find the files of a model.

    Args:
        request: the path is a configuration (.yml), a directory of checkpoints, or the prefix of a checkpoint.

    Raises:
        SettingsError: a file is missing or not named, or towernmt does not support the tokens around sentences.
        DataError: the configuration cannot be read.
    """
    path = request.path
    config: Mapping[str, Any] = {}
    has_config = path.suffix in (".yml", ".yaml")
    if has_config:
        config, path = _read(path), path.parent
        path = _find(request.path, [path], config["model_dir"], "model_dir") if config.get("model_dir") else path
    data = _mapping(request.path, config, "data")
    folders = [request.path.parent, path]
    names = [data.get(f"{side}_vocabulary") for side in ("source", "target")]
    if request.vocabularies is None and not all(names):
        raise SettingsError(f"{request.path} does not name the vocabularies: pass the configuration (.yml) of the "
                            "model, or --vocabularies SOURCE TARGET.")
    vocabularies = request.vocabularies or tuple(_find(request.path, folders, name, f"the vocabulary {name}")
                                                 for name in names)
    params = _mapping(request.path, config, "params") if has_config else None
    return OpenNMTFiles(checkpoint_prefix(path, "OpenNMT-tf"), (vocabularies[0], vocabularies[1]),
                        request.pieces or _pieces(request.path, folders, data), _source_end(request.path, data), params)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = load_strict(read_yaml_text(file))
    except (OSError, UnicodeDecodeError, yaml.MarkedYAMLError) as error:
        raise DataError(f"{file}: cannot read the configuration ({' '.join(str(error).split())}): correct the path or "
                        "the file.") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: not a configuration of OpenNMT-tf, which has `model_dir` and `data`.")
    return content


def _mapping(origin: Path, options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an option that is a mapping; an empty mapping if the option is missing."""
    value = options.get(name) or {}
    if not isinstance(value, dict):
        raise DataError(f"{origin}: `{name}` is not a mapping: pass a configuration of OpenNMT-tf.")
    return value


def _find(origin: Path, folders: list[Path], name: Any, what: str) -> Path:
    """Return the path of a file, whose name may contain directories of the machine of the training.

    A file next to the configuration or the checkpoints comes first, because the named path may by now be the file of
    another model.
    """
    named = Path(str(name))
    relative_paths = (Path(named.name),) if named.is_absolute() else (named, Path(named.name))
    for path in (*(folder / path for path in relative_paths for folder in folders), named):
        if path.exists():
            return path
    raise SettingsError(f"{origin}: {what} ({name}) is missing: put it next to the configuration or into model_dir.")


def _pieces(origin: Path, folders: list[Path], data: Mapping[str, Any]) -> tuple[Path, Path] | None:
    models = []
    for side in ("source", "target"):
        tokenization = data.get(f"{side}_tokenization")
        options = tokenization.get("params") if isinstance(tokenization, dict) else None
        if not isinstance(options, dict):
            return None
        name = next((options[key] for key in _MODEL_KEYS if key in options), None)
        if name is None or options.get("mode", "none") != "none":
            return None
        models.append(_find(origin, folders, name, f"the SentencePiece model of the {side}"))
    return models[0], models[1]


def _source_end(origin: Path, data: Mapping[str, Any]) -> bool:
    source, target = (_mapping(origin, data, f"{side}_sequence_controls") for side in ("source", "target"))
    if source.get("start"):
        raise SettingsError(f"{origin}: source_sequence_controls has start: true, but encoders of towernmt do not read "
                            "<s>: the model cannot be imported.")
    if not target.get("start", True) or not target.get("end", True):
        raise SettingsError(f"{origin}: target_sequence_controls leaves out <s> or </s>, which decoders of towernmt "
                            "need: the model cannot be imported.")
    return bool(source.get("end", False))


_SEARCH_SETTINGS: Mapping[str, tuple[str, type[int] | type[float], int]] = {
    "beam_width": ("beam_size", int, 1),
    "length_penalty": ("length_penalty", float, 0),
    "minimum_decoding_length": ("min_length", int, 0),
    "maximum_decoding_length": ("max_length_constant", int, 1),
}
"""The setting of towernmt for a search setting of OpenNMT-tf, its type and its minimum."""
_SEARCH_NOTES: Mapping[str, tuple[Any, str]] = {
    "coverage_penalty": (0, "OpenNMT-tf computes it from one attention head, and towernmt from the mean of all heads: "
                            "pass --coverage-penalty {value} for a similar search"),
    "sampling_topk": (1, "the search of the run uses a beam: pass --sample --top-k {value} for samples"),
    "decoding_noise": ([], "translations of towernmt have no noise"),
    "replace_unknown_target": (False, "it is not a setting of a run: pass --replace-unknown to translate"),
}
"""Search settings that the run cannot contain: the value without an effect, and the reason with the alternative."""


def opennmt_tf_search(params: Mapping[str, Any] | None) -> tuple[SearchSettings, tuple[str, ...]]:
    """Return the search settings of a configuration, and a sentence for each one that the run does not contain.

    The divisor of OpenNMT-tf's length penalty is that of `length_normalization=gnmt`. A missing length penalty or
    minimum length gets OpenNMT-tf's default. A missing beam size gets towernmt's default, because `--auto_config` of
    OpenNMT-tf sets it, too, and so does a missing maximum length, because OpenNMT-tf's does not depend on the source.

    Args:
        params: `params` of the configuration; None without a configuration, for the defaults of towernmt.
    """
    if params is None:
        return SearchSettings(), ()
    settings: dict[str, Any] = {"length_penalty": 0.0}
    notes = [f"The run does not contain {name}={value} of the configuration, because {reason.format(value=value)}."
             for name, (off, reason) in _SEARCH_NOTES.items() if (value := params.get(name)) not in (None, off)]
    for name, (setting, kind, least) in _SEARCH_SETTINGS.items():
        value = params.get(name)
        if value is None:
            continue
        if isinstance(value, (int, kind)) and not isinstance(value, bool) and value >= least:
            settings[setting] = kind(value)
        else:
            notes.append(f"The run does not contain {name}={value} of the configuration, because search.{setting} must "
                         f"be {'an integer' if kind is int else 'a number'} of at least {least}.")
    if "max_length_constant" in settings:
        settings["max_length_factor"] = 0.0
    return SearchSettings(**settings), tuple(notes)


SOURCE, TARGET = "examples_inputter/features_inputter/embedding", "examples_inputter/labels_inputter/embedding"
KERNEL, BIAS = "decoder/output_layer/kernel", "decoder/output_layer/bias"


def _tables(parameters: ForeignParameters, s: TransformerSettings, source: PieceTable, target: PieceTable) -> Weights:
    depth, rows = s.hidden_size, int((target.rows.max()) + 1)
    bias = parameters.take(BIAS, rows) if BIAS in parameters else np.zeros(rows, np.float32)
    weights = {"softmax_bias": target.reorder_bias(bias)}
    if s.tie_embeddings == "all":
        return weights | {"embedding": source.reorder_rows(parameters.take(SOURCE, rows, depth))}
    source_table = parameters.take(SOURCE, parameters.shape(SOURCE)[0], depth)
    target_table = parameters.take(TARGET, rows, depth) if TARGET in parameters else source_table
    weights |= {"source_embedding": source.reorder_rows(source_table),
                "target_embedding": target.reorder_rows(target_table)}
    if s.tie_embeddings == "none":
        weights["softmax_embedding"] = target.reorder_rows(parameters.take(KERNEL, depth, rows).T)
    return weights


def _layer(parameters: ForeignParameters, s: TransformerSettings, stack: str, number: int) -> Weights:
    scope, foreign = f"{stack}/layer_{number}", f"{stack}/layers/{number}"
    foreign_part = f"{foreign}/self_attention"
    weights = _attention(parameters, s, foreign_part).self_attention(f"{scope}/self_attention")
    weights |= _sublayer_norm(parameters, s, f"{scope}/self_attention", foreign_part)
    if s.positions == "relative":
        rows = (2 * s.max_distance + 1, s.hidden_size // s.heads)
        weights |= {f"{scope}/self_attention/relative_{name}": parameters.take(
            f"{foreign_part}/layer/relative_position_{name}", *rows) for name in ("keys", "values")}
    if stack == "decoder":
        weights |= _attention(parameters, s, f"{foreign}/attention/0").cross_attention(f"{scope}/source_attention")
        weights |= _sublayer_norm(parameters, s, f"{scope}/source_attention", f"{foreign}/attention/0")
    for name, shape in (("inner", (s.hidden_size, s.filter_size)), ("outer", (s.filter_size, s.hidden_size))):
        weights[f"{scope}/feed_forward/{name}/kernel"] = parameters.take(f"{foreign}/ffn/layer/{name}/kernel", *shape)
        weights[f"{scope}/feed_forward/{name}/bias"] = parameters.take(f"{foreign}/ffn/layer/{name}/bias", shape[1])
    return weights | _sublayer_norm(parameters, s, f"{scope}/feed_forward", f"{foreign}/ffn")


def _attention(parameters: ForeignParameters, s: TransformerSettings, foreign: str) -> AttentionProjections:
    depth, parts = s.hidden_size, ("queries", "keys", "values", "output")
    kernels = [parameters.take(f"{foreign}/layer/linear_{part}/kernel", depth, depth) for part in parts]
    biases = {part: parameters.take(f"{foreign}/layer/linear_{part}/bias", depth)
              if f"{foreign}/layer/linear_{part}/bias" in parameters else np.zeros(depth, np.float32) for part in parts}
    return AttentionProjections(kernels[0], kernels[1], kernels[2], kernels[3], biases["queries"], biases["values"],
                                biases["output"])


def _sublayer_norm(parameters: ForeignParameters, s: TransformerSettings, scope: str, foreign: str) -> Weights:
    if s.preprocess:
        return _norm(parameters, s, f"{scope}_pre_norm", f"{foreign}/input_layer_norm")
    return _norm(parameters, s, f"{scope}_post_norm", f"{foreign}/output_layer_norm")


def _norm(parameters: ForeignParameters, s: TransformerSettings, scope: str, foreign: str) -> Weights:
    return {f"{scope}/scale": parameters.take(f"{foreign}/gamma", s.hidden_size),
            f"{scope}/offset": parameters.take(f"{foreign}/beta", s.hidden_size)}


_SPECIAL = ["<blank>", "<s>", "</s>"]
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_DEFAULT_HEADS = {512: 8, 1024: 16, 64: 2}
"""Attention heads of the Transformers in OpenNMT-tf's catalogue, by depth."""
_EPSILON = 1e-3
"""Keras' default for layer normalisation."""
_RELU_NOTE = ("Checkpoints of OpenNMT-tf do not contain the activation of feed-forward layers: relu is assumed, as in "
              "all Transformers of its catalogue.")


def read_opennmt_tf(request: ImportRequest) -> ForeignModel:
    """Read an OpenNMT-tf model.

    Raises:
        SettingsError: the path is not an OpenNMT-tf model, or towernmt does not support the model.
        DataError: a vocabulary or the configuration is damaged or belongs to another model.
        CheckpointError: the checkpoint is damaged or lacks a variable.
    """
    files = find_opennmt_tf_files(request)
    parameters = open_checkpoint(files.checkpoint, _parameter_name)
    s = _settings(parameters, request.heads)
    rows = [parameters.shape(SOURCE)[0], parameters.shape(TARGET if TARGET in parameters else SOURCE)[0]]
    tables = [_table(file, size) for file, size in zip(files.vocabularies, rows, strict=True)]
    if TARGET not in parameters and tables[0].pieces != tables[1].pieces:
        raise SettingsError(f"{files.checkpoint}: both languages share one table, but their vocabularies differ: pass "
                            "the shared vocabulary twice, --vocabularies FILE FILE.")
    source, target, tables = vocabularies_of(files.pieces, tables, s.tie_embeddings == "all")
    is_guided = (files.params or {}).get("guided_alignment_type") in ("ce", "mse")     # the first head
    s = replace(s, source_vocab_size=source.size, target_vocab_size=target.size, source_end=files.source_end,
                guided_alignment_heads=int(is_guided))
    weights = transformer_weights(parameters, s, _tables(parameters, s, *tables), _layer, _norm)
    search, search_notes = opennmt_tf_search(files.params)
    notes = (_RELU_NOTE, *(() if files.pieces else (WORDS_NOTE,)), *search_notes)
    return ForeignModel(f"opennmt-tf {files.checkpoint.name}", s, weights, source, target, search, notes=notes)


def _parameter_name(name: str) -> str:
    """Return the parameter name for a variable name; "" for variables of the optimizer and of TensorFlow."""
    variable = name.removesuffix(_VALUE)
    inside = variable.startswith("model/") and variable != name and ".OPTIMIZER_SLOT" not in variable
    return variable.removeprefix("model/") if inside else ""


def _settings(parameters: ForeignParameters, heads: int | None) -> TransformerSettings:
    """Return the settings that follow from the shapes of the parameters.

    Raises:
        SettingsError: the number of heads is unknown, or the model is not a Transformer.
    """
    if "encoder/layers/0/self_attention/layer/linear_queries/kernel" not in parameters:
        raise SettingsError(f"{parameters.origin}: not a Transformer of OpenNMT-tf 2 with one source and one target: "
                            "the model cannot be imported.")
    depth, relative = parameters.shape(SOURCE)[1], "encoder/layers/0/self_attention/layer/relative_position_keys"
    positions: dict[str, Any] = {"first_position": 1}
    if relative in parameters:
        rows, size = parameters.shape(relative)
        positions, heads = {"positions": "relative", "max_distance": (rows - 1) // 2}, depth // size
    heads = heads or _DEFAULT_HEADS.get(depth)
    if not heads:
        raise SettingsError(f"{parameters.origin}: the depth is {depth}, and the files of OpenNMT-tf do not contain "
                            "the number of attention heads: pass --heads N (num_heads of the model's definition).")
    pre_norm = "encoder/layer_norm/gamma" in parameters
    return TransformerSettings(
        hidden_size=depth, filter_size=parameters.shape("encoder/layers/0/ffn/layer/inner/kernel")[1], heads=heads,
        encoder_layers=_layers(parameters, "encoder"), decoder_layers=_layers(parameters, "decoder"),
        preprocess="n" if pre_norm else "", postprocess="dr" if pre_norm else "drn", attention_biases=True,
        norm_epsilon=_EPSILON, guided_alignment_layer=_layers(parameters, "decoder"),
        tie_embeddings="none" if KERNEL in parameters else "target" if TARGET in parameters else "all", **positions)


def _layers(parameters: ForeignParameters, stack: str) -> int:
    numbers = {int(match[1]) for name in parameters.names if (match := re.match(rf"{stack}/layers/(\d+)/", name))}
    if not numbers or numbers != set(range(len(numbers))):
        raise CheckpointError(f"{parameters.origin}: layers of the {stack} are missing: the checkpoint is damaged.")
    return len(numbers)


def _table(file: Path, rows: int) -> PieceTable:
    """Read a vocabulary: a word on each line, `<blank>`, `<s>` and `</s>` first; `<unk>` follows the last line."""
    words = list(dict.fromkeys(vocabulary_lines(file)))     # OpenNMT-tf skips repeated words
    if words[:len(_SPECIAL)] != _SPECIAL:
        raise DataError(f"{file} does not begin with <blank>, <s> and </s>: pass a vocabulary of OpenNMT-tf (convert "
                        "a SentencePiece vocabulary with onmt-build-vocab).")
    if len(words) + 1 != rows:
        raise DataError(f"{file} has {len(words)} words, but the model has {rows - 1}: pass the vocabulary of this "
                        "model.")
    words_with_rows = [(f"<word {row}>" if word in ("", "<unk>", "<pad>") else word, row)
                       for row, word in enumerate(words) if row >= len(_SPECIAL)]
    return PieceTable.of({PAD: 0, BOS: 1, EOS: 2, UNK: len(words)}, words_with_rows)
