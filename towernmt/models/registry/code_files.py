"""The files of a module of one's own: its own file, and those that it imports from the same folder or package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from towernmt.core.errors import SettingsError

_ELSEWHERE = {*sys.stdlib_module_names, "towernmt"}
"""Modules that are never taken from the folder of a module of one's own."""


def code_of(root: Path, module: str) -> dict[str, bytes]:
    """The content of a module's file and of those that it imports from its own folder, directly or not.

    Of a module in a package these are files of the package; a directory in it without an `__init__.py` gets an empty
    one.

    Args:
        root: the directory at which imports begin.
        module: its name from there.
    Returns:
        content by the path from the root, with "/" between the parts.
    Raises:
        SettingsError: a file is not Python.
    """
    package = module.partition(".")[0] if "." in module or (root / module / "__init__.py").is_file() else ""
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        wanted = waiting.pop()
        top = wanted.partition(".")[0]
        if found and (top in _ELSEWHERE or (package and top != package)):
            continue
        for name, file in _files(root, wanted):
            if name not in found:
                found[name] = file.read_bytes() if file.is_file() else b""
                waiting += _imported(found[name], name)
    return found


def _files(root: Path, module: str) -> Iterator[tuple[str, Path]]:
    """Name and path of the file of a module below `root`, and of the packages around it; nothing if it is not there."""
    parts = module.split(".")
    path = root.joinpath(*parts)
    files = [path.with_name(f"{path.name}.py"), path / "__init__.py"]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        return
    for depth in range(1, len(parts)):
        yield "/".join([*parts[:depth], "__init__.py"]), root.joinpath(*parts[:depth], "__init__.py")
    yield file.relative_to(root).as_posix(), file


def _imported(content: bytes, name: str) -> list[str]:
    """The modules that a file may import: of `from a import b`, both `a` and `a.b`."""
    try:
        tree = ast.parse(content)
    except SyntaxError as error:
        raise SettingsError(f"{name}: {error.msg} (line {error.lineno}): mend the file.") from error
    package = name.split("/")[:-1]
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            around = package[:len(package) + 1 - node.level] if node.level else []
            base = ".".join([*around, *([node.module] if node.module else [])])
            modules += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [module for module in modules if module]
