"""`prepare` with its output in S3: the work is done on a local disk, then uploaded."""

from __future__ import annotations

import dataclasses
from typing import TextIO

from towernmt.dataflow.prepare.preparation import prepare
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.prepare.upload_to_s3 import check_writable, upload_prepared
from towernmt.dataflow.prepared.prepared_data import PreparedData
from towernmt.dataflow.prepared.remote_prepared_data import RemotePreparedData, fetch_small_files, read_remote_manifest
from towernmt.dataflow.storage.s3_folder import parse_s3_folder
from towernmt.dataflow.storage.temporary_directory import temporary_directory


def prepare_to_s3(settings: PrepareSettings, stream: TextIO | None = None) -> PreparedData:
    """Prepare a corpus into S3, or find that it has been prepared there already.

    The shards lie in a temporary directory (`TMPDIR` says on which disk) until they are uploaded.

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
    with temporary_directory("towernmt prepare") as directory:
        local = dataclasses.replace(settings, output=str(directory))
        if not settings.overwrite and read_remote_manifest(folder) is not None:
            # With these in place, `prepare` finds its work done, or that it would replace something else.
            fetch_small_files(folder, directory)
            prepare(local, stream, name=folder.name)
        else:
            check_writable(folder, settings.overwrite)
            prepare(local, stream, name=folder.name)
            upload_prepared(directory, folder, stream)
    return RemotePreparedData(settings.output)
