"""The optimizer of a model that was given none. Models do not know optimizers, so the package sets it here."""

from __future__ import annotations

from collections.abc import Callable

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Optimizer

_MAKERS: list[Callable[[], Optimizer]] = []


def set_default_optimizer(make: Callable[[], Optimizer]) -> None:
    """Set what makes the optimizer of a model that was handed none.

    Args:
        make: gives a `tf1.train.Optimizer` in the default graph.
    """
    _MAKERS[:] = [make]


def default_optimizer() -> Optimizer:
    """A new `tf1.train.Optimizer` in the default graph.

    Raises:
        SettingsError: the package `towernmt` was not imported, which sets it.
    """
    if not _MAKERS:
        raise SettingsError("The model was handed no optimizer: set its make_optimizer to a function without "
                            "arguments that returns a tf1.train.Optimizer.")
    return _MAKERS[0]()
