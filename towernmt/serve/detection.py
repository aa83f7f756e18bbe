"""Which language a text is in, among those that are served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.filters.language import language_probabilities
from towernmt.serve.languages import base_code
from towernmt.serve.refusal import bad

SAMPLE = 2_000
"""Characters of a text that are looked at."""


class Detected(NamedTuple):
    """A language, and how probable it is among all that can be told apart, 0 to 1."""

    language: str
    confidence: float


def detect(text: str, languages: Sequence[str]) -> list[Detected]:
    """The languages, the most probable first. If there is only one, it is that, however the text looks.

    Args:
        languages: codes, at least one.
    Raises:
        Refusal: there are several, and py3langid is not installed or does not know one of them.
    """
    try:
        probabilities = language_probabilities(text[:SAMPLE])
    except SettingsError as error:
        if len(languages) == 1:
            return [Detected(languages[0], 0.0)]
        raise bad(f"Name the source language: this server cannot tell languages apart. ({error})") from None
    unknown = [code for code in languages if base_code(code) not in probabilities]
    if unknown and len(languages) > 1:
        raise bad(f"Name the source language: {', '.join(unknown)} cannot be told from other languages here.")
    found = [Detected(code, round(probabilities.get(base_code(code), 0.0), 4)) for code in languages]
    return sorted(found, key=lambda one: -one.confidence)
