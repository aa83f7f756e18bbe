"""What `--data` names: prepared data, or sources to train on directly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from towernmt.core.errors import SettingsError
from towernmt.core.secrets import mask_uri
from towernmt.dataflow.prepared.prepared_data import PreparedData, open_prepared

if TYPE_CHECKING:
    from towernmt.dataflow.order.batch_settings import StreamBatchSettings
    from towernmt.dataflow.order.batches import Batches, BlockSource
    from towernmt.dataflow.order.stream_batches import StreamBatches
    from towernmt.dataflow.text.validation_set import ValidationSet
    from towernmt.dataflow.vocabulary.base import Vocabulary


_FULL, _FEW = 0.75, 4  # share of a full batch; batches of a shard


class TrainingData(Protocol):
    """What training needs of a corpus, apart from batches. `PreparedData` and `StreamedCorpus` are such."""

    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    shared_vocabulary: bool

    @property
    def directory(self) -> Path | str:
        """Its name, for messages: a directory or a URI, without credentials."""

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits. They change if a resumed run would read other data; see the classes."""

    @property
    def valid_source(self) -> list[str]:
        """Validation sentences in the source language, or none."""

    @property
    def valid_target(self) -> list[str]:
        """Their references."""

    @property
    def validation_sets(self) -> list[ValidationSet]:
        """All validation sets, that of `valid_source` first; empty if there is none."""

    def copy_vocabularies(self, directory: str | Path) -> None:
        """Write both vocabularies into a directory."""


def open_training_data(where: str | Path, vocabulary: str | Path | None = None,
                       default_vocabulary: str | Path | None = None) -> TrainingData:
    """Prepared data, a `corpora.yaml`, or the URI of one source.

    Args:
        where: what `--data` says.
        vocabulary: for unprepared text, instead of the one that the YAML file names.
        default_vocabulary: for unprepared text, if neither names a vocabulary.
    Raises:
        SettingsError, DataError: it is not there, or lacks something.
    """
    if is_prepared(where):
        if vocabulary is not None:
            raise SettingsError(f"--vocabulary {vocabulary}: {mask_uri(str(where))} is prepared data, which has its "
                                "vocabularies.")
        return open_prepared(where)
    from towernmt.dataflow.order.streamed_corpus import StreamedCorpus
    from towernmt.dataflow.sources.corpora import read_corpora

    corpora = read_corpora(where)
    return StreamedCorpus(corpora, vocabulary or (default_vocabulary if corpora.vocabulary is None else None))


def make_batches(data: TrainingData, settings: StreamBatchSettings, epochs: int | None = None,
                 report: Callable[[str], None] | None = None, alignments: bool = False, ahead: bool = True
                 ) -> Batches | StreamBatches:
    """The batches of prepared data, or of a stream; `report` takes sentences for the log.

    Args:
        alignments: whether the batches have them.
        ahead: whether the next window of segmentations is drawn while one is read, for prepared data.
    Raises:
        SettingsError: a setting cannot work, or the data have no alignments.
        DataError: there is nothing to make batches of.
    """
    from towernmt.dataflow.order.streamed_corpus import StreamedCorpus

    if alignments and not getattr(data, "has_alignments", False):
        raise SettingsError(f"model.guided_alignment_weight is above 0, but {data.directory} has no alignments: pass "
                            "data that were made by `towernmt prepare --alignments FILE`, or set it to 0.")
    if isinstance(data, StreamedCorpus):
        stream = data.batches(settings, epochs, report)
        if report is not None:
            report(f"Training on {stream.mixture.name} as it is read, in windows of {settings.window:,} pairs.")
        return stream
    batches = _batches_of_blocks(data, settings, epochs, alignments, ahead)
    if report is not None and isinstance(data, PreparedData):
        _report_size(data, batches, settings, report)
    return batches


def _batches_of_blocks(data: TrainingData, settings: StreamBatchSettings, epochs: int | None, alignments: bool,
                       ahead: bool) -> Batches:
    from towernmt.dataflow.order.batches import Batches
    from towernmt.dataflow.order.sampled_batches import SampledBatches

    sampling = settings.sampling()
    if sampling is None:
        return Batches(cast("BlockSource", data), settings, epochs, alignments)
    if not isinstance(data, PreparedData):
        raise SettingsError(f"data.subword_sampling=true draws for prepared data and for sources, but {data.directory} "
                            "is neither: leave it false.")
    return SampledBatches(data, settings, sampling, epochs, alignments, ahead)


def _report_size(data: PreparedData, batches: Batches, settings: StreamBatchSettings, report: Callable[[str], None]
                 ) -> None:
    size, blocks = batches.estimated_size, batches.num_blocks
    about = "about " if settings.subword_sampling else ""
    report(f"{size.pairs:,} pairs in about {size.batches:,} batches an epoch, with {about}{size.source_tokens:,} "
           f"source and {about}{size.target_tokens:,} target tokens; padding takes {size.source:.1%} of the source "
           f"positions and {size.target:.1%} of the target positions.")
    if settings.subword_sampling:
        report(f"Segmentations are drawn anew in each epoch, for {size.pairs / blocks:,.0f} pairs at a time.")
    mean = size.mean_batch(settings.batch_type)
    if blocks > 1 and mean < _FULL * settings.batch_tokens and size.batches < _FEW * blocks:
        what, remedy = (("shards", "prepare with a larger --shard-pairs") if blocks == data.num_blocks else
                        ("windows", f"set data.window above {settings.window:,}"))
        report(f"Batches hold {mean:,.0f} of batch_tokens={settings.batch_tokens:,} on average, since no batch "
               f"reaches over two {what}, and the {blocks:,} {what} of {data.directory} have "
               f"{size.pairs / blocks:,.0f} pairs each: {remedy}.")


def is_prepared(where: str | Path) -> bool:
    """Whether `--data` names a directory of prepared data, rather than sources.

    What looks like neither a file, nor a pattern, nor a URI with its query is taken for a directory, so that the
    message on a missing one speaks of `towernmt prepare`.
    """
    text = str(where)
    if "://" not in text:
        path = Path(text)
        return path.is_dir() or (not path.exists() and not path.suffix and not set(text) & set("*?[{,"))
    from towernmt.dataflow.sources.open_source import names_files

    return text.startswith("s3://") and not names_files(text)
