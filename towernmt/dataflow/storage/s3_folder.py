"""A folder in S3, named as `s3://bucket/prefix?endpoint_url=...&region=...&retries=...`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl

from towernmt.core.errors import SettingsError
from towernmt.dataflow.storage.s3_client import S3Options, split_name
from towernmt.dataflow.storage.s3_storage import S3Storage

_OPTIONS = ("endpoint_url", "region", "retries")


@dataclass(frozen=True)
class S3Folder:
    """Where a folder is.

    Attributes:
        uri: as it was given: it can be parsed again.
        name: `s3://bucket/prefix`, without a slash at its end.
        options: the server.
    """

    uri: str
    name: str
    options: S3Options

    def path(self, file: str) -> str:
        """The name of an object below the folder."""
        return f"{self.name}/{file}"

    def storage(self) -> S3Storage:
        """The server as a storage of files."""
        return S3Storage(self.options.endpoint_url, self.options.region, self.options.retries)

    def read(self, file: str) -> bytes:
        """The content of a small object.

        Raises:
            DataError: it is missing (`ObjectMissing`) or cannot be read.
        """
        storage = self.storage()
        with storage.open(storage.list(self.path(file))[0]) as stream:
            return b"".join(iter(lambda: stream.read(1 << 20), b""))


def parse_s3_folder(uri: str) -> S3Folder:
    """The folder that a URI names.

    Raises:
        SettingsError: an option that does not exist, or that has no such value.
        DataError: no bucket.
    """
    name, _, query = uri.partition("?")
    split_name(name)
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise SettingsError(f"{name}: there is no option {unknown[0]}; behind the ? may stand {', '.join(_OPTIONS)}.")
    retries = given.get("retries", str(S3Options.retries))
    if not retries.isdecimal():
        raise SettingsError(f"{name}: retries={retries} is not a whole number.")
    return S3Folder(uri, name.rstrip("/"),
                    S3Options(given.get("endpoint_url") or None, given.get("region") or None, int(retries)))
