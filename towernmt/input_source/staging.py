"""Staging of batches on the towers' devices: while one batch is trained on, the next is copied there.

tensorpack's `StagingInput` copies the next batch in the run that trains on the present one: such a run waits for data
that it does not need, leaves an unknown state if it fails, and is not made for the last batch. Here a
thread copies, in runs of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from towernmt.core.tensors import Operation, Session, Tensor
from towernmt.core.tf_compat import tf, tf1

Known = list[Any]


class Staging:
    """A staging area of TensorFlow's on each tower's device, with the batch that is next and at times the one after.

    Such an area waits inside a thread of the session's pool, where it may hold up what it waits for. These areas have
    no limit, and none is asked for what it does not have: nothing ever waits in them.

    Attributes:
        puts: operations that put the next batch's shares into the areas; one run makes all of them.
        gets: operations that take the towers' shares out; a run that makes one must make all of them.
    """

    def __init__(self) -> None:
        self.puts: list[Operation] = []
        self.gets: list[Operation] = []
        self._sizes: list[Tensor] = []
        self._next: Future[Known | None] | None = None

    def through(self, share: list[Tensor]) -> list[Tensor]:
        """A tower's tensors, by way of an area on the present device; shapes and dtypes stay."""
        name, dtypes = tf1.get_default_graph().unique_name("staging"), [tensor.dtype for tensor in share]
        self.puts.append(tf.raw_ops.Stage(values=share, shared_name=name, name="put"))
        staged = tf.raw_ops.Unstage(dtypes=dtypes, shared_name=name, name="get")
        self._sizes.append(tf.raw_ops.StageSize(dtypes=dtypes, shared_name=name, name="size"))
        self.gets.append(staged[0].op)
        for tensor, original in zip(staged, share, strict=True):
            tensor.set_shape(original.shape)
        return list(staged)

    def start(self, stage: Callable[[], Known | None]) -> None:
        """Begin; to be called before the first batch.

        Args:
            stage: called in the thread; makes `puts` and returns what is to be known of that batch. None: there will
                be no more.
        """
        self._stage, self._thread = stage, ThreadPoolExecutor(1, "staging")

    def take(self) -> Known | None:
        """What `stage` returned of the batch that the next run gets. From here on, the batch after it is being copied.

        Raises:
            Exception: what `stage` raised.
        """
        staged, self._next = self._next or self._thread.submit(self._stage), None
        known = staged.result()
        if known is not None:
            self._next = self._thread.submit(self._stage)
        return known

    def drop_taken(self, sess: Session) -> None:
        """After a run that failed, whichever of its operations were made: only the next batch stays in the areas."""
        ahead = 0
        if self._next is not None:
            wait([self._next])
            ahead = int(self._next.exception() is None and self._next.result() is not None)
        for size, get in zip(self._sizes, self.gets, strict=True):
            for _ in range(int(sess.run(size)) - ahead):
                sess.run(get)

    def stop(self) -> None:
        """End; to be called after the last batch, when `stage` no longer waits for data."""
        self._thread.shutdown()
