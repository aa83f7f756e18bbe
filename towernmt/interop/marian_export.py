"""Write a Transformer for Marian: in float32 as `.npz`, in int8 as the binary file of Bergamot.

The int8 format needs the range of each matrix's input, which `MarianModel` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.text_lines import read_lines
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES, Vocabulary
from towernmt.interop.ctranslate2_sentences import limits_of
from towernmt.interop.export import ExportJob, UnsupportedModelError, transformer_settings, unconsidered_setting
from towernmt.interop.marian_files import (
    DECODER,
    FEED_FORWARDS,
    INT8_DECODER,
    MODEL_OPTIONS,
    MarianVocabulary,
    binary_file,
    browser_options,
    decoder_options,
    int8_items,
    model_options,
    sentence_piece_model,
)
from towernmt.interop.marian_model import MARIAN_EOS, MarianModel
from towernmt.models.model_settings import TransformerSettings, layer_gains
from towernmt.predict.lines.text_io import check_readable
from towernmt.predict.search.lexical_table import Lexicon
from towernmt.predict.trained_model import TrainedModel


def to_marian(ids: list[int], vocabulary: MarianVocabulary) -> list[int]:
    """Convert the ids of a sentence to Marian's ids, and add EOS."""
    return [*vocabulary.marian_ids[ids].tolist(), MARIAN_EOS]


INT8_DEPTH = 64
"""The input depth of 8-bit products must be a multiple of this."""


def check_marian_support(trained: TrainedModel, precision: str) -> TransformerSettings:
    """Return the settings of a model, if Marian can express it.

    Raises:
        UnsupportedModelError: Marian cannot express the model; the message names the setting.
        SettingsError: it cannot express the model in this precision.
    """
    settings = transformer_settings(trained, "Marian")
    if problem := unsupported_by_marian(settings, precision):
        raise UnsupportedModelError(f"{problem}. A model with the preset `student` can be exported.")
    if precision == "int8" and any(vocabulary.kind != "sentencepiece" for vocabulary in (
            trained.source_vocabulary, trained.target_vocabulary)):
        raise SettingsError("precision int8: its engines support only SentencePiece, but the run has another kind of "
                            "vocabulary: choose the precision float32, or prepare the data with `towernmt prepare "
                            "--vocab-kind unigram`.")
    return settings


def unsupported_by_marian(settings: TransformerSettings, precision: str) -> str:
    """Return a clause with the first setting that Marian cannot express in a precision; "" if it can express all."""
    rules = [*_RULES, *(_INT8_RULES if precision == "int8" else ())]
    return unconsidered_setting(settings, "Marian") or next(
        (text(settings) for fits, text in rules if not fits(settings)), "")


def _without_dropout(sequence: str) -> str:
    """Return a sequence of operations without dropout."""
    return sequence.replace("d", "")


