"""Whether the training towers of a step share one batch, or have a batch each.

`GeneralQueueInput` gives each tower a share of the rows of one global batch, and `target_tokens`, which counts all of
its target tokens, to every tower whole. The `InputSource`s of tensorpack give each tower a batch of its own, with the
count of its own tokens. A cost must be scaled by that, for trainers average over the towers.
"""

from __future__ import annotations

from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf

TOKENS = "target_tokens"
"""The name of the input that counts the target tokens of the batch."""


def share_batch() -> None:
    """Declare that the present training tower gets its share of the rows of a batch that all towers share, and scalars
    that describe the whole batch. An `InputSource` of your own calls it where it makes the tensors of a tower.
    """
    context = get_current_tower_context()
    if context is not None and context.is_training:
        graph_state().sharing_towers.add(context.ns_name)


def towers_of_batch() -> int:
    """How many training towers share the batch of the present tower; 1 where it has it for itself.

    A cost that is a sum over the tower's rows, times this, divided by `target_tokens`, is right with every input: the
    mean over the towers, which trainers take, is the mean over the tokens of the shared batch, or (as tensorpack has
    it) the mean of the means of the towers' own batches.
    """
    context = get_current_tower_context()
    if context is None or not context.is_training or context.ns_name not in graph_state().sharing_towers:
        return 1
    return int(context.total)


def shares_batch(tower: Any) -> bool:
    """Whether a training tower, given as tensorpack's handle of it, shares its batch with the others."""
    return tower.ns_name in graph_state().sharing_towers


def total_of_step(towers: list[Any], name: str = TOKENS) -> Tensor:
    """float32 `[]`: the total of a scalar input, such as the target tokens, over the batches of a step.

    Args:
        towers: the handles of this process's training towers, which have that input.
        name: of the input.
    """
    numbers = [tower.get_tensor(name) for tower in towers]
    return numbers[0] if len(numbers) == 1 or shares_batch(towers[0]) else tf.add_n(numbers)
