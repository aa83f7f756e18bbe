"""Where in the user's code an operation was made or an error was raised."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

_HERE = str(Path(__file__).parent) + os.sep
_OURS = str(Path(__file__).parents[1]) + os.sep


def where_made(thing: Any) -> str:
    """`file:line` of what made a variable, tensor or operation; "" for anything else."""
    operation = getattr(thing, "op", thing)
    frames = getattr(operation, "traceback", None)
    return "" if frames is None else _place(frames)


def where_raised(error: BaseException) -> str:
    """`file:line` in the user's code that an exception came through last."""
    return _place(traceback.extract_tb(error.__traceback__))


def where_now() -> str:
    """`file:line` of the user's code that calls the function which asks."""
    return _place(traceback.extract_stack()[:-2])


def where_defined(function: Any) -> str:
    """`file:line` of a Python function or method; "" if it is none."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return "" if code is None else _shown(code.co_filename, code.co_firstlineno)


def where_grown(owner: Any, attribute: str) -> str:
    """`file:line` in the class of `owner` that adds something to `self.attribute`; "" if none is seen."""
    growth = re.compile(rf"\b\w+\.{re.escape(attribute)}\b\s*"
                        r"(\.(append|extend|add|update|insert|setdefault|appendleft)\(|\[[^]]*\]\s*=[^=]|\+=)")
    for kind in type(owner).__mro__:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file is None or _is_library(file):
            continue
        for number, line in enumerate(Path(file).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if growth.search(line):
                return _shown(file, number)
    return ""


def _place(frames: Iterable[Any]) -> str:
    """The innermost frame of user's code inside the tower function; for a model of ours, its innermost frame."""
    inside: list[Any] = []
    for frame in frames:
        inside = [] if frame.filename.startswith(_HERE) else [*inside, frame]
    users = [f for f in inside if not _is_library(f.filename)]
    own = [f for f in users if not f.filename.startswith(_installed())]     # before other packages' layers
    for chosen in (own, users, [f for f in inside if f.filename.startswith(_OURS)]):
        if chosen:
            return _shown(chosen[-1].filename, chosen[-1].lineno)
    return ""


@cache
def _installed() -> str:
    import tensorflow

    return str(Path(tensorflow.__file__).parents[1]) + os.sep


@cache
def _libraries() -> tuple[str, ...]:
    import tensorflow
    import tensorpack

    packages = [str(Path(module.__file__).parent) + os.sep for module in (tensorflow, tensorpack)]
    return (*packages, _OURS)


@cache
def _is_library(file: str) -> bool:
    standard = sysconfig.get_paths()["stdlib"] + os.sep
    return (file.startswith(_libraries()) or file.startswith("<")
            or (file.startswith(standard) and "site-packages" not in file))


def _shown(file: str, line: int) -> str:
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{line}"
