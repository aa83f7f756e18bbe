"""What a user tells of a model for its card: from a YAML file, completed by options."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from towernmt.core.errors import SettingsError
from towernmt.core.files.json_files import JSONError, Natural, checked
from towernmt.core.files.strict_yaml import load_strict

_LANGUAGE = r"[a-z]{2,3}(?:-[A-Z][A-Za-z0-9]*|-[0-9]+)*"
_PAIR = re.compile(f"({_LANGUAGE})-({_LANGUAGE})")
"""Codes are in lower case and what narrows them is not, so that zh-Hans-en can be read one way."""


@dataclass(frozen=True)
class DataSource:
    """A text that the model was trained on.

    Attributes:
        name: what it is called.
        licence: of the text.
        url: where it comes from.
        pairs: that were taken of it.
        note: anything else.
    """

    name: str
    licence: str = ""
    url: str = ""
    pairs: Natural | None = None
    note: str = ""


@dataclass(frozen=True)
class CardText:
    """What the program cannot know.

    Attributes:
        licence: of the model, by its SPDX name, as CC-BY-4.0.
        languages: source and target, as de-en.
        name: of the model.
        description: what it is, in some sentences.
        authors: who made it.
        contact, homepage, citation: where to ask, to look, and how to cite it.
        intended_use, limitations: what it is for, and where it fails.
        data: what it was trained on.
    """

    licence: str = ""
    languages: str = ""
    name: str = ""
    description: str = ""
    authors: list[str] = field(default_factory=list)
    contact: str = ""
    homepage: str = ""
    citation: str = ""
    intended_use: str = ""
    limitations: str = ""
    data: list[DataSource] = field(default_factory=list)

    def pair(self) -> tuple[str, str] | None:
        """Source and target language; None: not told.

        Raises:
            SettingsError: they are not written as a pair.
        """
        if not self.languages:
            return None
        match = _PAIR.fullmatch(self.languages)
        if match is None:
            raise SettingsError(f"languages {self.languages}: expected the codes of source and target, as de-en or "
                                "zh-Hans-en.")
        return match[1], match[2]


def card_text(file: str | Path | None, given: Mapping[str, Any]) -> CardText:
    """What a file tells, with what is given in its place.

    Args:
        file: YAML with fields of `CardText`; None for none.
        given: fields; those that are None stay as the file has them.
    Raises:
        SettingsError: the file cannot be read or understood, there is no licence, or the languages are no pair.
    """
    text = CardText() if file is None else _from_file(Path(file))
    text = dataclasses.replace(text, **{name: value for name, value in given.items() if value is not None})
    if not text.licence.strip():
        raise SettingsError("A package is given to others, who must know its licence: give it as --licence CC-BY-4.0, "
                            "or as `licence: CC-BY-4.0` in the file of --card (mind the licences of the training "
                            "data).")
    text.pair()
    return text


def _from_file(file: Path) -> CardText:
    try:
        content = load_strict(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: cannot read the card ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{file}: not valid YAML: {' '.join(str(error).split())}.") from error
    content = _plain({} if content is None else content)
    if isinstance(content, dict) and "license" in content and "licence" not in content:
        content["licence"] = content.pop("license")
    try:
        return checked(content, CardText)
    except JSONError as error:
        known = ", ".join(field.name for field in dataclasses.fields(CardText))
        raise SettingsError(f"{file}: {error}; a card has {known}.") from None


def _plain(value: Any) -> Any:
    """With dates as text, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value
