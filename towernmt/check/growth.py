"""How large the attributes of a model are, so that what grows with each call is seen."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

_CONTAINERS = (list, dict, set, tuple)
_DEEPEST = 3


def sizes_of_attributes(subject: Any) -> dict[str, int]:
    """Length of every container that is reached from a model by its attributes, by path (`self.cache.keys`).

    Of a plain function, what its closure holds.
    """
    found: dict[str, int] = {}
    owner = getattr(subject, "__self__", subject)
    _visit(owner, "self", found, set(), 0)
    for kind in type(owner).__mro__:
        if kind.__module__.partition(".")[0] not in _QUIET:
            _visit_all(vars(kind), "self", found, set(), 0)
    code, cells = getattr(subject, "__code__", None), getattr(subject, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code else (), cells, strict=True):
        _visit(cell.cell_contents, name, found, set(), 0)
    return found


_QUIET = {"builtins", "tensorpack", "tensorflow", "abc", "typing"}


def _visit(thing: Any, path: str, found: dict[str, int], seen: set[int], depth: int) -> None:
    if id(thing) in seen or depth > _DEEPEST:
        return
    seen.add(id(thing))
    if isinstance(thing, _CONTAINERS) or (isinstance(thing, Sized) and hasattr(thing, "append")):
        found[path] = len(thing)
        if isinstance(thing, dict):
            for key, value in list(thing.items()):
                _visit(value, f"{path}[{key!r}]", found, seen, depth + 1)
        elif isinstance(thing, (list, tuple)):
            for index, value in enumerate(thing[:64]):
                _visit(value, f"{path}[{index}]", found, seen, depth + 1)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type) and _is_plain(thing):
        _visit_all(vars(thing), path, found, seen, depth + 1)


def _visit_all(attributes: Any, path: str, found: dict[str, int], seen: set[int], depth: int) -> None:
    for name, value in list(attributes.items()):
        if not name.startswith("__") and not callable(value):
            _visit(value, f"{path}.{name}", found, seen, depth)


def _is_plain(thing: Any) -> bool:
    """Whether it is not an object of TensorFlow's, whose attributes grow with the graph."""
    return type(thing).__module__.partition(".")[0] not in {"tensorflow", "tensorpack", "numpy"}
