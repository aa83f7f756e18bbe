"""Open the source that a URI names: its scheme, its file format, and the options after the `?`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from towernmt.core.errors import SettingsError, mask_uri
from towernmt.dataflow.sources.column_files import CommaSeparated, Parquet
from towernmt.dataflow.sources.line_files import JsonLines, ParallelFiles, TabSeparated, has_braces
from towernmt.dataflow.sources.message_catalogues import Catalogues
from towernmt.dataflow.sources.source import FileSource, Source
from towernmt.dataflow.sources.translation_memory import TranslationMemory
from towernmt.dataflow.storage.s3_client import split_name
from towernmt.dataflow.storage.stored_files import LocalStorage, Storage, split_compression

Parse = Callable[[str], Any]
"""From an option's text to its value; a ValueError says, as its message, what was expected."""


def split_uri(uri: str) -> tuple[str, dict[str, str]]:
    """The part of a URI before its options, and the options (percent signs decoded).

    A `?` that no `name=` follows belongs to the name of the file, as a wildcard.

    Raises:
        SettingsError: an option without `=`, or twice.
    """
    match = re.search(r"\?(?=[A-Za-z_]\w*=)", uri)
    if match is None:
        return uri, {}
    place, options = uri[:match.start()], {}
    for item in uri[match.end():].split("&"):
        name, equals, value = item.partition("=")
        if not equals:
            raise SettingsError(f"{mask_uri(place)}: expected name=value in its options, found '{name}'. Options are "
                                "separated by &; an & in a value is written %26.")
        if name in options:
            raise SettingsError(f"{mask_uri(place)}: the option '{name}' is there twice. Leave one.")
        options[name] = unquote(value)
    return place, options


def read_options(place: str, option_texts: Mapping[str, str], known: Mapping[str, Parse]) -> dict[str, Any]:
    """The values of the options that were written.

    Args:
        place: the URI without its options, for messages.
        option_texts: option to its text.
        known: option to what reads its text.
    Raises:
        SettingsError: an unknown option (with the nearest known one), or a value that cannot be.
    """
    values = {}
    for name, text in option_texts.items():
        if name not in known:
            raise SettingsError(f"{place}: there is no option '{name}' for this source.{_nearest(name, known)}")
        try:
            values[name] = known[name](text)
        except ValueError as error:
            raise SettingsError(f"{place}: {name}={mask_uri(text)}: expected {error}.") from None
    return values


def choice(*names: str) -> Parse:
    """An option that is one of some words."""
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text
    return parse


def yes_or_no(text: str) -> bool:
    """Parse an option that is true or false."""
    values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in values:
        raise ValueError("true or false")
    return values[text.lower()]


def whole_number(text: str) -> int:
    """Parse an option that is a whole number from 0."""
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("a whole number from 0")
    return int(text)


