"""MkDocs hook that lists the current public names of a package on the pages of the Python reference.

A line `[[public names of towernmt.models]]` in a page becomes one mkdocstrings block per name. Most packages export
their names lazily, which static analysis cannot follow, so the hook finds the module that defines each name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"^\[\[public names of ([\w.]+)\]\]$", re.M)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with each mark replaced by the blocks of its package or module."""
    return MARK.sub(lambda mark: "\n\n".join(block(name) for name in public_names(mark[1])), markdown)


def block(name: str) -> str:
    """Return the mkdocstrings block of a name. The page of settings documents the fields of settings."""
    fields = "\n    options: {show_signature: false, members: false}" if name.endswith("Settings") else ""
    return f"::: {name}{fields}"


def public_names(package: str) -> list[str]:
    """Return the full names that a package exports, each with the module that defines it.

    Args:
        package: a package with `__all__`, or a package or module whose public classes and functions are listed.
    """
    path = ROOT / package.replace(".", "/")
    exported = _exported(package, path)
    modules = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    if exported is None:
        return [f"{_dotted(module)}.{name}" for module in modules for name in _defined(module)]
    lazy = _lazy_homes(package)     # in the order in which the package lists them
    homes = {name: _dotted(module) for module in modules for name in _defined(module)} | lazy
    names = [name for name in lazy if name in exported] + [name for name in exported if name not in lazy]
    return [f"{homes.get(name, package)}.{name}" for name in names]


def _exported(package: str, path: Path) -> list[str] | None:
    """Return the names in `__all__`, or None if it is missing."""
    if not path.is_dir():
        return None
    tree = ast.parse((path / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__all__"]:
            return [str(name) for name in ast.literal_eval(node.value)]
    exported = getattr(importlib.import_module(package), "__all__", None)      # lazy: this does not load TensorFlow
    return None if exported is None else sorted(exported)


def _lazy_homes(package: str) -> dict[str, str]:
    """Return the defining module of each name that a package exports lazily (see `towernmt.core.startup`)."""
    lookup = getattr(sys.modules.get(package), "__getattr__", None)
    homes = inspect.getclosurevars(lookup).nonlocals.get("home", {}) if lookup else {}
    return {name: resolve_name(f".{module}", package) for name, module in homes.items()}


@cache
def _defined(module: Path) -> tuple[str, ...]:
    """Return the public classes, functions and documented constants of a module in their order."""
    body = ast.parse(module.read_text(encoding="utf-8")).body
    names = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_text(following):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return tuple(name for name in names if not name.startswith("_"))


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _dotted(module: Path) -> str:
    return ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
