"""Former names of modules, for code of one's own that was written before they were renamed.

A run keeps the code of its model, and is resumed and translated with years later. While such code is loaded, a module
that is no longer there stands for those that have its names now (`former_modules`), and says once which these are.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from towernmt.models.registry.former_modules import MODULES, PACKAGES, RENAMED

_ROOT = "towernmt."


def understand_former_names() -> None:
    """Let imports find former modules, from now on; modules that are there are found as ever."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.append(_Finder())
    for package, modules in PACKAGES.items():
        module = importlib.import_module(_ROOT + package)
        vars(module)["__getattr__"] = _with_former_names(module, modules)


class _Finder(MetaPathFinder):
    """Finds former modules; it comes last, so that it is asked for what no other finds."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        former = name.removeprefix(_ROOT)
        if former == name or not (former in MODULES or any(m.startswith(f"{former}.") for m in MODULES)):
            return None
        return ModuleSpec(name, _Loader(), is_package=True)     # a package, since it may have had modules itself


class _Loader(Loader):
    """Makes the stand-in for a former module."""

    def exec_module(self, module: ModuleType) -> None:
        modules = MODULES.get(module.__name__.removeprefix(_ROOT), ())
        if modules:
            _warn(module.__name__, modules)

        def get(name: str) -> Any:
            return _find(module.__name__, name, modules)

        vars(module)["__getattr__"] = get


def _with_former_names(package: ModuleType, modules: Sequence[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package, which knows names that it had before, too."""
    before = vars(package).get("__getattr__")
    warned: list[str] = []

    def get(name: str) -> Any:
        if before is not None:
            try:
                return before(name)
            except AttributeError:
                pass                                            # then a former one, or none
        found = _find(package.__name__, name, modules)
        if not warned:
            warned.append(name)
            _warn(f"{package.__name__}.{name}", modules)
        return found

    return get


def _find(former: str, name: str, modules: Sequence[str]) -> Any:
    """What a former module called `name`.

    Raises:
        AttributeError: there is no such thing any more.
    """
    if not name.startswith("_"):
        for module in modules:
            found = importlib.import_module(_ROOT + module)
            for spelling in (name, RENAMED.get(name, name)):
                if hasattr(found, spelling):
                    return getattr(found, spelling)
    raise AttributeError(f"module {former!r} has no attribute {name!r}")


def _warn(former: str, modules: Sequence[str]) -> None:
    now = " and ".join(_ROOT + module for module in modules)
    warnings.warn(f"{former} is found in {now} now: import it from there when you change the code.", FutureWarning,
                  stacklevel=2)
