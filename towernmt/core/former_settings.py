"""Former spellings: a setting that was renamed or removed is still understood by its old key.

A class of settings has them in a class variable `former`. A key that the settings have today always means that one, so
a model of one's own may have a setting whose name was once one of ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from towernmt.core.errors import SettingsError


@dataclass(frozen=True)
class Removed:
    """A setting that is no more.

    Attributes:
        value: what it always is now; the old key with this value is ignored.
        advice: what to do instead of another value: the end of a sentence, such as "leave it out".
    """

    value: Any
    advice: str


@dataclass(frozen=True)
class FormerSettings:
    """Former keys.

    Attributes:
        renamed: old key to new key.
        removed: old key to what is known of it.
        switches: renamed keys that were true or false: old key to the values of today for true and for false.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, Removed] = field(default_factory=dict)
    switches: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def new_key(self, key: str, known: Collection[str]) -> str | None:
        """What `key` is called now; None if it is no former key of one of these settings.

        Args:
            known: the keys that the settings have.
        """
        new = self.renamed.get(key)
        return new if key not in known and new in known else None

    def translated(self, values: Mapping[str, Any], known: Collection[str], origin: str) -> dict[str, Any]:
        """`values` under the keys of today, without removed settings.

        Args:
            values: dotted key to value.
            known: the keys that the settings have.
            origin: where the values come from, for the error message.
        Raises:
            SettingsError: a setting is there by both its names, or a removed one has another value than the one that
                holds now.
        """
        result: dict[str, Any] = {}
        for key, value in values.items():
            new = self.new_key(key, known)
            if new is not None and new in values:
                raise SettingsError(f"{origin}: {key} is the former name of {new}, and both are there: leave out "
                                    f"{key}.")
            removed = self.removed.get(key) if key not in known else None
            if removed is None:
                result[new or key] = self._of_today(key, value) if new else value
            elif not _same(value, removed.value):
                raise SettingsError(f"{origin}: {key}={value} is refused, since that setting was removed and its value "
                                    f"is {removed.value}: {removed.advice}.")
        return result

    def as_recorded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a run recorded, under the keys of today: nothing is refused.

        A removed setting stays only with another value than the one that holds now, and a former key where that of
        today is there, too.

        Args:
            values: dotted key to value.
        """
        kept = {key: value for key, value in values.items()
                if key not in self.removed or not _same(value, self.removed[key].value)}
        return {key if (new := self.renamed.get(key, key)) in kept else new: self._of_today(key, value)
                for key, value in kept.items()}

    def _of_today(self, key: str, value: Any) -> Any:
        """What a renamed key's value is called now."""
        for today, meaning in zip(self.switches.get(key, ()), (True, False), strict=False):
            if _same(value, meaning):
                return today
        return value

    def note(self, keys: Iterable[str], known: Collection[str]) -> str:
        """A sentence with the new names of those keys that were renamed; "" for none."""
        news = {key: new for key in keys if (new := self.new_key(key, known))}
        return f"{', '.join(f'{key} is now {new}' for key, new in news.items())}." if news else ""


def _same(value: Any, default: Any) -> bool:
    """Whether a value, which may be the text of one, is the default."""
    if isinstance(default, bool):
        return str(value).lower() in (("true", "yes", "1") if default else ("false", "no", "0"))
    try:
        return bool(float(value) == float(default))
    except (TypeError, ValueError):
        return str(value) == str(default)
