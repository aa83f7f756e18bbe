"""What is written at the end: a file for each text, or one for all, on a disk or in S3, whole or not there."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files.atomic_files import replacing
from towernmt.dataflow.sources.open_source import open_storage
from towernmt.dataflow.sources.uri_options import split_uri
from towernmt.dataflow.storage.s3_output import check_writable, upload_stream
from towernmt.dataflow.storage.s3_storage import S3Storage
from towernmt.predict.output_file import told
from towernmt.predict.parts.texts import Text, short_name

NAME = "{name}"
"""In the name of an output: the name of the text, without folders and the ending of a compression."""


def is_of_each(path: str) -> bool:
    """Whether a name asks for a file for each text: with `{name}`, or as a folder."""
    return NAME in path or without_options(path).endswith("/") or (not is_remote(path) and Path(path).is_dir())


def is_remote(path: str) -> bool:
    """Whether it is in S3."""
    return path.lower().startswith("s3://")


def without_options(path: str) -> str:
    """The place without the options of a server in S3."""
    return split_uri(path)[0] if is_remote(path) else path


def output_paths(path: str, texts: Sequence[Text]) -> list[str]:
    """Where each text goes.

    Args:
        path: one place for all, or for each: a folder, or with `{name}`.
    Raises:
        SettingsError: two texts would have the same.
    """
    if not is_of_each(path):
        return [path for _ in texts]
    if NAME not in path:
        place = without_options(path)
        path = f"{place.rstrip('/')}/{NAME}{path[len(place):]}"
    paths = [path.replace(NAME, short_name(text)) for text in texts]
    first: dict[str, Text] = {}
    for place, text in zip(paths, texts, strict=True):
        if place in first:
            raise SettingsError(f"{first[place].name} and {text.name} would both be written to {place}: translate them "
                                "one after the other, to different places.")
        first[place] = text
    return paths


def check_place(path: str) -> None:
    """Refuse, before hours of work, what cannot be written at their end.

    Raises:
        DataError: it is no regular file, or its place cannot be written to.
    """
    if is_remote(path):
        storage, name = open_storage(path)
        check_writable(cast(S3Storage, storage).options, name)
        return
    place = Path(path)
    if place.exists() and not place.is_file():
        raise DataError(f"{path} is no regular file: name one to write to.")
    with told(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(place.parent, os.W_OK):
            raise PermissionError(13, "Permission denied")


def write_joined(path: str, results: Sequence[Path]) -> None:
    """Write what parts gave, one behind the other; it takes the place of `path` when all is on the disk.

    Args:
        path: a file, or s3://bucket/key.
        results: what each part gave.
    Raises:
        DataError: it cannot be written.
    """
    if is_remote(path):
        storage, name = open_storage(path)
        # Buffered: a part of an object is read at once, over the ends of results.
        upload_stream(cast(S3Storage, storage).options, name, io.BufferedReader(_Chained(results)))
        return
    with told(path), replacing(Path(os.path.realpath(path))) as file:
        for result in results:
            with open(result, "rb") as content:
                shutil.copyfileobj(content, file, 1 << 20)


class _Chained(io.RawIOBase):
    """Several files as one, each open while it is read."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__()
        self._files, self._open = iter(files), cast(BinaryIO, io.BytesIO())

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not (count := cast(io.BufferedIOBase, self._open).readinto(into)):
            self._open.close()
            following = next(self._files, None)
            if following is None:
                self._open = io.BytesIO()
                return 0
            self._open = open(following, "rb")  # noqa: SIM115 -- closed behind its last byte
        return count
