"""The keys that settings of a run had in former versions: a renamed one and its new key, a removed one and its value.

`settings.yaml`, `--config` and `--set` take them as before.
"""

from __future__ import annotations

from towernmt.core.former_settings import FormerSettings, Removed

_RENAMED = {
    "train.batch_tokens": "data.batch_tokens",
    "train.batch_type": "data.batch_type",
    "train.bucket_width": "data.bucket_width",
    "train.max_length": "data.max_length",
    "train.sort_by_length": "data.sort_by_length",
    "train.shuffle": "data.shuffle",
    "train.seed": "data.seed",
    "train.window": "data.window",
    "train.subword_sampling": "data.subword_sampling",
    "train.subword_alpha": "data.subword_alpha",
    "train.subword_nbest": "data.subword_nbest",
    "train.memory_gb": "data.memory_gb",
    "train.feeders": "data.feeders",
    "train.queue_capacity": "data.queue_capacity",
    "train.recompute": "train.gradient_checkpointing",
    "train.init_from": "init.checkpoint",
    "train.init_new": "init.new",
    "train.init_left_out": "init.left_out",
    "train.source_embeddings": "init.source_embeddings",
    "train.target_embeddings": "init.target_embeddings",
    "train.validate_steps": "validation.steps",
    "train.validate_minutes": "validation.minutes",
    "train.validate_sentences": "validation.sentences",
    "train.metric": "validation.metric",
    "train.metric_set": "validation.metric_set",
    "train.checkpoint_steps": "checkpoint.steps",
    "train.checkpoint_minutes": "checkpoint.minutes",
    "train.keep_checkpoints": "checkpoint.keep",
    "train.keep_best": "checkpoint.keep_best",
    "train.log_steps": "log.steps",
    "train.attention_pictures": "log.attention_pictures",
    "train.histograms": "log.histograms",
    "train.on_divergence": "recovery.on_divergence",
    "train.rollbacks": "recovery.rollbacks",
    "train.rollback_rate": "recovery.rollback_rate",
    "train.skip_out_of_memory": "recovery.skip_out_of_memory",
    "model.dropout_divergence": "model.r_drop_alpha",
    "search.stop_early": "search.stopping",
}

_REMOVED = {
    "train.loss_scale_growth_steps": Removed(2000, "leave it out"),
    "train.least_loss_scale": Removed(1.0, "leave it out; an overflow at a loss scale of 1 ends training"),
    "optimizer.adafactor_decay_exponent": Removed(0.8, "leave it out, for the paper's value"),
    "optimizer.adafactor_epsilon": Removed(1e-3, "leave it out, for the paper's value"),
    "schedule.min_delta": Removed(0.0, "leave it out; every better score is an improvement"),
}

_SWITCHES = {"search.stop_early": ("exact", "none")}

FORMER = FormerSettings(_RENAMED, _REMOVED, _SWITCHES)
