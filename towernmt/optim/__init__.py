"""From a loss to an update: optimizers, gradients, loss scale, averages of weights, freezing."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "gradients": ["allow_skipped_update", "watch_gradients"],
    "optimizer": ["AVERAGE_SUFFIX", "make_optimizer"],
    "optimizer_settings": ["OptimizerSettings"],
})
