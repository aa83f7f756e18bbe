"""From settings to a run, and automatic settings."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "assemble": ["with_vocabulary_sizes"],
    "directory": ["RunDirectory", "differing_vocabulary", "model_from_settings"],
    "launch": ["train"],
    "resolve": ["Overrides", "SettingsSources", "resolve_settings"],
    "run_settings": [
        "CheckpointSettings", "DataSettings", "InitSettings", "LogSettings", "RecoverySettings", "Settings",
        "TrainSettings", "ValidationSettings", "default_settings", "settings_of_model"],
})
