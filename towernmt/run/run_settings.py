"""All settings of a run, in groups of dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from towernmt.callbacks.schedules import ScheduleSettings
from towernmt.callbacks.validation_metrics import METRICS
from towernmt.core.errors import SettingsError
from towernmt.core.settings import setting
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.models.architectures import name_of_model, settings_and_presets
from towernmt.models.model_settings import PRECISIONS
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.predict.search.search_settings import SearchSettings

VOCABULARY_SIZES = ("model.source_vocab_size", "model.target_vocab_size", "model.source_factor_vocab_sizes")
"""The model's settings that the vocabularies determine (`with_vocabulary_sizes`), and that a user cannot set."""


@dataclass
class DataSettings(StreamBatchSettings):
    """How data become batches and reach the towers."""

    memory_gb: float = setting(
        0.0, "memory limit of a step in GiB, for each GPU: use the largest batch_tokens that fits, measured when the "
             "run begins; 0: use batch_tokens", at_least=0)
    feeders: int = setting(2, "threads that fill the input queue", at_least=1, at_most=1000)
    queue_capacity: int = setting(32, "maximum number of batches in the input queue", at_least=1, at_most=1_000_000)


@dataclass
class TrainSettings:
    """How long to train, how to compute an update, and which variables to train."""

    steps: int = setting(0, "maximum number of updates; 0 for no limit", at_least=0)
    epochs: int = setting(0, "maximum number of passes over the data; 0 for no limit", at_least=0)
    minutes: float = setting(
        0.0, "maximum training time in minutes, all resumes included; 0 for no limit", at_least=0)
    stop_patience: int = setting(
        0, "stop after this number of consecutive validations without a better validation.metric; 0: never",
        at_least=0)
    update_cycle: int = setting(1, "batches per update (gradient accumulation)", at_least=1)
    clip_norm: float = setting(0.0, "clip gradients to this global norm; 0 for no clipping", at_least=0)
    precision: str = setting(
        "float32", "precision of matrix products; bfloat16 is faster on a GPU or on a CPU with AVX512_BF16 or AMX; "
        "float16 is for GPUs without bfloat16", choices=PRECISIONS)
    tf32: bool = setting(
        True, "precision=float32 on GPUs from compute capability 8.0 on: multiply with the 11 bits of TF32, which is "
        "much faster; false: with the 24 bits of float32")
    xla: bool = setting(
        False, "compile the towers by XLA for a few padded shapes of batches: the Transformer with attention, and "
               "ConvS2S (takes minutes to compile)")
    fused_norm: bool = setting(
        True, "on GPUs, normalise layers by cuDNN's batch normalisation, which needs half as many kernels; false: by "
              "TensorFlow's plain operations")
    loss_scale: float = setting(
        32768.0, "float16: initial factor of the loss; an overflow halves it", at_least=1)
    gradient_checkpointing: bool = setting(
        False, "recompute each layer in the backward pass instead of storing its activations: less memory, more time")
    deterministic: bool = setting(
        True, "use only kernels that add in a fixed order, so that results are reproducible; on an H100, false "
        "was not faster")
    worker_timeout: float = setting(
        600.0, "several processes: seconds to wait for the others to start, save and validate; a hung process is "
               "detected earlier", above=0)
    collectives: str = setting(
        "auto", "several GPUs in one process: how they sum gradients; nccl: by NCCL; ring: by copies from GPU to GPU; "
                "sum: on the first GPU, which sends the weights; auto: nccl if it is installed, otherwise sum",
        choices=("auto", "nccl", "ring", "sum"))
    transport: str = setting(
        "ring", "several processes: how gradients are summed, in a ring over the network, or by NCCL between GPUs (not "
                "tested yet)", choices=("ring", "nccl"))
    wire: str = setting(
        "float32", "several processes: type of transmitted gradients; bfloat16 halves the bytes and adds with 8 bits",
        choices=("float32", "bfloat16"))
    only: list[str] = setting([], "regular expressions: train only variables whose names match one of them")
    freeze: list[str] = setting([], "regular expressions: do not train variables whose names match one of them")


@dataclass
class InitSettings:
    """Initial values of a new run, instead of random ones."""

    checkpoint: str = setting(
        "", "initialize from the parameters of another run: its directory, one of its checkpoints, or a package")
    new: list[str] = setting(
        ["/lhuc$"], "regular expressions on names: variables that init.checkpoint may lack; they get random values")
    left_out: list[str] = setting(
        [], "regular expressions on names: variables of init.checkpoint that this model lacks; they are ignored")
    embeddings: str = setting(
        "random", "initial embeddings: random, or vectors by the co-occurrence of subwords in the prepared pairs, "
        "which the cross-attention of a Transformer then copies",
        choices=("random", "cooccurrence"))
    source_embeddings: str = setting(
        "", "file with initial embeddings of the source subwords, in word2vec's text format or as .npy")
    target_embeddings: str = setting("", "file with initial embeddings of the target subwords, in the same formats")


