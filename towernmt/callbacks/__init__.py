"""What happens around the training steps. docs/callbacks.md lists the callbacks and the order they stand in.

Names load on first use, so that importing one module (the settings of the schedules, say) does not
start TensorFlow.
"""

from __future__ import annotations

from towernmt.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "attention_pictures": ["AttentionPictures"],
    "best_checkpoints": ["BestCheckpoints"],
    "bleu_validator": ["BleuValidator"],
    "checkpoint": ["CheckpointSaver"],
    "early_stopping": ["EarlyStopping"],
    "histograms": ["Histograms"],
    "hooks": ["CallbackToHook", "HookToCallback"],
    "limits": ["StopAfterMinutes", "StopAtStep"],
    "loss_scale_monitor": ["LossScaleMonitor"],
    "nan_guard": ["NaNGuard", "watch_gradients"],
    "patience": ["Patience"],
    "progress": ["Progress"],
    "run_hooks": ["separate_runs"],
    "schedule_callbacks": [
        "ConstantSchedule", "CosineSchedule", "ExponentialSchedule", "InverseSquareRootSchedule",
        "BudgetSchedule", "LearningRateSchedule", "LinearSchedule", "NoamSchedule", "PiecewiseSchedule",
        "ReduceOnPlateau",
        "make_schedule"],
    "schedules": ["ScheduleSettings"],
    "score_watcher": ["ScoreWatcher"],
    "stateful": ["StatefulCallback"],
    "stop_signal": ["StopOnSignal"],
})
