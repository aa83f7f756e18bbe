"""A finished preparation, on a disk or in S3: vocabularies, blocks of pairs, statistics and validation text.

```
manifest.json            written last: without it the directory is not read
vocabulary/source.*      and vocabulary/target.*
shard-00000.pairs ...    the blocks
statistics.json          and statistics.txt, the same as a table
lengths.tsv              how many pairs have which lengths
valid.source             and valid.target: raw text, if there is validation text (more: see `input_texts`)
```

In S3, the small files are read at once, and the shards through a cache on a local disk.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from towernmt.core.errors import DataError, remedy
from towernmt.core.files import path_inside, replacing, write_text
from towernmt.core.structured_files import parse_json
from towernmt.core.temporary_directories import temporary_directory
from towernmt.dataflow.preparation.corpus_statistics import LENGTHS, PairLengths, StatisticsReport, parse_pair_lengths
from towernmt.dataflow.preparation.manifest import (
    MANIFEST,
    VOCABULARIES,
    Manifest,
    parse_manifest,
    prepared_fingerprint,
    read_manifest,
    vocabulary_files,
)
from towernmt.dataflow.preparation.output_directory import finish_exchange
from towernmt.dataflow.preparation.shards import (
    PREPARE_AGAIN,
    PairBlock,
    ShardInfo,
    map_shard,
    read_shard,
    reversed_block,
)
from towernmt.dataflow.storage.object_cache import ObjectCache, default_cache
from towernmt.dataflow.storage.s3_client import ObjectMissing
from towernmt.dataflow.storage.s3_storage import S3Folder, parse_s3_folder
from towernmt.dataflow.text.text_lines import Chunk
from towernmt.dataflow.text.validation_set import ValidatedData, ValidationSet, files_of_set
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_text import SOURCE_TEXT, SourceText
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies, save_vocabularies


def open_prepared(location: str | Path) -> PreparedData:
    """Open the prepared data of a directory, or of `s3://bucket/prefix[?endpoint_url=...]` through a local cache.

    Raises:
        DataError: see `PreparedData` and `RemotePreparedData`.
    """
    if str(location).lower().startswith("s3://"):
        return RemotePreparedData(str(location))
    return PreparedData(location)


class PreparedData(ValidatedData):
    """Reads the output of `prepare`. Reading is thread-safe.

    Attributes:
        directory: name for messages: a path, or the URI of a preparation in S3.
        manifest: content of the manifest.
        source_vocabulary: source vocabulary.
        target_vocabulary: target vocabulary; the same object if `shared_vocabulary`.
        shared_vocabulary: whether both languages share a vocabulary.
        pairs: number of pairs of all blocks.
        target_tokens: number of target tokens of all pairs, without EOS.
        num_blocks: number of blocks (shards).
        length_ratio: mean over the pairs of source tokens / target tokens.
        has_alignments: whether the pairs have alignments.

    Raises:
        DataError: see `read_manifest`, `load_vocabularies`; or the vocabularies are not those of the preparation.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory: Path | str = Path(directory)
        finish_exchange(directory)
        self._manifest = read_manifest(directory)
        self._files = Path(directory) / (self._manifest.folder or "")
        self.manifest: dict[str, Any] = dataclasses.asdict(self._manifest)
        self.source_vocabulary: Vocabulary
        self.target_vocabulary: Vocabulary
        self.shared_vocabulary: bool
        self.source_vocabulary, self.target_vocabulary, self.shared_vocabulary = load_vocabularies(
            self._files / VOCABULARIES)
        self._check_vocabularies()
        self._shards = self._manifest.shards
        self._verified: set[int] = set()
        self._mapped: WeakValueDictionary[int, PairBlock] = WeakValueDictionary()
        self._lock = threading.Lock()
        self.pairs = sum(shard.pairs for shard in self._shards)
        self.target_tokens = sum(shard.target_tokens for shard in self._shards)
        self.num_blocks = len(self._shards)
        self.length_ratio = self._manifest.length_ratio
        self.has_alignments = any(shard.links is not None for shard in self._shards)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that identify the ids and the vocabularies; see `prepared_fingerprint`."""
        return prepared_fingerprint(self._shards, self.source_vocabulary, self.target_vocabulary)

    @property
    def position_settings(self) -> dict[str, Any]:
        """The sizes on which a position in the data depends; the fingerprint compares the content."""
        return {"number of shards": self.num_blocks, "number of sentence pairs": self.pairs}

    def read_block(self, index: int) -> PairBlock:
        """Return block `index`, memory-mapped. Its checksum is verified the first time.

        A shard that is in use is not mapped again, since each mapping holds a file descriptor.

        Raises:
            DataError: the shard is missing, truncated, damaged or foreign; the message names it.
        """
        block = self._mapped.get(index)
        if block is None:
            block = self._open_shard(self._shards[index], verify=index not in self._verified)
            with self._lock:
                self._verified.add(index)
                self._mapped[index] = block
        return block

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """The content of `statistics.json`.

        Raises:
            DataError: it is missing or damaged.
        """
        content, name = self._read("statistics.json"), str(self._files / "statistics.json")
        parse_json(content, StatisticsReport, name, PREPARE_AGAIN)
        return parse_json(content, dict[str, Any], name, PREPARE_AGAIN)

    @cached_property
    def pair_lengths(self) -> PairLengths:
        """The histogram of the pairs' lengths.

        Raises:
            DataError: it is missing or damaged.
        """
        return parse_pair_lengths(self._read(LENGTHS), str(self._files / LENGTHS))

    @cached_property
    def statistics_table(self) -> str:
        """The content of `statistics.txt`."""
        return "\n".join(self._lines("statistics.txt")) + "\n"

    @cached_property
    def validation_sets(self) -> list[ValidationSet]:
        """All validation sets, that of `valid_source` first; empty without validation text."""
        sets = []
        for number, info in enumerate(self._manifest.validation_sets, 1):
            source, references = files_of_set(number, info.references)
            sets.append(ValidationSet(info.name, self._valid(source, info.pairs),
                                      [self._valid(name, info.pairs) for name in references]))
        return sets

    @cached_property
    def source_text(self) -> SourceText:
        """Facts about the source text; empty in older preparations."""
        name = f"{VOCABULARIES}/{SOURCE_TEXT}"
        if self._manifest.file(name) is None:
            return SourceText()
        return SourceText.parse(self._read(name), str(self._files / name))

    def copy_vocabularies(self, directory: str | Path) -> None:
        """Write the vocabularies and facts about the source text into another directory, for `load_vocabularies`."""
        save_vocabularies(self.source_vocabulary, self.target_vocabulary, directory)
        self.source_text.save(directory)

    def _open_shard(self, shard: ShardInfo, verify: bool) -> PairBlock:
        return read_shard(self._files, shard, verify)

    def _valid(self, name: str, expected: int) -> list[str]:
        lines = self._lines(name)
        if len(lines) != expected:
            raise DataError(f"{self._files / name}: {len(lines)} lines where the manifest announces "
                            f"{expected}. {PREPARE_AGAIN}")
        return lines

    def _lines(self, name: str) -> list[str]:
        content = self._read(name)
        return Chunk(str(self._files / name), 1, content.count(b"\n"), content).decode() if content else []

    def _read(self, name: str) -> bytes:
        """Return the content of a small file, and compare it with the manifest."""
        path = self._files / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}). {remedy(error, PREPARE_AGAIN)}") from error
        entry = self._manifest.file(name)
        if entry is not None and not entry.matches(content):
            raise DataError(f"{path}: the file has changed since it was prepared (its checksum is not the manifest's). "
                            f"Restore the file, or prepare the data again with --overwrite.")
        return content

    def _check_vocabularies(self) -> None:
        """Check that the shards were encoded with these vocabularies."""
        for name, content in vocabulary_files(self.source_vocabulary, self.target_vocabulary).items():
            entry = self._manifest.file(name)
            if entry is None or not entry.matches(content):
                raise DataError(f"{self._files / name}: this is not the vocabulary that the data were prepared with. "
                                "Restore the file, or prepare the data again with --overwrite.")


class ReversedData(PreparedData):
    """Prepared data with source and target exchanged, for a model of the opposite direction.

    Alignments are left out. A validation set has its first reference as its source.

    Args:
        data: the prepared data, without source factors.
    """

    def __init__(self, data: PreparedData) -> None:     # everything is read from `data`
        self._data = data
        self.directory, self.manifest = data.directory, data.manifest
        self.source_vocabulary, self.target_vocabulary = data.target_vocabulary, data.source_vocabulary
        self.shared_vocabulary = data.shared_vocabulary
        self.pairs, self.num_blocks = data.pairs, data.num_blocks
        self.target_tokens = sum(shard["source_tokens"] for shard in data.manifest["shards"])
        self.length_ratio = 1 / data.length_ratio
        self.has_alignments = False

    @property
    def source_text(self) -> SourceText:
        """No facts: the target text is not counted."""
        return SourceText()

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, which differ from the fingerprint of the unreversed data."""
        return hashlib.sha256(f"reversed {self._data.fingerprint}".encode()).hexdigest()[:32]

    def read_block(self, index: int) -> PairBlock:
        """Return a block with source and target exchanged."""
        return reversed_block(self._data.read_block(index))

    @cached_property
    def pair_lengths(self) -> PairLengths:
        """The histogram of the pairs' lengths."""
        lengths = self._data.pair_lengths
        return PairLengths(lengths.target, lengths.source, lengths.pairs)

    @cached_property
    def validation_sets(self) -> list[ValidationSet]:
        """The validation sets, each from its first reference to its source."""
        return [ValidationSet(forward.name, forward.references[0], [forward.source])
                for forward in self._data.validation_sets]


