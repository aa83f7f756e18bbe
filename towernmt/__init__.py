"""towernmt: neural machine translation with tower functions, on tensorpack and TensorFlow graph mode."""

from __future__ import annotations

from typing import Any

from towernmt.core.default_optimizer import set_default_optimizer

__version__ = "0.1.0"


def _default_optimizer() -> Any:
    """Adam at its default settings; loads TensorFlow and the optimizers when it is called."""
    from towernmt.optim.settings import OptimizerSettings

    return OptimizerSettings().make()


set_default_optimizer(_default_optimizer)
