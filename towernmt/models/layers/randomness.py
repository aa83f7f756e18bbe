"""Randomness without hidden state: every draw is a function of (seed, clock, place).

TensorFlow's stateful generators are in no checkpoint, so a resumed run would differ from one that was
never stopped. Here the only state is the *clock*: one int64 variable, saved with the model, that counts
the batches that training towers have seen.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.graph_state import Clock, configure_graph, graph_state
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1


def set_seed(seed: int) -> None:
    """Set the seed of the default graph: of initial parameters and of every draw in its towers.

    TensorFlow's own random operations, which a model of yours may use, get it too: under op determinism they
    refuse to be without one.
    """
    configure_graph(replace(graph_state().settings, seed=int(seed)))


def graph_seed() -> int:
    """The seed of the default graph (0 by default)."""
    return graph_state().settings.seed


def start_clock(batch_tensor: Tensor) -> None:
    """Make the clock of the graph, which advances by one with each batch that is trained on.

    It is advanced by `UPDATE_OPS`, which tensorpack's trainers run with each step, after it was read and
    after the batch arrived: a step that fails because there are no data leaves it as it was.

    Args:
        batch_tensor: any tensor that cannot be computed before the batch is there.
    """
    state = graph_state()
    if state.clock is not None:
        return
    with tf1.variable_scope("", reuse=tf1.AUTO_REUSE), tf1.device("/cpu:0"):
        variable = tf1.get_variable("random_clock", [], tf.int64, initializer=tf1.zeros_initializer(),
                                    trainable=False, use_resource=True)
        now = tf.identity(variable.read_value(), name="random_clock_now")
        with tf1.control_dependencies([now, batch_tensor]):
            advance = variable.assign_add(1, read_value=False, name="random_clock_advance")
    state.clock = Clock(variable, now, advance)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, advance)


def seed_of_place(name: str) -> Tensor:
    """int64 `[2]`: which place (variable scope, name, tower) and which batch."""
    context = get_current_tower_context()
    clock = graph_state().clock
    if clock is None:
        raise RuntimeError("dropout needs start_clock() earlier in the tower; NMTModel.build_graph calls it.")
    place = f"{tf1.get_variable_scope().name}/{name}/{getattr(context, 'index', 0)}/{graph_seed()}"
    return tf.stack([tf.constant(zlib.crc32(place.encode()), tf.int64), clock.now])
