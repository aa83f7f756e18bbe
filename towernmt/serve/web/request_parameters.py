"""The parameters of a request by name, from its query, a form or JSON."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl

from towernmt.serve.request_limits import RequestError, bad_request

MAX_FIELDS = 1_000
JSON_KINDS = ("application/json", "text/json")
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
UTF_8 = "utf-8"
REFUSED_CHARSETS = ("idna", "punycode", "unicode_escape", "raw-unicode-escape", "unicode-escape", "undefined", "mbcs",
                    "oem", "utf-7")
"""Text encodings of Python that are not charsets of the web. UTF-7 would also decode to unpaired surrogates."""
_CHARSET = re.compile(r';\s*charset\s*=\s*("[^"]*"|[^;]*)', re.IGNORECASE)
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


@dataclass(frozen=True)
class UploadedFile:
    """A file in a request.

    Attributes:
        name: file name that the client sent; never used as a path.
        content: bytes of the file.
    """

    name: str
    content: bytes


@dataclass(frozen=True)
class Parameters:
    """The parameters of a request.

    Attributes:
        values: values by name: strings from a query or form, any type from JSON. A JSON list is several values.
        files: uploaded files by name.
        lists: names whose JSON value was a list.
    """

    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    files: Mapping[str, UploadedFile] = field(default_factory=dict)
    lists: Set[str] = frozenset()

    def is_list(self, name: str) -> bool:
        """Return whether a parameter has several values or a list."""
        return name in self.lists or len(self.values.get(name, ())) > 1

    def values_of(self, *names: str) -> list[Any]:
        """Return the values of the first of these names that has any; null is ignored."""
        for name in names:
            values = [value for value in self.values.get(name, ()) if value is not None]
            if values:
                return values
        return []

    def texts(self, *names: str) -> list[str]:
        """Return all strings of a parameter; further names are aliases.

        Raises:
            RequestError: a value is not a string.
        """
        values = self.values_of(*names)
        for value in values:
            if not isinstance(value, str):
                raise bad_request(f"'{names[0]}' must be a string.")
        return values

    def text(self, *names: str) -> str | None:
        """Return the string of a parameter, or None if it is missing or empty.

        Raises:
            RequestError: the parameter has several values, or is not a string.
        """
        values = self.texts(*names)
        if len(values) > 1:
            raise bad_request(f"'{names[0]}' was passed {len(values)} times: pass it once.")
        return values[0] if values and values[0] else None

    def required(self, *names: str) -> str:
        """Return the string of a required parameter.

        Raises:
            RequestError: the parameter is missing.
        """
        values = self.text(*names)
        if values is None:
            raise bad_request(f"'{names[0]}' is missing.")
        return values

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean parameter; JSON values and words are accepted.

        Raises:
            RequestError: the value is not a boolean.
        """
        value = (self.values_of(name) or [default])[0]
        if isinstance(value, bool):
            return value
        if str(value).lower() in (*_TRUE, *_FALSE):
            return str(value).lower() in _TRUE
        raise bad_request(f"'{name}' must be true or false.")

    def integer(self, name: str, default: int, minimum: int, maximum: int) -> int:
        """Return an integer parameter.

        Raises:
            RequestError: the value is not an integer, or out of range.
        """
        value = (self.values_of(name) or [default])[0]
        try:
            result = int(value) if isinstance(value, str) and len(value) < 20 else value
        except ValueError:
            result = None
        if type(result) is not int or not minimum <= result <= maximum:
            raise bad_request(f"'{name}' must be a whole number from {minimum} to {maximum}.")
        return result

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return a parameter with one of several values.

        Raises:
            RequestError: the value is not one of `choices`.
        """
        value = self.text(name) or default
        if value not in choices:
            raise bad_request(f"'{name}' must be one of {', '.join(choices)}.")
        return value


def parse_query(query: bytes) -> Parameters:
    """Parse the parameters in the query of a request.

    Raises:
        RequestError: the query is not UTF-8, or has too many fields.
    """
    return Parameters(_form(query, "The query", UTF_8))


async def parse_parameters(query: Parameters, content_type: str, body: bytes) -> Parameters:
    """Parse the parameters in the body of a request, and add those of its query that the body does not have.

    Raises:
        RequestError: the body does not match its charset (default: UTF-8) or its type, or its type or charset is not
            supported (415).
    """
    if not body:
        return query
    values = dict(query.values)
    files: dict[str, UploadedFile] = {}
    header = Message()
    header["content-type"] = content_type or "-/-"
    content_kind, charset = header.get_content_type() if content_type else "", header.get_content_charset() or UTF_8
    _check_charset(charset)
    is_json = content_kind in (FORM, "") and body.lstrip()[:1] == b"{"      # `curl -d` declares JSON as a form
    if content_kind in JSON_KINDS or is_json:
        content = _json(body, charset)
        values |= {name: value if isinstance(value, list) else [value] for name, value in content.items()}
        return Parameters(values, lists={name for name, value in content.items() if isinstance(value, list)})
    if content_kind in (FORM, ""):
        values |= _form(body, "The form", charset)
    elif content_kind == MULTIPART:
        form_values, files = await _multipart(content_type, body, charset)
        values |= form_values
    else:
        raise RequestError(415, f"The content type {content_kind[:60]} is not supported: send JSON or a form.")
    return Parameters(values, files)


def _check_charset(charset: str) -> None:
    """Raise a RequestError if Python does not support this charset as a text encoding."""
    name = ""
    try:
        name = codecs.lookup(charset).name
        b"a".decode(name)
    except UnicodeError:        # one byte of UTF-16
        pass
    except (LookupError, ValueError):
        name = ""
    if not name or name in REFUSED_CHARSETS:
        raise RequestError(415, f"The charset {charset[:40]} is not supported: send UTF-8.")


def _decoded(content: bytes, what: str, charset: str) -> str:
    """Return the text of bytes without a byte order mark.

    Raises:
        RequestError: the bytes are not in this charset.
    """
    try:
        return content.decode(charset).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} is 0x{content[error.start]:02X}" if error.start < len(content) else error.reason
        raise _not_encoded(what, charset, byte) from None


def _not_encoded(what: str, charset: str, why: str) -> RequestError:
    return bad_request(f"{what} is not encoded as {charset.upper()} ({why}): send UTF-8, or name the charset in "
                       "Content-Type.")


def _form(content: bytes, what: str, charset: str) -> dict[str, list[Any]]:
    text = _decoded(content, what, charset)
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS,
                          encoding=UTF_8 if charset.startswith("utf") else charset)
    except UnicodeDecodeError as error:
        raise _not_encoded(what, charset, f"it has a wrong %{error.object[error.start]:02X}") from None
    except ValueError:
        raise bad_request(f"{what} has more than {MAX_FIELDS} fields.") from None
    values: dict[str, list[Any]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return values


def _json(content: bytes, charset: str) -> dict[str, Any]:
    text = _decoded(content, "The JSON", charset)
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        raise bad_request("The JSON has an unpaired surrogate (\\uD800 to \\uDFFF), which cannot be encoded as "
                          "UTF-8.") from None
    except json.JSONDecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error.msg} (character {error.pos + 1}).") from None
    except (ValueError, RecursionError):
        raise bad_request("This JSON is nested too deeply, or has a number that is too long.") from None
    if not isinstance(value, dict):
        raise bad_request("Send a JSON object.")
    return value


async def _multipart(content_type: str, content: bytes,
                     charset: str) -> tuple[dict[str, list[Any]], dict[str, UploadedFile]]:
    from starlette.datastructures import Headers, UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    async def parts() -> AsyncIterator[bytes]:
        yield content

    values: dict[str, list[Any]] = {}
    files: dict[str, UploadedFile] = {}
    # Starlette silently falls back to Latin-1 for undecodable text. Latin-1 keeps every byte, so it is requested here.
    as_bytes = Headers({"content-type": f"{_CHARSET.sub('', content_type)}; charset=latin-1"})
    try:
        parser = MultiPartParser(as_bytes, parts(), max_files=10, max_fields=MAX_FIELDS,  # type: ignore[arg-type]
                                 max_part_size=len(content))
        parser.spool_max_size = 0       # no limit: files stay in memory, and not on the disk
        form = await parser.parse()
    except (MultiPartException, KeyError, UnicodeError, ValueError):
        raise bad_request("The form is malformed.") from None
    for name, value in form.multi_items():
        name = _decoded(name.encode("latin-1"), "The form", charset)
        if isinstance(value, UploadFile):
            filename = (value.filename or "").encode("latin-1").decode(charset, errors="replace")
            files[name] = UploadedFile(filename, await value.read())
        else:
            values.setdefault(name, []).append(_decoded(value.encode("latin-1"), "The form", charset))
    await form.close()
    return values, files
