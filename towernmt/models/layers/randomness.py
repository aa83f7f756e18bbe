"""Randomness without hidden state: every draw is a function of (seed, clock, place).

TensorFlow's stateful generators are in no checkpoint, so a resumed run would differ from one that was
never stopped. Here the only state is the *clock*: one int64 variable, saved with the model, that counts
the batches that training towers have seen.
"""

from __future__ import annotations

import zlib
from typing import Any

from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.core.tf_compat import tf, tf1

CLOCK_ADVANCE = "towernmt/random_clock_advance"
"""Graph collection: the operation that advances the clock by one batch."""
_CLOCK = "towernmt/random_clock"
_SEED = "towernmt/random_seed"


def set_seed(seed: int) -> None:
    """Set the seed of the default graph: of initial parameters and of every draw in its towers.

    TensorFlow's own random operations, which a model of yours may use, get it too: under op determinism they
    refuse to be without one.
    """
    tf1.get_collection_ref(_SEED)[:] = [int(seed)]
    tf1.set_random_seed(int(seed))


def graph_seed() -> int:
    """The seed of the default graph (0 unless `set_seed` was called)."""
    seeds = tf1.get_collection(_SEED)
    return int(seeds[0]) if seeds else 0


def start_clock(batch_tensor: Any) -> None:
    """Make the clock of the graph, which advances by one with each batch that is trained on.

    It is advanced by `UPDATE_OPS`, which tensorpack's trainers run with each step, after it was read and
    after the batch arrived: a step that fails for want of data leaves it as it was.

    Args:
        batch_tensor: any tensor that cannot be computed before the batch is there.
    """
    if tf1.get_collection(_CLOCK):
        return
    with tf1.variable_scope("", reuse=tf1.AUTO_REUSE), tf1.device("/cpu:0"):
        variable = tf1.get_variable("random_clock", [], tf.int64, initializer=tf1.zeros_initializer(),
                                    trainable=False, use_resource=True)
        now = tf.identity(variable.read_value(), name="random_clock_now")
        with tf1.control_dependencies([now, batch_tensor]):
            advance = variable.assign_add(1, read_value=False, name="random_clock_advance")
    tf1.add_to_collection(_CLOCK, now)
    for collection in (CLOCK_ADVANCE, tf1.GraphKeys.UPDATE_OPS):
        tf1.add_to_collection(collection, advance)


def seed_of_place(name: str) -> Any:
    """int64 `[2]`: which place (variable scope, name, tower) and which batch."""
    context = get_current_tower_context()
    clock = tf1.get_collection(_CLOCK)
    if not clock:
        raise RuntimeError("dropout needs start_clock() earlier in the tower; NMTModel.build_graph calls it.")
    place = f"{tf1.get_variable_scope().name}/{name}/{getattr(context, 'index', 0)}/{graph_seed()}"
    return tf.stack([tf.constant(zlib.crc32(place.encode()), tf.int64), clock[0]])
