"""What a line may ask of its translation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.predict.decoding.settings import SearchSettings
from towernmt.predict.lexical.terminology import Terminology


@dataclass(frozen=True)
class LineOptions:
    """What one line asks for. Fields that a line leaves out are as for all lines.

    Attributes:
        prefix: how the translation begins; whole words, unless `partial_word` says otherwise.
        partial_word: the last word of `prefix` may be the beginning of a longer one. If `prefix` ends with a space, its
            last word is whole, and a new one follows.
        prefix_every_piece: of a line translated in pieces, each begins with `prefix`, as tags want it; else the first.
        avoid: words and phrases that shall not come. One in lower case is avoided with a capital letter as well.
            "<s> " before a phrase avoids it at the beginning only, " </s>" behind it at the end.
        constraints: words and phrases that must come, each as it is written; one that is given twice comes twice. They
            may share words. Of a line translated in pieces, the first piece holds them.
        terminology: where the line holds one of its source terms, the target term must come, once.
        n_best: so many translations, at most the beam's size.
        search: other fields of `SearchSettings` for this line. Each combination that occurs has a tower of its own.
        inputs: further inputs by name, for a model or processors of one's own: arrays, as for a batch of one without
            the batch's dimension.
    Raises:
        SettingsError: a value of a wrong type.
    """

    prefix: str = ""
    partial_word: bool = False
    prefix_every_piece: bool = True
    avoid: Sequence[str] = ()
    constraints: Sequence[str] = ()
    terminology: Terminology | None = None
    n_best: int | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (kinds, what) in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool):
                raise SettingsError(f"{name}={value!r}: give {what}.")
        for name in _LISTS:
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(text, str) for text in value):
                raise SettingsError(f"{name}={value!r}: give a list of texts.")
            object.__setattr__(self, name, tuple(value))
        if self.n_best is not None and self.n_best < 1:
            raise SettingsError(f"n_best={self.n_best}: give 1 or more.")
        for name, value in self.search.items():
            _check_setting(name, value)

    def over(self, others: LineOptions) -> LineOptions:
        """These options, and of `others` those that are not given here; phrases are those of both."""
        changes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)
                   if getattr(self, field.name) != getattr(PLAIN, field.name)}
        changes |= {name: (*getattr(others, name), *getattr(self, name)) for name in _LISTS}
        changes |= {"search": {**others.search, **self.search}, "inputs": {**others.inputs, **self.inputs}}
        return dataclasses.replace(others, **changes)


def _check_setting(name: str, value: Any) -> None:
    """Refuse what is no setting of a search that a line may have, and a value of another type."""
    known = {field.name: field.default for field in dataclasses.fields(SearchSettings) if field.name not in _OF_ALL}
    if name not in known:
        raise SettingsError(f"search: '{name}' is no setting of a search that a line can have: there are "
                            f"{', '.join(sorted(known))}.")
    kind = type(known[name])
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise SettingsError(f"search: {name}={value!r}: give a value of the kind of {known[name]!r}.")


_OF_ALL = ("averaged",)
"""Settings that are of all lines: the weights are there once."""
_TYPES: dict[str, tuple[Any, str]] = {
    "prefix": (str, "a text"), "partial_word": (bool, "true or false"),
    "prefix_every_piece": (bool, "true or false"), "avoid": (Sequence, "a list of texts"),
    "constraints": (Sequence, "a list of texts"), "terminology": ((Terminology, type(None)), "a Terminology"),
    "n_best": ((int, type(None)), "a whole number"), "search": (Mapping, "settings by name"),
    "inputs": (Mapping, "arrays by name")}
_LISTS = ("avoid", "constraints")

PLAIN = LineOptions()
"""A line that asks for nothing."""
FIELDS = tuple(field.name for field in dataclasses.fields(LineOptions) if field.name not in ("inputs", "terminology"))
"""What can be asked for by text."""
