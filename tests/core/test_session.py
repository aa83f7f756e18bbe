"""A session has more threads than operations that may wait for each other."""

from __future__ import annotations

import pytest

from towernmt.core import session
from towernmt.core.session import add_threads, session_config, waiting_operations
from towernmt.core.tf_compat import tf, tf1


@pytest.mark.parametrize("processors, waiting, threads", [(1, 0, 0), (1, 1, 2), (1, 8, 9), (4, 2, 4), (4, 4, 5)])
def test_operations_that_wait_never_hold_all_threads(monkeypatch: pytest.MonkeyPatch, processors: int, waiting: int,
                                                     threads: int) -> None:
    monkeypatch.setattr(session, "processors", lambda: processors)
    config = tf1.ConfigProto()
    add_threads(config, waiting)
    assert config.inter_op_parallelism_threads == threads
    assert config.use_per_session_threads == bool(threads)      # the pool of the process may be smaller
    config = tf1.ConfigProto()
    add_threads(config, waiting, own_pool=False)
    assert (config.inter_op_parallelism_threads, config.use_per_session_threads) == (threads, False)


def test_a_configured_number_of_threads_is_kept() -> None:
    config = session_config(runs_in_caller=True)
    add_threads(config, 3)
    assert config.inter_op_parallelism_threads == -1


def test_staging_areas_and_python_functions_are_counted() -> None:
    with tf.Graph().as_default() as graph:
        for name in "ab":
            tf.raw_ops.Stage(values=[tf.constant(1.0)], shared_name=name, capacity=1)
            tf.raw_ops.Unstage(dtypes=[tf.float32], shared_name=name)
        tf1.py_func(lambda: 1.0, [], tf.float32)
        tf1.FIFOQueue(3, [tf.float32]).dequeue()
    assert waiting_operations(graph) == 3
