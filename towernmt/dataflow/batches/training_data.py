"""The data that `--data` names: prepared data, or sources to train on directly.

A corpus that is trained on without preparation consists of sources, existing vocabularies and validation text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from towernmt.core.errors import SettingsError, mask_uri
from towernmt.dataflow.preparation.input_texts import check_factored_text
from towernmt.dataflow.preparation.manifest import data_fingerprint
from towernmt.dataflow.preparation.prepared_data import PreparedData, open_prepared
from towernmt.dataflow.sources.corpora import Corpora, check_tags, read_corpora
from towernmt.dataflow.text.text_lines import check_rereadable, read_lines
from towernmt.dataflow.text.validation_set import ValidatedData, ValidationSet, read_lines_of_set
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies

if TYPE_CHECKING:
    from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
    from towernmt.dataflow.batches.batches import Batches, BlockSource
    from towernmt.dataflow.batches.stream_batches import StreamBatches

_FULL, _FEW = 0.75, 4  # share of a full batch; batches of a shard


class TrainingData(Protocol):
    """A corpus as training needs it, apart from batches, such as `PreparedData` and `StreamedCorpus`."""

    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    shared_vocabulary: bool

    @property
    def directory(self) -> Path | str:
        """The name of the corpus for messages: a directory or a URI, without credentials."""

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, which change if a resumed run would read other data; see the classes."""

    @property
    def valid_source(self) -> list[str]:
        """Validation sentences in the source language; may be empty."""

    @property
    def valid_target(self) -> list[str]:
        """References of the validation sentences."""

    @property
    def validation_sets(self) -> list[ValidationSet]:
        """All validation sets, that of `valid_source` first; may be empty."""

    def copy_vocabularies(self, directory: str | Path) -> None:
        """Write both vocabularies and facts about the source text into a directory."""


def open_training_data(location: str | Path, vocabulary: str | Path | None = None,
                       default_vocabulary: str | Path | None = None) -> TrainingData:
    """Open prepared data, a `corpora.yaml`, or the URI of one source.

    Args:
        location: the value of `--data`.
        vocabulary: for unprepared text, replaces the vocabulary that the YAML file names.
        default_vocabulary: for unprepared text, if neither names a vocabulary.

    Raises:
        SettingsError, DataError: the data are missing or incomplete.
    """
    if is_prepared(location):
        if vocabulary is not None:
            raise SettingsError(f"--vocabulary {vocabulary}: {mask_uri(str(location))} is prepared data, which "
                                "includes its vocabularies. Remove --vocabulary.")
        return open_prepared(location)
    corpora = read_corpora(location)
    return StreamedCorpus(corpora, vocabulary or (default_vocabulary if corpora.vocabulary is None else None))


def with_general_data(data: TrainingData, location: str | Path | None) -> TrainingData:
    """Return training data with general data mixed in; the unchanged data without general data.

    Args:
        data: the data of `--data`.
        location: the value of `--general`: prepared data; None without the option.

    Raises:
        SettingsError: one of the data is not prepared, or their vocabularies differ.
        DataError: the general data cannot be read.
    """
    from towernmt.dataflow.batches.mixed_data import MixedData

    if location is None:
        return data
    if not isinstance(data, PreparedData) or not is_prepared(location):
        name = data.directory if not isinstance(data, PreparedData) else mask_uri(str(location))
        raise SettingsError(f"--general mixes prepared data, but {name} is unprepared text: prepare it, or write the "
                            "sources of both texts with weights into a corpora.yaml, and leave out --general.")
    return MixedData(data, open_prepared(location))


def make_batches(data: TrainingData, settings: StreamBatchSettings, epochs: int | None = None,
                 report: Callable[[str], None] | None = None, alignments: bool = False, ahead: bool = True
                 ) -> Batches | StreamBatches:
    """Return the batches of prepared data or of a stream.

    Args:
        data: the corpus.
        settings: size and order of the batches.
        epochs: number of passes, counted from the first one; None for no end.
        report: called with sentences for the log.
        alignments: whether the batches contain alignments.
        ahead: for prepared data, whether the next window of segmentations is sampled while one is read.

    Raises:
        SettingsError: a setting has an impossible value, or the data have no alignments.
        DataError: the data have no pairs.
    """
    if alignments:
        _check_alignments(data, settings.general_share)
    if isinstance(data, StreamedCorpus):
        stream = data.batches(settings, epochs, report)
        if report is not None:
            report(f"Training on {stream.mixture.name} without preparation, in windows of {settings.window:,} pairs.")
        return stream
    batches = _batches_of_blocks(data, settings, epochs, alignments, ahead)
    if report is not None and isinstance(data, PreparedData):
        _report_size(data, batches, settings, report)
    return batches


def _check_alignments(data: TrainingData, general_share: float) -> None:
    """Refuse data without word alignments; general data need them, too, if they have a share of the pairs.

    Raises:
        SettingsError: names the data without alignments.
    """
    from towernmt.dataflow.batches.mixed_data import MixedData

    parts = [data]
    if isinstance(data, MixedData):
        parts = [data.new, data.general] if general_share else [data.new]
    for part in parts:
        if not getattr(part, "has_alignments", False):
            raise SettingsError(f"model.guided_alignment_weight is above 0, but {part.directory} has no word "
                                "alignments. Prepare the data with `towernmt prepare --alignments learn`, or set it "
                                "to 0.")


