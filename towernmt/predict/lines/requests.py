"""From what lines ask for to the terms of a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import tee
from typing import TypeVar

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.predict.batch_inputs import NOTHING, Asked
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.lexical.phrases import WritableTerms
from towernmt.predict.lexical.terminology import Terminology
from towernmt.predict.lines.options import PLAIN, LineOptions
from towernmt.predict.lines.target_text import INPUTS, TargetText, padded

L = TypeVar("L")


class Requests:
    """What lines ask for, beside a plain search.

    Args:
        search: of plain lines.
        vocabulary: of the target.
        options: what all lines ask for.
    """

    def __init__(self, search: SearchSettings, vocabulary: Vocabulary, options: LineOptions = PLAIN) -> None:
        self._search, self._text, self._options = search, TargetText(vocabulary), options
        self._vocabulary = vocabulary
        self._terms: WritableTerms | None = None
        self._terms_of(options.terminology)

    def of_lines(self, lines: Iterable[L], options: Iterable[LineOptions] | None, name: str,
                 first: int = 1) -> tuple[Iterable[L], Iterable[Asked] | None]:
        """The lines, and what is asked for each of them; None for nothing.

        Args:
            options: for each line; None for nothing but what all ask for.
            name: of the lines, for errors.
            first: the number of the first line.
        """
        if options is None:
            if self._options == PLAIN:
                return lines, None
            asked = self.asked(PLAIN)
            lines, others = tee(lines)
            return lines, (asked for _ in others)
        return lines, self._each(options, name, first)

    def asked(self, options: LineOptions) -> Asked:
        """What a line asks for.

        Raises:
            SettingsError: a setting of the search that cannot work.
        """
        options = options.over(self._options)
        if options == PLAIN:
            return NOTHING
        inputs = dict(options.inputs)
        for make in INPUTS:
            inputs.update(make(self._text, options))
        terms = self._terms_of(options.terminology)
        search = dict(options.search)
        if options.n_best is not None and options.n_best > self._search.n_best:
            beam = search.get("beam_size", self._search.beam_size)
            search = {**search, "n_best": options.n_best, "beam_size": max(beam, options.n_best)}
        search = {name: value for name, value in search.items() if value != getattr(self._search, name)}
        dataclasses.replace(self._search, **search)
        asked = Asked(inputs, search, options.n_best)
        if not options.constraints and terms is None and options.prefix_every_piece:
            return asked
        phrases = [self._text.phrase(phrase) for phrase in options.constraints]
        of_first = () if options.prefix_every_piece else ("prefix", "continuation")
        return asked._replace(of_piece=partial(_of_piece, asked, of_first, phrases, terms))

    def _terms_of(self, terminology: Terminology | None) -> WritableTerms | None:
        """The terms as ids; checked once, and kept."""
        if terminology is None:
            return None
        if self._terms is None or self._terms.terminology is not terminology:
            self._terms = WritableTerms(terminology, self._vocabulary)
        return self._terms

    def _each(self, options: Iterable[LineOptions], name: str, first: int) -> Iterator[Asked]:
        for number, given in enumerate(options, start=first):
            try:
                yield self.asked(given)
            except SettingsError as error:
                raise DataError(f"{name} line {number}: {error}") from None


def _of_piece(asked: Asked, of_first: Sequence[str], phrases: Sequence[Sequence[int]], terms: WritableTerms | None,
              text: str, place: int) -> Asked:
    """What is asked for a piece of a line: the first holds the line's own phrases, each the terms that are in it.

    Args:
        of_first: inputs that only the first piece has.
    """
    wanted = [list(phrase) for phrase in phrases] if place == 0 else []
    found = [] if terms is None else terms.found(text)
    wanted += [ids for term, ids in found if ids not in wanted]
    inputs = {name: value for name, value in asked.inputs.items() if place == 0 or name not in of_first}
    inputs |= {"constraints": padded(wanted)} if wanted else {}
    return asked._replace(inputs=inputs, terms=[term for term, _ in found], of_piece=None)
