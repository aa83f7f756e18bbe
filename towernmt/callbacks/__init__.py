"""What happens around the training steps. docs/callbacks.md lists the callbacks and the order they stand in.

Names load on first use, so that importing one module (the settings of the schedules, say) does not
start TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "best_checkpoints": ["BestCheckpoints"],
    "bleu_validator": ["BleuValidator"],
    "checkpoint": ["CheckpointSaver"],
    "early_stopping": ["EarlyStopping"],
    "limits": ["StopAfterMinutes", "StopAtStep"],
    "nan_guard": ["NaNGuard", "watch_gradients"],
    "patience": ["Patience"],
    "progress": ["Progress"],
    "schedule_callbacks": [
        "ConstantSchedule", "CosineSchedule", "ExponentialSchedule", "InverseSquareRootSchedule",
        "LearningRateSchedule", "LinearSchedule", "NoamSchedule", "PiecewiseSchedule", "ReduceOnPlateau",
        "make_schedule"],
    "schedules": ["ScheduleSettings"],
    "score_watcher": ["ScoreWatcher"],
    "stateful": ["StatefulCallback"],
    "stop_signal": ["StopOnSignal"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