_COPY_BYTES = 1 << 20


class RemotePreparedData(PreparedData):
    """Reads the output of `prepare` in S3; see `PreparedData`.

    A block is copied into the cache when it is read, and stays there while the cache has space. Its size and checksum
    are compared with the manifest when it arrives, and again when this object first reads it. A damaged copy is fetched
    again, once.

    Args:
        uri: `s3://bucket/prefix[?endpoint_url=...&region=...&retries=...]`.
        cache: cache of the shards; None for the default of the environment.

    Raises:
        DataError: not a finished preparation, or it cannot be reached.
    """

    def __init__(self, uri: str, cache: ObjectCache | None = None) -> None:
        self._folder = parse_s3_folder(uri)
        self._cache = cache or default_cache()
        with temporary_directory("reading prepared data") as directory:
            fetch_small_files(self._folder, directory)
            super().__init__(directory)
            # Read these files before they are removed.
            _ = self.statistics, self.statistics_table, self.validation_sets, self.pair_lengths, self.source_text
        self.directory = self._folder.name

    def _open_shard(self, shard: ShardInfo, verify: bool) -> PairBlock:
        name = self._folder.path(self._manifest.relative_path(shard.file))
        version = f"{self._folder.options.endpoint_url} {shard.crc32}"
        refetched = False
        while True:
            with self._cache.open(name, version, shard.bytes, partial(self._fetch, name, shard)) as file:
                try:
                    return map_shard(file, name, shard, verify)
                except OSError as error:
                    raise DataError(f"{self._cache.directory}: the cached copy of {name} cannot be read "
                                    f"({error.strerror}). Check the disk.") from error
                except DataError:
                    if refetched:
                        raise
            self._cache.discard(name, version)      # the copy is damaged
            refetched = True

    def _fetch(self, name: str, shard: ShardInfo, copy: BinaryIO) -> None:
        storage = self._folder.storage()
        stored = storage.list(name)[0]
        if stored.size != shard.bytes:
            raise DataError(f"{name}: {stored.size} bytes where the manifest announces {shard.bytes}: the shard is "
                            f"{'truncated' if stored.size < shard.bytes else 'damaged'}. {PREPARE_AGAIN}")
        with storage.open(stored) as stream:
            while data := stream.read(_COPY_BYTES):
                copy.write(data)
        copy.flush()
        copy.seek(0)
        map_shard(copy, name, shard, verify=True)


