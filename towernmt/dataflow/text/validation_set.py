"""Validation sets: source text with one or several reference translations of each sentence, and the files of a set."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.clean_text import clean, with_tag


@dataclass(frozen=True)
class ValidationSet:
    """Raw text on which a model is evaluated during training.

    Attributes:
        name: name of the set in the names of its scores; "" for the only set.
        source: source sentences.
        references: one or more translations of all sentences; the loss is that of the first.

    Raises:
        DataError: the set is empty, or the numbers of sentences differ.
    """

    name: str
    source: Sequence[str]
    references: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if not self.source:
            raise DataError(f"The validation set{self._quoted_name} is empty. Pass at least one sentence pair, or "
                            "remove the set.")
        if not self.references:
            raise DataError(f"The validation set{self._quoted_name} has no reference translation. Pass at least one.")
        for reference in self.references:
            if len(reference) != len(self.source):
                raise DataError(f"The validation set{self._quoted_name} has {len(self.source)} source lines, but "
                                f"{len(reference)} reference lines. Both must have the same number of lines.")

    def first(self, sentences: int) -> ValidationSet:
        """Return a set of the first `sentences` sentences; 0 for all."""
        count = sentences or None
        return ValidationSet(self.name, self.source[:count], [reference[:count] for reference in self.references])

    @property
    def _quoted_name(self) -> str:
        return f" '{self.name}'" if self.name else ""


class ValidatedData(ABC):
    """Training data with validation sets."""

    @property
    @abstractmethod
    def validation_sets(self) -> list[ValidationSet]:
        """All validation sets, that of `valid_source` first; empty without validation text."""

    @cached_property
    def valid_source(self) -> list[str]:
        """The source sentences of the first validation set; empty without validation text."""
        return list(self.validation_sets[0].source) if self.validation_sets else []

    @cached_property
    def valid_target(self) -> list[str]:
        """The references of `valid_source`, unchanged."""
        return list(self.validation_sets[0].references[0]) if self.validation_sets else []


@dataclass(frozen=True)
class ValidationFiles:
    """The files of a validation set.

    Attributes:
        name: name of the set; see `ValidationSet`.
        source: file of the source text.
        targets: a file for each reference.
        tag: text that is put before each source sentence, with a space; "" for none.
    """

    name: str
    source: str
    targets: Sequence[str]
    tag: str = ""

    def source_sentence(self, line: str) -> str:
        """Return a line of the source file, cleaned, after the tag. A blank line gets no tag."""
        return with_tag(self.tag, clean(line))


def named_sets(files: Sequence[ValidationFiles], origin: str) -> list[ValidationFiles]:
    """Return the sets with names. If there are several, a set without a name gets that of its source file.

    Args:
        files: the files of the sets.
        origin: file or option that contains the names, for messages.

    Raises:
        SettingsError: a name is repeated, or cannot be part of the name of a scalar.
    """
    if len(files) == 1 and not files[0].name:
        return list(files)
    named = [replace(one, name=one.name or re.sub(r"[^\w.+-]+", "_", _stem(one.source))) for one in files]
    names = [one.name for one in named]
    for name in names:
        if not re.fullmatch(r"[\w.+-]+", name):
            raise SettingsError(f"{origin}: '{name}' is not a valid name of a validation set. Use letters, digits, and "
                                ". _ + -")
        if names.count(name) > 1:
            raise SettingsError(f"{origin}: two validation sets have the name '{name}'. Use different names.")
    return named


def files_of_set(number: int, references: int) -> tuple[str, list[str]]:
    """Return the names of the source file and of the reference files of a validation set in prepared data.

    Args:
        number: number of the set, from 1.
        references: number of references.
    """
    stem = "valid" if number == 1 else f"valid-{number}"
    return f"{stem}.source", [f"{stem}.target" if reference == 1 else f"{stem}.target-{reference}"
                              for reference in range(1, references + 1)]


def _stem(path: str) -> str:
    """Return the name of a file without the suffixes of its compression and its language."""
    name = Path(path).name
    return Path(name.removesuffix(".gz")).stem or name


def check_has_text(texts: Sequence[tuple[str, Iterable[str]]], fix: str) -> None:
    """Check that a test set has text. Reading stops at the first lines that have text.

    Args:
        texts: the file and the lines of the source, then of each reference; or of a single text.
        fix: the end of the error message.

    Raises:
        DataError: a file is empty or has only blank lines, or no line has text in the source and in the reference.
    """
    lines, with_text = [0] * len(texts), [False] * len(texts)
    missing = set(range(1, len(texts))) or {0}      # references, until a line has text in them and in the source
    for row in zip_longest(*(text for _, text in texts)):
        has_text = [line is not None and bool(clean(line)) for line in row]
        lines = [count + (line is not None) for count, line in zip(lines, row, strict=True)]
        with_text = [one or other for one, other in zip(with_text, has_text, strict=True)]
        missing -= {number for number in missing if has_text[0] and has_text[number]}
        if not missing:
            return
    for (name, _), count, has_any in zip(texts, lines, with_text, strict=True):
        if not has_any:
            raise DataError(f"{name} {'has only blank lines' if count else 'is empty'}: {fix}")
    raise DataError(f"{texts[0][0]} and {texts[min(missing)][0]}: no line has text in both files: {fix}")


NO_VALIDATION_TEXT = "pass validation text with its translations, or remove this validation set."
"""The fix for a validation set without text."""


def read_lines_of_set(files: ValidationFiles, read: Callable[[str], list[str]], fix: str = NO_VALIDATION_TEXT
                      ) -> ValidationSet:
    """Return the text of a validation set.

    Args:
        files: the files of the set.
        read: returns the lines of a file.
        fix: the end of the error message about a set without text.

    Raises:
        DataError: the files have different numbers of lines, or no text.
    """
    source = [files.source_sentence(line) for line in read(files.source)]
    references = [read(target) for target in files.targets]
    for target, reference in zip(files.targets, references, strict=True):
        if len(source) != len(reference):
            raise DataError(f"{files.source} has {len(source)} lines, but {target} has {len(reference)}. Line n of "
                            "one file must be the translation of line n of the other.")
    check_has_text([(files.source, source), *zip(files.targets, references, strict=True)], fix)
    return ValidationSet(files.name, source, references)
