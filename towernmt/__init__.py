"""towernmt: neural machine translation with tower functions, on tensorpack and TensorFlow graph mode."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

from towernmt.core.default_optimizer import set_default_optimizer
from towernmt.core.machine.tf_environment import set_environment
from towernmt.core.tensors import Optimizer

__version__ = "0.1.0"

set_environment()   # here, since any module of the package may be the first to import tensorpack or TensorFlow


class _FormerNames(MetaPathFinder):
    """Has former names understood once a program imports what is not there: it is asked after the usual finders."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """None; the finder of the former names is asked next."""
        if name.startswith(f"{__name__}."):
            from towernmt.models.registry.former_names import understand_former_names

            understand_former_names()


sys.meta_path.append(_FormerNames())


def _default_optimizer() -> Optimizer:
    """Adam at its default settings; loads TensorFlow and the optimizers when it is called."""
    from towernmt.optim.settings import OptimizerSettings

    return OptimizerSettings().make()


set_default_optimizer(_default_optimizer)
