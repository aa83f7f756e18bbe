"""Read JSON into dataclasses with checked types, and YAML that has only one meaning.

Declare the content of a JSON file, and read it. If a field is missing, unknown, of a wrong type or out of its range,
the error is one sentence with the file and the field:

    @dataclass(frozen=True)
    class Record:
        step: Natural                               # a whole number from 0
        score: float                                # finite; whole numbers are accepted
        notes: list[str] = field(default_factory=list)      # a field with a default may be missing

    record = read_json(path, Record, "Remove it, or train again.")
    entries = read_json(path, list[Record], "...", CheckpointError)

The types are dataclasses, `bool`, `int`, `float`, `str`, `None`, `Any`, `Literal`, `list`, `dict[str, ...]`, unions
of these, and `Annotated[number, Between(least, most)]`.

The YAML loader raises an error where PyYAML's safe loader ignores a problem or has no limit: a duplicate key (PyYAML
uses the last one), deep nesting, a node that contains itself by an alias, and aliases of aliases that make the
document huge.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml

from towernmt.core.errors import DataError, TowerNMTError, remedy

T = TypeVar("T")


@dataclass(frozen=True)
class Between:
    """The range of a number, both limits included; None for no limit."""

    least: float | None = None
    most: float | None = None


Natural = Annotated[int, Between(0, 2**63 - 1)]
"""A whole number from 0 that an int64 can hold."""


class JSONError(ValueError):
    """The reason why a value is refused, without the name of its file, which `read_json` and `parse_json` add."""


def read_json(path: str | Path, kind: type[T], advice: str, error: type[TowerNMTError] = DataError) -> T:
    """Return the content of a file as a value of this type.

    Args:
        path: the file, UTF-8.
        kind: expected type of the content; see the module.
        advice: the sentence on how to fix the file, for the error.
        error: class of the error.

    Raises:
        TowerNMTError: (`error`) the file cannot be read, is not JSON, or has another content.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror}). {remedy(reason, advice)}") from reason
    return parse_json(content, kind, str(path), advice, error)


def parse_json(content: bytes, kind: type[T], name: str, advice: str, error: type[TowerNMTError] = DataError) -> T:
    """Parse the content of a file as `read_json` does; `name` is the file in messages."""
    try:
        return typed_value(load_json(content), kind)
    except JSONError as reason:
        raise error(f"{name}: {reason}. {advice}") from None


def load_json(content: bytes) -> Any:
    """Return the Python value of JSON text.

    Raises:
        JSONError: the text is not JSON, or has a NaN or an infinity.
    """
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_no_number)
    except JSONError:
        raise
    except RecursionError:
        raise JSONError("cannot be read (nested too deeply)") from None
    except ValueError as reason:
        raise JSONError(f"cannot be read ({' '.join(str(reason).split())})") from reason


def typed_value(value: Any, kind: type[T], field_path: str = "") -> T:
    """Return a value of JSON as this type; `field_path` is the name of its field, for messages.

    Raises:
        JSONError: the value does not have this type.
    """
    return typing.cast(T, _typed(value, kind, field_path))