_RULES: Sequence[tuple[Callable[[TransformerSettings], bool], Callable[[TransformerSettings], str]]] = (
    (lambda s: s.start == "zero",
     lambda s: f"model.start={s.start}: Marian's decoder starts from an embedding of zeros (model.start=zero)"),
    (lambda s: not _without_dropout(s.preprocess) and _without_dropout(s.postprocess) == "rn",
     lambda s: f"model.preprocess='{s.preprocess}' with model.postprocess='{s.postprocess}': Marian's pre-norm does "
               "not normalise keys and values, so only post-norm ('' and 'drn') is equal in both programs"),
    (lambda s: s.norm_epsilon <= 1e-5, lambda s: f"model.norm_epsilon={s.norm_epsilon}: Marian's is 1e-6"),
    (lambda s: s.norm == "layer", lambda s: f"model.norm={s.norm}: Marian has layer normalisation"),
    (lambda s: s.positions == "sinusoidal",
     lambda s: f"model.positions={s.positions}: Marian has sinusoidal positions, or one learned table for both stacks"),
    (lambda s: not s.first_position,
     lambda s: f"model.first_position={s.first_position}: Marian counts positions from 0"),
    (lambda s: s.source_end, lambda s: "model.source_end=false: Marian's encoder reads EOS after the source"),
    (lambda s: s.feed_forward in FEED_FORWARDS,
     lambda s: f"model.feed_forward={s.feed_forward}: Marian has {', '.join(FEED_FORWARDS)}, and no gated layers"),
    (lambda s: not s.source_factor_vocab_sizes,
     lambda s: f"model.source_factors={s.source_factors}: Marian's factors work differently"),
    (lambda s: s.hidden_size >= 4, lambda s: f"model.hidden_size={s.hidden_size}: Marian's positions need 4 or more"),
)
"""Pairs of a test of the settings and the message if the test fails."""
_INT8_RULES: Sequence[tuple[Callable[[TransformerSettings], bool], Callable[[TransformerSettings], str]]] = (
    (lambda s: s.hidden_size % INT8_DEPTH == 0,
     lambda s: f"model.hidden_size={s.hidden_size}: 8-bit products need a multiple of {INT8_DEPTH}"),
    (lambda s: s.filter_size % INT8_DEPTH == 0,
     lambda s: f"model.filter_size={s.filter_size}: 8-bit products need a multiple of {INT8_DEPTH}"),
    (lambda s: s.tie_embeddings != "none",
     lambda s: f"model.tie_embeddings={s.tie_embeddings}: the 8-bit engines need one table for target and softmax "
               "(model.tie_embeddings=all or target)"),
    (lambda s: s.decoder_cell == "ssru",
     lambda s: f"model.decoder_cell={s.decoder_cell}: the browser engines support only SSRU decoders "
               "(model.decoder_cell=ssru)"),
)


UNUSED_BIAS = -1e9
"""The bias of pieces that occur in no text."""


def marian_parameters(settings: TransformerSettings, weights: Mapping[str, np.ndarray], source: MarianVocabulary,
                      target: MarianVocabulary) -> dict[str, np.ndarray]:
    """Return the parameters by Marian's names, float32, each with two dimensions.

    Args:
        settings: settings of a model that Marian can express.
        weights: the value of each variable, by name.
        source: Marian's order of the source pieces.
        target: Marian's order of the target pieces.
    """
    values = {name.removeprefix("transformer/"): value.astype(np.float32) for name, value in weights.items()}
    return _MarianBuilder(settings, values).parameters(source, target)


