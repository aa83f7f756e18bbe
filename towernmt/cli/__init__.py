"""The command line: `towernmt COMMAND`. Nothing else imports it, except examples."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "main": ["run_command"],
    "run_options": [
        "add_run_arguments", "check_devices", "defaults_mode", "gpu_numbers", "print_settings", "settings_sources",
        "workers_of_cluster"],
    "train": ["train_resolved"],
})
