"""`prepare` with its output in S3: the work is done on a local disk, then uploaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TextIO

from towernmt.core.errors import DataError
from towernmt.dataflow.prepare.preparation import prepare
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.prepare.upload_to_s3 import check_writable, upload_prepared
from towernmt.dataflow.prepared.manifest import MANIFEST
from towernmt.dataflow.prepared.prepared_data import PreparedData
from towernmt.dataflow.prepared.remote_prepared_data import RemotePreparedData, fetch_small_files, read_remote_manifest
from towernmt.dataflow.storage.kept_directory import kept_directory
from towernmt.dataflow.storage.s3_folder import parse_s3_folder
from towernmt.dataflow.storage.temporary_directory import temporary_directory


def prepare_to_s3(settings: PrepareSettings, stream: TextIO | None = None) -> PreparedData:
    """Prepare a corpus into S3, or find that it has been prepared there already.

    The shards lie in a directory of `TMPDIR` until they are uploaded. What was done when a process was killed, or when
    S3 could not be written, is found there by the next one that prepares into the same place.

    Args:
        settings: with `s3://bucket/prefix[?endpoint_url=...]` as output.
        stream: where progress is written; None: nowhere.
    Returns:
        the prepared data in S3, opened.
    Raises:
        SettingsError, DataError: what `prepare` raises; or S3 cannot be reached, read or written.
    """
    settings.check()
    folder = parse_s3_folder(settings.output)
    if not settings.overwrite and read_remote_manifest(folder) is not None:
        with temporary_directory("towernmt prepare") as directory:
            # With these in place, `prepare` finds its work done, or that it would replace something else.
            fetch_small_files(folder, directory)
            prepare(dataclasses.replace(settings, output=str(directory)), stream, name=folder.name)
        return RemotePreparedData(settings.output)
    check_writable(folder, settings.overwrite)
    with kept_directory(f"towernmt prepare {folder.name}", "towernmt prepare") as directory:
        _prepare_again(dataclasses.replace(settings, output=str(directory), overwrite=False), stream, folder.name)
        upload_prepared(directory, folder, stream)
    return RemotePreparedData(settings.output)


def _prepare_again(settings: PrepareSettings, stream: TextIO | None, name: str) -> None:
    """Prepare on the disk, where a process may have prepared before whose upload was interrupted."""
    try:
        prepare(settings, stream, name)
    except DataError:
        if not (Path(settings.output) / MANIFEST).exists():
            raise
        prepare(dataclasses.replace(settings, overwrite=True), stream, name)    # it was of another text or settings
