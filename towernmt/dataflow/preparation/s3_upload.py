"""`prepare` with its output in S3: write to a local disk, then upload, the manifest last.

Without a manifest nothing is read, so an interrupted upload leaves nothing that looks finished; the next upload sends
the missing objects. A preparation that replaces another one goes into a separate folder, whose name is a function
of its content: until its manifest replaces the old one, in one request, the old preparation is complete. S3 has no
lock that ends with its process. Two processes that upload different data at once may remove each other's objects, so
before a manifest is written, all objects that it names are checked to exist.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from towernmt.core.errors import DataError
from towernmt.core.temporary_directories import resumable_directory, temporary_directory
from towernmt.dataflow.preparation.manifest import MANIFEST, Manifest, read_manifest
from towernmt.dataflow.preparation.output_directory import is_own, refuse_foreign
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import (
    PreparedData,
    RemotePreparedData,
    fetch_small_files,
    read_remote_manifest,
)
from towernmt.dataflow.storage.s3_client import client, list_objects, retrying, split_name
from towernmt.dataflow.storage.s3_storage import (
    S3Folder,
    check_object_writable,
    object_metadata,
    parse_s3_folder,
    upload_stream,
)


def prepare_to_s3(settings: PrepareSettings, stream: TextIO | None = None) -> PreparedData:
    """Prepare a corpus in S3, unless it was prepared there before.

    The shards are in a directory of `TMPDIR` until they are uploaded. If a process is killed, or S3 cannot be written,
    the next process with the same output resumes from this directory.

    Args:
        settings: settings with `s3://bucket/prefix[?endpoint_url=...]` as output.
        stream: destination of progress and messages; None for none.

    Returns:
        the prepared data in S3, opened.

    Raises:
        SettingsError: see `prepare`.
        DataError: see `prepare`; or S3 cannot be reached, read or written.
    """
    settings.check()
    folder = parse_s3_folder(settings.output)
    if not settings.overwrite and read_remote_manifest(folder) is not None:
        with temporary_directory("towernmt prepare") as directory:
            # With these files, `prepare` detects a finished or a different preparation.
            fetch_small_files(folder, directory)
            prepare(dataclasses.replace(settings, output=str(directory)), stream, name=folder.name)
        return RemotePreparedData(settings.output)
    check_folder_writable(folder, settings.overwrite)
    with resumable_directory(f"towernmt prepare {folder.name}", "towernmt prepare") as directory:
        _prepare_again(dataclasses.replace(settings, output=str(directory), overwrite=False), stream, folder.name)
        upload_prepared(directory, folder, stream)
    return RemotePreparedData(settings.output)


def _prepare_again(settings: PrepareSettings, stream: TextIO | None, name: str) -> None:
    """Prepare on the disk, which may contain a preparation whose upload was interrupted."""
    try:
        prepare(settings, stream, name)
    except DataError:
        if not (Path(settings.output) / MANIFEST).exists():
            raise
        prepare(dataclasses.replace(settings, overwrite=True), stream, name)    # the old text or settings differ


_FOLDER = re.compile(r"^data-[0-9a-f]{12}/")
_CHECKSUM = "towernmt-crc32"


def check_folder_writable(folder: S3Folder, overwrite: bool = True) -> None:
    """Write and remove an empty object, so that a missing permission is reported before hours of work.

    Args:
        folder: the output.
        overwrite: whether to replace objects with the names of a preparation that may belong to the user.

    Raises:
        DataError: the folder cannot be written, or contains such objects.
    """
    check_object_writable(folder.options, folder.path(MANIFEST))
    if not overwrite:
        refuse_foreign(sorted(_Uploader(folder, None).present()), folder.name)


def upload_prepared(directory: Path, folder: S3Folder, stream: TextIO | None = None) -> None:
    """Copy a finished preparation to S3, and replace an old one.

    Args:
        directory: the output of `prepare`.
        folder: destination.
        stream: destination of the progress; None for none.

    Raises:
        DataError: the preparation is not finished, or S3 cannot be written.
    """
    manifest = read_manifest(directory)
    manifest = dataclasses.replace(manifest, folder=_data_folder(manifest, folder))
    uploader = _Uploader(folder, stream)
    uploader.total = sum((directory / name).stat().st_size for name in manifest.names())
    uploaded = {name: uploader.upload(directory / name, manifest.relative_path(name)) for name in manifest.names()}
    for name, file in uploaded.items():
        uploader.check(manifest.relative_path(name), file)
    uploader.put(MANIFEST, manifest.to_text().encode())
    uploader.remove(sorted(uploader.present() - {manifest.relative_path(name) for name in manifest.names()}))


def _data_folder(manifest: Manifest, folder: S3Folder) -> str | None:
    """Return the folder of the files, which differs from that of an old, different preparation."""
    try:
        old = read_remote_manifest(folder)
    except DataError:       # damaged, or S3 cannot be reached, which the upload reports
        old = dataclasses.replace(manifest, notes=[*manifest.notes, "damaged"])
    if old is None:
        return None
    if dataclasses.replace(old, folder=None) == dataclasses.replace(manifest, folder=None):
        return old.folder
    return "data-" + hashlib.sha256(manifest.to_text().encode()).hexdigest()[:12]


class _Uploader:
    def __init__(self, folder: S3Folder, stream: TextIO | None) -> None:
        self._folder, self._stream = folder, stream
        self._bucket, prefix = split_name(folder.name)
        self._prefix = f"{prefix}/" if prefix else ""
        self.total = self._done = 0

    def upload(self, path: Path, file: str) -> dict[str, Any]:
        """Copy one file unless it exists, in several requests if it is large; return its entry in the manifest."""
        size, crc = path.stat().st_size, _crc32(path)
        if not self._is_there(file, size, crc):
            with open(path, "rb") as content:
                upload_stream(self._folder.options, self._folder.path(file), content, {_CHECKSUM: str(crc)})
            self.check(file, {"bytes": size, "crc32": crc})
        self._done += size
        if self._stream is not None:
            self._stream.write(f"uploaded {file}: {self._done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB\n")
            self._stream.flush()
        return {"file": file, "bytes": size, "crc32": crc}

    def check(self, file: str, expected: Mapping[str, Any]) -> None:
        """Check that a file exists in S3.

        Raises:
            DataError: it does not exist, or has different content.
        """
        if not self._is_there(file, expected["bytes"], expected["crc32"]):
            raise DataError(f"{self._folder.path(file)}: it is not the file that was uploaded. Prepare again, "
                            "while nothing else writes to this folder.")

    def put(self, file: str, content: bytes) -> None:
        """Write a small object."""
        s3 = client(self._folder.options)
        retrying(self._folder.options, self._folder.path(file),
                 lambda: s3.put_object(Bucket=self._bucket, Key=self._prefix + file, Body=content))

    def remove(self, files: list[str]) -> None:
        """Delete objects, and ignore missing ones."""
        s3 = client(self._folder.options)
        for file in files:
            key = self._prefix + file
            retrying(self._folder.options, self._folder.path(file),
                     lambda: s3.delete_object(Bucket=self._bucket, Key=key))    # noqa: B023

    def present(self) -> set[str]:
        """Return the names of the files of preparations in the folder."""
        objects = list_objects(self._folder.options, self._folder.name, self._bucket, self._prefix)
        names = (item["Key"].removeprefix(self._prefix) for item in objects)
        return {name for name in names if is_own(_FOLDER.sub("", name)) and name != MANIFEST}

    def _is_there(self, file: str, size: int, crc: int) -> bool:
        """Return whether an object with this size and checksum exists."""
        present_size, metadata = object_metadata(self._folder.options, self._folder.path(file))
        return (present_size, metadata.get(_CHECKSUM)) == (size, str(crc))


def _crc32(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            crc = zlib.crc32(data, crc)
    return crc
