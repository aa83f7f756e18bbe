"""Towers to one update after another: the trainer, its loop, session and configuration."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "config": ["TrainConfig"],
    "distributed": ["DistributedTrainer"],
    "trainer": ["SyncMultiGPUTrainer"],
})
