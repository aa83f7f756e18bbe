"""Find names and numbers that a model copies, such as `Tom` and `30`, as placeholders for protected spans.

Most models have never seen a placeholder such as `X1`, and translate it as another word. A model that knows a name
translates `Tom, Tom.` as `Tom, Tom.`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from towernmt.predict.lines.hypotheses import Translation
from towernmt.predict.lines.line_options import LineRequest

_NUM_CANDIDATES = 48
"""Number of words that are translated to find names."""
_CANDIDATE = re.compile(r"[A-Z][a-z]{2,9}")
_NUMBERS = ("25", "45", "60", "15", "35", "200", "30", "20", "50")
_TEST = "{0}, {0}."
_USUAL_PLACEHOLDER = "X1"


class TranslateRequests(Protocol):
    """A function that translates requests with one model."""

    def __call__(self, requests: Iterable[LineRequest], /, *, again: bool) -> Iterator[Translation]:
        """Yield the translation of each request; `again` is true for lines that were translated before."""


class KnownWords:
    """The names and numbers that a model copies. They are found when they are needed for the first time.

    Args:
        words: words of the training text, the most frequent first; if there are none, no words are found.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._known_words: list[str] | None = None

    def of(self, translate: TranslateRequests) -> Sequence[str]:
        """Return the names and numbers; none if the model copies the usual placeholders.

        Args:
            translate: translates requests with the model.
        """
        if self._known_words is None:
            names = list(islice(filter(_CANDIDATE.fullmatch, self._words), _NUM_CANDIDATES))
            candidates = [_USUAL_PLACEHOLDER, *names, *_NUMBERS] if self._words else []
            tests = [_TEST.format(word) for word in candidates]
            translations = list(translate(map(LineRequest, tests), again=True)) if tests else []
            copied_words = [word for word, test, translation in zip(candidates, tests, translations, strict=True)
                            if translation[0].text == test]
            self._known_words = [] if _USUAL_PLACEHOLDER in copied_words else copied_words
        return self._known_words
