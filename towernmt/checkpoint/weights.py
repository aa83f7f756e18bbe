"""Which variables of a checkpoint are a model's weights, and which value of a weight counts.

A checkpoint lists its weights in `state.json` (`weights`). For an older checkpoint, or one of another program, the
names decide: TensorFlow calls an optimizer's slots `VARIABLE/SLOT`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Sequence

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.core.errors import CheckpointError
from towernmt.core.graph_state import BUILDING
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel
from towernmt.models.losses.likelihood import sentence_log_probabilities
from towernmt.optim.ema import SUFFIX

KEY = "weights"
"""In `state.json`: the names of the weights."""
_BOOKKEEPING = re.compile(
    r"^(global_step|learning_rate|random_clock|beta[12]_power|adafactor_step|loss_scale)(_\d+)?(/|$)")
"""Variables of training that do not belong to one weight."""


def weights_of_graph() -> list[str]:
    """The names of the weights in the default graph: what is trained, and what is in MODEL_VARIABLES."""
    return sorted({v.op.name for v in [*tf1.trainable_variables(), *tf1.model_variables()]})


def weights_of_model(model: NMTModel) -> list[str]:
    """The names of the variables that a model predicts with."""
    with BUILDING, tf.Graph().as_default(), PredictTowerContext(""):
        source, source_length, target, target_length = (
            tf1.placeholder(spec.dtype, spec.shape) for spec in model.inputs()[:4])
        sentence_log_probabilities(model, model.encode(source, source_length), target, target_length)
        return [variable.op.name for variable in tf1.global_variables()]


def saved_name(weight: str, saved: Container[str], averaged: bool = True) -> str:
    """The name of a weight's value in a checkpoint: that of its moving average if there is one, else its own.

    Args:
        weight: the name of the variable.
        saved: the names in the checkpoint.
        averaged: False for the weight itself in any case.
    """
    return weight + SUFFIX if averaged and weight + SUFFIX in saved else weight


def read_weight(held: HeldCheckpoint, weight: str, averaged: bool = True) -> np.ndarray:
    """The value of a weight in a checkpoint, by the rule of `saved_name`.

    Raises:
        CheckpointError: it is not there, or the checkpoint is damaged.
    """
    return held.value(saved_name(weight, held.shapes(), averaged))


def weights_of_checkpoint(held: HeldCheckpoint) -> list[str]:
    """The names of the weights in a checkpoint.

    Raises:
        CheckpointError: it is damaged.
    """
    saved, state = held.shapes(), held.state()
    if state is not None and state.weights is not None:
        return sorted(set(state.weights) & set(saved))
    return judged_by_names(saved)


def judged_by_names(names: Collection[str]) -> list[str]:
    """Those of `names` that are weights: all that have slots; where nothing has one, all but training's bookkeeping."""
    known = set(names)
    owners = {name: [parent for parent in _parents(name) if parent in known] for name in known}
    with_slots = {parent for parents in owners.values() for parent in parents}
    found = with_slots or known
    return sorted(name for name in found if not owners[name] and not _BOOKKEEPING.match(name))


def refuse_unknown(held: HeldCheckpoint, known: Collection[str], mend: str, left_out: Sequence[str] = ()) -> None:
    """Refuse a checkpoint with weights that a model does not have: it is another model's.

    Args:
        known: the names of the model's variables.
        mend: what to do, for the message.
        left_out: regular expressions: weights whose name one of them matches may be unknown.
    Raises:
        CheckpointError: there are such weights.
    """
    unknown = [name for name in weights_of_checkpoint(held)
               if name not in known and not any(re.search(pattern, name) for pattern in left_out)]
    if unknown:
        others = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise CheckpointError(f"{held.name}: it holds the trained variable '{unknown[0]}'{others}, "
                              f"which the model does not have: another model was trained; {mend}")


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]