@dataclass
class ValidationSettings:
    """When to validate the model, on which sentences, and by which metric."""

    steps: int = setting(
        1000, "interval of validations in updates; a validation translates and scores the validation sets; 0: do not "
              "validate by updates", at_least=0)
    minutes: float = setting(
        0.0, "interval of validations in minutes; 0 for both intervals turns validation off", at_least=0)
    sentences: int = setting(0, "number of sentences from the beginning of each validation set; 0 for all", at_least=0)
    metric: str = setting(
        "bleu", "metric of best checkpoints and early stopping; loss is per target token (nats), without smoothing",
        choices=tuple(METRICS))
    metric_set: str = setting(
        "", "name of the validation set of that metric; empty: the first of --data; mean: the mean over all sets")
    at_start: bool = setting(
        False, "validate a new run before its first update, so that its first parameters are the ones to improve")


@dataclass
class CheckpointSettings:
    """When to write checkpoints, and which of them to keep."""

    steps: int = setting(1000, "interval of checkpoints in updates; 0: do not save by updates", at_least=0)
    minutes: float = setting(0.0, "interval of checkpoints in minutes; 0: do not save by minutes", at_least=0)
    keep: int = setting(5, "number of last checkpoints to keep", at_least=1)
    keep_best: int = setting(1, "number of best checkpoints by validation.metric to keep in addition", at_least=0)
    average: int = setting(
        0, "when training reaches its limit, average this number of last checkpoints, and use the average instead of "
           "the best checkpoint if it is better by validation.metric; 0: do not average", at_least=0)


@dataclass
class LogSettings:
    """Output to the log, to TensorBoard and to an experiment tracker."""

    steps: int = setting(50, "interval of progress lines and of the model's own summaries, in updates", at_least=1)
    attention_pictures: int = setting(
        2, "number of validation sentences whose attention is drawn for TensorBoard at each validation; 0 for none",
        at_least=0, at_most=100)
    histograms: int = setting(
        0, "interval of histograms of parameters and gradients for TensorBoard, in updates; 0 for none", at_least=0)
    tracker: str = setting(
        "none", "experiment tracker that also receives all scalars and the settings: mlflow (needs towernmt[mlflow]), "
        "wandb or trackio (each needs its package)", choices=("none", "mlflow", "wandb", "trackio"))
    tracker_project: str = setting("towernmt", "name of the tracker's project or experiment")


@dataclass
class RecoverySettings:
    """How to react when training diverges, or when a batch does not fit into memory."""

    on_divergence: str = setting(
        "stop", "reaction to a loss or gradient that is not finite: stop, or rollback to the last checkpoint and "
        "resume with a lower learning rate", choices=("stop", "rollback"))
    rollbacks: int = setting(3, "maximum number of rollbacks", at_least=0)
    rollback_rate: float = setting(0.5, "factor of the learning rate at each rollback", above=0, below=1)
    skip_out_of_memory: int = setting(
        10, "maximum number of batches to skip because they run out of memory; 0 stops at the first, as do several "
            "processes", at_least=0)


