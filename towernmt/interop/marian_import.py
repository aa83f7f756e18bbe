"""Import a Marian or OPUS-MT model: settings, parameters and vocabularies."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from towernmt.core.errors import CheckpointError, DataError, SettingsError
from towernmt.core.structured_files import load_strict
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from towernmt.interop.foreign_model import (
    AttentionProjections,
    ForeignModel,
    ForeignParameters,
    ImportRequest,
    Weights,
    transformer_weights,
)
from towernmt.interop.foreign_vocabularies import (
    WORDS_NOTE,
    ForeignPieceModel,
    PieceTable,
    vocabularies_of,
    vocabulary_lines,
)
from towernmt.interop.marian_files import (
    DECODER,
    FEED_FORWARDS,
    INPUT_SCALE_SUFFIX,
    MODEL_OPTIONS,
    float_value,
    read_binary_file,
)
from towernmt.interop.marian_folder import find_marian_files
from towernmt.models.model_settings import TransformerSettings
from towernmt.predict.search.search_settings import SearchSettings

_ACTIVATIONS = {marian_name: name for name, marian_name in FEED_FORWARDS.items()}


def settings_from_marian(options: Mapping[str, Any], origin: str, **tables: Any) -> TransformerSettings:
    """Return the settings of a model.

    Args:
        options: the options in `special:model.yml`.
        origin: the file, for messages.
        **tables: `tie_embeddings` and the sizes of the vocabularies.

    Raises:
        SettingsError: the model has a component that towernmt does not support, or an option is missing.
    """
    if problem := unsupported_marian_options(options):
        raise SettingsError(f"{origin}: {problem}; this model cannot be imported.")
    heads, depth = _number(options, "transformer-heads", origin), _number(options, "dim-emb", origin)
    layers = _number(options, "dec-depth", origin)
    shown = str(options.get("transformer-guided-alignment-layer", "last"))
    return TransformerSettings(
        hidden_size=depth, filter_size=_number(options, "transformer-dim-ffn", origin), heads=heads,
        encoder_layers=_number(options, "enc-depth", origin), decoder_layers=layers, preprocess="", postprocess="drn",
        feed_forward=_ACTIVATIONS[options.get("transformer-ffn-activation", "relu")],
        decoder_cell="ssru" if options.get("transformer-decoder-autoreg") == "rnn" else "attention",
        guided_alignment_layer=int(shown) if shown.isdecimal() and 0 < int(shown) <= layers else layers,
        guided_alignment_heads=1, attention_biases=True, start="zero", **tables)


_SEARCH_DEFAULTS: Mapping[str, float] = {
    "beam-size": 12, "normalize": 0.0, "word-penalty": 0.0, "max-length-factor": 3.0}
"""The defaults of marian-decoder (`addOptionsTranslation` in its config_parser.cpp)."""


def marian_search(decoder: Mapping[str, Any]) -> tuple[SearchSettings, tuple[str, ...]]:
    """Return the search settings of `decoder.yml`, and a sentence for each option that the run does not contain.

    Marian divides a log-probability, from which it subtracts `word-penalty` for each token, by the length raised to the
    power of `normalize`. A missing option, or one that the run cannot contain, has Marian's default.

    Args:
        decoder: options in `decoder.yml`; empty if the file is missing, for the defaults of towernmt.
    """
    if not decoder:
        return SearchSettings(), ()
    options, notes = dict(_SEARCH_DEFAULTS), list[str]()
    for name, (kind, is_expressible, requirement) in _SEARCH_OPTIONS.items():
        value = decoder.get(name)
        if isinstance(value, kind) and is_expressible(value):
            options[name] = value
        elif value is not None:
            notes.append(f"The run does not contain {name}={value} of {DECODER}, because {requirement}: it searches "
                         f"with {name}={_SEARCH_DEFAULTS[name]:g}.")
    return SearchSettings(
        beam_size=int(options["beam-size"]), length_normalization="average", length_penalty=float(options["normalize"]),
        word_reward=-float(options["word-penalty"]) or 0.0, max_length_factor=float(options["max-length-factor"]),
        max_length_constant=0), tuple(notes)


_SEARCH_OPTIONS: Mapping[str, tuple[tuple[type[int] | type[float], ...], Callable[[Any], bool], str]] = {
    "beam-size": ((int,), lambda beam: beam >= 1, "search.beam_size must be an integer of at least 1"),
    "normalize": ((int, float), lambda alpha: alpha >= 0, "search.length_penalty must be a number of at least 0"),
    "word-penalty": ((int, float), lambda penalty: penalty <= 0,
                     "search.word_reward, its opposite, must be a number of at least 0"),
    "max-length-factor": ((int, float), lambda factor: factor > 0, "search.max_length_factor must be a number above 0"),
}
"""The type of each option of the search, the values that towernmt can express, and their description."""


def unsupported_marian_options(options: Mapping[str, Any]) -> str:
    """Return a clause with the first option that towernmt does not support; "" if it supports all."""
    return next((text(options) for fits, text in _RULES if not fits(options)), "")


OptionRule = tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], str]]
"""A test of the options, and the message if the test fails."""


def _must_be_off(name: str, reason: str) -> OptionRule:
    """Return the rule that an option must be off."""
    return lambda o: not o.get(name), lambda o: f"{name} is {o.get(name)}: {reason}"


def _without_dropout(options: Mapping[str, Any], name: str) -> str:
    """Return the sequence of operations in an option, without dropout."""
    return str(options.get(name) or "").replace("d", "")


_RULES: Sequence[OptionRule] = (
    (lambda o: o.get("type") == "transformer",
     lambda o: f"type is {o.get('type')}: towernmt imports only models of the type transformer"),
    (lambda o: o.get("transformer-decoder-autoreg", "self-attention") in ("self-attention", "rnn"),
     lambda o: f"transformer-decoder-autoreg is {o.get('transformer-decoder-autoreg')}: decoders of towernmt have "
               "self-attention or an SSRU, but no average attention (AAN)"),
    (lambda o: o.get("transformer-decoder-autoreg") != "rnn" or o.get("dec-cell") == "ssru",
     lambda o: f"dec-cell is {o.get('dec-cell')}: decoders of towernmt have self-attention or an SSRU (ssru)"),
    (lambda o: not _without_dropout(o, "transformer-preprocess")
     and _without_dropout(o, "transformer-postprocess") == "an",
     lambda o: f"transformer-preprocess is '{o.get('transformer-preprocess')}' and transformer-postprocess "
               f"'{o.get('transformer-postprocess')}': only post-norm ('' and 'dan') is equal in both programs "
               "(Marian's pre-norm does not normalise keys and values)"),
    (lambda o: not _without_dropout(o, "transformer-postprocess-emb"),
     lambda o: f"transformer-postprocess-emb is '{o.get('transformer-postprocess-emb')}': towernmt does not normalise "
               "embeddings"),
    (lambda o: not _without_dropout(o, "transformer-postprocess-top"),
     lambda o: f"transformer-postprocess-top is '{o.get('transformer-postprocess-top')}': post-norm stacks of towernmt "
               "have no operation at their end"),
    (lambda o: o.get("transformer-ffn-activation", "relu") in list(_ACTIVATIONS),
     lambda o: f"transformer-ffn-activation is {o.get('transformer-ffn-activation')}: towernmt supports "
               f"{', '.join(_ACTIVATIONS)}"),
    (lambda o: o.get("transformer-ffn-depth", 2) == 2,
     lambda o: f"transformer-ffn-depth is {o.get('transformer-ffn-depth')}: feed-forward sublayers of towernmt have "
               "two linear layers"),
    (lambda o: o.get("transformer-decoder-ffn-depth", 0) in (0, 2),
     lambda o: f"transformer-decoder-ffn-depth is {o.get('transformer-decoder-ffn-depth')}: feed-forward sublayers of "
               "towernmt have two linear layers"),
    (lambda o: o.get("transformer-decoder-dim-ffn", 0) in (0, o.get("transformer-dim-ffn")),
     lambda o: f"transformer-decoder-dim-ffn is {o.get('transformer-decoder-dim-ffn')}: encoder and decoder of "
               "towernmt have the same filter size"),
    _must_be_off("transformer-no-projection", "attention of towernmt always has an output projection"),
    _must_be_off("transformer-train-positions", "Marian then does not scale embeddings, but towernmt does"),
    _must_be_off("transformer-tied-layers", "layers of towernmt do not share weights"),
    _must_be_off("transformer-rnn-projection", "an SSRU of towernmt has no output projection"),
    _must_be_off("transformer-pool", "towernmt does not pool the source"),
    _must_be_off("lemma-dim-emb", "towernmt does not support Marian's factors"),
    _must_be_off("factors-dim-emb", "towernmt does not support Marian's factors"),
    _must_be_off("lemma-dependency", "towernmt does not support Marian's factors"),
    _must_be_off("input-types", "towernmt supports only sentences as input"),
    _must_be_off("ulr", "towernmt does not support universal language representations"),
    _must_be_off("right-left", "towernmt does not decode from right to left"),
    (lambda o: isinstance(o.get("dim-vocabs"), list) and len(o["dim-vocabs"]) == 2,
     lambda o: f"dim-vocabs is {o.get('dim-vocabs')}: towernmt supports one source and one target"),
)
"""The rules that the options of an importable model fulfil."""


def _number(options: Mapping[str, Any], name: str, origin: str) -> int:
    value = options.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"{origin}: {name} in special:model.yml is {value!r}, but must be a number: the file is "
                            "damaged or not a Marian model.")
    return value


LOGITS = "decoder_ff_logit_out"


def marian_embedding_ties(parameters: ForeignParameters) -> str:
    """Return `model.tie_embeddings`; "none" if the softmax has its own table, even if the embeddings share one."""
    has_softmax_table = any(f"{LOGITS}_{name}" in parameters for name in ("Wt", "W"))
    return "none" if has_softmax_table else "all" if "Wemb" in parameters else "target"


def table_names(parameters: ForeignParameters) -> tuple[str, str]:
    """Return the names of the source and target embedding."""
    return ("Wemb", "Wemb") if "Wemb" in parameters else ("encoder_Wemb", "decoder_Wemb")


def _tables(parameters: ForeignParameters, s: TransformerSettings, source: PieceTable, target: PieceTable) -> Weights:
    names, depth = table_names(parameters), s.hidden_size
    tables = [parameters.take(name, parameters.shape(name)[0], depth) for name in names]
    rows = len(tables[1])
    bias = parameters.take(f"{LOGITS}_b", rows) if f"{LOGITS}_b" in parameters else np.zeros(rows, np.float32)
    weights = {"softmax_bias": target.reorder_bias(bias)}
    if s.tie_embeddings == "all":
        return weights | {"embedding": target.reorder_rows(tables[1])}
    weights |= {"source_embedding": source.reorder_rows(tables[0]), "target_embedding": target.reorder_rows(tables[1])}
    if s.tie_embeddings == "none":
        softmax = (parameters.take(f"{LOGITS}_Wt", rows, depth) if f"{LOGITS}_Wt" in parameters
                   else parameters.take(f"{LOGITS}_W", depth, rows).T)
        weights["softmax_embedding"] = target.reorder_rows(softmax)
    return weights


def _layer(parameters: ForeignParameters, s: TransformerSettings, stack: str, number: int) -> Weights:
    scope, foreign = f"{stack}/layer_{number}", f"{stack}_l{number + 1}"
    if stack == "decoder" and s.decoder_cell == "ssru":
        weights = _ssru(parameters, s, f"{scope}/ssru", f"{foreign}_rnn")
    else:
        attention = _attention(parameters, s.hidden_size, f"{foreign}_self")
        weights = attention.self_attention(f"{scope}/self_attention")
        weights |= _norm(parameters, s, f"{scope}/self_attention", f"{foreign}_self_Wo")
    if stack == "decoder":
        attention = _attention(parameters, s.hidden_size, f"{foreign}_context")
        weights |= attention.cross_attention(f"{scope}/source_attention")
        weights |= _norm(parameters, s, f"{scope}/source_attention", f"{foreign}_context_Wo")
    return weights | _feed_forward(parameters, s, f"{scope}/feed_forward", f"{foreign}_ffn")


def _attention(parameters: ForeignParameters, depth: int, foreign: str) -> AttentionProjections:
    kernels = {letter: parameters.take(f"{foreign}_W{letter}", depth, depth) for letter in "qkvo"}
    biases = {letter: parameters.take(f"{foreign}_b{letter}", depth) for letter in "qvo"}
    parameters.drop(f"{foreign}_bk")     # it does not change the softmax
    return AttentionProjections(*(kernels[letter] for letter in "qkvo"), *(biases[letter] for letter in "qvo"))


def _ssru(parameters: ForeignParameters, s: TransformerSettings, scope: str, foreign: str) -> Weights:
    value, gate = (parameters.take(f"{foreign}_{name}", s.hidden_size, s.hidden_size) for name in ("W", "Wf"))
    return {f"{scope}/projection/kernel": np.concatenate([value, gate], 1),
            f"{scope}/forget_bias": parameters.take(f"{foreign}_bf", s.hidden_size),
            **_norm(parameters, s, scope, f"{foreign}_ffn")}


def _feed_forward(parameters: ForeignParameters, s: TransformerSettings, scope: str, foreign: str) -> Weights:
    inner, outer = (s.hidden_size, s.filter_size), (s.filter_size, s.hidden_size)
    weights = {}
    for letter, name, shape in (("1", "inner", inner), ("2", "outer", outer)):
        weights[f"{scope}/{name}/kernel"] = parameters.take(f"{foreign}_W{letter}", *shape)
        weights[f"{scope}/{name}/bias"] = parameters.take(f"{foreign}_b{letter}", shape[1])
    return weights | _norm(parameters, s, scope, f"{foreign}_ffn")


def _norm(parameters: ForeignParameters, s: TransformerSettings, scope: str, foreign: str) -> Weights:
    return {f"{scope}_post_norm/scale": parameters.take(f"{foreign}_ln_scale", s.hidden_size),
            f"{scope}_post_norm/offset": parameters.take(f"{foreign}_ln_bias", s.hidden_size)}


_EOS_ID, _UNK_ID = 0, 1


def read_marian_pieces(file: Path, rows: int) -> PieceTable:
    """Read the pieces of a vocabulary.

    Args:
        file: `.yml`, `.json`, `.txt` (a piece on each line), or `.spm`.
        rows: number of rows in the model's table; further pieces are unknown to the model.

    Raises:
        DataError: the file cannot be read, or its first pieces are not Marian's.
    """
    pieces = ForeignPieceModel(file).all_pieces if file.suffix == ".spm" else _pieces_of_list(file)
    if pieces[_EOS_ID:_UNK_ID + 1] != [SPECIAL_PIECES[EOS], SPECIAL_PIECES[UNK]]:
        raise DataError(f"{file}: the first pieces are {pieces[:2]}, but Marian's are </s> and <unk>: this is not a "
                        "Marian vocabulary, or it belongs to another model.")
    special = {EOS: _EOS_ID, UNK: _UNK_ID, **{id: pieces.index(SPECIAL_PIECES[id]) for id in (PAD, BOS)
                                              if SPECIAL_PIECES[id] in pieces}}
    special_rows = set(special.values())
    words = [(piece, row) for row, piece in enumerate(pieces[:rows]) if row not in special_rows]
    unnamed = [(f"<row_{row}>", row) for row in range(len(pieces), rows)]
    return PieceTable.of({id: row for id, row in special.items() if row < rows}, words + unnamed)


def _pieces_of_list(file: Path) -> list[str]:
    lines = vocabulary_lines(file)
    if file.suffix == ".txt":
        if len(set(lines)) < len(lines) or "" in lines:
            raise DataError(f"{file}: a piece occurs twice or is empty: the file is damaged.")
        return lines
    try:
        ids = dict(json.loads("\n".join(lines))) if file.suffix == ".json" else _ids_of_yaml(lines)
        by_id = {int(id): str(piece) for piece, id in ids.items()}
    except (ValueError, TypeError, OverflowError, RecursionError, yaml.YAMLError) as error:
        raise DataError(f"{file}: not a Marian vocabulary, or the file is damaged: each line must have a piece, a "
                        "colon and a number.") from error
    if len(by_id) != len(ids) or sorted(by_id) != list(range(len(by_id))) or len(by_id) < _UNK_ID + 1:
        raise DataError(f"{file}: the {len(ids)} pieces are not numbered from 0 to {len(ids) - 1}: the file is "
                        "damaged.")
    return [by_id[id] for id in range(len(by_id))]


def _ids_of_yaml(lines: Sequence[str]) -> dict[str, int]:
    """Return pieces and their ids, parsed by lines, since YAML would read some pieces as line ends, numbers or null."""
    ids: dict[str, int] = {}
    long_key: str | None = None     # a long piece, whose number is on the next line
    for line in lines:
        if long_key is not None and line.startswith(":"):
            key, number, long_key = long_key, line[1:], None
        elif line.startswith("? "):
            long_key = line[2:]
            continue
        elif not line.strip() or line.startswith(("#", "---", "...")) and ": " not in line:
            continue
        else:
            key, _, number = line.rpartition(":")
        piece = _unquoted(key)
        if piece in ids:
            raise ValueError(f"{piece} occurs twice")
        ids[piece] = int(number)
    return ids


def _unquoted(key: str) -> str:
    if key[:1] == "'" == key[-1:] and len(key) > 1:
        return key[1:-1].replace("''", "'")
    if not (key[:1] == '"' == key[-1:] and len(key) > 1):
        return key
    if "\\" not in key:
        return key[1:-1]
    try:
        return str(json.loads(key))
    except ValueError:
        return str(yaml.load(key, Loader=yaml.BaseLoader))  # for escapes that JSON does not have


_DAMAGED = (OSError, ValueError, OverflowError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def read_marian(request: ImportRequest) -> ForeignModel:
    """Read a Marian model.

    Raises:
        SettingsError: the path is not a Marian model, or towernmt does not support the model.
        DataError: a vocabulary is damaged or belongs to another model.
        CheckpointError: the `.npz` file is damaged or lacks a parameter.
    """
    files = find_marian_files(request)
    parameters, options = _open(files.model)
    tie = marian_embedding_ties(parameters)
    tables = [read_marian_pieces(file, parameters.shape(name)[0])
              for file, name in zip(files.vocabularies, table_names(parameters), strict=True)]
    if tie == "all" and tables[0].pieces != tables[1].pieces:
        raise SettingsError(f"{files.model}: both languages share one table, but their vocabularies differ: pass the "
                            "shared vocabulary twice, --vocabularies FILE FILE.")
    pieces = files.pieces or (files.vocabularies if files.vocabularies[0].suffix == ".spm" else None)
    source, target, tables = vocabularies_of(pieces, tables, tie == "all")
    settings = settings_from_marian(options, str(files.model), tie_embeddings=tie, source_vocab_size=source.size,
                                    target_vocab_size=target.size)
    weights = transformer_weights(parameters, settings, _tables(parameters, settings, *tables), _layer, _norm)
    search, search_notes = marian_search(files.decoder)
    return ForeignModel(f"marian {files.model.name}", settings, weights, source, target, search, files.copied_files,
                        (*(() if pieces else (WORDS_NOTE,)), *search_notes))


def _open(file: Path) -> tuple[ForeignParameters, Mapping[str, Any]]:
    """Return the parameters and the options of a model."""
    try:
        values, text = _read_binary(file) if file.suffix == ".bin" else _read_npz(file)
        options = load_strict(text)
    except (*_DAMAGED, yaml.MarkedYAMLError) as error:
        raise CheckpointError(f"{file}: not a Marian model with {MODEL_OPTIONS}, or the file is damaged "
                              f"({str(error).splitlines()[0] if str(error) else type(error).__name__}).") from error
    if not isinstance(options, dict):
        raise CheckpointError(f"{file}: {MODEL_OPTIONS} contains no settings: the file is damaged.")
    shapes = {name: value.shape for name, value in values.items()}
    return ForeignParameters(str(file), shapes, values.__getitem__), options


def _read_npz(file: Path) -> tuple[dict[str, np.ndarray], str]:
    """Return the parameters and the text of `special:model.yml`."""
    archive = np.load(file, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("one array, not an archive")
    with archive:
        values = {name: archive[name] for name in archive.files}
    for name, value in values.items():
        if not isinstance(value, np.ndarray):
            raise ValueError(f"{name} is not an array")
    return values, values.pop(MODEL_OPTIONS).tobytes().rstrip(b"\0").decode("utf-8")


def _read_binary(file: Path) -> tuple[dict[str, np.ndarray], str]:
    """Return the parameters and the text of `special:model.yml`; 8-bit matrices as float32, without input scales.

    Raises:
        SettingsError: a parameter cannot be converted to float32 exactly enough.
    """
    items = {item.name: item for item in read_binary_file(file.read_bytes())}
    text = items.pop(MODEL_OPTIONS).data.rstrip(b"\0").decode("utf-8")
    try:
        return {name: float_value(item) for name, item in items.items() if not name.endswith(INPUT_SCALE_SUFFIX)}, text
    except ValueError as error:
        raise SettingsError(f"{file}: {error}: import the .npz file from which it was made.") from error