def read_remote_manifest(folder: S3Folder) -> Manifest | None:
    """Read the manifest of a preparation in S3; return None if it is missing or the preparation is not finished.

    Raises:
        DataError: S3 cannot be reached, or the manifest is damaged or of another version.
    """
    try:
        content = folder.read(MANIFEST)
    except ObjectMissing:
        return None
    return parse_manifest(content, folder.path(MANIFEST))


def fetch_small_files(folder: S3Folder, directory: Path) -> None:
    """Copy all files of a preparation except the shards into a directory.

    Raises:
        DataError: the preparation is missing or not finished, a file is missing or damaged, or its path leaves the
            directory.
    """
    manifest = read_remote_manifest(folder)
    if manifest is None:
        raise DataError(f"{folder.name}: no {MANIFEST} there, so preparation did not finish (or this is not prepared "
                        "data). Run `towernmt prepare` again.")
    for entry in manifest.files:
        relative_path = manifest.relative_path(entry.file)
        path = path_inside(directory, relative_path, folder.path(MANIFEST))
        content = folder.read(relative_path)
        if not entry.matches(content):
            raise DataError(f"{folder.path(relative_path)}: the file is damaged (its checksum is not the "
                            f"manifest's). {PREPARE_AGAIN}")
        with replacing(path) as file:
            file.write(content)
    write_text(directory / MANIFEST, manifest.to_text())
