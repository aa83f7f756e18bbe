"""What a request says, be it in its query, in a form or in JSON: values by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from towernmt.serve.refusal import Refusal, bad

MOST_FIELDS = 1_000
JSON_KINDS = ("application/json", "text/json")
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


@dataclass(frozen=True)
class UploadedFile:
    """A file that came with a request.

    Attributes:
        name: as the client calls it; it names nothing here.
        content: its bytes.
    """

    name: str
    content: bytes


@dataclass(frozen=True)
class Parameters:
    """Values by name.

    Attributes:
        values: for each name what was given: of a query or form texts; of JSON values of any kind, where a list counts
            as several.
        files: by name.
        lists: names under which JSON had a list, were it of one value.
    """

    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    files: Mapping[str, UploadedFile] = field(default_factory=dict)
    lists: Set[str] = frozenset()

    def is_list(self, name: str) -> bool:
        """Whether several values were given, or a list of them."""
        return name in self.lists or len(self.values.get(name, ())) > 1

    def given(self, *names: str) -> list[Any]:
        """What was given under the first of these names that was given; null counts as nothing."""
        for name in names:
            found = [value for value in self.values.get(name, ()) if value is not None]
            if found:
                return found
        return []

    def texts(self, *names: str) -> list[str]:
        """All texts of a name; further names are others for the same.

        Raises:
            Refusal: a value is no text.
        """
        found = self.given(*names)
        for value in found:
            if not isinstance(value, str):
                raise bad(f"'{names[0]}' must be a text.")
        return found

    def text(self, *names: str) -> str | None:
        """The text of a name, or None; an empty one counts as none.

        Raises:
            Refusal: it was given several times, or is no text.
        """
        found = self.texts(*names)
        if len(found) > 1:
            raise bad(f"'{names[0]}' was given {len(found)} times: give it once.")
        return found[0] if found and found[0] else None

    def required(self, *names: str) -> str:
        """The text of a name.

        Raises:
            Refusal: there is none.
        """
        found = self.text(*names)
        if found is None:
            raise bad(f"'{names[0]}' is missing.")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false, as JSON has them or as words.

        Raises:
            Refusal: it is neither.
        """
        value = (self.given(name) or [default])[0]
        if isinstance(value, bool):
            return value
        if str(value).lower() in (*_TRUE, *_FALSE):
            return str(value).lower() in _TRUE
        raise bad(f"'{name}' must be true or false.")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number.

        Raises:
            Refusal: it is none, or out of its range.
        """
        value = (self.given(name) or [default])[0]
        try:
            number = int(value) if isinstance(value, str) and len(value) < 20 else value
        except ValueError:
            number = None
        if type(number) is not int or not least <= number <= most:
            raise bad(f"'{name}' must be a whole number from {least} to {most}.")
        return number

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of several words.

        Raises:
            Refusal: it is another one.
        """
        value = self.text(name) or default
        if value not in choices:
            raise bad(f"'{name}' must be one of {', '.join(choices)}.")
        return value


async def parse(query: bytes, content_type: str, body: bytes) -> Parameters:
    """What a request says. What its body says goes before what its query says.

    Raises:
        Refusal: it is not UTF-8, no JSON, no form, or of a kind that is not read here (415).
    """
    values = _form(query, "The query")
    files: dict[str, UploadedFile] = {}
    kind = content_type.partition(";")[0].strip().lower()
    if not body:
        return Parameters(values)
    if kind in JSON_KINDS or (not kind and body.lstrip()[:1] == b"{"):
        found = _json(body)
        values |= {name: value if isinstance(value, list) else [value] for name, value in found.items()}
        return Parameters(values, lists={name for name, value in found.items() if isinstance(value, list)})
    if kind in (FORM, ""):
        values |= _form(body, "The form")
    elif kind == MULTIPART:
        more, files = await _multipart(content_type, body)
        values |= more
    else:
        raise Refusal(415, f"A body of the kind {kind[:60]} is not read here: send JSON or a form.")
    return Parameters(values, files)


def _form(content: bytes, what: str) -> dict[str, list[Any]]:
    try:
        pairs = parse_qsl(content.decode("ascii"), keep_blank_values=True, errors="strict",
                          max_num_fields=MOST_FIELDS)
    except UnicodeDecodeError:
        raise bad(f"{what} is not encoded as UTF-8.") from None
    except ValueError:
        raise bad(f"{what} has more than {MOST_FIELDS} fields.") from None
    values: dict[str, list[Any]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return values


def _json(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content.decode("utf-8-sig"))
        json.dumps(found, ensure_ascii=False).encode("utf-8")   # half a pair of surrogates is no text
    except UnicodeError:
        raise bad("The JSON is not encoded as UTF-8.") from None
    except json.JSONDecodeError as error:
        raise bad(f"This is no JSON: {error.msg} (character {error.pos + 1}).") from None
    except (ValueError, RecursionError):
        raise bad("This JSON is nested too deeply, or has a number that is too long.") from None
    if not isinstance(found, dict):
        raise bad("Send a JSON object.")
    return found


async def _multipart(content_type: str, content: bytes) -> tuple[dict[str, list[Any]], dict[str, UploadedFile]]:
    from starlette.datastructures import Headers, UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    async def parts() -> AsyncIterator[bytes]:
        yield content

    values: dict[str, list[Any]] = {}
    files: dict[str, UploadedFile] = {}
    try:
        parser = MultiPartParser(Headers({"content-type": content_type}), parts(),  # type: ignore[arg-type]
                                 max_files=10, max_fields=MOST_FIELDS, max_part_size=len(content))
        form = await parser.parse()
    except (MultiPartException, KeyError, UnicodeError, ValueError):
        raise bad("The form is broken.") from None
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files[name] = UploadedFile(value.filename or "", await value.read())
        else:
            values.setdefault(name, []).append(value)
    await form.close()
    return values, files
