"""All settings of a run, in groups: what is trained on what, how, and what is kept of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from towernmt.callbacks.schedules.settings import ScheduleSettings
from towernmt.callbacks.validation.metrics import METRICS
from towernmt.checkpoint.former_settings import FORMER
from towernmt.core.errors import SettingsError
from towernmt.core.former_settings import FormerSettings
from towernmt.core.settings import setting
from towernmt.dataflow.order.batch_settings import StreamBatchSettings
from towernmt.models import name_of_model, settings_and_presets
from towernmt.models.choices import PRECISIONS
from towernmt.optim.settings import OptimizerSettings
from towernmt.predict.decoding.settings import SearchSettings

FACTS = ("model.source_vocab_size", "model.target_vocab_size", "model.source_factor_vocab_sizes")
"""What a model's settings hold of the data: set from the vocabularies (`model_with_sizes`), and by no user."""


@dataclass
class DataSettings(StreamBatchSettings):
    """How the data become batches, and reach the towers."""

    memory_gb: float = setting(
        0.0, "find the largest batch_tokens whose step takes so many GiB at most, when the run begins; 0: take "
             "batch_tokens", at_least=0)
    feeders: int = setting(2, "threads that fill the input queue", at_least=1, at_most=1000)
    queue_capacity: int = setting(32, "batches the input queue holds", at_least=1, at_most=1_000_000)


@dataclass
class TrainSettings:
    """How long to train, how an update is made, and of which variables."""

    steps: int = setting(0, "stop after so many updates; 0 for no limit", at_least=0)
    epochs: int = setting(0, "stop after so many passes over the data; 0 for no limit", at_least=0)
    minutes: float = setting(
        0.0, "stop after so many minutes of training, resumes included; 0 for no limit", at_least=0)
    stop_patience: int = setting(
        0, "stop after so many validations without a better validation.metric; 0 for never", at_least=0)
    update_cycle: int = setting(1, "batches an update (gradient accumulation)", at_least=1)
    clip_norm: float = setting(0.0, "clip gradients to this global norm; 0 for no clipping", at_least=0)
    precision: str = setting(
        "float32", "of matrix products; bfloat16 is faster on a GPU or on a CPU with AVX512_BF16 or AMX; float16 is "
        "for GPUs without bfloat16", choices=PRECISIONS)
    loss_scale: float = setting(
        32768.0, "float16: what the loss is multiplied with at first; an overflow halves it", at_least=1)
    gradient_checkpointing: bool = setting(
        False, "compute each layer again in the backward pass instead of keeping what it computed: less memory, more "
               "time")
    deterministic: bool = setting(True, "use only kernels that add in a fixed order")
    worker_timeout: float = setting(
        600.0, "several processes: seconds to wait until the others begin, and for what they save and validate; one "
               "that stands still is found sooner", above=0)
    transport: str = setting(
        "ring", "several processes: how gradients are added, in a ring over the network, or by NCCL between GPUs (not "
                "tried on any yet)", choices=("ring", "nccl"))
    wire: str = setting(
        "float32", "several processes: how gradients travel; bfloat16 halves the bytes, and adds with 8 bits",
        choices=("float32", "bfloat16"))
    only: list[str] = setting([], "regular expressions on names: train only the variables that one of them matches")
    freeze: list[str] = setting([], "regular expressions on names: variables that are not trained")


@dataclass
class InitSettings:
    """What a new run begins with, instead of random values."""

    checkpoint: str = setting(
        "", "begin with the parameters of another run: its directory, one of its checkpoints, or a package")
    new: list[str] = setting(
        ["/lhuc$"], "regular expressions on names: variables that init.checkpoint may lack, and that begin anew")
    left_out: list[str] = setting(
        [], "regular expressions on names: variables of init.checkpoint that this model lacks, and that are left out")
    source_embeddings: str = setting("", "begin with these vectors of the source pieces: word2vec's text, or .npy")
    target_embeddings: str = setting("", "the same of the target pieces")


