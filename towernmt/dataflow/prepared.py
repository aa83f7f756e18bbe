"""A finished preparation: vocabularies, blocks of pairs, statistics and validation text of a directory.

```
manifest.json            written last: without it the directory is not read
vocabulary/source.*      and vocabulary/target.*
shard-00000.pairs ...    the blocks
statistics.json          and statistics.txt, the same as a table
valid.source             and valid.target: raw text, if validation text was given
```
"""

from __future__ import annotations

import json
import threading
from functools import cached_property
from pathlib import Path
from typing import Any

from towernmt.dataflow.pairs import PairBlock
from towernmt.dataflow.shards import ShardInfo, read_shard
from towernmt.dataflow.text import read_lines
from towernmt.dataflow.validation_set import ValidationSet
from towernmt.dataflow.vocabulary import Vocabulary, load_vocabularies, save_vocabularies
from towernmt.errors import DataError

FORMAT = "towernmt-prepared"
VERSION = 1
ANNOTATED_VERSION = 2
"""Of preparations with source factors or alignments; all others stay of version 1."""
MANIFEST = "manifest.json"
VOCABULARIES = "vocabulary"


def read_manifest(directory: str | Path) -> dict[str, Any]:
    """The manifest of a finished preparation.

    Raises:
        DataError: no such directory, not a preparation, not finished, damaged, or of another version.
    """
    path = Path(directory) / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise DataError(f"{path.parent}: there is no such directory. Make it with `towernmt "
                            "prepare`.") from None
        raise DataError(f"{path.parent}: no {MANIFEST} there, so preparation did not finish (or this is no "
                        "prepared data). Run `towernmt prepare` again.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Run `towernmt prepare` again.") from error
    return parse_manifest(text, str(path))


def parse_manifest(text: bytes, name: str) -> dict[str, Any]:
    """The content of a manifest; `name` is for messages.

    Raises:
        DataError: damaged, not a manifest, or of another version.
    """
    try:
        manifest = json.loads(text.decode("utf-8"))
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{name}: cannot be read ({reason}). Run `towernmt prepare` again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{name}: not the manifest of prepared data. Run `towernmt prepare` again.")
    if manifest.get("version") not in (VERSION, ANNOTATED_VERSION):
        raise DataError(f"{name}: version {manifest.get('version')} of prepared data, but this towernmt "
                        f"reads versions {VERSION} and {ANNOTATED_VERSION}. Run `towernmt prepare` again.")
    checked: dict[str, Any] = manifest
    return checked


def open_prepared(place: str | Path) -> PreparedData:
    """The prepared data of a directory, or of `s3://bucket/prefix[?endpoint_url=...]` through a local cache.

    Raises:
        DataError: see `PreparedData` and `towernmt.dataflow.remote_prepared.RemotePreparedData`.
    """
    if str(place).startswith("s3://"):
        from towernmt.dataflow.remote_prepared import RemotePreparedData

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
        num_blocks: number of blocks (shards).
        length_ratio: mean over the pairs of source tokens / target tokens.
        has_alignments: whether the pairs have alignments.
    Raises:
        DataError: see `read_manifest`, `load_vocabularies`.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory: Path | str = Path(directory)
        self._files = Path(directory)
        self.manifest = read_manifest(directory)
        self.source_vocabulary: Vocabulary
        self.target_vocabulary: Vocabulary
        self.shared_vocabulary: bool
        self.source_vocabulary, self.target_vocabulary, self.shared_vocabulary = load_vocabularies(
            self._files / VOCABULARIES)
        self._shards = [ShardInfo(**shard) for shard in self.manifest["shards"]]
        self._verified: set[int] = set()
        self._lock = threading.Lock()
        self.pairs = sum(shard.pairs for shard in self._shards)
        self.num_blocks = len(self._shards)
        self.length_ratio = float(self.manifest["length_ratio"])
        self.has_alignments = any(shard.links is not None for shard in self._shards)

    def read_block(self, index: int) -> PairBlock:
        """Block `index`, memory-mapped; its checksum is verified the first time.

        Raises:
            DataError: the shard is missing, truncated, damaged or foreign; the message names it.
        """
        block = self._open_shard(self._shards[index], verify=index not in self._verified)
        with self._lock:
            self._verified.add(index)
        return block

    def block_pairs(self, index: int) -> int:
        """Number of pairs of block `index`, from the manifest alone."""
        return self._shards[index].pairs

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """The content of `statistics.json`."""
        path = self._files / "statistics.json"
        try:
            statistics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read. Run `towernmt prepare` again.") from error
        return statistics

    @cached_property
    def statistics_table(self) -> str:
        """The content of `statistics.txt`."""
        return "\n".join(read_lines(self._files / "statistics.txt")) + "\n"

    @cached_property
    def valid_source(self) -> list[str]:
        """Validation sentences in the source language (empty if none were given)."""
        return self._valid("source")

    @cached_property
    def valid_target(self) -> list[str]:
        """Their references, as they were given."""
        return self._valid("target")

    @cached_property
    def validation_sets(self) -> list[ValidationSet]:
        """All validation sets, that of `valid_source` first; empty if there is none."""
        return [ValidationSet("", self.valid_source, [self.valid_target])] if self.valid_source else []

    def copy_vocabularies(self, directory: str | Path) -> None:
        """Write the vocabularies into another directory, for `load_vocabularies`."""
        save_vocabularies(self.source_vocabulary, self.target_vocabulary, directory)

    def _open_shard(self, shard: ShardInfo, verify: bool) -> PairBlock:
        return read_shard(self._files, shard, verify)

    def _valid(self, side: str) -> list[str]:
        return list(read_lines(self._files / f"valid.{side}")) if self.manifest["validation_pairs"] else []