class _MarianBuilder:
    def __init__(self, settings: TransformerSettings, weights: dict[str, np.ndarray]) -> None:
        self._settings, self._weights = settings, weights
        self._parameters: dict[str, np.ndarray] = {}

    def parameters(self, source: MarianVocabulary, target: MarianVocabulary) -> dict[str, np.ndarray]:
        s = self._settings
        self._tables(source, target)
        for number in range(s.encoder_layers):
            self._self_attention("encoder", number)
            self._feed_forward("encoder", number)
        for number in range(s.decoder_layers):
            if s.decoder_cell == "ssru":
                self._ssru(number)
            else:
                self._self_attention("decoder", number)
            self._cross_attention(number)
            self._feed_forward("decoder", number)
        return {name: np.ascontiguousarray(np.atleast_2d(value), np.float32)
                for name, value in self._parameters.items()}

    def _tables(self, source: MarianVocabulary, target: MarianVocabulary) -> None:
        parameters, weights, tie = self._parameters, self._weights, self._settings.tie_embeddings
        if tie == "all":
            parameters["Wemb"] = target.rows(weights["embedding"])
        else:
            parameters["encoder_Wemb"] = source.rows(weights["source_embedding"])
            parameters["decoder_Wemb"] = target.rows(weights["target_embedding"])
        if tie == "none":
            parameters["decoder_ff_logit_out_Wt"] = target.rows(weights["softmax_embedding"])
        parameters["decoder_ff_logit_out_b"] = target.rows(weights["softmax_bias"], UNUSED_BIAS)

    def _self_attention(self, stack: str, number: int) -> None:
        scope, name = f"{stack}/layer_{number}/self_attention", f"{stack}_l{number + 1}_self"
        for letter, kernel in zip("qkv", np.split(self._weights[f"{scope}/qkv/kernel"], 3, 1), strict=True):
            self._attention_map(name, letter, kernel, f"{scope}/query_bias" if letter == "q" else "")
        self._end_of_attention(scope, name, stack, number)

    def _cross_attention(self, number: int) -> None:
        scope, name = f"decoder/layer_{number}/source_attention", f"decoder_l{number + 1}_context"
        kernels = [self._weights[f"{scope}/query/kernel"], *np.split(self._weights[f"{scope}/kv/kernel"], 2, 1)]
        for letter, kernel in zip("qkv", kernels, strict=True):
            self._attention_map(name, letter, kernel, f"{scope}/query/bias" if letter == "q" else "")
        self._end_of_attention(scope, name, "decoder", number)

    def _end_of_attention(self, scope: str, name: str, stack: str, number: int) -> None:
        kernel, scale = self._weights[f"{scope}/output/kernel"], self._scale(scope, stack, number)
        self._attention_map(name, "o", kernel * scale, f"{scope}/output/bias", scale)
        self._norm(scope, f"{name}_Wo")

    def _attention_map(self, name: str, letter: str, kernel: np.ndarray, bias: str = "",
                       scale: np.ndarray | float = 1.0) -> None:
        """Set a kernel and its bias: the variable named `bias` times `scale`, or zeros if it does not exist."""
        self._parameters[f"{name}_W{letter}"] = kernel
        self._parameters[f"{name}_b{letter}"] = self._weights.get(bias, np.zeros(kernel.shape[1], np.float32)) * scale

    def _ssru(self, number: int) -> None:
        scope, name = f"decoder/layer_{number}/ssru", f"decoder_l{number + 1}_rnn"
        value, gate = np.split(self._weights[f"{scope}/projection/kernel"], 2, 1)
        self._parameters[f"{name}_W"] = value * self._scale(scope, "decoder", number)
        self._parameters[f"{name}_Wf"] = gate
        self._parameters[f"{name}_bf"] = self._weights[f"{scope}/forget_bias"]
        self._norm(scope, f"{name}_ffn")

    def _feed_forward(self, stack: str, number: int) -> None:
        scope, name = f"{stack}/layer_{number}/feed_forward", f"{stack}_l{number + 1}_ffn"
        scale = self._scale(scope, stack, number)
        for letter, layer, factor in (("1", "inner", 1.0), ("2", "outer", scale)):
            self._parameters[f"{name}_W{letter}"] = self._weights[f"{scope}/{layer}/kernel"] * factor
            self._parameters[f"{name}_b{letter}"] = self._weights[f"{scope}/{layer}/bias"] * factor
        self._norm(scope, f"{name}_ffn")

    def _norm(self, scope: str, name: str) -> None:
        self._parameters[f"{name}_ln_scale"] = self._weights[f"{scope}_post_norm/scale"]
        self._parameters[f"{name}_ln_bias"] = self._weights[f"{scope}_post_norm/offset"]

    def _scale(self, sublayer: str, stack: str, number: int) -> np.ndarray:
        """Return the factor of a sublayer's output: LHUC divided by the scale of the residual, `[1 or depth]`."""
        s = self._settings
        residual = layer_gains(s.initialization, stack, number, s.encoder_layers, s.decoder_layers).residual
        scale = np.full(1, 1.0 / residual, np.float32)
        return scale * 2.0 / (1.0 + np.exp(-self._weights[f"{sublayer}/lhuc"])) if s.lhuc else scale


