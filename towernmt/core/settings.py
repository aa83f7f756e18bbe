"""Typed settings: dataclasses in groups, `group.name=value` on the command line, YAML on disk.

Values come from three layers, from low to high priority: the defaults in the dataclasses, the settings saved with the
run (or a `--config` file), and the command line. An unknown key or a value of the wrong type raises an error that
names the closest correct key, so that a typing mistake never silently trains something else.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from towernmt.core.errors import SettingsError, nearest, remedy
from towernmt.core.files import write_text
from towernmt.core.setting_values import WRONG, AssignedText, as_type, assigned, composed, type_name
from towernmt.core.structured_files import load_strict, read_yaml_text

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The accepted numbers of a setting. A number that is not finite is in no range."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a number is in the range."""
        return (math.isfinite(value)
                and (self.at_least is None or value >= self.at_least) and (self.above is None or value > self.above)
                and (self.at_most is None or value <= self.at_most) and (self.below is None or value < self.below))

    def __str__(self) -> str:
        bounds = (("at least", self.at_least), ("above", self.above), ("at most", self.at_most), ("below", self.below))
        return " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None) or "finite"


LARGEST_INTEGER = 2**63 - 1
LARGEST_NUMBER = 3.4e38
"""The largest number of float32, in which the graph computes."""


