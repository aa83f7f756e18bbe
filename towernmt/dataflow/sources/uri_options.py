"""The options of a source: what stands behind the `?` of its URI."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from towernmt.core.errors import SettingsError
from towernmt.core.secrets import mask_uri

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
    """An option that is true or false."""
    values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in values:
        raise ValueError("true or false")
    return values[text.lower()]


def whole_number(text: str) -> int:
    """An option that is a number from 0."""
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("a whole number from 0")
    return int(text)


def seconds(text: str) -> float:
    """An option that is a time."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
        raise ValueError("a number of seconds")
    return float(text)


def name(text: str) -> str:
    """An option that is some text."""
    if not text:
        raise ValueError("a name")
    return text


def _nearest(unknown: str, known: Mapping[str, Parse]) -> str:
    close = difflib.get_close_matches(unknown, known, n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else f" It has: {', '.join(sorted(known)) or 'none'}."
