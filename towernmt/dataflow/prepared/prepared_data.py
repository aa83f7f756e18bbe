"""A finished preparation: vocabularies, blocks of pairs, statistics and validation text of a directory.

```
manifest.json            written last: without it the directory is not read
vocabulary/source.*      and vocabulary/target.*
shard-00000.pairs ...    the blocks
statistics.json          and statistics.txt, the same as a table
lengths.tsv              how many pairs have which lengths
valid.source             and valid.target: raw text, if there is validation text (more: see `validation_text`)
```
"""

from __future__ import annotations

import threading
from functools import cached_property
from pathlib import Path
from typing import Any

from towernmt.core.errors import DataError
from towernmt.core.files.json_files import parse_json
from towernmt.dataflow.prepared.corpus_statistics import StatisticsReport
from towernmt.dataflow.prepared.exchange import finish_exchange
from towernmt.dataflow.prepared.manifest import (
    VOCABULARIES,
    ValidationInfo,
    fingerprint,
    read_manifest,
    vocabulary_files,
)
from towernmt.dataflow.prepared.pair_block import PairBlock
from towernmt.dataflow.prepared.pair_lengths import LENGTHS, PairLengths, parse_pair_lengths
from towernmt.dataflow.prepared.shards import ShardInfo, read_shard
from towernmt.dataflow.text.chunks import Chunk
from towernmt.dataflow.text.validation_set import ValidationSet, files_of_set
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies, save_vocabularies

_AGAIN = "Run `towernmt prepare` again."


def open_prepared(place: str | Path) -> PreparedData:
    """The prepared data of a directory, or of `s3://bucket/prefix[?endpoint_url=...]` through a local cache.

    Raises:
        DataError: see `PreparedData` and `towernmt.dataflow.prepared.remote_prepared_data.RemotePreparedData`.
    """
    if str(place).startswith("s3://"):
        from towernmt.dataflow.prepared.remote_prepared_data import RemotePreparedData

        return RemotePreparedData(str(place))
    return PreparedData(place)


class PreparedData:
    """Reads what `prepare` wrote. Reading is thread-safe.

    Args:
        directory: the output of `prepare`.
    Attributes:
        directory: its name, for messages: a path, or the URI of a preparation in S3.
        manifest: settings, inputs, shards and notes, as `prepare` wrote them.
        source_vocabulary, target_vocabulary: the same object if `shared_vocabulary`.
        pairs: number of pairs in all blocks.
        target_tokens: of all pairs, without EOS.
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
        self.manifest: dict[str, Any] = self._manifest.to_json()
        self.source_vocabulary: Vocabulary
        self.target_vocabulary: Vocabulary
        self.shared_vocabulary: bool
        self.source_vocabulary, self.target_vocabulary, self.shared_vocabulary = load_vocabularies(
            self._files / VOCABULARIES)
        self._check_vocabularies()
        self._shards = self._manifest.shards
        self._verified: set[int] = set()
        self._lock = threading.Lock()
        self.pairs = sum(shard.pairs for shard in self._shards)
        self.target_tokens = sum(shard.target_tokens for shard in self._shards)
        self.num_blocks = len(self._shards)
        self.length_ratio = self._manifest.length_ratio
        self.has_alignments = any(shard.links is not None for shard in self._shards)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that say which ids and vocabularies these are; see `manifest.fingerprint`."""
        return fingerprint(self._shards, self.source_vocabulary, self.target_vocabulary)

    def read_block(self, index: int) -> PairBlock:
        """Block `index`, memory-mapped; its checksum is verified the first time.

        Raises:
            DataError: the shard is missing, truncated, damaged or foreign; the message names it.
        """
        block = self._open_shard(self._shards[index], verify=index not in self._verified)
        with self._lock:
            self._verified.add(index)
        return block

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """The content of `statistics.json`.

        Raises:
            DataError: it is missing or damaged.
        """
        content, name = self._read("statistics.json"), str(self._files / "statistics.json")
        parse_json(content, StatisticsReport, name, _AGAIN)
        return parse_json(content, dict[str, Any], name, _AGAIN)

    @cached_property
    def pair_lengths(self) -> PairLengths | None:
        """The histogram of the pairs' lengths; None: the data were prepared by a version that made none.

        Raises:
            DataError: it is missing or damaged.
        """
        if self._manifest.file(LENGTHS) is None:
            return None
        return parse_pair_lengths(self._read(LENGTHS), str(self._files / LENGTHS))

    @cached_property
    def statistics_table(self) -> str:
        """The content of `statistics.txt`."""
        return "\n".join(self._lines("statistics.txt")) + "\n"

    @cached_property
    def valid_source(self) -> list[str]:
        """Validation sentences in the source language (empty if there are none)."""
        return list(self.validation_sets[0].source) if self.validation_sets else []

    @cached_property
    def valid_target(self) -> list[str]:
        """Their references, as the files had them."""
        return list(self.validation_sets[0].references[0]) if self.validation_sets else []

    @cached_property
    def validation_sets(self) -> list[ValidationSet]:
        """All validation sets, that of `valid_source` first; empty if there is none."""
        infos = self._manifest.validation_sets or [ValidationInfo("", self._manifest.validation_pairs)]
        found = []
        for number, info in enumerate(infos, 1):
            if info.pairs:
                source, references = files_of_set(number, info.references)
                found.append(ValidationSet(info.name, self._valid(source, info.pairs),
                                           [self._valid(name, info.pairs) for name in references]))
        return found

    def copy_vocabularies(self, directory: str | Path) -> None:
        """Write the vocabularies into another directory, for `load_vocabularies`."""
        save_vocabularies(self.source_vocabulary, self.target_vocabulary, directory)

    def _open_shard(self, shard: ShardInfo, verify: bool) -> PairBlock:
        return read_shard(self._files, shard, verify)

    def _valid(self, name: str, expected: int) -> list[str]:
        lines = self._lines(name)
        if len(lines) != expected:
            raise DataError(f"{self._files / name}: {len(lines)} lines where the manifest announces "
                            f"{expected}. {_AGAIN}")
        return lines

    def _lines(self, name: str) -> list[str]:
        content = self._read(name)
        return Chunk(str(self._files / name), 1, content.count(b"\n"), content).decode() if content else []

    def _read(self, name: str) -> bytes:
        """The content of a small file, checked against the manifest."""
        path = self._files / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}). {_AGAIN}") from error
        known = self._manifest.file(name)
        if known is not None and not known.matches(content):
            raise DataError(f"{path}: the file has changed since it was prepared (its checksum is not the manifest's). "
                            f"Put back what was there, or run `towernmt prepare` again.")
        return content

    def _check_vocabularies(self) -> None:
        """Check that the vocabularies are those that the shards were encoded with."""
        if self._manifest.files is None:
            return
        for name, content in vocabulary_files(self.source_vocabulary, self.target_vocabulary).items():
            known = self._manifest.file(name)
            if known is None or not known.matches(content):
                raise DataError(f"{self._files / name}: this is not the vocabulary that the data were prepared with. "
                                "Put back what was there, or run `towernmt prepare` again.")