def setting(default: Any, help: str, choices: Sequence[str] = (), *, at_least: float | None = None,
            above: float | None = None, at_most: float | None = None, below: float | None = None) -> Any:
    """Return a dataclass field with its meaning, unit and range.

    Args:
        default: the default value; lists are copied for each instance.
        help: one sentence with the meaning and the unit; `towernmt train --help-settings` prints it.
        choices: for a string, the values that are accepted.
        at_least: lower limit of a number, or of each number of a list; None for no limit, as for the next three.
        above: exclusive lower limit.
        at_most: upper limit.
        below: exclusive upper limit.
    """
    metadata = {"help": help, "choices": tuple(choices), "range": Range(at_least, above, at_most, below)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=functools.partial(list, default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def apply_overrides(settings: T, overrides: Mapping[str, Any], origin: str = "--set") -> T:
    """Return `settings` with dotted keys replaced.

    Args:
        settings: a dataclass, possibly of dataclasses.
        overrides: dotted key to value; a string value is read as the field's type.
        origin: source of the values, such as "--set", for messages.

    Raises:
        SettingsError: unknown key, wrong type, a number out of its range, or a text that is not one of the choices.
    """
    keys = all_keys(settings)
    key_by_other_name: Mapping[str, str] = getattr(settings, "names_of_other_toolkits", {})
    spellings = {key: key for key in keys} | {name: key for name, key in key_by_other_name.items() if key in keys}
    for key, value in overrides.items():
        settings = _replace(settings, key, key.split("."), value, origin, spellings)
    return settings


def _assignment(key: str, value: Any) -> str:
    return f"{key}={value}"


def check_ranges(settings: Any, prefix: str = "", format_value: Callable[[str, Any], str] = _assignment) -> None:
    """Refuse values out of range in a nest of dataclasses with `setting` fields; the message names all of them.

    `apply_overrides` checks the values that it sets. This function checks settings that a program has constructed.

    Args:
        settings: the outermost dataclass.
        prefix: prefix of the names in the message, such as "model.".
        format_value: function that formats a name and a value for the message.

    Raises:
        SettingsError: a number out of its range, or a text that is not one of the choices.
    """
    breaches = list(_breaches(settings, prefix, format_value))
    if breaches:
        raise SettingsError(f"{'; '.join(breaches)}.")


def _breaches(settings: Any, prefix: str, format_value: Callable[[str, Any], str]) -> Iterator[str]:
    for field in dataclasses.fields(settings):
        value, key = getattr(settings, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            yield from _breaches(value, f"{key}.", format_value)
        elif breach := _breach(field, value):
            yield f"{format_value(key, value)} {breach}"


def _breach(field: dataclasses.Field[Any], value: Any) -> str:
    """Return why a value of the right type is refused, as the end of a sentence; "" if it is accepted."""
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
            finite = "finite and " if math.isinf(number) and limits != Range() else ""
            return f"must be {finite}{limits}"
    return ""


def check_types(settings: Any) -> None:
    """Refuse a dataclass with a value that `apply_overrides` could not read from the YAML of `save_yaml`.

    Args:
        settings: the dataclass with its default values.

    Raises:
        SettingsError: the type of a setting is not supported, or is not that of its default.
    """
    owner = type(settings)
    for field in dataclasses.fields(settings):
        if not field.init:
            raise SettingsError(f"{owner.__qualname__}.{field.name} has init=False, so a saved value cannot be read: "
                                "make it a property.")
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            check_types(value)
        elif not _is_readable(_types(owner)[field.name], value):
            kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", field.type)
            raise SettingsError(
                f"{owner.__qualname__}.{field.name}: {value!r} as a setting of the type {kind} cannot be read from a "
                "settings.yaml. Annotate it as int, float, bool, str, a Literal, a list or tuple of these, or a "
                "dataclass, and as optional if the default is None.")


def _is_readable(kind: Any, value: Any) -> bool:
    try:
        saved = yaml.safe_load(yaml.safe_dump(value))
    except yaml.YAMLError:
        return False
    return not saved if isinstance(saved, dict) else as_type(kind, saved) is not WRONG


def _types(owner: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    try:
        return typing.get_type_hints(owner)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise SettingsError(f"{owner.__qualname__}: the type of a setting cannot be read ({error}): import or define "
                            "it in the module of the class, and not only for type checkers.") from error


def parse_assignments(pairs: Sequence[str]) -> dict[str, str]:
    """Return `["train.steps=5", ...]` as a dictionary; `train={steps: 5}` sets the keys of a group.

    Raises:
        SettingsError: an item has no `=`.
    """
    result: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--set {pair}: expected key=value, for example data.batch_tokens=4096.")
        result.update(_assignments(key.strip(), AssignedText(value.strip())))
    return result


def _assignments(key: str, value: AssignedText) -> Iterator[tuple[str, AssignedText]]:
    """Yield a key and its value; of a YAML mapping each dotted key and its value."""
    node = composed(value) if value.startswith("{") else None
    if not isinstance(node, yaml.MappingNode):
        yield key, value
        return
    for name, inner in node.value:
        end = value[inner.start_mark.index:inner.end_mark.index]
        yield from _assignments(f"{key}.{name.value}", AssignedText(end.strip()))


def all_keys(settings: Any, prefix: str = "") -> list[str]:
    """Return every dotted key of nested dataclasses."""
    keys: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            keys += all_keys(value, f"{prefix}{field.name}.")
        else:
            keys.append(prefix + field.name)
    return keys


def flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Return every dotted key of nested dataclasses with its value."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            flat.update(flatten(value, f"{prefix}{field.name}."))
        else:
            flat[prefix + field.name] = value
    return flat


def describe(settings: Any, prefix: str = "") -> list[tuple[str, Any, str]]:
    """Return the dotted key, value and help of every setting, for help texts and the manual."""
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


def save_yaml(settings: Any, path: Path, further_values: Mapping[str, Any] | None = None) -> None:
    """Write nested dataclasses, followed by other keys, as YAML; the file is replaced atomically."""
    write_text(path, yaml.safe_dump({**dataclasses.asdict(settings), **(further_values or {})}, sort_keys=False))


def load_yaml(path: Path) -> dict[str, Any]:
    """Read YAML (nested or dotted keys) as dotted key to value.

    Raises:
        SettingsError: the file is missing or is not a mapping.
    """
    try:
        content = copy.deepcopy(_parsed(read_yaml_text(path)))
    except OSError as error:
        advice = remedy(error, "Pass the path of an existing file.")
        raise SettingsError(f"{path}: cannot read the settings file ({error.strerror}). {advice}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}). Convert the file to "
                            "UTF-8.") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected `group: {{name: value}}`, found {type(content).__name__}.")
    flat: dict[str, Any] = {}
    for key, value in _dotted(content):
        if key in flat:
            raise SettingsError(f"{path}: {key} occurs twice, as a dotted key and in its group: remove one.")
        flat[key] = value
    return flat


@functools.lru_cache(maxsize=4)       # a command reads the settings of a run several times
def _parsed(text: str) -> Any:
    return load_strict(text)


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
        new_value = _replace(current, full_key, path[1:], value, origin, spellings)
    else:
        new_value = _convert(type(settings), fields[name], full_key, value, origin)
    return dataclasses.replace(settings, **{name: new_value})


def _nearest(key: str, spellings: Mapping[str, str]) -> str:
    """Return a sentence that suggests the setting most similar to `key`.

    Args:
        key: the unknown key.
        spellings: key of a setting by each key and by each name that other toolkits use.
    """
    by_name = {spelling.split(".")[-1]: setting for spelling, setting in reversed(list(spellings.items()))}
    name = key.split(".")[-1]
    setting = (spellings.get(name.replace("-", "_").lower()) or spellings.get(nearest(key, spellings) or "")
               or by_name.get(nearest(name, by_name) or ""))
    return f" Did you mean '{setting}'?" if setting else " `towernmt train --help-settings` lists them all."


def _convert(owner: type, field: dataclasses.Field[Any], key: str, value: Any, origin: str) -> Any:
    kind = _types(owner)[field.name]
    converted = as_type(kind, value)
    if converted is WRONG:
        raise SettingsError(f"{origin}: {key}={value} is not {type_name(kind)} "
                            f"(default: {assigned(_default(field))}).")
    breach = _breach(field, converted)
    if breach:
        raise SettingsError(f"{origin}: {key}={value} {breach}.{_nearest_choice(field, converted)}")
    return converted


def _nearest_choice(field: dataclasses.Field[Any], value: Any) -> str:
    """Return a sentence with the accepted value that is most like a refused one, or ""."""
    choice_by_letters = {re.sub(r"[\W_]", "", choice.lower()): choice for choice in field.metadata.get("choices", ())}
    close = nearest(re.sub(r"[\W_]", "", str(value)), choice_by_letters)
    return f" Did you mean '{choice_by_letters[close]}'?" if close else ""


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
