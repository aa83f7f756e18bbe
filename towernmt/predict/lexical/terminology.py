"""A terminology: which term of the target language stands for a term of the source, and where one occurs in a line.

A file has a term a line: source term, tab, target term and, if wanted, tab and `any` where upper and lower case of the
source make no difference (`exact` is the default). Empty lines and lines that begin with `#` are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.dataflow.text.chunks import read_lines
from towernmt.dataflow.text.cleaning import clean

CASES = ("exact", "any")
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Letters of scripts without spaces between words: each is taken for a word."""
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")


class Term(NamedTuple):
    """An entry of a terminology.

    Attributes:
        source, target: the terms.
        any_case: whether upper and lower case of the source make no difference.
        where: what errors call it, such as "terms.tsv line 3".
    """

    source: str
    target: str
    any_case: bool = False
    where: str = "a term"


class Terminology:
    """Terms, to be looked for in lines."""

    def __init__(self, terms: Iterable[Term]) -> None:
        """
        Raises:
            DataError: a source term has two target terms, or no word.
        """
        self.terms = list(terms)
        self._by_first: dict[str, list[tuple[list[str], Term]]] = {}
        known: dict[tuple[str, ...], Term] = {}
        for term in self.terms:
            words = _words(term.source)
            if not words:
                raise DataError(f"{term.where}: the source term is empty: write its words.")
            other = known.setdefault((str(term.any_case), *(_folded(words) if term.any_case else words)), term)
            if other.target != term.target:
                raise DataError(f"{term.where}: '{term.source}' is translated as '{term.target}' here and as "
                                f"'{other.target}' in {other.where}: keep one of them.")
            if other is term:
                self._by_first.setdefault(words[0].casefold(), []).append((words, term))

    @classmethod
    def read(cls, path: str | Path) -> Terminology:
        """The terms of a file.

        Raises:
            DataError: the file is missing or not UTF-8, or a line is not understood; with file and line.
        """
        lines = enumerate(read_lines(path), start=1)
        return cls(_parse(line, f"{path} line {number}") for number, line in lines
                   if line.strip() and not line.startswith("#"))

    def found(self, line: str) -> list[Term]:
        """The terms that occur in a line as whole words, in the order of the line, each once.

        Longer terms come first: a term within another that was found is not found. Of two that are as long, the one
        that begins earlier counts, and one whose case must be the same before one of any case.
        """
        words = _words(line)
        folded = _folded(words)
        matches = sorted((-len(term_words), place, term.any_case, number, term)
                         for place, word in enumerate(folded)
                         for number, (term_words, term) in enumerate(self._by_first.get(word, ()))
                         if _is_at(term_words, term.any_case, words, folded, place))
        taken: set[int] = set()
        found: list[tuple[int, Term]] = []
        for length, place, _, _, term in matches:
            span = range(place, place - length)
            if taken.isdisjoint(span):
                taken.update(span)
                found.append((place, term))
        return list(dict.fromkeys(term for _, term in sorted(found)))


def _words(text: str) -> list[str]:
    return _WORDS.findall(clean(text))


def _folded(words: list[str]) -> list[str]:
    return [word.casefold() for word in words]


def _is_at(term: list[str], any_case: bool, words: list[str], folded: list[str], place: int) -> bool:
    there = (folded if any_case else words)[place:place + len(term)]
    return there == (_folded(term) if any_case else term)


def _parse(line: str, where: str) -> Term:
    fields = [clean(field) for field in line.split("\t")]
    if len(fields) not in (2, 3) or not all(fields[:2]):
        raise DataError(f"{where}: expected a source term, a tab and a target term (and, if wanted, a tab and "
                        f"{' or '.join(CASES)}), not '{line[:60]}'.")
    case = fields[2] if len(fields) == 3 and fields[2] else "exact"
    if case not in CASES:
        raise DataError(f"{where}: the rule for upper and lower case is {' or '.join(CASES)}, not '{case}'.")
    return Term(fields[0], fields[1], case == "any", where)
