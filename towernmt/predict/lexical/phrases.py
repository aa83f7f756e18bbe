"""Phrases and terms of the target language as the ids that a translation must hold."""

from __future__ import annotations

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.predict.lexical.terminology import Term, Terminology


def phrase_ids(phrase: str, vocabulary: Vocabulary) -> list[int]:
    """The ids of a phrase as they are within a sentence, behind a space.

    Raises:
        SettingsError: the phrase is empty, or holds what the vocabulary does not know.
    """
    ids = vocabulary.encode(phrase)
    if not ids:
        raise SettingsError("a phrase that a translation must hold is empty: leave it out, or write its words.")
    if vocabulary.unk_id in ids:
        raise SettingsError(f"'{phrase}' holds what the target vocabulary does not know, so no translation can hold "
                            "it: write it in other characters or words.")
    return ids


class WritableTerms:
    """A terminology whose target terms a vocabulary can write.

    Attributes:
        terminology: the terms.
    """

    def __init__(self, terminology: Terminology, vocabulary: Vocabulary) -> None:
        """
        Raises:
            DataError: the vocabulary cannot write a term; with its file and line.
        """
        self.terminology = terminology
        self._ids: dict[str, list[int]] = {}
        for term in terminology.terms:
            try:
                self._ids[term.target] = phrase_ids(term.target, vocabulary)
            except SettingsError as error:
                raise DataError(f"{term.where}: {error}") from None

    def found(self, line: str) -> list[tuple[Term, list[int]]]:
        """The terms that occur in a line of the source, with the ids of their translations."""
        return [(term, self._ids[term.target]) for term in self.terminology.found(line)]
