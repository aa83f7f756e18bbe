"""Names of a package that load on first use, so that importing one module of it imports only what that needs.

TensorFlow takes seconds to import; settings, command lines and the whole of `dataflow` do without it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from towernmt.core.terminal.stderr_noise import without_noise


def lazy_exports(package: str, modules: Mapping[str, Sequence[str]]
                 ) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__` and `__dir__` of a package (PEP 562), and its `__all__`, which is the names alone.

    Args:
        package: its `__name__`.
        modules: module of the package to the names that it gives.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with without_noise():       # of TensorFlow, if this is what imports it
            return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    def names() -> list[str]:
        return sorted([*vars(sys.modules[package]), *home])

    return get, names, sorted(home)
