"""The state of a TensorFlow graph in addition to its operations: settings, clock, watched gradients, shared batches.

A graph has one `GraphState`. Its settings determine how towers and the optimizer are built, and must be set before. The
other fields are set while the graph is built: a tower creates the clock, an optimizer registers the gradients to
watch, and callbacks and the trainer read them. The state is not saved with the graph (`tf1.train.export_meta_graph`).
Collections that TensorFlow and tensorpack read themselves, such as UPDATE_OPS, stay in the graph.

The training towers of a step share one batch or have a batch each. `GeneralQueueInput` gives each tower a share of
the rows of one global batch, and gives every tower the same `target_tokens`, which counts the target tokens of the
whole batch. The `InputSource`s of tensorpack give each tower its own batch with its own token count. A cost must be
scaled accordingly, because trainers average over the towers.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import towernmt.core.tf_compat  # noqa: F401    # before tensorpack, which imports TensorFlow with all its noise

# isort: split

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Graph, Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1

LARGEST_LOSS_SCALE = 2.0 ** 60
_ATTRIBUTE = "_towernmt_state"
BUILDING = threading.RLock()
"""Lock for building towers in several threads, because tensorpack has one tower context per process."""


@dataclass(frozen=True)
class LossScaling:
    """Initial value and changes of the loss scale of float16.

    Args:
        initial: the first scale; a power of two does not round gradients.
        growth_updates: number of consecutive updates with finite gradients before the scale doubles.
        least: an overflow at this scale or below it is a divergence.

    Raises:
        SettingsError: a value is out of range.
    """

    initial: float = 32768.0
    growth_updates: int = 2000
    least: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.least <= self.initial <= LARGEST_LOSS_SCALE:
            raise SettingsError(f"train.loss_scale={self.initial:g} must be between the minimum scale, {self.least:g}, "
                                f"which must be above 0, and {LARGEST_LOSS_SCALE:g}.")
        if self.growth_updates < 1:
            raise SettingsError(f"growth_updates={self.growth_updates} of the loss scaling must be at least 1.")


@dataclass(frozen=True)
class GraphSettings:
    """Settings for building the towers and the optimizer of a graph.

    Args:
        seed: seed of initial parameters, and of all random numbers of the towers.
        precision: precision of matrix products, one of `towernmt.models.model_settings.PRECISIONS`.
        gradient_checkpointing: whether training towers compute their layers again in the backward pass.
        loss_scaling: scaling of losses, used only with float16.
        deterministic: whether TensorFlow uses only kernels that add in a fixed order. The process keeps this setting
            once it is on.
        tf32: whether GPUs multiply float32 matrices in TF32, in all graphs of the process.
        xla: whether XLA compiles the training towers, for batches that are padded to few shapes.
        fused_norm: whether training towers on GPUs normalise layers by cuDNN's batch normalisation.
    """

    seed: int = 0
    precision: str = "float32"
    gradient_checkpointing: bool = False
    loss_scaling: LossScaling = LossScaling()
    deterministic: bool = False
    tf32: bool = True
    xla: bool = False
    fused_norm: bool = True


@dataclass(frozen=True)
class Clock:
    """The number of batches that training towers have processed.

    Attributes:
        variable: int64 `[]`.
        now: int64 `[]`, its value before the current run increases it.
        advance: operation that adds 1.
    """

    variable: Variable
    now: Tensor
    advance: Operation


@dataclass(frozen=True)
class LossScaleOfStep:
    """Tensors that a callback may fetch with a step whose loss is scaled.

    Attributes:
        finite: bool `[]`, whether the update was applied.
        scale: float32 `[]`, loss scale of the step.
        skipped: int64 `[]`, number of updates skipped before.
        next_scale: float32 `[]`, loss scale of the next step.
    """

    finite: Tensor
    scale: Tensor
    skipped: Tensor
    next_scale: Tensor


@dataclass
class GraphState:
    """State of one graph.

    Attributes:
        settings: see `configure_graph`.
        clock: clock of the random numbers, which the first training tower that draws some creates; None without one.
        sharing_towers: names of the training towers that share a global batch.
        watched_gradients: (gradient, variable) pairs before clipping; see `optim.gradients`.
        half_squared_norms: float32 `[]` each, half of the squared norm of a watched gradient, by the name of the
            gradient (of its values, if it is sparse). The optimizer computes them to clip, and `NaNGuard` reads them.
        clip_scale: float32 `[]`, the factor that clips the gradients of the last built update; the updates of copies of
            the weights use it, too. None without clipping.
        update_skipped: bool `[]`, whether the train step skips its update without a divergence; None if it never does.
        loss_scale: loss scale of the train step; None if losses are not scaled.
        count_step: operation that adds 1 to the global step in the run of each update; None if the trainer has none.
        maps_in_kernel: number of adjacent maps in a kernel, by its name; Muon divides a kernel into its maps.
        is_replica: whether the update of a copy of the weights is being built. It has its own slots, but does not
            change averages and loss scale.
        hoisted: tensors that decoding computed from weights before its loop (`models.kernels.hoisted`); None outside
            decoding.
    """

    settings: GraphSettings = field(default_factory=GraphSettings)
    clock: Clock | None = None
    sharing_towers: set[str] = field(default_factory=set)
    watched_gradients: list[tuple[Tensor, Variable]] = field(default_factory=list)
    half_squared_norms: dict[str, Tensor] = field(default_factory=dict)
    clip_scale: Tensor | None = None
    update_skipped: Tensor | None = None
    loss_scale: LossScaleOfStep | None = None
    count_step: Operation | None = None
    maps_in_kernel: dict[str, int] = field(default_factory=dict)
    is_replica: bool = False
    hoisted: dict[tuple[str, ...], Tensor] | None = None


def graph_state(graph: Graph | None = None) -> GraphState:
    """Return the state of a graph (default: the current one). Bodies of loops and conditions share it."""
    graph = tf1.get_default_graph() if graph is None else graph
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    state: GraphState | None = getattr(graph, _ATTRIBUTE, None)
    if state is None:
        state = GraphState()
        setattr(graph, _ATTRIBUTE, state)       # not in a table: the state's tensors hold the graph
    return state


def configure_graph(settings: GraphSettings) -> None:
    """Set the settings of the default graph, before its towers and its optimizer are built.

    The seed is also set for TensorFlow's own random operations, which a custom model may use: with op determinism they
    require a seed.
    """
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(settings.tf32)
    tf1.set_random_seed(settings.seed)
    graph_state().settings = settings


TOKENS = "target_tokens"
"""Name of the input with the number of target tokens of the batch."""


def share_batch() -> None:
    """Declare that the current training tower receives a share of the rows of a common batch.

    Its scalars describe the complete batch. A custom `InputSource` calls this function where it creates the tensors of
    a tower.
    """
    context = get_current_tower_context()
    if context is not None and context.is_training:
        graph_state().sharing_towers.add(context.ns_name)


def towers_of_batch() -> int:
    """Return the number of training towers that share the batch of the current tower; 1 if it has its own batch.

    Trainers compute the mean of the cost over the towers. If the cost is a sum over the rows of a tower, times this
    number, divided by `target_tokens`, then the mean is the mean over the tokens of the shared batch. With separate
    batches it is the mean of the means of the batches, as in tensorpack.
    """
    context = get_current_tower_context()
    if context is None or not context.is_training or context.ns_name not in graph_state().sharing_towers:
        return 1
    return int(context.total)


def shares_batch(tower: Any) -> bool:
    """Return whether a training tower (tensorpack's handle) shares its batch with other towers."""
    return tower.ns_name in graph_state().sharing_towers


def total_of_step(towers: list[Any], name: str = TOKENS) -> Tensor:
    """Return the total (float32 `[]`) of a scalar input, such as the target tokens, over the batches of a step.

    Args:
        towers: the handles of this process's training towers.
        name: name of the input.
    """
    numbers = [tower.get_tensor(name) for tower in towers]
    return numbers[0] if len(numbers) == 1 or shares_batch(towers[0]) else tf.add_n(numbers)
