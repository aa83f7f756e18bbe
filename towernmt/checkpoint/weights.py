"""Find the weights of a model among the variables of a checkpoint, and the value to use for each.

The value is the moving average if the checkpoint has one, else the weight itself. A checkpoint lists its weights in
`state.json` (`weights`). For an older checkpoint, or one of another program, the names decide: TensorFlow names the
slots of an optimizer `VARIABLE/SLOT`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.core.errors import CheckpointError
from towernmt.core.graph_state import BUILDING
from towernmt.core.tensors import Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel, batch_signature, sentence_log_probabilities
from towernmt.optim.optimizer import AVERAGE_SUFFIX

KEY = "weights"
"""The key of the names of the weights in `state.json`."""
_BOOKKEEPING = re.compile(
    r"^(global_step|learning_rate|random_clock|beta[12]_power|adafactor_step|muon_step|loss_scale)(_\d+)?(/|$)")
"""Names of variables of training that do not belong to a weight, in checkpoints that do not list their weights. New
checkpoints list them, so a variable of a new optimizer needs no entry."""


def weights_of_graph() -> list[str]:
    """Return the names of the weights in the default graph: trainable variables and MODEL_VARIABLES."""
    return sorted({v.op.name for v in _weights()})


def _weights() -> list[Variable]:
    return [*tf1.trainable_variables(), *tf1.model_variables()]


def weights_of_model(model: NMTModel, saved_names: Container[str] = ()) -> list[str]:
    """Return the names of the variables that a model predicts with: to search, to score and to align.

    Args:
        model: the model.
        saved_names: the names in a checkpoint. A variable that only alignment uses (`decode_with_attention`) is
            returned if it is among them, because translation does not need it.
    """
    with BUILDING, tf.Graph().as_default(), PredictTowerContext(""):
        tf1.set_random_seed(0)      # see `training_tower`
        source = [tf1.placeholder(spec.dtype, spec.shape) for spec in model.encoder_inputs()]
        target, target_length = (tf1.placeholder(spec.dtype, spec.shape) for spec in batch_signature()[2:4])
        memory = model.encode(*source)
        sentence_log_probabilities(model, memory, target, target_length)
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            model.decode_step(tf.zeros([tf.shape(source[0])[0]], tf.int32), model.start_state(memory, 1))
            required_names = [variable.op.name for variable in tf1.global_variables()]
            if saved_names and model.gives_attention:
                model.decode_with_attention(memory, target)
        return [name for v in tf1.global_variables() if (name := v.op.name) in required_names or name in saved_names]


class TrainingTower(NamedTuple):
    """The variables of a model's training tower.

    Attributes:
        variables: the names of all global variables.
        weights: name to shape of the weights; None for an unknown shape.
    """

    variables: frozenset[str]
    weights: dict[str, list[int | None] | None]


def training_tower(model: NMTModel) -> TrainingTower:
    """Return the variables of a model's training tower, which is built in a temporary graph."""
    with BUILDING, tf.Graph().as_default():
        tf1.set_random_seed(0)      # TensorFlow's random operations need a seed under op determinism
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
        with TrainTowerContext(""):
            model.build_graph(*inputs)
        shapes = {v.op.name: v.shape.as_list() if v.shape.rank is not None else None for v in _weights()}
        return TrainingTower(frozenset(v.op.name for v in tf1.global_variables()), shapes)


def saved_name(weight: str, saved_names: Container[str], averaged: bool = True) -> str:
    """Return the name of a weight's value in a checkpoint: its moving average if it exists, else the weight itself.

    Args:
        weight: the name of the variable.
        saved_names: the names in the checkpoint.
        averaged: False: always the weight itself.
    """
    return weight + AVERAGE_SUFFIX if averaged and weight + AVERAGE_SUFFIX in saved_names else weight


def read_weight(checkpoint: OpenCheckpoint, weight: str, averaged: bool = True) -> np.ndarray:
    """Return the value of a weight in a checkpoint, chosen as by `saved_name`.

    Raises:
        CheckpointError: the weight is missing, or the checkpoint is damaged.
    """
    return checkpoint.value(saved_name(weight, checkpoint.shapes(), averaged))