def _typed(value: Any, kind: Any, field_path: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        return _in_range(_typed(value, arguments[0], field_path), arguments[1], field_path)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
        raise _mismatch(field_path, value, " or ".join(map(_value_text, arguments)))
    if origin in (typing.Union, types.UnionType):
        return _one_of(value, arguments, field_path)
    if origin is list and isinstance(value, list):
        return [_typed(item, arguments[0], f"{field_path}[{index}]") for index, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: _typed(item, arguments[1], f"{field_path}.{key}" if field_path else key)
                for key, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _instance(value, kind, field_path)
    if kind is float and type(value) is int:
        return float(value) if abs(value) < 1 << 1000 else _refuse(field_path, value, "a number")
    if kind in (bool, int, str, types.NoneType, float, list, dict) and type(value) is kind:
        return value if kind is not float or math.isfinite(value) else _refuse(field_path, value, "a finite number")
    raise _mismatch(field_path, value, _expected(kind))


def _one_of(value: Any, kinds: tuple[Any, ...], field_path: str) -> Any:
    first_error: JSONError | None = None
    for kind in kinds:
        try:
            return _typed(value, kind, field_path)
        except JSONError as reason:
            # A list or an object is reported against the first type that is not null.
            if kind is not types.NoneType and not isinstance(value, (int, str)):
                first_error = first_error or reason
    raise first_error or _mismatch(field_path, value, " or ".join(map(_expected, kinds)))


def _instance(value: dict[str, Any], kind: Any, field_path: str) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    for name in value:
        if name not in fields:
            raise JSONError(f"{_field_text(field_path, name)} is not known")
    for name, field in fields.items():
        if name not in value and field.default is dataclasses.MISSING and (
                field.default_factory is dataclasses.MISSING):
            raise JSONError(f"{_field_text(field_path, name)} is missing")
    return kind(**{name: _typed(item, hints[name], f"{field_path}.{name}" if field_path else name)
                   for name, item in value.items()})


def _in_range(number: Any, bounds: Between, field_path: str) -> Any:
    if bounds.least is not None and number < bounds.least:
        raise _mismatch(field_path, number, f"{bounds.least} or more")
    if bounds.most is not None and number > bounds.most:
        raise _mismatch(field_path, number, f"{bounds.most} or less")
    return number


def _no_number(text: str) -> Any:
    raise JSONError(f"cannot be read ({text} is not JSON)")


def _refuse(field_path: str, value: Any, expected: str) -> Any:
    raise _mismatch(field_path, value, expected)


def _mismatch(field_path: str, value: Any, expected: str) -> JSONError:
    subject = f"the field `{field_path}` holds" if field_path else "it holds"
    return JSONError(f"{subject} {_value_text(value)} where {expected} is expected")


def _field_text(parent: str, name: str) -> str:
    return f"the field `{parent}.{name}`" if parent else f"the field `{name}`"


def _value_text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    try:
        text = json.dumps(value)
    except ValueError:      # an integer of thousands of digits
        return "a number too large"
    return text if len(text) <= 40 else text[:40] + "..."


def _expected(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "null"}
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _expected(typing.get_args(kind)[0])
    return names.get(kind) or ("a list" if list in (kind, origin) else "an object")


_MOST_NODES = 100_000
_MOST_BYTES = 1 << 24


def read_yaml_text(path: Path) -> str:
    """Return the text of a YAML file, for `load_strict`; a file that never ends (/dev/zero) does not fill the memory.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: it is not UTF-8.
        yaml.MarkedYAMLError: the file is larger than any YAML that a person writes.
    """
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise yaml.MarkedYAMLError(problem=f"the file is larger than {_MOST_BYTES >> 20} MiB")
    return content.decode("utf-8").replace("\r\n", "\n")


def load_strict(text: str, booleans: bool = True) -> Any:
    """Return the content of a YAML document, in plain types; None if it is empty.

    Args:
        text: the document.
        booleans: whether yes, no, on, off, true and false without quotes are booleans; otherwise they are texts, such
            as `no`, the code of Norwegian.

    Raises:
        yaml.MarkedYAMLError: the document is malformed or ambiguous; `problem` and `problem_mark` say why and where.
            The message quotes keys, but no values.
    """
    try:
        loader = _StrictLoader(text) if booleans else _TextLoader(text)
    except yaml.reader.ReaderError as error:
        raise yaml.MarkedYAMLError(problem=f"the character #x{error.character:04x} is not allowed in YAML") from error
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > _MOST_NODES:
            raise yaml.MarkedYAMLError(problem=f"it has more than {_MOST_NODES:,} values, aliases written out")
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="it is nested too deeply") from None
    except ValueError:      # such as 2024-02-31, or a number of too many digits
        raise yaml.MarkedYAMLError(problem="a date or a number in it cannot be") from None
    finally:
        loader.dispose()


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):       # the safe loader refuses the others itself
                if key in keys:
                    raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is there twice",
                                                            key_node.start_mark)
                keys.add(key)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if "\0" in str(value):     # written as "\0" in double quotes; it has no place in a path or a URI
            raise yaml.constructor.ConstructorError(None, None, r"a text has the character NUL (\0)", node.start_mark)
        return value


class _TextLoader(_StrictLoader):
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in _StrictLoader.yaml_implicit_resolvers.items()}


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the number of nodes with all aliases expanded. A node that contains itself raises RecursionError."""
    if id(node) not in sizes:
        inner = node.value if isinstance(node.value, list) else []
        children = [child for item in inner for child in (item if isinstance(item, tuple) else (item,))]
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in children)
    return sizes[id(node)]
