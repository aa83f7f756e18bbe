"""Load CTranslate2 models from an export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from towernmt.core.directories import EXPORT_DESCRIPTION
from towernmt.core.errors import SettingsError
from towernmt.core.machine import parse_device, processors, refuse_forked
from towernmt.core.structured_files import JSONError, read_json, typed_value
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_factors import factors_of
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies
from towernmt.predict.search.search_settings import SearchSettings
from towernmt.predict.search.surfaces import Surfaces

FORMAT = "ctranslate2"
FACTOR_SEPARATOR = "\uffe8"
"""Separates a source token from its factors in CTranslate2."""


@dataclass(frozen=True)
class Description:
    """The description of a CTranslate2 export in its `towernmt.json`.

    Attributes:
        precision: precision of the weights.
        averaged: whether the weights are moving averages.
        search: search settings.
        positions: maximum number of tokens in a sentence, EOS included; None if unlimited.
        source_prefix: text before each source line, from a package; see `LineOptions`.
    """

    precision: str
    averaged: bool
    search: SearchSettings
    positions: int | None
    source_prefix: str = ""

    @classmethod
    def read(cls, directory: Path) -> Description:
        """Read the description of an export.

        Raises:
            SettingsError: the description is missing or damaged, or the export has another format.
        """
        file, advice = directory / EXPORT_DESCRIPTION, "Export the model again."
        content: dict[str, Any] = read_json(file, dict[str, Any], advice, SettingsError)
        if content.get("format") != FORMAT:
            raise SettingsError(f"{directory} is an export in the format {content.get('format')}, which other programs "
                                "read: pass the run that was exported, or an export with --format ctranslate2.")
        used = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        if isinstance(search := used.get("search"), dict):      # another version of towernmt may have other settings
            known = {field.name for field in fields(SearchSettings)}
            used["search"] = {name: value for name, value in search.items() if name in known}
        try:
            return typed_value(used, cls)
        except JSONError as error:
            raise SettingsError(f"{file}: {error}. {advice}") from None


class ExportedModel:
    """A CTranslate2 export, loaded into memory.

    Args:
        directory: directory of the export.
        device: "cpu", "gpu" or "gpu:N"; None for a GPU if there is one.
        threads: number of batches translated at a time, which share the cores; 0 for one a core, or one on a GPU.

    Attributes:
        description: the content of `towernmt.json`.
        source_vocabulary, target_vocabulary: the vocabularies of the model.
        name: name, version and precision of the engine.

    Raises:
        SettingsError: the directory is not a CTranslate2 export, or CTranslate2 cannot be loaded or cannot load it.
        DataError: the vocabularies cannot be read.
    """

    def __init__(self, directory: str | Path, device: str | None = None, threads: int = 0) -> None:
        ctranslate2 = import_ctranslate2()
        directory = Path(directory)
        self.description = Description.read(directory)
        self.name = f"CTranslate2 {ctranslate2.__version__} {self.description.precision}"
        self.source_vocabulary, self.target_vocabulary, _ = load_vocabularies(directory / "vocabulary")
        self._source_pieces = [pieces_of_vocabulary(vocabulary)
                               for vocabulary in (self.source_vocabulary, *factors_of(self.source_vocabulary))]
        self._target_pieces = pieces_of_vocabulary(self.target_vocabulary)
        self._target_ids = {piece: id for id, piece in enumerate(self._target_pieces)}
        kind, index = _device(device, ctranslate2.get_cuda_device_count())
        cores = processors()
        # One batch a core is faster than all cores for one batch, because cores wait for each other in each step.
        threads = threads or (1 if kind == "cuda" else cores)
        try:
            self._engine = ctranslate2.Translator(
                str(directory), device=kind, device_index=index, compute_type="default", inter_threads=threads,
                intra_threads=max(1, cores // threads), max_queued_batches=-1)
        except (RuntimeError, ValueError) as error:
            raise SettingsError(
                f"{directory}: CTranslate2 cannot load this export ({error}); export the model again.") from error
        self._process = os.getpid()

    @property
    def engine(self) -> Any:
        """The `ctranslate2.Translator` that searches with the export.

        Raises:
            SettingsError: this process was forked from the one that loaded the model.
        """
        refuse_forked(self._process, "CTranslate2")
        return self._engine

    @cached_property
    def word_breaks(self) -> np.ndarray:
        """Whether a word may begin after each target token without a mark, bool `[vocabulary]`; see `Surfaces`."""
        return Surfaces(self.target_vocabulary).breaks

    def source_tokens(self, ids: Sequence[Any]) -> list[str]:
        """Return the tokens of a source sentence for CTranslate2.

        Args:
            ids: ids without EOS, each a tuple if the source has factors.
        """
        pieces = self._source_pieces
        if len(pieces) == 1:
            return [pieces[0][id] for id in ids]
        return [FACTOR_SEPARATOR.join(table[id] for table, id in zip(pieces, token, strict=True)) for token in ids]

    def target_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of a translation for CTranslate2."""
        return [self._target_pieces[id] for id in ids]

    def target_ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the ids of a translation's tokens."""
        return [self._target_ids[token] for token in tokens]

    def check_length(self, tokens: int, advice: str) -> None:
        """Check that a sentence is not longer than the positions of the export.

        Args:
            tokens: length of the sentence, EOS included.
            advice: the last sentence of the error message.

        Raises:
            SettingsError: the sentence is longer.
        """
        if problem := self.why_too_long(tokens):
            raise SettingsError(f"Sentences of {tokens:,} tokens are too long for --engine ctranslate2: {problem}. "
                                f"{advice}")

    def why_too_long(self, tokens: int) -> str:
        """Return why a sentence of this length, EOS included, cannot be translated, a clause; "" if it can."""
        positions = self.description.positions
        return f"the export has {positions:,} positions" if positions is not None and tokens > positions else ""


def import_ctranslate2() -> ModuleType:
    """Return the module `ctranslate2`.

    Raises:
        SettingsError: the module is not installed, or its library cannot be loaded.
    """
    try:
        return import_module("ctranslate2")
    except (ImportError, OSError) as error:
        raise SettingsError(f"CTranslate2 cannot be loaded ({error}): install it with `pip install ctranslate2`."
                            ) from error


def pieces_of_vocabulary(vocabulary: Vocabulary) -> list[str]:
    """Return the text of each id, in order."""
    return [vocabulary.id_to_piece(id) for id in range(vocabulary.size)]


def _device(device: str | None, gpus: int) -> tuple[str, int]:
    """Return CTranslate2's name of a device, and its number.

    Raises:
        SettingsError: the text is not a device, or the GPU does not exist.
    """
    kind, number = ("gpu" if gpus else "cpu", 0) if device is None else parse_device(device)
    if kind == "cpu":
        return "cpu", 0
    if number >= gpus:
        raise SettingsError(f"device '{device}': CTranslate2 sees {gpus} GPUs on this machine. Leave the device out to "
                            "translate on the CPU.")
    return "cuda", number
