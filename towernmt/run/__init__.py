"""From settings to a run, and automatic settings."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "directory": ["RunDirectory"],
    "launch": ["train"],
    "run_settings": [
        "CheckpointSettings", "DataSettings", "InitSettings", "LogSettings", "RecoverySettings", "Settings",
        "TrainSettings", "ValidationSettings", "default_settings", "settings_of_model"],
})
