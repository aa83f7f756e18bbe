"""Writes a model for Marian: in float32 as `.npz`, in int8 as the binary file of Bergamot's and Firefox's engine."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.chunks import read_lines
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.export.job import ExportJob
from towernmt.export.marian.binary import MODEL_OPTIONS, binary_file, int8_items
from towernmt.export.marian.expressible import check_expressible
from towernmt.export.marian.forward import MarianModel, to_marian
from towernmt.export.marian.options import browser_options, decoder_options, model_options
from towernmt.export.marian.parameters import marian_parameters
from towernmt.export.marian.shortlist import shortlist_file
from towernmt.export.marian.vocabulary import MarianVocabulary, sentence_piece_model
from towernmt.predict.lexical.lexicon import Lexicon

CALIBRATION_LINES = 100
"""Sentences that are translated to see how large the inputs of the products get."""
LONGEST = 256
"""Of these, so many tokens of the source."""
MODEL, INT8_MODEL, SHORTLIST = "model.npz", "model.intgemm.alphas.bin", "lex.s2t.bin"
DECODER, INT8_DECODER = "decoder.yml", "config.bergamot.yml"
VALIDATION = "valid.source"
"""The name of the validation text in prepared data."""


def write(job: ExportJob) -> dict[str, Any]:
    """Write the model.

    Returns:
        For `towernmt.json`: the files of the model, of the vocabularies of source and target, and of the shortlist.
    Raises:
        SettingsError: Marian cannot express the model, there are no sentences to calibrate int8 on, or the shortlist is
            of other vocabularies.
        DataError: the sentences or the shortlist cannot be read.
    """
    trained, directory, int8 = job.trained, job.directory, job.precision == "int8"
    settings = check_expressible(trained, job.precision)
    calibration = calibration_text(job) if int8 else ""
    source, target = (MarianVocabulary.of(one) for one in (trained.source_vocabulary, trained.target_vocabulary))
    options = model_options(settings, [len(source.pieces), len(target.pieces)])
    parameters = marian_parameters(settings, trained.weights(), source, target)
    vocabularies = write_vocabularies(trained.source_vocabulary, trained.target_vocabulary, directory, not int8)
    shortlist = _write_shortlist(job, source, target)
    text = _yaml(options)
    if int8:
        largest = _largest_inputs(MarianModel(parameters, options), job, calibration, source)
        (directory / INT8_MODEL).write_bytes(binary_file(int8_items(parameters, largest, text)))
        decoder = browser_options(INT8_MODEL, vocabularies, shortlist)
    else:
        meta = np.frombuffer(text.encode() + b"\0", np.int8)
        np.savez(directory / MODEL, allow_pickle=False, **{**parameters, MODEL_OPTIONS: meta})
        decoder = decoder_options(job.search, MODEL, vocabularies)
        decoder |= {"shortlist": [shortlist, True]} if shortlist else {}
    (directory / (INT8_DECODER if int8 else DECODER)).write_text(_yaml(decoder), encoding="utf-8")
    return {"model": INT8_MODEL if int8 else MODEL, "vocabularies": vocabularies, "shortlist": shortlist}


def write_vocabularies(source: Vocabulary, target: Vocabulary, directory: Path, as_yaml: bool) -> list[str]:
    """Write both vocabularies in Marian's order, a shared one once: SentencePiece models, else lists.

    Args:
        as_yaml: write lists of SentencePiece's pieces, too, which other programs read.
    Returns:
        The names of the files of source and target.
    """
    shared = dict(source.files()) == dict(target.files())
    names = ("vocab", "vocab") if shared else ("srcvocab", "trgvocab")
    files = []
    for name, vocabulary in zip(names, (source, target), strict=True):
        piecewise = vocabulary.kind == "sentencepiece"
        if piecewise:
            (directory / f"{name}.spm").write_bytes(sentence_piece_model(vocabulary))
        if as_yaml or not piecewise:
            (directory / f"{name}.yml").write_text(MarianVocabulary.of(vocabulary).yaml(), encoding="utf-8")
        files.append(f"{name}.spm" if piecewise else f"{name}.yml")
    return files


def _write_shortlist(job: ExportJob, source: MarianVocabulary, target: MarianVocabulary) -> str:
    """Write the search's shortlist; the name of its file, "" for none."""
    search, trained = job.search, job.trained
    if not search.shortlist:
        return ""
    lexicon = Lexicon.load(search.shortlist)
    lexicon.check_vocabularies(trained.source_vocabulary, trained.target_vocabulary, search.shortlist)
    content = shortlist_file(lexicon, search.shortlist_size, search.shortlist_frequent, source, target)
    (job.directory / SHORTLIST).write_bytes(content)
    return SHORTLIST


def calibration_text(job: ExportJob) -> str:
    """The file of the sentences to calibrate on: the one that is told, or the validation text of the run's data.

    Raises:
        SettingsError: there is neither.
    """
    if job.calibration:
        return str(job.calibration)
    data = job.trained.run.saved_settings().get("made_from.data_path")
    file = Path(str(data)) / VALIDATION if data else None
    if file is None or not file.is_file():
        raise SettingsError("precision int8 needs some source sentences, to see how large the inputs of its products "
                            "get, and the validation text of the run's data is not there: name a file of some hundred "
                            "with --calibration.")
    return str(file)


def _largest_inputs(model: MarianModel, job: ExportJob, text: str, source: MarianVocabulary) -> dict[str, float]:
    """By the name of a matrix, how large what it is multiplied with gets, over the sentences to calibrate on."""
    vocabulary, search = job.trained.source_vocabulary, job.search
    lines: Iterable[str] = (line for line in read_lines(text) if line.strip())
    encoded = vocabulary.encode_batch(list(islice(lines, CALIBRATION_LINES)))
    if not encoded:
        raise DataError(f"{text}: there is no sentence in it. Give a file of source sentences, one a line.")
    for ids in encoded:
        ids = ids[:LONGEST]
        model.greedy(to_marian(ids, source), int(search.max_length_factor * len(ids)) + search.max_length_constant)
    return {name: max(values) for name, values in model.largest.items()}


def _yaml(options: dict[str, Any]) -> str:
    return str(yaml.safe_dump(options, default_flow_style=None, sort_keys=False))
