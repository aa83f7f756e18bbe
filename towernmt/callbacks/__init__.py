"""Callbacks, which act around the training steps. docs/guide/callbacks.md lists them in their order."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "attention_pictures": ["AttentionPictures"],
    "best_checkpoints": ["BestCheckpoints"],
    "bleu_validator": ["BleuValidator"],
    "hooks": ["CallbackToHook", "HookToCallback"],
    "learning_rate": ["LearningRateSchedule", "ReduceOnPlateau", "make_schedule"],
    "nan_guard": ["NaNGuard"],
    "progress": ["Progress"],
    "run_hooks": ["separate_runs"],
    "saver": ["CheckpointSaver"],
    "schedules": [
        "RATES", "Rate", "ScheduleSettings", "budget", "constant", "cosine", "exponential",
        "inverse_square_root", "linear", "noam", "piecewise"],
    "stateful": ["Patience", "ScoreWatcher", "StatefulCallback"],
    "stop_on_signal": ["StopOnSignal"],
    "stopping": ["EarlyStopping", "StopAfterMinutes", "StopAtStep"],
    "summaries": ["Histograms", "LossScaleMonitor"],
})