SHORTLIST_MAGIC = 0xF11A48D5013417F5
SPECIAL_COUNT = 2
"""Number of special pieces, `</s>` and `<unk>`."""


def shortlist_file(lexicon: Lexicon, size: int, frequent: int, source: MarianVocabulary, target: MarianVocabulary
                   ) -> bytes:
    """Return the content of a binary shortlist file.

    Args:
        lexicon: lexicon of the run's vocabularies.
        size: number of translations of each source piece.
        frequent: number of frequent target pieces that are always allowed.
        source: Marian's order of the source pieces.
        target: Marian's order of the target pieces.
    """
    table, frequent_ids = lexicon.best(size), lexicon.frequent(frequent)
    nothing = np.zeros(0, np.int32)
    lists = [_marian_ids(frequent_ids if id == EOS else table[id] if id >= len(SPECIAL_PIECES) else nothing, target)
             for id in source.towernmt_ids.tolist()]
    offsets = np.zeros(len(lists) + 1, "<u8")
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    ids = np.concatenate(lists).astype("<u4")
    header = np.array([SPECIAL_COUNT, size, len(offsets), len(ids)], "<u8")
    content = header.tobytes() + offsets.tobytes() + ids.tobytes()
    return np.array([SHORTLIST_MAGIC, checksum(content)], "<u8").tobytes() + content


def _marian_ids(tokens: NDArray[np.integer], target: MarianVocabulary) -> NDArray[np.int64]:
    """Return Marian's ids of tokens in ascending order, without special tokens."""
    return np.unique(target.marian_ids[tokens[tokens >= len(SPECIAL_PIECES)]])


