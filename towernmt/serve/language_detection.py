"""Detect the language of a text among those that a server supports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.pair_filters import identified_code, language_probabilities
from towernmt.serve.request_limits import bad_request

DETECTION_CHARACTERS = 2_000
"""Characters of a text that the detector reads."""
MIN_TARGET_RATIO, MIN_OTHER_RATIO = 3.0, 9.0
"""A text counts as a language that it cannot be translated from only if that language is this many times as probable as
each language that it can be translated from. The first number is for the language of the translation: then the text
stays unchanged. The second number is for other languages: then the request is refused."""


class DetectedLanguage(NamedTuple):
    """A language, and its probability among all languages that the detector knows, 0 to 1."""

    language: str
    confidence: float


def detect_languages(text: str, languages: Sequence[str]) -> list[DetectedLanguage]:
    """Return the languages that can be detected, the most probable first. A single language is returned in any case.

    Args:
        text: text to identify.
        languages: codes, at least one.

    Raises:
        RequestError: there are several languages, and none of them can be detected.
    """
    detected = _rank_languages(text, languages)
    if detected:
        return detected
    if len(languages) == 1:
        return [DetectedLanguage(languages[0], 0.0)]
    raise bad_request(f"Name the source language: none of {', '.join(languages)} can be detected here. (Detection "
                      "needs the package py3langid: pip install 'towernmt[serve]'.)")


def detect_source_language(text: str, sources: Sequence[str], target: str,
                           other_languages: Sequence[str] = ()) -> DetectedLanguage:
    """Return the language of a text that is to be translated.

    Args:
        text: text to identify.
        sources: codes of the languages that are translated into the target, at least one.
        target: the language of the translation, which the text may be in already.
        other_languages: further languages that the text may be in, though they are not translated into the target.

    Raises:
        RequestError: there are several sources, and none of them can be detected.
    """
    detected = _rank_languages(text, sources)
    if not detected:
        return detect_languages(text, sources)[0]
    best = detected[0]
    labels = {identified_code(code) for code in sources}
    for candidates, min_ratio in (([target], MIN_TARGET_RATIO), (other_languages, MIN_OTHER_RATIO)):
        ranked = _rank_languages(text, [code for code in candidates if identified_code(code) not in labels])
        # The detector rounds very small probabilities to 0, such as those of German for a Russian paragraph.
        if ranked and ranked[0].confidence > 0 and ranked[0].confidence >= min_ratio * best.confidence:
            return ranked[0]
    return best


def _rank_languages(text: str, languages: Sequence[str]) -> list[DetectedLanguage]:
    """Return the languages that can be detected, the most probable first."""
    try:
        probabilities = language_probabilities(text[:DETECTION_CHARACTERS])
    except SettingsError:       # py3langid is not installed: the caller decides whether detection is needed
        return []
    detected = [DetectedLanguage(code, probabilities[label]) for code in languages
                if (label := identified_code(code)) in probabilities]
    return sorted(detected, key=lambda candidate: -candidate.confidence)
