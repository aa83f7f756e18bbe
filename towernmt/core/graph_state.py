"""What belongs to a TensorFlow graph besides its operations: its settings, and what its parts tell each other.

A graph has one `GraphState`. Its settings say how towers and optimizer are built, and must be there before they are.
The rest is filled in while the graph is built: a tower makes the clock, an optimizer watches gradients, and callbacks
and the trainer read them. Nothing of it is saved with the graph (`tf1.train.export_meta_graph`). What TensorFlow and
tensorpack look for themselves, such as UPDATE_OPS, is in the graph's collections.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Graph, Operation, Tensor, Variable
from towernmt.core.tf_compat import tf, tf1

LARGEST_LOSS_SCALE = 2.0 ** 60
_ATTRIBUTE = "_towernmt_state"
BUILDING = threading.RLock()
"""Held while towers are built where several threads may do so: tensorpack has one tower context a process."""


@dataclass(frozen=True)
class LossScaling:
    """How the loss scale of float16 begins and moves.

    Args:
        initial: the first scale; powers of two lose no bit.
        growth_updates: good updates in a row before the scale doubles.
        least: an overflow at this scale or below it is a divergence.
    Raises:
        SettingsError: values that cannot work.
    """

    initial: float = 32768.0
    growth_updates: int = 2000
    least: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.least <= self.initial <= LARGEST_LOSS_SCALE:
            raise SettingsError(f"train.loss_scale={self.initial:g} must be at least {self.least:g}, the least scale, "
                                f"which must be above 0, and at most {LARGEST_LOSS_SCALE:g}.")
        if self.growth_updates < 1:
            raise SettingsError(f"growth_updates={self.growth_updates} of the loss scaling must be at least 1.")


@dataclass(frozen=True)
class GraphSettings:
    """How the towers and the optimizer of a graph are built.

    Args:
        seed: of initial parameters and of every draw in the towers.
        precision: of matrix products, one of `towernmt.models.choices.PRECISIONS`.
        gradient_checkpointing: training towers compute their layers again in the backward pass.
        loss_scaling: of losses, where the precision is float16.
        deterministic: TensorFlow takes only kernels that add in a fixed order; once on, it stays so in the process.
    """

    seed: int = 0
    precision: str = "float32"
    gradient_checkpointing: bool = False
    loss_scaling: LossScaling = LossScaling()
    deterministic: bool = False


@dataclass(frozen=True)
class Clock:
    """The count of the batches that training towers have seen.

    Attributes:
        variable: int64 `[]`.
        now: int64 `[]`, its value before the present run advances it.
        advance: adds one batch.
    """

    variable: Variable
    now: Tensor
    advance: Operation


@dataclass(frozen=True)
class LossScaleOfStep:
    """What a callback may fetch with a step whose loss is scaled.

    Attributes:
        finite: bool `[]`, whether the update was made.
        scale: float32 `[]`, of the step's loss.
        skipped: int64 `[]`, updates skipped before this one.
        next_scale: float32 `[]`, of the next step's.
    """

    finite: Tensor
    scale: Tensor
    skipped: Tensor
    next_scale: Tensor


@dataclass
class GraphState:
    """What belongs to one graph.

    Attributes:
        settings: see `configure_graph`.
        clock: made by the first training tower that draws random numbers; None without one.
        sharing_towers: names of the training towers that have a share of a global batch each.
        watched_gradients: (gradient, variable) pairs as they are before clipping; see `optim.gradient_health`.
        update_skipped: bool `[]`, whether the train step skips its update, which is no divergence; None if it cannot.
        loss_scale: of the train step; None where losses are not scaled.
        count_step: adds one to the global step in the run of each update; None if the trainer has no such operation.
        made_once: what decoding made of weights before its loop (`models.kernels.once`); None where nothing decodes.
    """

    settings: GraphSettings = field(default_factory=GraphSettings)
    clock: Clock | None = None
    sharing_towers: set[str] = field(default_factory=set)
    watched_gradients: list[tuple[Tensor, Variable]] = field(default_factory=list)
    update_skipped: Tensor | None = None
    loss_scale: LossScaleOfStep | None = None
    count_step: Operation | None = None
    made_once: dict[tuple[str, ...], Tensor] | None = None


def graph_state(graph: Graph | None = None) -> GraphState:
    """The state of a graph; of the default graph if none is given. The body of a loop or condition has its graph's."""
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

    TensorFlow's own random operations, which a model of yours may use, get the seed too: under op determinism they
    refuse to be without one.
    """
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf1.set_random_seed(settings.seed)
    graph_state().settings = settings
