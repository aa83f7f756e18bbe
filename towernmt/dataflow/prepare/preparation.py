"""`prepare`: text becomes a directory of vocabularies, shards and statistics, in flat memory.

The text is two parallel files; pairs from other sources are written to two such files first (see `source_text_files`).
It is read in passes, each from start to end: (1) a scan that checks it (encoding, number of
lines) and takes its checksum; (2) a sample for the vocabularies, drawn by line number; (3) encoding,
filtering and writing. Everything is a pure function of the text and the settings; the number of
workers changes nothing. All is written next to the former preparation, and takes its place at the end (see
`output_directory`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from towernmt.core.errors import DataError
from towernmt.core.files.atomic_files import write_text
from towernmt.core.terminal.ending_signals import cleaned_up
from towernmt.dataflow.prepare.annotations import scan_annotations, training_chunks
from towernmt.dataflow.prepare.chunk_encoder import EncodedChunk, ids_of, without_duplicates
from towernmt.dataflow.prepare.encoding_processes import encode_files
from towernmt.dataflow.prepare.output_directory import OutputDirectory
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.prepare.source_text_files import as_text_files
from towernmt.dataflow.prepare.statistics_counter import Statistics
from towernmt.dataflow.prepare.validation_text import ValidationText
from towernmt.dataflow.prepare.vocabulary_maker import VocabularyMaker
from towernmt.dataflow.prepared.corpus_statistics import table
from towernmt.dataflow.prepared.manifest import (
    MANIFEST,
    VOCABULARIES,
    Manifest,
    VocabularyInfo,
    VocabularyInfos,
    describe_files,
    fingerprint,
    read_manifest,
    vocabulary_files,
)
from towernmt.dataflow.prepared.pair_lengths import LENGTHS
from towernmt.dataflow.prepared.prepared_data import PreparedData
from towernmt.dataflow.prepared.shards import ShardInfo, ShardWriter
from towernmt.dataflow.text.chunks import check_rereadable
from towernmt.dataflow.text.filters.duplicates import KEYS, DuplicateTable
from towernmt.dataflow.text.line_hash import line_hash
from towernmt.dataflow.text.line_progress import LineProgress
from towernmt.dataflow.text.text_scan import scan_pair
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.factored import factors_of
from towernmt.dataflow.vocabulary.vocabulary_files import save_vocabularies

_POOL_LINES = 20_000  # with fewer lines, a pool of processes does not pay
_BUFFER_BYTES = 1 << 26  # of all shard writers together


def prepare(settings: PrepareSettings, stream: TextIO | None = None, name: str | None = None) -> PreparedData:
    """Prepare a corpus, or find that it has been prepared so already.

    Args:
        settings: what, how and where to.
        stream: where progress is written; None: nowhere.
        name: what messages call the output; None: as it is.
    Returns:
        the prepared data, opened.
    Raises:
        SettingsError: a setting cannot work.
        DataError: missing, unequal or badly encoded text; a vocabulary that cannot be made; no pair left;
            or the output directory holds another preparation, or files that are not those of one.
        DirectoryInUseError: another process prepares into the same directory.
    """
    settings.check()
    for path in settings.text_files():
        check_rereadable(path)
    place = OutputDirectory(settings.output, settings.overwrite)
    with cleaned_up(place.abandon), place, as_text_files(settings, place.stage, stream) as (text_settings, corpus):
        job = _Preparation(text_settings, place.stage, stream, name, corpus)
        if not job.is_done():
            job.run()
            place.exchange()
    return PreparedData(settings.output)


class _Preparation:
    def __init__(self, settings: PrepareSettings, stage: Path, stream: TextIO | None, name: str | None, corpus: str
                 ) -> None:
        self._settings, self._stage, self._stream, self._corpus = settings, stage, stream, corpus
        self._name = name or settings.output
        self._maker = VocabularyMaker(settings)
        progress = LineProgress("checking", stream=stream)
        self._texts = scan_pair(settings.source, settings.target, progress)
        progress.done()
        self._annotations = scan_annotations(settings, self._texts[0])
        self._validation = ValidationText(settings.validation_files(), settings.factors)
        self._inputs = self._describe_inputs()

    def is_done(self) -> bool:
        """Whether the output is a finished preparation of the same text with the same settings.

        Raises:
            DataError: it is a finished preparation of something else, and may not be overwritten.
        """
        if self._settings.overwrite or not (Path(self._settings.output) / MANIFEST).exists():
            return False
        try:
            manifest = read_manifest(self._settings.output)
        except DataError as error:
            raise DataError(f"{error} Pass --overwrite to replace it.") from error
        settings = self._settings.identity()
        former, former_inputs = manifest.settings or {}, manifest.inputs
        differences = [f"{name} {former.get(name)} there, {settings.get(name)} now"
                       for name in {**settings, **former} if former.get(name) != settings.get(name)]
        differences += [f"another {name} file" for name in sorted({*former_inputs, *self._inputs})
                        if former_inputs.get(name) != self._inputs.get(name)]
        if differences:
            raise DataError(f"{self._name} holds another preparation ({'; '.join(differences)}). Pass "
                            "--overwrite to replace it, or another --output.")
        self._say(f"{self._name} is prepared already, from the same text with the same settings: kept.")
        return True

    def run(self) -> None:
        settings = self._settings
        lines = self._texts[0].lines
        if not lines:
            raise DataError(f"{self._corpus} are empty: there is nothing to prepare.")
        self._say("making the vocabularies")
        source, target, notes = self._maker.make(lines)
        save_vocabularies(source, target, self._stage / VOCABULARIES)
        statistics = Statistics(settings.max_length, settings.factors, settings.alignments is not None)
        shards = self._write_shards(lines, ids_of(source, target), statistics)
        self._finish(source, target, notes, statistics, shards)

    def _write_shards(self, lines: int, dtype: np.dtype[Any], statistics: Statistics) -> list[ShardInfo]:
        settings = self._settings
        count = -(-lines // settings.shard_pairs)
        writers = [ShardWriter(self._stage / f"shard-{n:05d}.pairs", dtype, _BUFFER_BYTES // count, settings.factors,
                               settings.alignments is not None) for n in range(count)]
        workers = settings.workers or os.cpu_count() or 1
        if lines < _POOL_LINES:
            workers = 1
        progress = LineProgress("encoding", lines, self._stream)
        done = 0
        table = DuplicateTable(lines * keys) if (keys := KEYS[settings.duplicates]) else None
        chunks = encode_files(training_chunks(settings), self._stage / VOCABULARIES, settings.pair_filter, workers)
        for encoded in chunks:
            chunk = encoded if table is None else without_duplicates(encoded, table)
            statistics.add(chunk)
            self._distribute(chunk, writers)
            done += chunk.lines
            progress.update(done)
        progress.done()
        if done != lines:
            raise DataError(f"{self._corpus} had {lines:,} lines at first, and {done:,} when they were read again. "
                            "Prepare again, while nothing writes to them.")
        if not statistics.pairs:
            raise DataError(f"{self._corpus}: no pair is left; dropped: "
                            f"{statistics.dropped_in_words()}. Check the text, and the settings of its "
                            f"filters (--max-length, --max-length-ratio and the others that are set).")
        return [writer.finish() for writer in writers]

    def _distribute(self, chunk: EncodedChunk, writers: list[ShardWriter]) -> None:
        """Deal pairs to shards at random, by (seed, line number); inside a shard they keep the order of the file.

        Training shuffles within a shard only: so each shard is a sample of the whole corpus (as in Sockeye).
        """
        if len(writers) == 1:
            writers[0].append(chunk.source_lengths, chunk.target_lengths, chunk.source_ids, chunk.target_ids,
                              chunk.source_factors, chunk.link_counts, chunk.links)
            return
        shards = line_hash(chunk.line_numbers, self._settings.seed) % np.uint64(len(writers))
        order = np.argsort(shards, kind="stable")
        counts = np.bincount(shards.astype(np.int64), minlength=len(writers))
        source = _Reordered(chunk.source_lengths, order, chunk.source_ids, chunk.source_factors)
        target = _Reordered(chunk.target_lengths, order, chunk.target_ids)
        links = None if chunk.link_counts is None else _Reordered(chunk.link_counts, order, chunk.links)
        stop = np.cumsum(counts)
        for shard in np.flatnonzero(counts).tolist():
            pairs = slice(stop[shard] - counts[shard], stop[shard])
            source_lengths, source_ids, source_factors = source.take(pairs)
            target_lengths, target_ids = target.take(pairs)
            writers[shard].append(source_lengths, target_lengths, source_ids, target_ids, source_factors,
                                  *(() if links is None else links.take(pairs)))

    def _finish(self, source: Vocabulary, target: Vocabulary, notes: list[str], statistics: Statistics,
                shards: list[ShardInfo]) -> None:
        settings = self._settings
        shards = self._without_empty(shards)
        report = statistics.to_json()
        factors = [VocabularyInfo(vocabulary.kind, vocabulary.size) for vocabulary in factors_of(source)]
        vocabularies = VocabularyInfos(
            VocabularyInfo(settings.vocab_kind if not settings.source_vocab else source.kind, source.size),
            VocabularyInfo(settings.vocab_kind if not settings.target_vocab else target.kind, target.size), factors)
        small = list(vocabulary_files(source, target))
        small += self._validation.write(self._stage)
        write_text(self._stage / "statistics.json", json.dumps(report, indent=1) + "\n")
        write_text(self._stage / "statistics.txt", table(report, dataclasses.asdict(vocabularies), notes))
        write_text(self._stage / LENGTHS, statistics.pair_lengths.to_text())
        small += ["statistics.json", "statistics.txt", LENGTHS]
        manifest = Manifest(
            format="towernmt-prepared", version=2 if factors or settings.alignments else 1,
            settings=settings.identity(), inputs=self._inputs, vocabularies=vocabularies, pairs=statistics.pairs,
            length_ratio=statistics.length_ratio,
            validation_pairs=self._validation.pairs, validation_sets=self._validation.infos(), notes=notes,
            shards=shards, files=describe_files(self._stage, small),
            fingerprint=fingerprint(shards, source, target))
        write_text(self._stage / MANIFEST, manifest.to_text())

    def _without_empty(self, shards: list[ShardInfo]) -> list[ShardInfo]:
        for shard in shards:
            if not shard.pairs:
                (self._stage / shard.file).unlink()
        return [shard for shard in shards if shard.pairs]

    def _describe_inputs(self) -> dict[str, Any]:
        texts = {"source": self._texts[0], "target": self._texts[1], **self._validation.inputs(), **self._annotations}
        described: dict[str, Any] = {name: {"lines": text.lines, "bytes": text.bytes, "sha256": text.sha256}
                                     for name, text in texts.items()}
        return described | self._maker.file_checksums()

    def _say(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text + "\n")
            self._stream.flush()


class _Reordered:
    """Sentences in another order, without a loop over them.

    Args:
        lengths: int `[sentences]`.
        order: int `[sentences]`, the sentence that comes first, and so on.
        columns: `[..., elements]`, all sentences one after another; None stays None.
    """

    def __init__(self, lengths: np.ndarray, order: np.ndarray, *columns: np.ndarray | None) -> None:
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[order]
        self._lengths = lengths[order]
        self._offsets = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)])
        positions = np.arange(self._offsets[-1]) + np.repeat(starts - self._offsets[:-1], self._lengths)
        self._columns = [None if column is None else column[..., positions] for column in columns]

    def take(self, sentences: slice) -> list[Any]:
        """The lengths and the columns of some sentences."""
        elements = slice(self._offsets[sentences.start], self._offsets[sentences.stop])
        return [self._lengths[sentences], *(None if column is None else column[..., elements]
                                            for column in self._columns)]
