"""`QueueMonitor`: the input queue's figures, for the progress display and TensorBoard."""

from __future__ import annotations

from tensorpack.callbacks import Callback

from towernmt.input_source.queue_input import GeneralQueueInput


class QueueMonitor(Callback):
    """Puts scalars to the trainer's monitors every `every_steps` updates; 0: whenever it is triggered (at the end of
    each epoch, unless tensorpack's `PeriodicTrigger` says otherwise).

    `input/queue_depth` (global batches waiting now), and since the last trigger: `input/wait_share` (part of
    the time that training waited for data, 0 to 1) and `input/target_tokens_per_second` (if the towers have
    an input called `target_tokens`). The callbacks of an `InputSource` itself are never triggered, so this
    one is registered with the trainer.
    """

    def __init__(self, queue_input: GeneralQueueInput, every_steps: int = 0) -> None:
        self._input, self._every_steps = queue_input, every_steps

    def _before_train(self) -> None:
        self._earlier = self._input.statistics()

    def _trigger_step(self) -> None:
        if self._every_steps and self.global_step % self._every_steps == 0:
            self._put()

    def _trigger(self) -> None:
        if not self._every_steps:
            self._put()

    def _put(self) -> None:
        now = self._input.statistics()
        since, self._earlier = now - self._earlier, now
        monitors = self.trainer.monitors
        monitors.put_scalar("input/queue_depth", now.queue_depth)
        monitors.put_scalar("input/wait_share", since.wait_share)
        if since.target_tokens_per_second is not None:
            monitors.put_scalar("input/target_tokens_per_second", since.target_tokens_per_second)
