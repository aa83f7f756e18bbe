"""Typed settings: dataclasses in groups, `group.name=value` on the command line, YAML on disk.

Three layers, low to high: the defaults in the dataclasses, what was saved with the run (or a
`--config` file), and the command line. An unknown key or a wrong type is refused with the nearest
right name, so that a typing mistake never silently trains something else.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from towernmt.core.errors import SettingsError
from towernmt.core.files.atomic_files import write_text
from towernmt.core.files.strict_yaml import load_strict
from towernmt.core.former_settings import FormerSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The numbers that a setting takes. A number that is not finite is in no range."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Whether `value` is one of them."""
        return (math.isfinite(value)
                and (self.at_least is None or value >= self.at_least) and (self.above is None or value > self.above)
                and (self.at_most is None or value <= self.at_most) and (self.below is None or value < self.below))

    def __str__(self) -> str:
        bounds = (("at least", self.at_least), ("above", self.above), ("at most", self.at_most), ("below", self.below))
        return " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None) or "finite"


LARGEST_INTEGER = 2**63 - 1
LARGEST_NUMBER = 3.4e38
"""Of float32, in which the graph computes."""


def setting(default: Any, help: str, choices: Sequence[str] = (), *, at_least: float | None = None,
            above: float | None = None, at_most: float | None = None, below: float | None = None) -> Any:
    """A dataclass field with its meaning, unit and range.

    Args:
        default: the default value; lists are copied for each instance.
        help: one sentence with the meaning and the unit; `towernmt train --help-settings` prints it.
        choices: for a string, the values that are accepted.
        at_least, above, at_most, below: the range of a number, of each number of a list, or of a number or None.
    """
    metadata = {"help": help, "choices": tuple(choices), "range": Range(at_least, above, at_most, below)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def apply_overrides(settings: T, overrides: Mapping[str, Any], origin: str = "--set") -> T:
    """Return `settings` with dotted keys replaced.

    Args:
        settings: a dataclass, possibly of dataclasses.
        overrides: dotted key to value; a string value is read as the field's type. Former keys are understood.
        origin: where the values come from, for the error message.
    Raises:
        SettingsError: unknown key, wrong type, a number out of its range, or a text that is not one of the choices.
    """
    known = all_keys(settings)
    former = former_settings(settings)
    spellings = {key: key for key in known} | {old: new for old, new in former.renamed.items()
                                               if former.new_key(old, known)}
    for key, value in former.translated(overrides, known, origin).items():
        settings = _replace(settings, key, key.split("."), value, origin, spellings)
    return settings


def former_settings(settings: Any) -> FormerSettings:
    """The former keys of settings: their class variable `former`, or none."""
    found = getattr(settings, "former", None)
    return found if isinstance(found, FormerSettings) else FormerSettings()


def _assignment(key: str, value: Any) -> str:
    return f"{key}={value}"


def check_ranges(settings: Any, prefix: str = "", shown: Callable[[str, Any], str] = _assignment) -> None:
    """Refuse values that a nest of dataclasses of `setting` fields does not take; the message names all of them.

    `apply_overrides` checks what it sets; this is for settings that a program has put together.

    Args:
        prefix: of the settings' names in the message, such as "model.".
        shown: how the message writes a setting: from its name and its value.
    Raises:
        SettingsError: a number out of its range, or a text that is not one of the choices.
    """
    breaches = list(_breaches(settings, prefix, shown))
    if breaches:
        raise SettingsError(f"{'; '.join(breaches)}.")


def _breaches(settings: Any, prefix: str, shown: Callable[[str, Any], str]) -> Iterator[str]:
    for field in dataclasses.fields(settings):
        value, key = getattr(settings, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            yield from _breaches(value, f"{key}.", shown)
        elif breach := _breach(field, value):
            yield f"{shown(key, value)} {breach}"


def _breach(field: dataclasses.Field[Any], value: Any) -> str:
    """What is wrong with a value of the right type; "" for nothing."""
    choices = field.metadata.get("choices")
    if choices and value is not None and value not in choices:
        return f"is not one of {', '.join(choices)}"
    limits = field.metadata.get("range", Range())
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
            return f"must be at most {LARGEST_INTEGER}"
        if math.isfinite(number) and abs(number) > LARGEST_NUMBER:
            return f"must be at most {LARGEST_NUMBER:g}"
        if not limits.holds(number):
            return f"must be {limits}"
    return ""


def parse_assignments(pairs: Sequence[str]) -> dict[str, str]:
    """`["train.steps=5", ...]` as a dictionary.

    Raises:
        SettingsError: an item without `=`.
    """
    result = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--set {pair}: expected key=value, for example data.batch_tokens=4096.")
        result[key.strip()] = value.strip()
    return result


def all_keys(settings: Any, prefix: str = "") -> list[str]:
    """Every dotted key of a nest of dataclasses."""
    keys: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            keys += all_keys(value, f"{prefix}{field.name}.")
        else:
            keys.append(prefix + field.name)
    return keys


def flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Every dotted key with its value."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            flat.update(flatten(value, f"{prefix}{field.name}."))
        else:
            flat[prefix + field.name] = value
    return flat


def describe(settings: Any, prefix: str = "") -> list[tuple[str, Any, str]]:
    """(dotted key, value, help) of every setting, for help texts and the manual."""
    rows: list[tuple[str, Any, str]] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            rows += describe(value, f"{prefix}{field.name}.")
        else:
            text = field.metadata.get("help", "")
            if field.metadata.get("choices"):
                text = f"{text.removesuffix('.')}. One of: {', '.join(field.metadata['choices'])}."
            elif field.metadata.get("range", Range()) != Range():
                text = f"{text.removesuffix('.')}. Range: {field.metadata['range']}."
            rows.append((prefix + field.name, value, text))
    return rows


def save_yaml(settings: Any, path: Path, others: Mapping[str, Any] | None = None) -> None:
    """Write a nest of dataclasses, and other keys behind them, as YAML; the file is replaced whole."""
    write_text(path, yaml.safe_dump({**dataclasses.asdict(settings), **(others or {})}, sort_keys=False))


def load_yaml(path: Path) -> dict[str, Any]:
    """Read YAML (nested or dotted keys) as dotted key to value.

    Raises:
        SettingsError: the file is missing or is not a mapping.
    """
    try:
        content = load_strict(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the settings file ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected `group: {{name: value}}`, found {type(content).__name__}.")
    flat: dict[str, Any] = {}
    for key, value in _dotted(content):
        if key in flat:
            raise SettingsError(f"{path}: {key} is there twice, as a dotted key and in its group. Leave one.")
        flat[key] = value
    return flat


def _dotted(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _replace(settings: Any, full_key: str, path: list[str], value: Any, origin: str,
             spellings: Mapping[str, str]) -> Any:
    fields = {field.name: field for field in dataclasses.fields(settings)}
    name = path[0]
    current = getattr(settings, name, None)
    is_group = dataclasses.is_dataclass(current)
    if name not in fields or is_group != (len(path) > 1):
        raise SettingsError(f"{origin}: there is no setting '{full_key}'.{_nearest(full_key, spellings)}")
    if is_group:
        new = _replace(current, full_key, path[1:], value, origin, spellings)
    else:
        new = _convert(type(settings), fields[name], full_key, value, origin)
    return dataclasses.replace(settings, **{name: new})


def _nearest(key: str, spellings: Mapping[str, str]) -> str:
    """A sentence with the setting whose key, or former key, is most like `key`.

    Args:
        spellings: each key, and each former one, to the key of today.
    """
    last = {spelling.split(".")[-1]: new for spelling, new in reversed(list(spellings.items()))}
    close = [spellings[spelling] for spelling in difflib.get_close_matches(key, spellings, n=1, cutoff=0.6)]
    if not close:
        close = [last[k] for k in difflib.get_close_matches(key.split(".")[-1], list(last), n=1, cutoff=0.6)]
    return f" Did you mean '{close[0]}'?" if close else " `towernmt train --help-settings` lists them all."


def _convert(owner: type, field: dataclasses.Field[Any], key: str, value: Any, origin: str) -> Any:
    kind = typing.get_type_hints(owner)[field.name]
    converted = _as_type(kind, value)
    if converted is _WRONG:
        raise SettingsError(f"{origin}: {key}={value} is not {_type_name(kind)} "
                            f"(default: {_default(field)}).")
    breach = _breach(field, converted)
    if breach:
        raise SettingsError(f"{origin}: {key}={value} {breach}.")
    return converted


_WRONG = object()


def _as_type(kind: Any, value: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None or value in ("none", "None", "null"):
            return None
        return _as_type(next(a for a in args if a is not type(None)), value)
    if origin is list:
        items = [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            return _WRONG
        converted = [_as_type(args[0], item) for item in items]
        return _WRONG if any(c is _WRONG for c in converted) else converted
    if kind is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}.get(
            str(value).lower(), _WRONG)
    if kind is str:
        return value if isinstance(value, str) else _WRONG
    if isinstance(value, bool):
        return _WRONG
    try:
        if kind is int and isinstance(value, float) and not value.is_integer():
            return _WRONG
        converted = kind(value)
        return _WRONG if converted != converted else converted      # NaN
    except (TypeError, ValueError, OverflowError):
        return _WRONG


def _type_name(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    args = [a for a in typing.get_args(kind) if a is not type(None)]
    if typing.get_origin(kind) is list:
        return f"a comma-separated list ({names.get(args[0], str(args[0]))} each)"
    return names.get(args[0] if args else kind, str(kind))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
