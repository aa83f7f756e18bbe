"""Values of settings as text: read as the type of a field, and written in the form that `--set` accepts."""

from __future__ import annotations

import math
import types
import typing
from typing import Any

import yaml

WRONG = object()
"""Returned by `as_type` for a value of another type, because None is a value."""
_NONE = ("none", "null", "~")
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class AssignedText(str):
    """The text of a value after `key=` of `--set`, in YAML. Quotes around a text are optional."""


def as_type(kind: Any, value: Any) -> Any:
    """Return a value as the type of a field, or `WRONG` if it is of another type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = next(a for a in args if a is not type(None))
        if value is None or (isinstance(value, str) and (value.lower() in _NONE or (not value and inner is not str))):
            return None
        return as_type(inner, value)
    if origin in (list, tuple) and args:
        items = _items(value, args[0]) if isinstance(value, str) else value
        kinds = [*args] if origin is tuple and args[-1] is not ... else None
        if not isinstance(items, (list, tuple)) or (kinds is not None and len(kinds) != len(items)):
            return WRONG
        converted = [as_type(*pair) for pair in zip(kinds or [args[0]] * len(items), items, strict=True)]
        return WRONG if any(c is WRONG for c in converted) else origin(converted)
    if origin is typing.Literal:
        return next((choice for choice in args if as_type(type(choice), value) == choice), WRONG)
    if kind in (list, tuple) and isinstance(value, str):
        return WRONG       # not its letters
    if isinstance(value, AssignedText):
        value = _unquoted(value)
    if kind is bool:
        return value if isinstance(value, bool) else _TRUTH.get(str(value).lower(), WRONG)
    if kind is str:
        return str(value) if isinstance(value, str) else WRONG
    return WRONG if isinstance(value, bool) else _as_number(kind, value)


def _as_number(kind: Any, value: Any) -> Any:
    """Return a value as `int` or `float`; `WRONG` if it is not such a number."""
    try:
        if kind is int and isinstance(value, str) and not value.strip().lstrip("+-").replace("_", "").isdecimal():
            value = float(value)        # 1e4
        if kind is int and isinstance(value, float) and not value.is_integer():
            return WRONG
        converted = kind(value)
        return WRONG if converted != converted else converted      # NaN
    except (TypeError, ValueError, OverflowError):
        return WRONG


def _items(text: str, kind: Any) -> Any:
    """Return the items of a list that is written with commas or as YAML; `WRONG` if it begins as YAML and is not.

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
        node = composed(text if text[0] in "[-" else f"[{text}]")
        if isinstance(node, yaml.SequenceNode):
            scalars = all(isinstance(item, yaml.ScalarNode) for item in node.value)
            return [str(item.value) for item in node.value] if scalars else WRONG
        if kind is not str or text[-1] == "]" or "'" in text or '"' in text:
            return WRONG
    return [item.strip() for item in text.split(",") if item.strip()]


def _unquoted(text: str) -> str:
    """Return a text without the quotes of YAML around it, if it has some."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        node = composed(text)
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
    return text


def composed(text: str) -> yaml.Node | None:
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


def type_name(kind: Any) -> str:
    """Return the type of a field as words for a message."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text",
             list: "a list in a settings file", tuple: "a list in a settings file"}
    args = [a for a in typing.get_args(kind) if a is not type(None)]
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(str, args))}"
    if typing.get_origin(kind) in (list, tuple) and args:
        return f"a list such as `[a, b]` or `a,b` ({names.get(args[0], str(args[0]))} each)"
    return names.get(args[0] if args else kind, str(kind))
