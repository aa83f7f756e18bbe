"""The outputs of a translation in ranges: their paths, and how results are joined."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import replacing
from towernmt.dataflow.sources.open_source import open_storage, split_uri
from towernmt.dataflow.storage.s3_storage import S3Storage, check_object_writable, upload_stream
from towernmt.predict.lines.output_file import descriptor_of, reporting_write_errors
from towernmt.predict.ranges.plan import Text, short_name
from towernmt.predict.ranges.work_directory import ResultFile

NAME_PLACEHOLDER = "{name}"
"""In the name of an output: the name of the text, without directories and the suffix of a compression."""


def is_per_text(path: str) -> bool:
    """Return whether an output is a file for each text: it contains `{name}`, or is a directory."""
    if NAME_PLACEHOLDER in path or without_options(path).endswith("/"):
        return True
    return not is_remote(path) and Path(path).is_dir()


def is_remote(path: str) -> bool:
    """Return whether a path is in S3."""
    return path.lower().startswith("s3://")


def without_options(path: str) -> str:
    """Return a path without the options of an S3 server."""
    return split_uri(path)[0] if is_remote(path) else path


def output_paths(path: str, texts: Sequence[Text]) -> list[str]:
    """Return the path of the output of each text.

    Args:
        path: one file for all texts; or a directory or a name with `{name}`, for a file for each text.
        texts: the texts.

    Raises:
        SettingsError: two texts would have the same output.
    """
    if not is_per_text(path):
        return [path for _ in texts]
    if NAME_PLACEHOLDER not in path:
        directory = without_options(path)
        path = f"{directory.rstrip('/')}/{NAME_PLACEHOLDER}{path[len(directory):]}"
    outputs = [path.replace(NAME_PLACEHOLDER, short_name(text)) for text in texts]
    text_of_output: dict[str, Text] = {}
    for output, text in zip(outputs, texts, strict=True):
        if output in text_of_output:
            raise SettingsError(f"{text_of_output[output].name} and {text.name} would both be written to {output}: "
                                "translate them by separate commands, to different outputs.")
        text_of_output[output] = text
    return outputs


def check_writable_output(path: str) -> None:
    """Check that an output can be written, before hours of work.

    Raises:
        DataError: it is not a regular file, or its directory cannot be written.
    """
    if is_remote(path):
        storage, name = open_storage(path)
        check_object_writable(cast(S3Storage, storage).options, name)
        return
    file = Path(path)
    if descriptor_of(path) is not None or (file.exists() and not file.is_file()):
        raise DataError(f"{path} is not a regular file: pass the path of one.")
    with reporting_write_errors(path):
        file.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(file.parent, os.W_OK):
            raise PermissionError(13, "Permission denied")


def write_joined(path: str, results: Sequence[ResultFile]) -> None:
    """Write the results of ranges, one after the other. They replace `path` when all are on the disk.

    Args:
        path: a file, or s3://bucket/key.
        results: the result of each range.

    Raises:
        DataError: the output cannot be written, or a result is damaged. The old output is untouched.
    """
    if is_remote(path):
        storage, name = open_storage(path)
        # Buffered, because each part of the object is read by one call, across results.
        upload_stream(cast(S3Storage, storage).options, name, io.BufferedReader(_BlockReader(_content(results))))
        return
    with reporting_write_errors(path), replacing(Path(os.path.realpath(path))) as file:
        file.writelines(_content(results))


def _content(results: Sequence[ResultFile]) -> Iterator[bytes]:
    """Yield the content of results in blocks.

    Raises:
        DataError: a result cannot be read, or its checksum differs.
    """
    for result in results:
        digest = hashlib.sha256()
        try:
            with open(result.path, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    yield block
        except OSError as error:
            raise DataError(f"{result.path}: cannot read ({error.strerror}); start the same command again.") from error
        if digest.hexdigest() != result.sha256:
            raise DataError(f"{result.path} is damaged: its content is not what was written. Start the same command "
                            "again, which translates its lines again.")


class _BlockReader(io.RawIOBase):
    """A stream of the bytes that an iterator yields."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        self._rest = self._rest or next(self._blocks, b"")
        count = min(len(into), len(self._rest))
        into[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
