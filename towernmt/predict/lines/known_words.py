"""Find names and numbers that a model copies, such as `Tom` and `30`, as placeholders for protected spans.

Most models have never seen a placeholder such as `X1`, and translate it as another word. A model that knows a name
translates `Tom, Tom.` as `Tom, Tom.`
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from itertools import islice

from towernmt.documents.shields import make_placeholders
from towernmt.predict.lines.line_options import PLAIN, LineOptions, LineRequest, TranslateRequests

_NUM_CANDIDATES = 48
"""Number of words that are translated to find names."""
_CANDIDATE = re.compile(r"[A-Z][a-z]{2,9}")
_NUMBERS = ("25", "45", "60", "15", "35", "200", "30", "20", "50")
_TEST = "{0}, {0}."


class KnownWords:
    """The names and numbers that a model copies. They are found when they are needed for the first time.

    Args:
        words: words of the training text, the most frequent first. If it is empty, the model has no known words.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._known_words: dict[str, list[str]] = {}        # by source prefix, which may select another language
        self._lock = threading.Lock()

    def of(self, translate: TranslateRequests, source_prefix: str = "") -> Sequence[str]:
        """Return the names and numbers; none if the model copies the usual placeholders.

        Args:
            translate: translates requests with the model.
            source_prefix: source prefix of the lines.
        """
        with self._lock:        # other threads wait, because they need the same words
            if source_prefix not in self._known_words:
                names = list(islice(filter(_CANDIDATE.fullmatch, self._words), _NUM_CANDIDATES))
                usual_placeholders = make_placeholders([""], "")
                candidates = [*usual_placeholders, *names, *_NUMBERS] if self._words else []
                tests = [_TEST.format(word) for word in candidates]
                options = LineOptions(source_prefix=source_prefix) if source_prefix else PLAIN
                requests = [LineRequest(test, options) for test in tests]
                translations = list(translate(requests, again=True)) if requests else []
                copied_words = [word for word, test, translation in zip(candidates, tests, translations, strict=True)
                                if translation[0].text == test]
                self._known_words[source_prefix] = [] if copied_words[:1] == usual_placeholders else copied_words
            return self._known_words[source_prefix]
