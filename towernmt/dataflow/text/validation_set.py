"""A validation set: source text with one reference translation of each sentence, or several; and where it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.cleaning import clean


@dataclass(frozen=True)
class ValidationSet:
    """Raw text on which a model is evaluated during training.

    Attributes:
        name: what its figures are called; "" for a set that is the only one.
        source: a sentence each.
        references: for each translator his translations of all sentences; the loss is that of the first.
    Raises:
        DataError: no sentences, or not as many translations.
    """

    name: str
    source: Sequence[str]
    references: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if not self.source:
            raise DataError(f"The validation set{self._called} is empty: give a sentence pair at least, or leave it "
                            "out.")
        if not self.references:
            raise DataError(f"The validation set{self._called} has no reference translation: give one at least.")
        for reference in self.references:
            if len(reference) != len(self.source):
                raise DataError(f"The validation set{self._called} has {len(self.source)} source and {len(reference)} "
                                "reference lines: there must be as many of each.")

    def first(self, sentences: int) -> ValidationSet:
        """The set of the first so many sentences; 0 for all."""
        count = sentences or None
        return ValidationSet(self.name, self.source[:count], [reference[:count] for reference in self.references])

    @property
    def _called(self) -> str:
        return f" '{self.name}'" if self.name else ""


@dataclass(frozen=True)
class ValidationFiles:
    """Where a validation set's text is.

    Attributes:
        name: of the set; see `ValidationSet`.
        source: file of the source text.
        targets: a file for each reference.
    """

    name: str
    source: str
    targets: Sequence[str]


def named_sets(files: Sequence[ValidationFiles], origin: str) -> list[ValidationFiles]:
    """The same with a name for each: where there are several, one that lacks it is called as its source's file.

    Args:
        origin: where the names stand, for messages.
    Raises:
        SettingsError: a name that two have, or that cannot be part of a scalar's name.
    """
    if len(files) == 1 and not files[0].name:
        return list(files)
    named = [replace(one, name=one.name or re.sub(r"[^\w.+-]+", "_", _stem(one.source))) for one in files]
    names = [one.name for one in named]
    for name in names:
        if not re.fullmatch(r"[\w.+-]+", name):
            raise SettingsError(f"{origin}: '{name}' is no name for a validation set: use letters, digits, and . _ + -")
        if names.count(name) > 1:
            raise SettingsError(f"{origin}: two validation sets are called '{name}': give each a name of its own.")
    return named


def files_of_set(number: int, references: int) -> tuple[str, list[str]]:
    """The names, in prepared data, of the source and of the references of a set.

    Args:
        number: of the set, from 1.
        references: how many it has.
    """
    stem = "valid" if number == 1 else f"valid-{number}"
    return f"{stem}.source", [f"{stem}.target" if place == 1 else f"{stem}.target-{place}"
                              for place in range(1, references + 1)]


def _stem(path: str) -> str:
    """The name of a file without the suffixes of its compression and its language."""
    name = Path(path).name
    return Path(name.removesuffix(".gz")).stem or name


def read_lines_of_set(files: ValidationFiles, read: Callable[[str], list[str]]) -> ValidationSet | None:
    """The text of a set; None where its files are empty.

    Args:
        read: gives the lines of a file.
    Raises:
        DataError: files of different lengths.
    """
    source = [clean(line) for line in read(files.source)]
    references = [read(target) for target in files.targets]
    for target, reference in zip(files.targets, references, strict=True):
        if len(source) != len(reference):
            raise DataError(f"{files.source} has {len(source)} lines, but {target} has {len(reference)}: line n of "
                            "one must be the translation of line n of the other.")
    return ValidationSet(files.name, source, references) if source else None
