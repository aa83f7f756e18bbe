"""The command line: `towernmt COMMAND`. Nothing else imports it, except examples."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "main": ["run_command"],
    "train": [
        "add_run_arguments", "check_devices", "gpu_numbers", "is_in_cluster", "print_settings", "settings_sources",
        "train_resolved"],
})