NAMES_OF_OTHER_TOOLKITS = {name: key for names, key in {
    "batch_size mini_batch mini_batch_words": "data.batch_tokens",
    "batch_unit": "data.batch_type",
    "max_seq_len max_source_positions max_sentence_length": "data.max_length",
    "random_seed": "data.seed",
    "train_steps max_steps max_update max_updates max_step updates": "train.steps",
    "max_epoch max_epochs max_num_epochs": "train.epochs",
    "max_seconds": "train.minutes",
    "early_stopping max_num_checkpoint_not_improved early_stopping_patience": "train.stop_patience",
    "update_freq update_interval accum_count optimizer_delay batch_multiplier gradient_accumulation":
        "train.update_cycle",
    "max_grad_norm gradient_clipping_threshold clip_grad_norm clip_gradient": "train.clip_norm",
    "fp16 amp dtype mixed_precision": "train.precision",
    "lr learn_rate initial_learning_rate": "optimizer.learning_rate",
    "optim type": "optimizer.name",
    "adam_beta1": "optimizer.beta1", "adam_beta2": "optimizer.beta2",
    "adam_epsilon adam_eps eps": "optimizer.epsilon",
    "exponential_smoothing moving_average_decay ema": "optimizer.ema_decay",
    "warmup warmup_updates lr_warmup learning_rate_warmup": "schedule.warmup_steps",
    "lr_scheduler scheduling decay_method decay_type learning_rate_scheduler_type learning_rate_schedule":
        "schedule.name",
    "dropout residual_dropout_rate": "model.residual_dropout",
    "relu_dropout ffn_dropout": "model.activation_dropout",
    "num_layers layers num_encoder_layers enc_layers enc_depth": "model.encoder_layers",
    "num_decoder_layers dec_layers dec_depth": "model.decoder_layers",
    "num_heads transformer_heads attention_heads": "model.heads",
    "rnn_size dim_emb num_embed num_units d_model embed_dim embedding_dim model_size": "model.hidden_size",
    "ff_size ffn_dim ffn_inner_dim d_ff transformer_ff feed_forward_size": "model.filter_size",
    "tied_embeddings tied_embeddings_all share_embeddings shared_embedding_and_softmax_weights share_all_embeddings "
    "tied_softmax weight_tying_type": "model.tie_embeddings",
    "label_smoothing_rate": "model.label_smoothing",
    "valid_freq validation_freq eval_steps valid_steps": "validation.steps",
    "eval_secs": "validation.minutes",
    "early_stopping_metric optimized_metric eval_metric": "validation.metric",
    "save_freq save_checkpoint_steps checkpoint_interval save_checkpoints_steps": "checkpoint.steps",
    "save_checkpoint_secs save_checkpoints_secs": "checkpoint.minutes",
    "keep_top_checkpoint_max": "checkpoint.keep_best",
    "keep_last_params keep_checkpoint_max keep_checkpoint keep_last_ckpts": "checkpoint.keep",
    "logging_freq disp_freq report_every": "log.steps",
    "beam beam_width": "search.beam_size",
    "alpha lenpen beam_alpha decode_alpha": "search.length_penalty",
    "load_model init_checkpoint pretrained_model": "init.checkpoint"}.items() for name in names.split()}
"""Names of settings in other toolkits, and the key that an error message suggests in their place."""


@dataclass
class Settings:
    """Everything that defines a run; saved in its directory as `settings.yaml`."""

    architecture: str = setting(
        "transformer", "set by --model: a built-in architecture, FILE.py:CLASS, or MODULE:CLASS")
    model: Any = None
    data: DataSettings = field(default_factory=DataSettings)
    init: InitSettings = field(default_factory=InitSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    log: LogSettings = field(default_factory=LogSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    names_of_other_toolkits: ClassVar[Mapping[str, str]] = NAMES_OF_OTHER_TOOLKITS


def settings_of_model(model: Any) -> Settings:
    """Return the settings of a run of this model, with the defaults of all other groups.

    Args:
        model: an `NMTModel`. If its `settings` are not a dataclass, programs that translate with the run must pass the
            model.
    """
    model_settings = getattr(model, "settings", None)
    return Settings(name_of_model(model), model_settings if dataclasses.is_dataclass(model_settings) else None)


def default_settings(name: str = "transformer", preset: str | None = None) -> Settings:
    """Return the defaults of an architecture or of one of its presets.

    Args:
        name: an architecture or a custom model, as `towernmt.models.architecture` accepts it.
        preset: a preset of the architecture; None for its defaults.

    Raises:
        SettingsError: unknown architecture or preset.
    """
    model, presets = settings_and_presets(name)
    if preset is not None:
        if preset not in presets:
            names = f"the presets {', '.join(presets)}" if presets else "no presets"
            raise SettingsError(f"--preset {preset}: {name} has {names}.")
        model = dataclasses.replace(model, **presets[preset])
    return Settings(architecture=name, model=model)


def width_of_model(settings: Settings) -> int:
    """Return the hidden size of the model, for the schedule noam; 512 for a custom model without a hidden size."""
    return int(getattr(settings.model, "hidden_size", 512))


ALIGNING_HEADS = ("model.guided_alignment_layer", "model.guided_alignment_heads")
"""The settings that name the heads that align words. No variable depends on them, so they can change within a run. A
new training of the model keeps them, because other heads have not learned alignments."""


def affects_training_only(key: str) -> bool:
    """Return whether only the training of a model depends on one of its settings, and no variable, as for dropout."""
    return any(part in key for part in ("dropout", "smoothing", "softmax_sample", "r_drop", "guided_alignment"))
