"""Dequeue the batches of a `GeneralQueueInput` in a plain session, for `input.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from tensorpack.utils import logger

from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput

SIGNATURE = [
    tf.TensorSpec([None, None], tf.int32, "source"),
    tf.TensorSpec([None], tf.int32, "source_length"),
    tf.TensorSpec([None, None], tf.int32, "target"),
    tf.TensorSpec([None], tf.int32, "target_length"),
    tf.TensorSpec([], tf.float32, "target_tokens"),
]


class Passed(NamedTuple):
    """Amounts dequeued, and the wall-clock and processor seconds that this process took."""

    batches: int
    pairs: int
    target_tokens: int
    seconds: float
    cpu_seconds: float

    def figures(self) -> dict[str, Any]:
        """Return the rates and amounts for a line of JSON."""
        return {"pairs_s": int(self.pairs / self.seconds), "target_tokens_s": int(self.target_tokens / self.seconds),
                "target_tokens_cpu_s": int(self.target_tokens / max(self.cpu_seconds, 1e-9)),
                "batches": self.batches, "pairs": self.pairs, "seconds": round(self.seconds, 3)}


Dequeue = Callable[[], tuple[int, int] | None]


@contextmanager
def dequeuing(batches: Any, feeders: int, capacity: int = 32) -> Iterator[Dequeue]:
    """Yield a function that dequeues one batch and returns (pairs, target tokens), or None at the end."""
    logger._logger.setLevel("WARNING")
    with tf.Graph().as_default():
        data = GeneralQueueInput(batches, feeders, capacity)
        data.setup(SIGNATURE)
        pairs = tf.size(data.get_input_tensors()[1])
        config = tf1.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
        with tf1.Session(config=config) as sess:
            take = sess.make_callable([pairs, data.tokens_tensor, data.position_tensor])

            def dequeue() -> tuple[int, int] | None:
                try:
                    count, tokens, _ = take()
                except tf.errors.OutOfRangeError:
                    data.raise_feeder_error()
                    return None
                return int(count), int(np.asarray(tokens))

            data.start(sess)
            try:
                yield dequeue
            finally:
                data.stop(sess)


def whole_pass(take: Callable[[], tuple[int, int] | None]) -> Passed:
    """Dequeue all batches and time them, including the wait for the first one."""
    return for_seconds(take, 0.0, float("inf"))


def for_seconds(take: Callable[[], tuple[int, int] | None], warm: float, seconds: float) -> Passed:
    """Dequeue and time batches for `seconds`, or until the end, after `warm` seconds that do not count."""
    begin = time.perf_counter()
    while warm and time.perf_counter() - begin < warm:
        take()
    batches, pairs, tokens = 0, 0, 0
    begin, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds and (sizes := take()) is not None:
        batches, pairs, tokens = batches + 1, pairs + sizes[0], tokens + sizes[1]
    return Passed(batches, pairs, tokens, time.perf_counter() - begin, time.process_time() - cpu)