def _batches_of_blocks(data: TrainingData, settings: StreamBatchSettings, epochs: int | None, alignments: bool,
                       ahead: bool) -> Batches:
    from towernmt.dataflow.batches.batches import Batches, SampledBatches
    from towernmt.dataflow.batches.mixed_data import MixedBatches, MixedData

    if isinstance(data, MixedData):
        return MixedBatches(data, settings, epochs, alignments)
    if settings.sampling() is None and settings.pair_modifiers() is None:
        return Batches(cast("BlockSource", data), settings, epochs, alignments)
    if not isinstance(data, PreparedData):
        name = "data.subword_sampling=true" if settings.subword_sampling else "data.modifiers"
        raise SettingsError(f"{name} supports prepared data and sources, but {data.directory} is neither. Leave it "
                            "out.")
    return SampledBatches(data, settings, epochs, alignments, ahead)


def _report_size(data: PreparedData, batches: Batches, settings: StreamBatchSettings, report: Callable[[str], None]
                 ) -> None:
    size, blocks = batches.estimated_size, batches.num_blocks
    about = "about " if settings.subword_sampling or settings.modifiers else ""
    report(f"{size.pairs:,} pairs in about {size.batches:,} batches an epoch, with {about}{size.source_tokens:,} "
           f"source and {about}{size.target_tokens:,} target tokens; padding takes {size.source:.1%} of the source "
           f"positions and {size.target:.1%} of the target positions.")
    if settings.subword_sampling:
        report(f"Segmentations are sampled again in each epoch, for {size.pairs / blocks:,.0f} pairs at a time.")
    mean = size.mean_batch(settings.batch_type)
    if blocks > 1 and mean < _FULL * settings.batch_tokens and size.batches < _FEW * blocks:
        units, remedy = (("shards", "Prepare with a larger --shard-pairs") if blocks == data.num_blocks else
                         ("windows", f"Set data.window above {settings.window:,}"))
        report(f"The average batch has only {mean:,.0f} of batch_tokens={settings.batch_tokens:,}, since no batch "
               f"extends over two {units}, and the {blocks:,} {units} of {data.directory} have only "
               f"{size.pairs / blocks:,.0f} pairs each. {remedy}.")


def is_prepared(location: str | Path) -> bool:
    """Return whether `--data` names a directory of prepared data, rather than sources.

    A missing path counts as a directory if it looks like neither a file, nor a pattern, nor a URI with a query: then
    the error message mentions `towernmt prepare`.
    """
    text = str(location)
    if "://" not in text:
        path = Path(text)
        return path.is_dir() or (not path.exists() and not path.suffix and not set(text) & set("*?[{,"))
    from towernmt.dataflow.sources.open_source import names_files

    return text.lower().startswith("s3://") and not names_files(text)


class StreamedCorpus(ValidatedData):
    """Sources, with the vocabularies and the validation text that training needs.

    Args:
        corpora: the content of `corpora.yaml`.
        vocabulary: replaces the vocabulary that `corpora` names: a directory with both vocabularies (or of prepared
            data, or of a run), or the file of a vocabulary for both sides.

    Attributes:
        directory: the name of the corpus for messages: the YAML file, or the URI without credentials.
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
            raise SettingsError(f"{self.directory}: unprepared text needs an existing vocabulary. Write `vocabulary: "
                                "DIRECTORY` (of prepared data, or of a run) into the YAML file, or pass --vocabulary "
                                "DIRECTORY. `towernmt prepare` learns a vocabulary.")
        self.source_vocabulary, self.target_vocabulary, self.shared_vocabulary = vocabularies
        self._source_text = corpora.source_text(vocabulary)
        check_tags((text.tag for text in (*corpora.sources, *corpora.validation)), self.source_vocabulary,
                   str(self.directory))

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of the names of the sources in order, their tags and filters, and the vocabularies.

        The weights and the content of sources do not count, since both may change during a run. A position shows
        whether the pairs that were read from a source still exist.
        """
        corpora = self._corpora
        sources = [[ingredient.source.name, ingredient.tag] for ingredient in corpora.mixture().ingredients]
        return data_fingerprint([sources, dataclasses.asdict(corpora.pair_filter)], self.source_vocabulary,
                                self.target_vocabulary)

    @cached_property
    def position_settings(self) -> dict[str, Any]:
        """The settings that a position in the sources depends on, by name."""
        from towernmt.dataflow.batches.stream_batches import stream_settings

        return stream_settings(self._corpora.mixture(), self._corpora.pair_filter)

    @cached_property
    def validation_sets(self) -> list[ValidationSet]:
        """All validation sets, that of `valid_source` first; may be empty."""
        sets = [read_lines_of_set(files, _read_lines) for files in self._corpora.validation]
        for files in self._corpora.validation if self.source_vocabulary.streams > 1 else ():
            check_factored_text(files.source, self.source_vocabulary.streams - 1)
        return sets

    def batches(self, settings: StreamBatchSettings, epochs: int | None = None,
                report: Callable[[str], None] | None = None) -> StreamBatches:
        """Return the batches of the sources; `report` is called with a sentence when a source or an epoch ends.

        Raises:
            SettingsError, DataError: a setting has an impossible value, or a source cannot be opened.
        """
        from towernmt.dataflow.batches.stream_batches import StreamBatches

        mixture = self._corpora.mixture(settings.seed, report)
        return StreamBatches(mixture, self.source_vocabulary, self.target_vocabulary, settings,
                             self._corpora.pair_filter, epochs, report)

    def copy_vocabularies(self, directory: str | Path) -> None:
        """Write the vocabularies and facts about the source text into a directory, for `load_vocabularies`."""
        save_vocabularies(self.source_vocabulary, self.target_vocabulary, directory)
        self._source_text.save(directory)


def _read_lines(path: str) -> list[str]:
    check_rereadable(path)
    return list(read_lines(path))
