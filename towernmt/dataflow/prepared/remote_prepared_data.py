"""Prepared data in S3: its small files are read at once, its shards through a cache on a local disk."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import BinaryIO

from towernmt.core.errors import DataError
from towernmt.core.files.atomic_files import replacing, write_text
from towernmt.core.files.outside_names import path_inside
from towernmt.dataflow.prepared.manifest import MANIFEST, Manifest, parse_manifest
from towernmt.dataflow.prepared.pair_block import PairBlock
from towernmt.dataflow.prepared.prepared_data import PreparedData
from towernmt.dataflow.prepared.shards import ShardInfo, map_shard
from towernmt.dataflow.storage.object_cache import ObjectCache, default_cache
from towernmt.dataflow.storage.s3_client import ObjectMissing
from towernmt.dataflow.storage.s3_folder import S3Folder, parse_s3_folder

_COPY_BYTES = 1 << 20


class RemotePreparedData(PreparedData):
    """What `prepare` wrote to S3; see `PreparedData`.

    A block is copied into the cache when it is read and stays there while there is room. Its size and checksum are
    compared with the manifest's when it arrives, and again when this object reads it for the first time; a copy that
    is damaged is fetched again, once.

    Args:
        uri: `s3://bucket/prefix[?endpoint_url=...&region=...&retries=...]`.
        cache: for the shards; None: the one that the environment names.
    Raises:
        DataError: not a finished preparation, or it cannot be reached.
    """

    def __init__(self, uri: str, cache: ObjectCache | None = None) -> None:
        self._folder = parse_s3_folder(uri)
        self._cache = cache or default_cache()
        with tempfile.TemporaryDirectory(prefix="towernmt-") as directory:
            fetch_small_files(self._folder, Path(directory))
            super().__init__(directory)
            # Into memory, before the files go.
            _ = self.statistics, self.statistics_table, self.validation_sets, self.pair_lengths
        self.directory = self._folder.name

    def _open_shard(self, shard: ShardInfo, verify: bool) -> PairBlock:
        name = self._folder.path(self._manifest.place(shard.file))
        version = f"{self._folder.options.endpoint_url} {shard.crc32}"
        for last in (False, True):
            with self._cache.open(name, version, shard.bytes, partial(self._fetch, name, shard)) as file:
                try:
                    return map_shard(file, name, shard, verify)
                except OSError as error:
                    raise DataError(f"{self._cache.directory}: the cached copy of {name} cannot be read "
                                    f"({error.strerror}). Check the disk.") from error
                except DataError:
                    if last:
                        raise
            self._cache.discard(name, version)
        raise DataError(f"{name}: cannot be read.")

    def _fetch(self, name: str, shard: ShardInfo, copy: BinaryIO) -> None:
        storage = self._folder.storage()
        stored = storage.list(name)[0]
        if stored.size != shard.bytes:
            raise DataError(f"{name}: {stored.size} bytes where the manifest announces {shard.bytes}: the shard is "
                            f"{'truncated' if stored.size < shard.bytes else 'damaged'}. Prepare the data again.")
        with storage.open(stored) as stream:
            while data := stream.read(_COPY_BYTES):
                copy.write(data)
        copy.flush()
        copy.seek(0)
        map_shard(copy, name, shard, verify=True)


def read_remote_manifest(folder: S3Folder) -> Manifest | None:
    """The manifest of a preparation in S3; None: there is none, so nothing was prepared or it was not finished.

    Raises:
        DataError: it cannot be reached, or is damaged or of another version.
    """
    try:
        content = folder.read(MANIFEST)
    except ObjectMissing:
        return None
    return parse_manifest(content, folder.path(MANIFEST))


def fetch_small_files(folder: S3Folder, directory: Path) -> None:
    """Copy all but the shards of a preparation into a directory.

    Raises:
        DataError: there is no finished preparation, a file is missing or damaged, or one would lie elsewhere.
    """
    manifest = read_remote_manifest(folder)
    if manifest is None:
        raise DataError(f"{folder.name}: no {MANIFEST} there, so preparation did not finish (or this is no prepared "
                        "data). Run `towernmt prepare` again.")
    if manifest.files is None:
        raise DataError(f"{folder.name}: {MANIFEST} lists no files, since it was copied there by other means. Run "
                        "`towernmt prepare` with this as its --output.")
    for entry in manifest.files:
        place = manifest.place(entry.file)
        path = path_inside(directory, place, folder.path(MANIFEST))
        content = folder.read(place)
        if not entry.matches(content):
            raise DataError(f"{folder.path(place)}: the file is damaged (its checksum is not the "
                            "manifest's). Prepare the data again.")
        with replacing(path) as file:
            file.write(content)
    write_text(directory / MANIFEST, manifest.to_text())
