"""Open the source that a URI names: its scheme, its file format, and the options after the `?`."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from towernmt.core.errors import ALMOST_EQUAL, SettingsError, mask_uri, nearest, suggestion
from towernmt.dataflow.sources.column_files import CommaSeparated, Parquet
from towernmt.dataflow.sources.line_files import JsonLines, ParallelFiles, TabSeparated, has_braces
from towernmt.dataflow.sources.message_catalogues import Catalogues
from towernmt.dataflow.sources.source import FileSource, Source
from towernmt.dataflow.sources.translation_memory import TranslationMemory
from towernmt.dataflow.storage.s3_client import split_name
from towernmt.dataflow.storage.stored_files import LocalStorage, Storage, split_compression

OptionParser = Callable[[str], Any]
"""Converts the text of an option to its value. The message of its ValueError names the expected value."""


def split_uri(uri: str) -> tuple[str, dict[str, str]]:
    """Split a URI into its address and its options, whose percent-encoding is decoded.

    A `?` without a following `name=` is a wildcard in the name of the file.

    Raises:
        SettingsError: an option has no `=`, or occurs twice.
    """
    match = re.search(r"\?(?=[A-Za-z_]\w*=)", uri)
    if match is None:
        return uri, {}
    address, options = uri[:match.start()], {}
    for item in uri[match.end():].split("&"):
        name, equals, value = item.partition("=")
        if not equals:
            raise SettingsError(f"{mask_uri(address)}: option '{name}' has no value; write {name}=VALUE. Options are "
                                "separated by &; write an & in a value as %26.")
        if name in options:
            raise SettingsError(f"{mask_uri(address)}: option '{name}' occurs twice. Remove one of them.")
        options[name] = unquote(value)
    return address, options


def parse_options(address: str, option_texts: Mapping[str, str], parsers: Mapping[str, OptionParser]) -> dict[str, Any]:
    """Return the values of the options of a URI.

    Args:
        address: the URI without its options, for messages.
        option_texts: the text of each option.
        parsers: the parser of each option that the source has.

    Raises:
        SettingsError: an option is unknown, or its value is not valid.
    """
    values = {}
    for name, text in option_texts.items():
        if name not in parsers:
            raise SettingsError(f"{address}: this source has no option '{name}'."
                                f"{suggestion(name, sorted(parsers), 'options')}")
        try:
            values[name] = parsers[name](text)
        except ValueError as error:
            raise SettingsError(f"{address}: {name}={mask_uri(text)}: expected {error}.") from None
    return values


def one_of(*names: str) -> OptionParser:
    """Return the parser of an option with a fixed set of values."""
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text
    return parse


def parse_boolean(text: str) -> bool:
    """Parse an option that is true or false."""
    values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in values:
        raise ValueError("true or false")
    return values[text.lower()]


def parse_whole_number(text: str) -> int:
    """Parse an option that is a whole number, 0 or more."""
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("a whole number, 0 or more")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse an option that is a time in seconds."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", text):      # sockets refuse larger numbers
        raise ValueError("a number of seconds below 1,000,000,000")
    return float(text)


def parse_name(text: str) -> str:
    """Parse an option that is any text except the empty text."""
    if not text:
        raise ValueError("a name")
    return text


_SCHEMES = ("", "file", "s3", "http", "https")
_DATABASES = ("sqlite", "postgresql", "mysql", "mariadb")
_S3_OPTIONS: dict[str, OptionParser] = {"endpoint_url": parse_name, "region": parse_name,
                                        "retries": parse_whole_number, "chunk_bytes": parse_whole_number,
                                        "timeout": parse_seconds}
_S3_RETRY_OPTIONS = ("retries", "chunk_bytes", "timeout")
_WEB_OPTIONS: dict[str, OptionParser] = {"patience": parse_seconds, "timeout": parse_seconds}
_FORMAT_OF_SUFFIX = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
                     ".parquet": "parquet", ".tmx": "tmx", ".po": "catalogue", ".mo": "catalogue"}
_parse_missing = one_of("error", "skip")


def open_source(uri: str) -> Source:
    """Return the source that a URI names, without opening its files or its database.

    Args:
        uri: files (a path, s3://bucket/key or https://..., as `x.{de,en}` or one file of pairs, possibly with
            wildcards and with options after `?`), or a database (SQLAlchemy's URL with options). The manual's page on
            sources lists the formats and options.

    Raises:
        SettingsError: the URI is incomplete, or has an unknown option.
    """
    kind = _scheme(uri)
    if names_database(uri):
        from towernmt.dataflow.sources.database_table import open_database

        return open_database(uri)
    if kind not in _SCHEMES:
        raise SettingsError(f"{mask_uri(uri)}: '{kind}://' is not a known kind of source. Use a path, s3://, https://, "
                            f"{', '.join(f'{database}://' for database in _DATABASES)}, or another database of "
                            "SQLAlchemy whose package is installed.")
    if kind in ("http", "https"):
        return _open_url(uri)
    address, option_texts = split_uri(uri)
    if kind == "s3":
        address = _s3_address(address)
        return _open_files(_s3_name(uri, address), address, address, option_texts, _S3_OPTIONS)
    return _open_files(uri, address, _path(address), option_texts, {})


def open_storage(uri: str) -> tuple[Storage, str]:
    """Return the storage with the files that a URI names, and the pattern of their names; their format is not checked.

    Args:
        uri: a path, or s3://bucket/key, possibly with wildcards, and for S3 with options of the server after `?`.

    Raises:
        SettingsError: the URI has another scheme, or an unknown option.
        DataError: the bucket is missing.
    """
    kind = _scheme(uri)
    if kind not in ("", "file", "s3"):
        raise SettingsError(f"{mask_uri(uri)}: files cannot be read from '{kind}://' here. Pass a path or "
                            "s3://bucket/key.")
    if kind != "s3":
        return LocalStorage(), _path(uri)
    address, option_texts = split_uri(uri)
    address = _s3_address(address)
    return _storage(address, parse_options(address, option_texts, _S3_OPTIONS)), address


def names_database(uri: str) -> bool:
    """Return whether a URI names a table of a database."""
    kind = _scheme(uri)
    return kind.partition("+")[0] in _DATABASES or (kind not in _SCHEMES and _is_dialect(kind))


def names_files(uri: str) -> bool:
    """Return whether a URI names files of pairs, by its suffix, a wildcard, braces or `format=`.

    Raises:
        SettingsError: its options are malformed.
    """
    address, option_texts = split_uri(uri)
    name, compression = split_compression(address)
    return ("format" in option_texts or compression is not None or not set(address).isdisjoint("*?[{")
            or PurePosixPath(name).suffix.lower() in _FORMAT_OF_SUFFIX)


def _scheme(uri: str) -> str:
    """Return the text before `://` in lower case, or ""."""
    scheme = re.match(r"([A-Za-z][\w+.-]*)://", uri)
    return scheme[1].lower() if scheme else ""


def _path(address: str) -> str:
    """Return the path of a file URI, whose percent-encoding is decoded, or the path itself; `~` is expanded."""
    path = re.sub("(?i)^file://(localhost)?", "", address)
    return os.path.expanduser(path if path == address else unquote(path))


def _is_dialect(scheme: str) -> bool:
    """Return whether SQLAlchemy is installed and supports this kind of database, by itself or by a package."""
    try:
        from sqlalchemy import exc, make_url
    except ModuleNotFoundError:
        return False
    try:
        make_url(f"{scheme}://").get_dialect()
    except (exc.ArgumentError, exc.NoSuchModuleError):
        return False
    return True


def _open_files(name: str, address: str, pattern: str, option_texts: Mapping[str, str],
                storage_parsers: Mapping[str, OptionParser]) -> Source:
    address = mask_uri(address)
    make, parsers = _format(address, pattern, option_texts)
    values = parse_options(address, option_texts, {**parsers, **storage_parsers, "format": parse_name})
    values.pop("format", None)
    storage_values = {key: values.pop(key) for key in storage_parsers if key in values}
    return make(mask_uri(name), _storage(pattern, storage_values), pattern, **values)


def _open_url(uri: str) -> Source:
    """Return the source of a file on a web server, which also gets the parameters that are not options of towernmt."""
    from towernmt.dataflow.storage.http_storage import HttpStorage, WebServer

    url, _, query = uri.partition("#")[0].partition("?")
    scheme, _, address = url.partition("://")
    user, _, host_and_path = address.rpartition("@") if "@" in address.partition("/")[0] else ("", "", address)
    pattern = f"{scheme.lower()}://{host_and_path}"
    items = [item for item in query.split("&") if item]
    parameters = [(key, unquote(value)) for key, _, value in (item.partition("=") for item in items)]
    option_texts = dict(parameters)
    make, parsers = _format(pattern, pattern, option_texts)
    parsers = {**parsers, **_WEB_OPTIONS, "format": parse_name}
    for key, count in Counter(key for key, _ in parameters).items():
        if count > 1 and key in parsers:
            raise SettingsError(f"{pattern}: option '{key}' occurs twice. Remove one of them.")
    for key in option_texts.keys() - parsers.keys():
        if close := nearest(key, parsers, ALMOST_EQUAL):
            raise SettingsError(f"{pattern}: option '{key}' does not exist. Did you mean '{close}'? (To send a "
                                f"parameter of this name to the server, write %{ord(key[0]):02X}{key[1:]}.)")
    values = parse_options(pattern, {key: text for key, text in option_texts.items() if key in parsers}, parsers)
    values.pop("format", None)
    retry_values = {key: values.pop(key) for key in _WEB_OPTIONS if key in values}
    query = "&".join(item for item in items if item.partition("=")[0] not in parsers)
    name_items = [item for item in items if item.partition("=")[0] not in _WEB_OPTIONS]
    return make(mask_uri(f"{pattern}?{'&'.join(name_items)}" if name_items else pattern),
                HttpStorage(WebServer(user, query, **retry_values)), pattern, **values)


def _s3_address(address: str) -> str:
    """Check an address in S3, and return it with the scheme in lower case, as in the names of listed objects."""
    split_name(address)
    return f"s3{address[2:]}"


def _s3_name(uri: str, address: str) -> str:
    """Return the URI without the retry options, so that they may change when a run or a table load is resumed."""
    items = [item for item in uri[len(address) + 1:].split("&") if item.partition("=")[0] not in _S3_RETRY_OPTIONS]
    return f"{address}?{'&'.join(items)}" if any(items) else address


def _storage(pattern: str, options: Mapping[str, Any]) -> Storage:
    if not pattern.startswith("s3://"):
        return LocalStorage()
    from towernmt.dataflow.storage.s3_storage import S3Storage

    return S3Storage(**options)


def _format(address: str, pattern: str, option_texts: Mapping[str, str]
            ) -> tuple[Callable[..., FileSource], dict[str, OptionParser]]:
    """Return the factory and the option parsers of the format, which `format=` or the name of the file determines."""
    format = option_texts.get("format") or _format_of_name(address, pattern)
    parse_options(address, {"format": format}, {"format": one_of(*_FORMATS)})
    if (format == "parallel") != has_braces(pattern):
        raise SettingsError(f"{address}: the format is {format}. Braces, as in x.{{de,en}}, name two parallel files, "
                            "and no other format; write braces for parallel files, and remove them otherwise.")
    return _FORMATS[format]


def _format_of_name(address: str, pattern: str) -> str:
    """Return the format that the name of a file determines."""
    if has_braces(pattern):
        return "parallel"
    suffix = PurePosixPath(split_compression(pattern)[0]).suffix.lower()
    if suffix not in _FORMAT_OF_SUFFIX:
        if "://" not in pattern and set(pattern).isdisjoint("*?[") and not os.path.lexists(pattern):
            raise SettingsError(f"{address}: the file does not exist. Check the path.")
        raise SettingsError(f"{address}: the format is not clear from the name. Add it, for example ?format=tsv (one "
                            f"of {', '.join(_FORMATS)}), or name two parallel files with braces, as in x.{{de,en}}.")
    return _FORMAT_OF_SUFFIX[suffix]


def _parse_columns(text: str) -> tuple[int, int]:
    columns = [parse_whole_number(column.strip()) for column in text.split(",") if column.strip().isdigit()]
    if len(columns) != 2 or text.count(",") != 1:
        raise ValueError("the numbers of two columns, counted from 0, as in columns=0,1")
    return columns[0], columns[1]


def _parse_delimiter(text: str) -> str:
    text = "\t" if text == "tab" else text
    if len(text) != 1 or text in '"\r\n':
        raise ValueError("one character, or tab")
    return text


def _parse_language(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z]{1,8}([-_][A-Za-z0-9]{1,8})*", text):
        raise ValueError("a language as in xml:lang, for example de or pt-BR")
    return text


def _comma_separated(name: str, storage: Storage, pattern: str, source: str | None = None, target: str | None = None,
                     columns: tuple[int, int] | None = None, **options: Any) -> CommaSeparated:
    if (source is None) != (target is None) or (source is not None and columns is not None):
        raise SettingsError(f"{name}: name both columns with source=NAME&target=NAME, or both by their numbers with "
                            "columns=0,1.")
    names = (source, target) if source is not None and target is not None else None
    return CommaSeparated(name, storage, pattern, columns or (0, 1), names, **options)


def _translation_memory(name: str, storage: Storage, pattern: str, source_language: str = "",
                        target_language: str = "", missing: str = "error") -> TranslationMemory:
    if not source_language or not target_language:
        raise SettingsError(f"{name}: the source or target language is missing. Add both as they are written in "
                            "xml:lang, for example ?source_language=de&target_language=en.")
    return TranslationMemory(name, storage, pattern, source_language, target_language, missing)


_NAMED_COLUMNS: dict[str, OptionParser] = {"source": parse_name, "target": parse_name, "missing": _parse_missing}
_FORMATS: dict[str, tuple[Callable[..., FileSource], dict[str, OptionParser]]] = {
    "parallel": (ParallelFiles, {}),
    "tsv": (TabSeparated, {"columns": _parse_columns, "header": parse_boolean, "missing": _parse_missing}),
    "csv": (_comma_separated, {**_NAMED_COLUMNS, "columns": _parse_columns, "header": parse_boolean,
                               "delimiter": _parse_delimiter}),
    "jsonl": (JsonLines, _NAMED_COLUMNS),
    "parquet": (Parquet, _NAMED_COLUMNS),
    "tmx": (_translation_memory, {"source_language": _parse_language, "target_language": _parse_language,
                                  "missing": _parse_missing}),
    "catalogue": (Catalogues, {"accelerators": parse_name, "reverse": parse_boolean}),
}
