"""What CTranslate2 cannot do as the search here does it: refused by name, in one table each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.lines.options import PLAIN, LineOptions

SETTINGS: dict[str, tuple[Any, str]] = {
    "selection": ("beam", "its samples have no seed of their own"),
    "beam_groups": (1, "it has no groups of beams"),
    "coverage_penalty": (0.0, "its coverage penalty is another one"),
    "temperature": (1.0, "it has one for samples alone"),
    "repetition_penalty": (1.0, "its repetition penalty changes logits, not log-probabilities"),
    "shortlist": ("", "it has no shortlists of this kind"),
}
"""Settings of a search: the value that it can do, and why no other one."""
OPTIONS: dict[str, str] = {
    "ensemble_weights": "it has no ensembles",
    "ensemble_mean": "it has no ensembles",
    "alignments": "its attention is not read here",
    "attention": "its attention is not read here",
    "plot": "its attention is not read here",
    "replace_unknown": "its attention is not read here",
    "samples": "its samples have no seed of their own",
    "prefix": "its prefixes count nothing in the scores",
    "partial_word": "it has no prefixes of half words",
    "avoid": "it does not avoid phrases as they are written",
    "constraints": "it has no lexical constraints",
    "terminology": "it has no lexical constraints",
}
"""Options of the command line, under the names that arguments have, and why they do not go."""
_LINE_OPTIONS = ("prefix", "avoid", "constraints", "terminology", "inputs")
"""Fields of `LineOptions` that do not go; `partial_word` and `prefix_every_piece` say something of `prefix`."""
ENGINE = "--engine ctranslate2"


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse options of the command line.

    Args:
        given: the arguments by name.
    Raises:
        SettingsError: one that CTranslate2 cannot do.
    """
    for name, why in OPTIONS.items():
        if given.get(name):
            raise SettingsError(f"--{name.replace('_', '-')} does not go with {ENGINE}: {why}. Leave out one of them.")
    for name in ("model", "checkpoint"):
        if isinstance(given.get(name), list) and len(given[name]) > 1:
            raise SettingsError(f"--{name} several times does not go with {ENGINE}: it has no ensembles. Give one.")


def check_search(search: SearchSettings) -> None:
    """Refuse settings of a search.

    Raises:
        SettingsError: one that CTranslate2 cannot do.
    """
    for name, (fine, why) in SETTINGS.items():
        value = getattr(search, name)
        if value != fine:
            raise SettingsError(f"{name}={value} does not go with {ENGINE}: {why}. Set {name}={fine or repr(fine)}, or "
                                "leave out --engine.")


def check_line(options: LineOptions, search: SearchSettings) -> None:
    """Refuse what a line asks for.

    Args:
        search: of all lines.
    Raises:
        SettingsError: CTranslate2 cannot do it.
    """
    for name in _LINE_OPTIONS:
        if getattr(options, name) != getattr(PLAIN, name):
            why = OPTIONS.get(name, "it reads nothing but the source")
            raise SettingsError(f"'{name}' does not go with {ENGINE}: {why}. Leave out one of them.")
    if options.search:
        check_search(dataclasses.replace(search, **options.search))


def checked_lines(options: Iterable[LineOptions], search: SearchSettings, name: str,
                  first: int) -> Iterator[LineOptions]:
    """What each line asks for, all of which CTranslate2 can do.

    Args:
        name: of the lines.
        first: the number of the first line.
    Raises:
        DataError: a line asks for something else.
    """
    for number, given in enumerate(options, start=first):
        try:
            check_line(given, search)
        except SettingsError as error:
            raise DataError(f"{name} line {number}: {error}") from None
        yield given
