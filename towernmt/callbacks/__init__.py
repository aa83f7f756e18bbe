"""What happens around the training steps. docs/guide/callbacks.md lists the callbacks and their order.

Names load on first use, so that importing one module (the settings of the schedules, say) does not
start TensorFlow.
"""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "validation.attention_pictures": ["AttentionPictures"],
    "checkpoints.best_checkpoints": ["BestCheckpoints"],
    "validation.bleu_validator": ["BleuValidator"],
    "checkpoints.saver": ["CheckpointSaver"],
    "stopping.early_stopping": ["EarlyStopping"],
    "reporting.histograms": ["Histograms"],
    "hooks.hooks": ["CallbackToHook", "HookToCallback"],
    "stopping.limits": ["StopAfterMinutes", "StopAtStep"],
    "reporting.loss_scale_monitor": ["LossScaleMonitor"],
    "stopping.nan_guard": ["NaNGuard", "watch_gradients"],
    "schedules.patience": ["Patience"],
    "reporting.progress": ["Progress"],
    "hooks.run_hooks": ["separate_runs"],
    "schedules.learning_rate": ["LearningRateSchedule"],
    "schedules.make": ["make_schedule"],
    "schedules.named": [
        "BudgetSchedule", "ConstantSchedule", "CosineSchedule", "ExponentialSchedule", "InverseSquareRootSchedule",
        "LinearSchedule", "NoamSchedule", "PiecewiseSchedule"],
    "schedules.plateau": ["ReduceOnPlateau"],
    "schedules.settings": ["ScheduleSettings"],
    "validation.score_watcher": ["ScoreWatcher"],
    "stateful": ["StatefulCallback"],
    "stopping.stop_signal": ["StopOnSignal"],
})
