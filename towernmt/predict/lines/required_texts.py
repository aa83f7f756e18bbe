"""The texts that a translation must contain literally, whatever happens to it after the search.

A prefix has priority over all other rules, and a constraint is literal. So both stay when a translation is written in
capitals or loses its final mark, and a second translation that lacks one of them is not returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from towernmt.dataflow.text.clean_text import clean
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.lines.terminology import AnchoredPhrase


class RequiredTexts:
    """The prefix and the constraints of a line.

    Args:
        options: options of the line.
        written: returns a text as the target vocabulary writes it; None if it writes each text unchanged.

    Raises:
        SettingsError: a constraint has anchors but no words.
    """

    def __init__(self, options: LineOptions, written: Callable[[str], str] | None = None) -> None:
        self._written = written
        self._phrases = Counter(map(AnchoredPhrase.of, options.constraints))
        if prefix := clean(options.prefix):
            self._phrases[AnchoredPhrase(prefix, at_beginning=True)] += 1

    def num_missing(self, text: str) -> int:
        """Return the number of these texts that a translation lacks."""
        return sum(span is None for _, span in self._found(text))

    def end_of_beginning(self, text: str) -> int:
        """Return the end of the texts at the beginning of a translation, and of the word in which they end."""
        end = max((span[1] for phrase, span in self._found(text) if phrase.at_beginning and span), default=0)
        space = text.find(" ", end)
        return 0 if not end else space if space >= 0 else len(text)

    def end_of_last(self, text: str) -> int:
        """Return the end of the last of these texts in a translation; 0 if it has none."""
        return max((span[1] for _, span in self._found(text) if span), default=0)

    def changed_around(self, text: str, change: Callable[[str], str]) -> str:
        """Return a translation in which everything around these texts is changed."""
        pieces, position = [], 0
        for start, end in sorted(span for _, span in self._found(text) if span):
            if end > position:      # they may overlap
                pieces += [change(text[position:start]), text[max(start, position):end]]
                position = end
        return "".join([*pieces, change(text[position:])])

    def _found(self, text: str) -> Iterator[tuple[AnchoredPhrase, tuple[int, int] | None]]:
        """Yield each of these texts with its start and end in a translation, or None if the translation lacks it."""
        for phrase, count in self._phrases.items():
            position = 0
            for _ in range(1 if phrase.at_beginning or phrase.at_end else count):
                span = self._span(phrase, text, position)
                position = len(text) if span is None else span[1]
                yield phrase, span

    def _span(self, phrase: AnchoredPhrase, text: str, position: int) -> tuple[int, int] | None:
        forms = [phrase.text] if self._written is None else [phrase.text, self._written(phrase.text)]
        for form in filter(None, forms):
            if phrase.at_beginning:
                start = 0 if text.startswith(form) else -1
            elif phrase.at_end:
                start = len(text) - len(form) if text.endswith(form) else -1
            else:
                start = _first_index(form, text, position)
            if start >= 0:
                return start, start + len(form)
        return None


def _first_index(phrase: str, text: str, position: int) -> int:
    """Return the index of a phrase in a text, as complete words if it has it so; -1 if it lacks the phrase."""
    index = first_index = text.find(phrase, position)
    while index >= 0:
        if not (_is_letter(text, index - 1) or _is_letter(text, index + len(phrase))):
            return index
        index = text.find(phrase, index + 1)
    return first_index


def _is_letter(text: str, index: int) -> bool:
    return 0 <= index < len(text) and text[index].isalnum()