def checksum(content: bytes) -> int:
    """Return Marian's 64-bit hash of the complete 8-byte words, combined as in Boost's `hash_combine`."""
    seed, mask = 0, (1 << 64) - 1
    for word in np.frombuffer(content, "<u8", len(content) // 8).tolist():
        seed ^= (word + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & mask
    return seed


CALIBRATION_LINES = 100
"""Number of sentences that are translated to measure the inputs of the matrix products."""
MAX_CALIBRATION_TOKENS = 256
"""Maximum number of source tokens in each of these sentences."""
MODEL, INT8_MODEL, SHORTLIST = "model.npz", "model.intgemm.alphas.bin", "lex.s2t.bin"
VALIDATION = "valid.source"
"""File name of the validation text in prepared data."""


def write(job: ExportJob) -> dict[str, Any]:
    """Write a model in Marian's format.

    Returns:
        Entries for `towernmt.json`: the files of the model, of both vocabularies, and of the shortlist.

    Raises:
        SettingsError: Marian cannot express the model, the calibration sentences for int8 are missing, or the shortlist
            belongs to other vocabularies.
        DataError: the calibration sentences or the shortlist cannot be read.
    """
    trained, directory, int8 = job.trained, job.directory, job.precision == "int8"
    settings = check_marian_support(trained, job.precision)
    calibration = calibration_file(job) if int8 else ""
    source, target = map(MarianVocabulary.of, (trained.source_vocabulary, trained.target_vocabulary))
    options = model_options(settings, [len(source.pieces), len(target.pieces)])
    parameters = marian_parameters(settings, trained.weights(), source, target)
    vocabularies = write_vocabularies(trained.source_vocabulary, trained.target_vocabulary, directory, not int8)
    shortlist = _write_shortlist(job, source, target)
    options_text = _yaml(options)
    if int8:
        largest_inputs = _largest_inputs(MarianModel(parameters, options), job, calibration, source)
        (directory / INT8_MODEL).write_bytes(binary_file(int8_items(parameters, largest_inputs, options_text)))
        decoder = browser_options(INT8_MODEL, vocabularies, shortlist)
    else:
        meta = np.frombuffer(options_text.encode() + b"\0", np.int8)
        np.savez(directory / MODEL, allow_pickle=False, **{**parameters, MODEL_OPTIONS: meta})
        decoder = decoder_options(job.search, MODEL, vocabularies)
        decoder |= {"shortlist": [shortlist, True]} if shortlist else {}
    (directory / (INT8_DECODER if int8 else DECODER)).write_text(_yaml(decoder), encoding="utf-8")
    return {"model": INT8_MODEL if int8 else MODEL, "vocabularies": vocabularies, "shortlist": shortlist}


def write_vocabularies(source: Vocabulary, target: Vocabulary, directory: Path, as_yaml: bool) -> list[str]:
    """Write SentencePiece models or lists of pieces in Marian's order; a shared vocabulary is written once.

    Args:
        source: the source vocabulary.
        target: the target vocabulary.
        directory: directory for the files.
        as_yaml: whether to write lists next to SentencePiece models, for other programs.

    Returns:
        File names of the source and target vocabulary.
    """
    shared = dict(source.files()) == dict(target.files())
    names = ("vocab", "vocab") if shared else ("srcvocab", "trgvocab")
    files = []
    for name, vocabulary in zip(names, (source, target), strict=True):
        is_sentencepiece = vocabulary.kind == "sentencepiece"
        if is_sentencepiece:
            (directory / f"{name}.spm").write_bytes(sentence_piece_model(vocabulary))
        if as_yaml or not is_sentencepiece:
            (directory / f"{name}.yml").write_text(MarianVocabulary.of(vocabulary).yaml(), encoding="utf-8")
        files.append(f"{name}.spm" if is_sentencepiece else f"{name}.yml")
    return files


def _write_shortlist(job: ExportJob, source: MarianVocabulary, target: MarianVocabulary) -> str:
    """Write the shortlist of the search, and return its file name; "" if the search has none."""
    search, trained = job.search, job.trained
    if not search.shortlist:
        return ""
    lexicon = Lexicon.load(search.shortlist)
    lexicon.check_vocabularies(trained.source_vocabulary, trained.target_vocabulary, search.shortlist)
    content = shortlist_file(lexicon, search.shortlist_size, search.shortlist_frequent, source, target)
    (job.directory / SHORTLIST).write_bytes(content)
    return SHORTLIST


def calibration_file(job: ExportJob) -> str:
    """Return the file of calibration sentences: the one of the job, or the validation text of the run's data.

    Raises:
        SettingsError: the job has no file, and the validation text is missing.
        DataError: the file of the job cannot be read.
    """
    if job.calibration is not None:
        check_readable(job.calibration)
        return str(job.calibration)
    data = job.trained.run.saved_settings().get("made_from.data_path")
    file = Path(str(data)) / VALIDATION if data else None
    if file is None or not file.is_file():
        raise SettingsError("precision int8 needs source sentences to measure the range of activations, and the "
                            "validation text of the run's data is missing: pass a file of about a hundred sentences "
                            "with --calibration.")
    return str(file)


def _largest_inputs(model: MarianModel, job: ExportJob, text: str, source: MarianVocabulary) -> dict[str, float]:
    """Return the largest absolute input of each matrix over the calibration sentences, by matrix name."""
    vocabulary, search = job.trained.source_vocabulary, job.search
    lines: Iterable[str] = (line for line in read_lines(text) if line.strip())
    encoded = vocabulary.encode_batch(list(islice(lines, CALIBRATION_LINES)))
    if not encoded:
        raise DataError(f"{text} contains no sentences: pass a file of source sentences, one a line.")
    for ids in encoded:
        source_ids = to_marian(ids[:MAX_CALIBRATION_TOKENS], source)
        model.greedy(source_ids, limits_of(search, len(source_ids)).maximum)
    return {name: max(values) for name, values in model.largest_inputs.items()}


def _yaml(options: dict[str, Any]) -> str:
    return str(yaml.safe_dump(options, default_flow_style=None, sort_keys=False))
