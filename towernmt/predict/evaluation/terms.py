"""How many of the terms and phrases that translations must hold are in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from towernmt.predict.evaluation.words import word_spans
from towernmt.predict.lexical.terminology import Terminology


@dataclass(frozen=True)
class TermAccuracy:
    """Of a system on a test set.

    Attributes:
        wanted: phrases that must be there, over all sentences.
        met: those of them that are.
    """

    wanted: int
    met: int

    @property
    def share(self) -> float:
        """Of the wanted ones, 0 to 1; 1 where nothing is wanted."""
        return self.met / self.wanted if self.wanted else 1.0


def wanted_phrases(source: str, terminology: Terminology | None, constraints: Sequence[str] = ()) -> list[str]:
    """What the translation of a line must hold, as the search has it.

    Args:
        source: the line, in which terms are looked for.
        terminology: None for no terms.
        constraints: the line's own phrases; one that is given twice must come twice.
    """
    terms = [] if terminology is None else terminology.found(source)
    return [*constraints, *(term.target for term in terms if term.target not in constraints)]


def term_accuracy(wanted: Sequence[Sequence[str]], hypotheses: Sequence[str]) -> TermAccuracy:
    """Count what is met.

    A phrase is in a translation where a word begins with it as it is written, upper and lower case included; it may be
    continued, as "hound" is by "hounds".

    Args:
        wanted: the phrases of each sentence.
        hypotheses: its translation.
    """
    met = sum(min(times, _occurrences(phrase, text))
              for phrases, text in zip(wanted, hypotheses, strict=True) for phrase, times in Counter(phrases).items())
    return TermAccuracy(sum(map(len, wanted)), met)


def _occurrences(phrase: str, text: str) -> int:
    """How often a phrase begins with a word of the text, without overlapping itself."""
    begins = {start for start, _ in word_spans(text)}
    count = place = 0
    while (place := text.find(phrase, place)) >= 0:
        count += place in begins
        place += len(phrase) if place in begins else 1
    return count
