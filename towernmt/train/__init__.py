"""Towers to one update: the trainer, optimizers, checkpoints, settings and the directory of a run."""

from __future__ import annotations

from towernmt.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "config": ["TrainConfig"],
    "launch": ["train"],
    "optimizer": ["OptimizerSettings", "make_optimizer"],
    "run_directory": ["RunDirectory"],
    "settings": ["Settings", "TrainSettings", "default_settings", "settings_of_model"],
    "trainer": ["SyncMultiGPUTrainer"],
})