def seconds(text: str) -> float:
    """Parse an option that is a time in seconds."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
        raise ValueError("a number of seconds")
    return float(text)


def name(text: str) -> str:
    """Parse an option that is any text, but not empty."""
    if not text:
        raise ValueError("a name")
    return text


def _nearest(unknown: str, known: Mapping[str, Parse]) -> str:
    close = difflib.get_close_matches(unknown, known, n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else f" It has: {', '.join(sorted(known)) or 'none'}."


_SCHEMES = ("", "file", "s3", "http", "https")
_DATABASES = ("sqlite", "postgresql", "mysql", "mariadb")
_S3_OPTIONS: dict[str, Parse] = {"endpoint_url": name, "region": name, "retries": whole_number,
                                 "chunk_bytes": whole_number, "timeout": seconds}
_S3_PATIENCE = ("retries", "chunk_bytes", "timeout")
_WEB_OPTIONS: dict[str, Parse] = {"patience": seconds, "timeout": seconds}
_ENDINGS = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
            ".tmx": "tmx", ".po": "catalogue", ".mo": "catalogue"}
_MISSING = choice("error", "skip")


def open_source(uri: str) -> Source:
    """The source that a URI names; nothing is opened yet.

    Args:
        uri: files (a path or s3://bucket/key, `x.{de,en}` or one file of pairs, wildcards, options behind `?`), or a
            database (SQLAlchemy's URL with options). The manual's page on sources has them all.
    Raises:
        SettingsError: the URI does not say what it must, or has an unknown option (the nearest one is named).
    """
    kind = _scheme(uri)
    if names_database(uri):
        from towernmt.dataflow.sources.database_table import open_database

        return open_database(uri)
    if kind not in _SCHEMES:
        raise SettingsError(f"{mask_uri(uri)}: '{kind}://' is no kind of source. There are paths, s3://, https://, "
                            f"{', '.join(f'{database}://' for database in _DATABASES)}, and what else SQLAlchemy has.")
    if kind in ("http", "https"):
        return _open_url(uri)
    place, option_texts = split_uri(uri)
    if kind == "s3":
        split_name(place)
        return _open_files(_s3_name(uri, place), place, option_texts, _S3_OPTIONS)
    return _open_files(uri, _path(place), option_texts, {})


def open_storage(uri: str) -> tuple[Storage, str]:
    """The place that holds the files that a URI names, and their pattern there; for who knows what is in them.

    Args:
        uri: a path, or s3://bucket/key, with wildcards, and behind the `?` the options of the server.
    Raises:
        SettingsError: it is another kind of place, or an option that does not exist.
        DataError: no bucket.
    """
    kind = _scheme(uri)
    if kind not in ("", "file", "s3"):
        raise SettingsError(f"{mask_uri(uri)}: '{kind}://' is no place of files that can be read here: give a path, or "
                            "s3://bucket/key.")
    if kind != "s3":
        return LocalStorage(), _path(uri)
    place, option_texts = split_uri(uri)
    split_name(place)
    return _storage(place, read_options(place, option_texts, _S3_OPTIONS)), place


def names_database(uri: str) -> bool:
    """Return whether a URI names a table of a database."""
    kind = _scheme(uri)
    return kind.partition("+")[0] in _DATABASES or (kind not in _SCHEMES and _is_dialect(kind))


def names_files(uri: str) -> bool:
    """Whether a URI says by itself that files of pairs are meant: by an ending, a wildcard, braces or `format=`.

    Raises:
        SettingsError: its options are malformed.
    """
    place, option_texts = split_uri(uri)
    name, compression = split_compression(place)
    return ("format" in option_texts or compression is not None or not set(place).isdisjoint("*?[{")
            or PurePosixPath(name).suffix.lower() in _ENDINGS)


def _scheme(uri: str) -> str:
    """Return the text before `://` in lower case, or ""."""
    scheme = re.match(r"([A-Za-z][\w+.-]*)://", uri)
    return scheme[1].lower() if scheme else ""


def _path(place: str) -> str:
    return os.path.expanduser(re.sub("(?i)^file://(localhost)?", "", place))


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


def _open_files(uri: str, pattern: str, option_texts: Mapping[str, str], storage_options: Mapping[str, Parse]
                ) -> Source:
    place = mask_uri(uri.partition("?")[0] if option_texts else uri)
    make, options = _format(place, pattern, option_texts)
    values = read_options(place, option_texts, {**options, **storage_options, "format": name})
    values.pop("format", None)
    storage_values = {key: values.pop(key) for key in storage_options if key in values}
    return make(mask_uri(uri), _storage(pattern, storage_values), pattern, **values)


def _open_url(uri: str) -> Source:
    """A file of a web server; what stands behind the `?` and is no option of ours belongs to the server."""
    from towernmt.dataflow.storage.http_storage import HttpStorage, WebServer

    url, _, query = uri.partition("#")[0].partition("?")
    scheme, _, rest = url.partition("://")
    user, _, place = rest.rpartition("@") if "@" in rest.partition("/")[0] else ("", "", rest)
    pattern = f"{scheme.lower()}://{place}"
    items = [item for item in query.split("&") if item]
    option_texts = {key: unquote(value) for key, _, value in (item.partition("=") for item in items)}
    make, options = _format(pattern, pattern, option_texts)
    known = {**options, **_WEB_OPTIONS, "format": name}
    for key in option_texts.keys() - known.keys():
        if near := difflib.get_close_matches(key, known, n=1, cutoff=0.8):
            raise SettingsError(f"{pattern}: there is no option '{key}'. Did you mean '{near[0]}'? (To send the "
                                f"server a parameter of this name, write %{ord(key[0]):02X}{key[1:]}.)")
    values = read_options(pattern, {key: text for key, text in option_texts.items() if key in known}, known)
    values.pop("format", None)
    patience = {key: values.pop(key) for key in _WEB_OPTIONS if key in values}
    sent = "&".join(item for item in items if item.partition("=")[0] not in known)
    kept = [item for item in items if item.partition("=")[0] not in _WEB_OPTIONS]
    return make(mask_uri(f"{pattern}?{'&'.join(kept)}" if kept else pattern),
                HttpStorage(WebServer(user, sent, **patience)), pattern, **values)


def _s3_name(uri: str, place: str) -> str:
    """The URI without how patiently the server is asked: that may change while a run goes on, or a table is loaded."""
    kept = [item for item in uri[len(place) + 1:].split("&") if item.partition("=")[0] not in _S3_PATIENCE]
    return f"{place}?{'&'.join(kept)}" if any(kept) else place


def _storage(pattern: str, options: Mapping[str, Any]) -> Storage:
    if not pattern.lower().startswith("s3://"):
        return LocalStorage()
    from towernmt.dataflow.storage.s3_storage import S3Storage

    return S3Storage(**options)


def _format(place: str, pattern: str, option_texts: Mapping[str, str]
            ) -> tuple[Callable[..., FileSource], dict[str, Parse]]:
    """What makes the source, and the options of the format: the one that is written, or that a name tells."""
    format = option_texts.get("format") or _format_of_name(place, pattern)
    read_options(place, {"format": format}, {"format": choice(*_FORMATS)})
    if (format == "parallel") != has_braces(pattern):
        raise SettingsError(f"{place}: two parallel files, and they alone, are named by braces, as in x.{{de,en}}. "
                            f"The format here is {format}.")
    return _FORMATS[format]


def _format_of_name(place: str, pattern: str) -> str:
    """The format that a name tells."""
    if has_braces(pattern):
        return "parallel"
    ending = PurePosixPath(split_compression(pattern)[0]).suffix.lower()
    if ending not in _ENDINGS:
        raise SettingsError(f"{place}: the name does not tell the format. Say it, for example ?format=tsv (there are "
                            f"{', '.join(_FORMATS)}), or name two parallel files with braces, as in x.{{de,en}}.")
    return _ENDINGS[ending]


def _columns(text: str) -> tuple[int, int]:
    columns = [whole_number(part) for part in text.split(",") if part.strip().isdigit()]
    if len(columns) != 2 or text.count(",") != 1:
        raise ValueError("the numbers of two columns, counted from 0, as in columns=0,1")
    return columns[0], columns[1]


def _delimiter(text: str) -> str:
    text = "\t" if text == "tab" else text
    if len(text) != 1 or text in '"\r\n':
        raise ValueError("one character, or tab")
    return text


def _language(text: str) -> str:
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
        raise SettingsError(f"{name}: say which languages are source and target, as they stand in xml:lang, for "
                            "example ?source_language=de&target_language=en.")
    return TranslationMemory(name, storage, pattern, source_language, target_language, missing)


_FIELDS: dict[str, Parse] = {"source": name, "target": name, "missing": _MISSING}
_FORMATS: dict[str, tuple[Callable[..., FileSource], dict[str, Parse]]] = {
    "parallel": (ParallelFiles, {}),
    "tsv": (TabSeparated, {"columns": _columns, "header": yes_or_no, "missing": _MISSING}),
    "csv": (_comma_separated, {**_FIELDS, "columns": _columns, "header": yes_or_no, "delimiter": _delimiter}),
    "jsonl": (JsonLines, _FIELDS),
    "parquet": (Parquet, _FIELDS),
    "tmx": (_translation_memory, {"source_language": _language, "target_language": _language, "missing": _MISSING}),
    "catalogue": (Catalogues, {"accelerators": name, "reverse": yes_or_no}),
}