@dataclass
class ValidationSettings:
    """When and on what the model is validated, and by which score."""

    steps: int = setting(
        1000, "translate the validation sets and score them every so many updates; 0 for not by updates", at_least=0)
    minutes: float = setting(
        0.0, "the same every so many minutes; with 0 for both there is no validation", at_least=0)
    sentences: int = setting(0, "use the first so many sentences of each set; 0 for all", at_least=0)
    metric: str = setting(
        "bleu", "what best checkpoints and early stopping go by; loss is of a target token (nats), without smoothing",
        choices=tuple(METRICS))
    metric_set: str = setting("", "the name of the validation set whose metric that is; empty: the first")


@dataclass
class CheckpointSettings:
    """When checkpoints are written, and which of them stay."""

    steps: int = setting(1000, "save a checkpoint every so many updates; 0 for none", at_least=0)
    minutes: float = setting(0.0, "save a checkpoint every so many minutes; 0 for none", at_least=0)
    keep: int = setting(5, "how many of the last checkpoints stay", at_least=1)
    keep_best: int = setting(1, "how many of the best checkpoints by validation.metric are kept apart", at_least=0)
    average: int = setting(
        0, "when training reaches its limit, take the mean of the last so many checkpoints in place of the best one if "
           "it is better by validation.metric; 0: make none", at_least=0)


@dataclass
class LogSettings:
    """What the log and TensorBoard get."""

    steps: int = setting(50, "a progress line every so many updates", at_least=1)
    attention_pictures: int = setting(
        2, "so many validation sentences have their attention drawn for TensorBoard at each validation; 0 for none",
        at_least=0, at_most=100)
    histograms: int = setting(
        0, "histograms of parameters and gradients for TensorBoard every so many updates; 0 for none", at_least=0)


@dataclass
class RecoverySettings:
    """What happens when training diverges, or a batch does not fit into memory."""

    on_divergence: str = setting(
        "stop", "what a loss or gradient that is not finite does: stop, or rollback to the last checkpoint and go on "
        "with a lower rate", choices=("stop", "rollback"))
    rollbacks: int = setting(3, "so many rollbacks at most", at_least=0)
    rollback_rate: float = setting(0.5, "a rollback multiplies the learning rate by this", above=0, below=1)
    skip_out_of_memory: int = setting(
        10, "skip so many batches at most that run out of memory; 0 stops at the first", at_least=0)


@dataclass
class Settings:
    """Everything that defines a run; saved in its directory as `settings.yaml`."""

    architecture: str = setting("transformer", "set by --model: one of those here, or FILE.py:CLASS, or MODULE:CLASS")
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
    former: ClassVar[FormerSettings] = FORMER


def settings_of_model(model: Any) -> Settings:
    """The settings of a run of this model, the other groups at their defaults.

    Args:
        model: an `NMTModel`. If its `settings` are no dataclass, a program that translates with the run must have the
            model, and pass it on.
    """
    own = getattr(model, "settings", None)
    return Settings(name_of_model(model), own if dataclasses.is_dataclass(own) else None,
                    optimizer=getattr(model, "optimizer_settings", None) or OptimizerSettings())


def default_settings(name: str = "transformer", preset: str | None = None) -> Settings:
    """The defaults of an architecture, or of one of its presets.

    Args:
        name: as `towernmt.models.architecture` takes it.
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


def model_with_sizes(settings: Settings, source: int, target: int) -> Any:
    """The model's group of `settings` with the sizes of the vocabularies.

    Raises:
        SettingsError: a model of one's own has no such settings.
    """
    names = {field.name for field in dataclasses.fields(settings.model)}
    missing = [name for name in ("source_vocab_size", "target_vocab_size") if name not in names]
    if missing:
        raise SettingsError(f"{type(settings.model).__name__}, the settings of the model {settings.architecture}, has "
                            f"no '{missing[0]}': add `{missing[0]}: int = 0`, which is set from the data.")
    return dataclasses.replace(settings.model, source_vocab_size=source, target_vocab_size=target)