def weights_of_checkpoint(checkpoint: OpenCheckpoint) -> list[str]:
    """Return the names of the weights in a checkpoint.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    saved_shapes, state = checkpoint.shapes(), checkpoint.state()
    if state is not None and state.weights is not None:
        return sorted(set(state.weights) & set(saved_shapes))
    return weights_by_slots(saved_shapes)


def weights_by_slots(names: Collection[str]) -> list[str]:
    """Return the weights among variables: those that have slots. If no variable has slots, these are all weights.

    Variables of the bookkeeping of training are never weights.
    """
    variable_names = set(names)
    owners = {name: [parent for parent in _parents(name) if parent in variable_names] for name in variable_names}
    with_slots = {parent for parents in owners.values() for parent in parents}
    return sorted(name for name in with_slots or variable_names if not owners[name] and not _BOOKKEEPING.match(name))


def refuse_unknown(checkpoint: OpenCheckpoint, known_names: Collection[str], fix: str, left_out: Sequence[str] = (),
                   model: NMTModel | None = None) -> None:
    """Refuse a checkpoint with weights that the model does not have.

    Args:
        checkpoint: the checkpoint.
        known_names: the names of the variables in the graph.
        fix: how the user can fix the problem, for the message.
        left_out: regular expressions for names of weights that may be unknown.
        model: the model of a prediction graph. Weights that only its training tower uses are accepted.

    Raises:
        CheckpointError: a weight is unknown, or has another shape than in the training tower.
    """
    unknown = [name for name in weights_of_checkpoint(checkpoint)
               if name not in known_names and not any(re.search(pattern, name) for pattern in left_out)]
    if unknown and model is not None:
        trained = _training_tower(checkpoint, model, unknown[0]).weights
        _check_shapes(checkpoint, {name: trained[name] for name in unknown if name in trained})
        unknown = [name for name in unknown if name not in trained]
    if unknown:
        ending = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise CheckpointError(f"{checkpoint.name} has the trained variable '{unknown[0]}'{ending}, "
                              f"which the model does not have, so it belongs to another model; {fix}")


def refuse_missing(checkpoint: OpenCheckpoint, name: str, fix: str, model: NMTModel | None = None) -> NoReturn:
    """Refuse a checkpoint that lacks a variable of the graph.

    Args:
        checkpoint: the checkpoint.
        name: the name of the variable.
        fix: how the user can fix the problem, for the message.
        model: the model of a prediction graph; the message says if its training tower does not create the variable.

    Raises:
        CheckpointError: always.
    """
    if model is not None and name not in _training_tower(checkpoint, model, name).variables:
        raise CheckpointError(f"{checkpoint.name}: translation uses the variable '{name}', which the training tower of "
                              f"{type(model).__name__} does not create, so no checkpoint has a value for it; create "
                              "the variable in `build_graph` too, and train again (`towernmt check` shows its line).")
    raise CheckpointError(f"{checkpoint.name}: variable '{name}' is not in this checkpoint, which belongs to another "
                          f"model or optimizer; {fix}")


def _training_tower(checkpoint: OpenCheckpoint, model: NMTModel, name: str) -> TrainingTower:
    """Return `training_tower(model)`, for a checkpoint whose variables differ from the graph in `name`."""
    try:
        return training_tower(model)
    except Exception as error:      # whatever a user's `build_graph` raises
        reason = (str(error).strip().splitlines() or [""])[0]
        raise CheckpointError(f"{checkpoint.name}: the checkpoint and the translation graph differ in the variable "
                              f"'{name}', and the training tower of {type(model).__name__}, which shows whether the "
                              f"checkpoint belongs to the model, cannot be built ({type(error).__name__}: {reason}); "
                              "fix its `build_graph`.") from error


def _check_shapes(checkpoint: OpenCheckpoint, trained: Mapping[str, list[int | None] | None]) -> None:
    """Refuse a weight whose shape differs in the training tower."""
    saved_shapes = checkpoint.shapes()
    for name, shape in trained.items():
        if shape is not None and not tf.TensorShape(shape).is_compatible_with(saved_shapes[name]):
            raise CheckpointError(f"{checkpoint.name}: variable '{name}' has shape {saved_shapes[name]} in this "
                                  f"checkpoint but {shape} in the model's training tower; use the settings of its "
                                  "training, or another run.")


def _parents(name: str) -> list[str]:
    components = name.split("/")
    return ["/".join(components[:i]) for i in range(1, len(components))]
