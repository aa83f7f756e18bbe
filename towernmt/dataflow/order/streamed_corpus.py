"""A corpus that is trained on without preparation: sources, existing vocabularies, and validation text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from towernmt.core.errors import SettingsError
from towernmt.dataflow.prepare.annotations import check_factored_text
from towernmt.dataflow.prepared.manifest import fingerprint_of
from towernmt.dataflow.sources.corpora import Corpora
from towernmt.dataflow.text.chunks import check_rereadable, read_chunks
from towernmt.dataflow.text.validation_set import ValidationSet, read_lines_of_set
from towernmt.dataflow.vocabulary.base import UNK, Vocabulary
from towernmt.dataflow.vocabulary.factored import FactorError
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies

if TYPE_CHECKING:
    from towernmt.dataflow.order.batch_settings import StreamBatchSettings
    from towernmt.dataflow.order.stream_batches import StreamBatches


class StreamedCorpus:
    """Sources, with the vocabularies and the validation text that training needs.

    Args:
        corpora: what `corpora.yaml` says.
        vocabulary: instead of the one that `corpora` names: a directory with both vocabularies (or of prepared data,
            or of a run), or the file of one for both sides.
    Attributes:
        directory: its name, for messages: the YAML file, or the URI without credentials.
        source_vocabulary, target_vocabulary: the same object if `shared_vocabulary`.
    Raises:
        SettingsError: no vocabulary is named, or a tag is not in it.
        DataError: a vocabulary or a source cannot be read.
    """

    def __init__(self, corpora: Corpora, vocabulary: str | Path | None = None) -> None:
        self._corpora = corpora
        self.directory = corpora.name or corpora.mixture().name
        self.source_vocabulary: Vocabulary
        self.target_vocabulary: Vocabulary
        self.shared_vocabulary: bool
        vocabularies = corpora.open_vocabularies(vocabulary)
        if vocabularies is None:
            raise SettingsError(f"{self.directory}: unprepared text needs a vocabulary that exists: write `vocabulary: "
                                "DIRECTORY` (of prepared data, or of a run) into the YAML file, or pass --vocabulary "
                                "DIRECTORY; `towernmt prepare` makes one.")
        self.source_vocabulary, self.target_vocabulary, self.shared_vocabulary = vocabularies
        self._check_tags()

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of the sources' names in their order, of their tags and filters, and of the content of
        the vocabularies.

        Not of what may change in a run: the weights, and what sources hold, which may grow. Positions tell whether what
        was read of a source is still there.
        """
        corpora = self._corpora
        sources = [[ingredient.source.name, ingredient.tag] for ingredient in corpora.mixture().ingredients]
        return fingerprint_of([sources, dataclasses.asdict(corpora.pair_filter)], self.source_vocabulary,
                              self.target_vocabulary)

    @cached_property
    def valid_source(self) -> list[str]:
        """Validation sentences in the source language (empty if there are none)."""
        return list(self.validation_sets[0].source) if self.validation_sets else []

    @cached_property
    def valid_target(self) -> list[str]:
        """Their references, as the files have them."""
        return list(self.validation_sets[0].references[0]) if self.validation_sets else []

    @cached_property
    def validation_sets(self) -> list[ValidationSet]:
        """All validation sets, that of `valid_source` first; empty if there is none."""
        sets = [read_lines_of_set(files, _read_lines) for files in self._corpora.validation]
        for files in self._corpora.validation if self.source_vocabulary.streams > 1 else ():
            check_factored_text(files.source, self.source_vocabulary.streams - 1)
        return [one for one in sets if one is not None]

    def batches(self, settings: StreamBatchSettings, epochs: int | None = None,
                report: Callable[[str], None] | None = None) -> StreamBatches:
        """The batches of the sources; `report` takes a sentence when a source or an epoch ends.

        Raises:
            SettingsError, DataError: a setting cannot work, or a source cannot be opened.
        """
        from towernmt.dataflow.order.stream_batches import StreamBatches

        mixture = self._corpora.mixture(settings.seed, report)
        return StreamBatches(mixture, self.source_vocabulary, self.target_vocabulary, settings,
                             self._corpora.pair_filter, epochs, report)

    def copy_vocabularies(self, directory: str | Path) -> None:
        """Write the vocabularies into a directory, for `load_vocabularies`."""
        save_vocabularies(self.source_vocabulary, self.target_vocabulary, directory)

    def _check_tags(self) -> None:
        for entry in self._corpora.sources:
            try:
                pieces = self.source_vocabulary.encode(entry.tag)
            except FactorError as error:
                raise SettingsError(f"{self.directory}: the tag {error.reason}") from None
            if UNK in np.ravel(pieces):
                raise SettingsError(f"{self.directory}: the tag {entry.tag} is not in the source vocabulary, which "
                                    "would make it an unknown word: choose a tag of characters that the text has, or "
                                    "prepare the vocabulary from them (towernmt prepare --source corpora.yaml).")


def _read_lines(path: str) -> list[str]:
    check_rereadable(path)
    return [line for chunk in read_chunks(path) for line in chunk.decode()]
