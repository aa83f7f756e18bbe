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
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from towernmt.core.errors import SettingsError, nearest, remedy
from towernmt.core.files import write_text
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
            return f"must be {limits}"
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
    return not saved if isinstance(saved, dict) else _as_type(kind, saved) is not _WRONG


def _types(owner: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    try:
        return typing.get_type_hints(owner)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise SettingsError(f"{owner.__qualname__}: the type of a setting cannot be read ({error}): import or define "
                            "it in the module of the class, and not only for type checkers.") from error


class AssignedText(str):
    """The text of a value after `key=` of `--set`, in YAML. Quotes around a text are optional."""


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
    node = _composed(value) if value.startswith("{") else None
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
    converted = _as_type(kind, value)
    if converted is _WRONG:
        raise SettingsError(f"{origin}: {key}={value} is not {_type_name(kind)} "
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


_WRONG = object()


_NONE = ("none", "null", "~")
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _as_type(kind: Any, value: Any) -> Any:
    """Return a value as the type of a field, or `_WRONG` if it is of another type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = next(a for a in args if a is not type(None))
        if value is None or (isinstance(value, str) and (value.lower() in _NONE or (not value and inner is not str))):
            return None
        return _as_type(inner, value)
    if origin in (list, tuple) and args:
        items = _items(value, args[0]) if isinstance(value, str) else value
        kinds = [*args] if origin is tuple and args[-1] is not ... else None
        if not isinstance(items, (list, tuple)) or (kinds is not None and len(kinds) != len(items)):
            return _WRONG
        converted = [_as_type(*pair) for pair in zip(kinds or [args[0]] * len(items), items, strict=True)]
        return _WRONG if any(c is _WRONG for c in converted) else origin(converted)
    if origin is typing.Literal:
        return next((choice for choice in args if _as_type(type(choice), value) == choice), _WRONG)
    if kind in (list, tuple) and isinstance(value, str):
        return _WRONG       # not its letters
    if isinstance(value, AssignedText):
        value = _unquoted(value)
    if kind is bool:
        return value if isinstance(value, bool) else _TRUTH.get(str(value).lower(), _WRONG)
    if kind is str:
        return str(value) if isinstance(value, str) else _WRONG
    return _WRONG if isinstance(value, bool) else _as_number(kind, value)


def _as_number(kind: Any, value: Any) -> Any:
    """Return a value as `int` or `float`; `_WRONG` if it is no such number."""
    try:
        if kind is int and isinstance(value, str) and not value.strip().lstrip("+-").replace("_", "").isdecimal():
            value = float(value)        # 1e4
        if kind is int and isinstance(value, float) and not value.is_integer():
            return _WRONG
        converted = kind(value)
        return _WRONG if converted != converted else converted      # NaN
    except (TypeError, ValueError, OverflowError):
        return _WRONG


def _items(text: str, kind: Any) -> Any:
    """Return the items of a list that is written with commas or as YAML; `_WRONG` if it begins as YAML and is not.

    Args:
        text: `1,2`, `[1, 2]`, `["a, b", c]`, `- 1`, or nothing for no items. A list of texts may hold regular
            expressions, which can begin with a bracket: `[a-z]+/kernel`.
        kind: the type of an item.
    """
    text = text.strip()
    if not text or text.lower() in _NONE:
        return []
    if kind is not str and text[0] + text[-1] == "()":
        text = f"[{text[1:-1]}]"
    if text[0] == "[" or text.startswith("- ") or (len(text) > 1 and text[0] in "'\"" and text[0] == text[-1]):
        node = _composed(text if text[0] in "[-" else f"[{text}]")
        if isinstance(node, yaml.SequenceNode):
            scalars = all(isinstance(item, yaml.ScalarNode) for item in node.value)
            return [str(item.value) for item in node.value] if scalars else _WRONG
        if kind is not str or text[-1] == "]" or "'" in text or '"' in text:
            return _WRONG
    return [item.strip() for item in text.split(",") if item.strip()]


def _unquoted(text: str) -> str:
    """Return a text without the quotes of YAML around it, if it has some."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        node = _composed(text)
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
    return text


def _composed(text: str) -> yaml.Node | None:
    """Return the node of a YAML text, whose scalars are unconverted texts; None if the text is not YAML."""
    try:
        return yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None


def assigned(value: Any) -> str:
    """Return the value of a setting in the form that `--set` accepts: `none`, `true`, `[a, "b, c"]`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return yaml.safe_dump(list(value), default_flow_style=True, width=math.inf, allow_unicode=True).strip()
    text = str(value)
    if isinstance(value, str) and (text != text.strip() or text.lower() in _NONE or text[:1] in ("'", '"', "{")):
        return yaml.safe_dump(text, default_style='"', width=math.inf, allow_unicode=True).strip()
    return text


def _type_name(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text",
             list: "a list in a settings file", tuple: "a list in a settings file"}
    args = [a for a in typing.get_args(kind) if a is not type(None)]
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(str, args))}"
    if typing.get_origin(kind) in (list, tuple) and args:
        return f"a list such as `[a, b]` or `a,b` ({names.get(args[0], str(args[0]))} each)"
    return names.get(args[0] if args else kind, str(kind))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
