"""Set up lazy exports of packages, TensorFlow's environment variables, and the default optimizer.

Importing TensorFlow takes seconds, and settings, command lines and all of `dataflow` work without it. So packages load
their exported names on first use, and a module imports only the modules that it needs.

`import towernmt` sets the environment variables, because TensorFlow reads them when it starts. Models do not import
optimizers, so the package `towernmt` registers the default one here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.machine import processor_flags
from towernmt.core.standard_streams import without_noise
from towernmt.core.tensors import Optimizer


def lazy_exports(package: str, modules: Mapping[str, Sequence[str]]
                 ) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__` and `__dir__` of a package (PEP 562), and its `__all__` with the exported names.

    Args:
        package: `__name__` of the package.
        modules: exported names by module. A module is relative to the package; ".core.runs" is a module of the
            package's parent.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with without_noise():       # if this imports TensorFlow
            return getattr(importlib.import_module(f".{home[name]}", package), name)

    def names() -> list[str]:
        return sorted([*vars(sys.modules[package]), *home])

    return get, names, sorted(home)


class _CallablePackage(ModuleType):
    """A package that can be called like a function; see `make_callable`."""

    function: tuple[str, str]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        module, name = type(self).function
        with without_noise():       # if this imports TensorFlow
            function = getattr(importlib.import_module(module), name)
        return function(*arguments, **options)


def make_callable(package: str, module: str, name: str) -> None:
    """Let a package be called like a function, so that `towernmt.train` is a package and `towernmt.train(...)` trains.

    Args:
        package: `__name__` of the package.
        module: module of the function, which is imported when the package is called.
        name: name of the function.
    """
    sys.modules[package].__class__ = type("CallablePackage", (_CallablePackage,), {"function": (module, name)})


def set_environment() -> None:
    """Set environment variables that are not set, before TensorFlow's libraries are loaded."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if os.environ.get("TOWERNMT_DEBUG") else "2")
    # By default TensorFlow uses oneDNN's operations only on newer processors; they are faster without AVX-512, too.
    if "avx2" in processor_flags():
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # oneDNN compiles a kernel for each new shape and keeps 1,024 of them; the batches of a corpus need some thousands.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    # Otherwise all sessions of the process share the threads of the first one, whatever `session_config` requests.
    os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")


_MAKERS: list[Callable[[], Optimizer]] = []


def set_default_optimizer(make: Callable[[], Optimizer]) -> None:
    """Set the function that creates the optimizer of a model without an optimizer.

    Args:
        make: returns a `tf1.train.Optimizer` in the default graph.
    """
    _MAKERS[:] = [make]


def default_optimizer() -> Optimizer:
    """Return a new `tf1.train.Optimizer` in the default graph.

    Raises:
        SettingsError: the package `towernmt`, which sets the function, was not imported.
    """
    if not _MAKERS:
        raise SettingsError("The model has no optimizer: set its make_optimizer to a function without arguments that "
                            "returns a tf1.train.Optimizer.")
    return _MAKERS[0]()
