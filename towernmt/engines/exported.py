"""A model in CTranslate2's format, opened: the engine, the vocabularies, and what `towernmt.json` tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.files.json_files import read_json
from towernmt.core.machine.processor import processors
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.factored import factors_of
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies
from towernmt.export.exporter import DESCRIPTION
from towernmt.predict.decoding.settings import SearchSettings

FORMAT = "ctranslate2"
MISSING = "--engine ctranslate2 needs CTranslate2: install it with `pip install 'towernmt[ctranslate2]'`."
FACTOR_SEPARATOR = "\uffe8"


@dataclass(frozen=True)
class Description:
    """What `towernmt.json` tells of a model.

    Attributes:
        precision: of the weights.
        averaged: whether they are the moving averages.
        search: how translations are searched for.
        positions: the tokens that a sentence has at most, EOS counted; None for any number.
    """

    precision: str
    averaged: bool
    search: SearchSettings
    positions: int | None

    @classmethod
    def read(cls, directory: Path) -> Description:
        """What an export in CTranslate2's format tells.

        Raises:
            SettingsError: there is none, or it is in another format.
        """
        told: dict[str, Any] = read_json(directory / DESCRIPTION, dict[str, Any], "Export the model again.",
                                         SettingsError)
        if told.get("format") != FORMAT:
            raise SettingsError(f"{directory} is in the format {told.get('format')}: --engine ctranslate2 reads "
                                "exports with --format ctranslate2, and runs.")
        known = {field.name for field in fields(SearchSettings)}
        search = SearchSettings(**{name: value for name, value in told["search"].items() if name in known})
        return cls(told["precision"], told["averaged"], search, told["positions"])


def is_export(directory: str | Path) -> bool:
    """Whether this is the directory of an export, in any format."""
    return (Path(directory) / DESCRIPTION).is_file()


class ExportedModel:
    """An export in CTranslate2's format, in memory.

    Attributes:
        description: what `towernmt.json` tells.
        source_vocabulary, target_vocabulary: the model's.
        engine: `ctranslate2.Translator`.
    """

    def __init__(self, directory: str | Path, device: str | None = None, threads: int = 0) -> None:
        """
        Args:
            directory: of the export.
            device: "cpu", "gpu" or "gpu:N"; by default a GPU if there is one.
            threads: so many batches at a time, among which the cores are divided; 0 for one a core, and one on a GPU.
        Raises:
            SettingsError: it is no such export, or CTranslate2 is not installed or cannot load it.
            DataError: its vocabularies cannot be read.
        """
        try:
            import ctranslate2
        except ImportError:
            raise SettingsError(MISSING) from None
        directory = Path(directory)
        self.description = Description.read(directory)
        self.source_vocabulary, self.target_vocabulary, _ = load_vocabularies(directory / "vocabulary")
        self._source_pieces = [_pieces(one) for one in (self.source_vocabulary, *factors_of(self.source_vocabulary))]
        self._target_pieces = _pieces(self.target_vocabulary)
        self._target_ids = {piece: id for id, piece in enumerate(self._target_pieces)}
        kind, index = _device(device, ctranslate2.get_cuda_device_count())
        cores = processors()
        # A batch a core is faster than all cores for a batch, which wait for each other many times in a step.
        threads = threads or (1 if kind == "cuda" else cores)
        try:
            self.engine = ctranslate2.Translator(
                str(directory), device=kind, device_index=index, compute_type="default", inter_threads=threads,
                intra_threads=max(1, cores // threads), max_queued_batches=-1)
        except (RuntimeError, ValueError) as error:
            raise SettingsError(
                f"{directory}: CTranslate2 cannot load it ({error}); export the model again.") from error

    def source_tokens(self, ids: Sequence[Any]) -> list[str]:
        """The tokens of a sentence as CTranslate2 has them.

        Args:
            ids: without EOS; of several streams, tuples of ids.
        """
        pieces = self._source_pieces
        if len(pieces) == 1:
            return [pieces[0][id] for id in ids]
        return [FACTOR_SEPARATOR.join(own[id] for own, id in zip(pieces, token, strict=True)) for token in ids]

    def target_tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens of a translation as CTranslate2 has them."""
        return [self._target_pieces[id] for id in ids]

    def target_ids(self, tokens: Sequence[str]) -> list[int]:
        """The ids of a translation."""
        return [self._target_ids[token] for token in tokens]

    def check_lengths(self, *tokens: int) -> None:
        """Refuse sentences that are longer than the export's positions.

        Args:
            tokens: how many sentences can have, EOS counted.
        Raises:
            SettingsError: it has fewer positions.
        """
        positions = self.description.positions
        if positions is not None and max(tokens) > positions:
            raise SettingsError(f"Sentences of {max(tokens):,} tokens do not go with --engine ctranslate2: the export "
                                f"has {positions:,} positions. Choose a smaller --max-source-length or --max-tokens.")


def _pieces(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.id_to_piece(id) for id in range(vocabulary.size)]


def _device(device: str | None, gpus: int) -> tuple[str, int]:
    """CTranslate2's name of a device, and its number.

    Raises:
        SettingsError: there is no such GPU.
    """
    if device == "cpu" or (device is None and not gpus):
        return "cpu", 0
    number = int((device or "gpu").partition(":")[2] or 0)
    if number >= gpus:
        raise SettingsError(f"device '{device}': CTranslate2 sees {gpus} GPUs on this machine. Leave the device out to "
                            "translate on the CPU.")
    return "cuda", number
