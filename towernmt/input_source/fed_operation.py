"""An operation that is run again and again in one session, with new values fed each time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from towernmt.core.tensors import Operation, Session, Tensor
from towernmt.core.tf_compat import tf

Feeds = dict[Tensor, np.ndarray]


class FedOperation:
    """Runs an operation as `sess.run(operation, feed_dict=feeds)` does, in a tenth of the time.

    `Session.run` looks at feeds and fetches anew each time, which takes longer than putting a batch into a queue.
    TensorFlow can have that done once (as Keras did in graph mode), but only by a method that is not public: where
    a session lacks it, as those that wrap another do, `Session.run` it is.

    Args:
        sess: the session.
        operation: what it runs.
    """

    def __init__(self, sess: Session, operation: Operation) -> None:
        self._sess, self._operation = sess, operation
        self._run: Callable[[Feeds], None] | None = None

    def __call__(self, feeds: Feeds) -> None:
        """Run once; `feeds` has the same tensors in the same order each time, and arrays of their dtypes and shapes."""
        if self._run is None:
            self._run = self._prepared(list(feeds))
        self._run(feeds)

    def _prepared(self, tensors: list[Tensor]) -> Callable[[Feeds], None]:
        sess, operation = self._sess, self._operation
        make = getattr(sess, "_make_callable_from_options", None)
        if make is None or not isinstance(operation, tf.Operation) or any(
                part.graph is not sess.graph or not sess.graph.is_feedable(part) for part in tensors):
            return lambda feeds: sess.run(operation, feed_dict=feeds)
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        run = make(CallableOptions(feed=[tensor.name for tensor in tensors], target=[operation.name]))
        return lambda feeds: run(*feeds.values())
