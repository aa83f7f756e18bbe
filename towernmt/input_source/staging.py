"""Copy the next batch to the devices of the towers while the current batch is trained on.

tensorpack's `StagingInput` copies the next batch in the run that trains on the current one. Such a run waits for data
that it does not need, leaves an unknown state if it fails, and does not train on the last batch. Here a thread copies
the batches in separate runs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from towernmt.core.tensors import Operation, Session, Tensor
from towernmt.core.tf_compat import tf, tf1

Fetched = list[Any]     # the values that the fetches of one run returned


class Staging:
    """A TensorFlow staging area on each tower's device, which holds the next one or two batches.

    An area that waits occupies a thread of the session's pool, and may so block the operation that it waits for. These
    areas never wait: they have no limit, and elements are taken only if they are present.

    Attributes:
        puts: operations that put the next batch's shares into the areas; one run executes all of them.
        gets: operations that take the towers' shares out; a run that executes one must execute all of them.
    """

    def __init__(self) -> None:
        self.puts: list[Operation] = []
        self.gets: list[Operation] = []
        self._sizes: list[Tensor] = []
        self._next: Future[Fetched | None] | None = None

    def through(self, share: list[Tensor]) -> list[Tensor]:
        """Return a tower's tensors as taken from an area on the current device, with unchanged shapes and dtypes."""
        name, dtypes = tf1.get_default_graph().unique_name("staging"), [tensor.dtype for tensor in share]
        self.puts.append(tf.raw_ops.Stage(values=share, shared_name=name, name="put"))
        staged = tf.raw_ops.Unstage(dtypes=dtypes, shared_name=name, name="get")
        self._sizes.append(tf.raw_ops.StageSize(dtypes=dtypes, shared_name=name, name="size"))
        self.gets.append(staged[0].op)
        for tensor, original in zip(staged, share, strict=True):
            tensor.set_shape(original.shape)
        return list(staged)

    def start(self, stage: Callable[[], Fetched | None]) -> None:
        """Start the thread; call it before the first batch.

        Args:
            stage: called in the thread; runs `puts`, and returns the position (and tokens) of that batch, or None at
                the end of the data.
        """
        self._stage, self._thread = stage, ThreadPoolExecutor(1, "staging")

    def take(self) -> Fetched | None:
        """Return the result of `stage` for the batch of the next run, and start to copy the batch after it.

        Raises:
            Exception: the exception of `stage`.
        """
        staged, self._next = self._next or self._thread.submit(self._stage), None
        fetched = staged.result()
        if fetched is not None:
            self._next = self._thread.submit(self._stage)
        return fetched

    def drop_taken(self, sess: Session) -> None:
        """Remove the batch of a failed run from the areas, whichever of its operations were executed."""
        ahead = 0
        if self._next is not None:
            wait([self._next])
            ahead = int(self._next.exception() is None and self._next.result() is not None)
        for size, get in zip(self._sizes, self.gets, strict=True):
            for _ in range(int(sess.run(size)) - ahead):
                sess.run(get)

    def stop(self) -> None:
        """End the thread; call it after the last batch, when `stage` no longer waits for data."""
        self._thread.shutdown()
