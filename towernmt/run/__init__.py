"""A run: its directory and settings, and its assembly from settings."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "components": ["Parts"],
    "launch": ["train"],
    "directory": ["RunDirectory"],
    "settings": ["CheckpointSettings", "DataSettings", "InitSettings", "LogSettings", "RecoverySettings", "Settings",
                 "TrainSettings", "ValidationSettings", "default_settings", "settings_of_model"],
})
