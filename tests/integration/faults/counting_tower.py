"""A tower function whose parameters count the pairs that they were trained on.

`pairs_trained[epoch * vocabulary + first target token]` grows by exactly one for each pair of a batch, by gradient
descent on the sum of the looked-up values. So the parameters that survive a fault or a kill contain the pairs that they
were trained on. Everything else of `towernmt train` is real: `install` replaces the model, feeds it the epoch of each
batch, and calls the functions of a test after a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tensorpack.callbacks import Callback
from tensorpack.tfutils.tower import get_current_tower_context

from towernmt.checkpoint.checkpoint_files import latest_checkpoint
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.batches.batch import Position
from towernmt.models import architectures
from towernmt.models.interface import NMTModel, batch_signature
from towernmt.run import assemble

EPOCHS = 32
"""Epochs that there are counters for."""


class CountingTower(NMTModel):
    """A model that counts pairs by the first target token, which is unique for each pair.

    It is trained, but cannot translate: its decoder is never called.

    Args:
        vocabulary: size of the target vocabulary.
    """

    encode = decode_hidden = output_projection = start_state = decode_step = None

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = self.source_vocab_size = self.target_vocab_size = vocabulary

    def inputs(self) -> list[Any]:
        return [*batch_signature(), tf.TensorSpec([], tf.int32, "epoch")]

    def build_graph(self, source: Any, source_length: Any, target: Any, target_length: Any, target_tokens: Any,
                    epoch: Any) -> Any:
        counts = tf1.get_variable("pairs_trained", [EPOCHS * self.vocabulary], initializer=tf1.zeros_initializer())
        towers = float(get_current_tower_context().total)       # the trainer computes the mean over the towers
        return tf.multiply(-towers, tf.reduce_sum(tf.gather(counts, epoch * self.vocabulary + target[:, 0])),
                           name="loss")

    def optimizer(self) -> Any:
        tf1.get_variable("learning_rate", initializer=1.0, trainable=False)     # for the schedule; not used
        return tf1.train.GradientDescentOptimizer(1.0)


class WithEpoch(NamedTuple):
    """A batch with the index of its pass over the corpus."""

    batch: Any
    epoch: int

    def arrays(self) -> list[Any]:
        return [*self.batch.arrays(), np.int32(self.epoch)]


class BatchesWithEpochs:
    """Batches with their epochs; the position after the last batch of an epoch is the beginning of the next epoch."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def batches_per_epoch(self) -> int:
        return int(self._batches.batches_per_epoch())

    def read(self, position: Any = None, start: int = 0, step: int = 1) -> Iterator[tuple[Position, WithEpoch]]:
        return ((after, WithEpoch(batch, after.epoch - (after[1:3] == (0, 0))))
                for after, batch in self._batches.read(position, start, step))


class AfterSteps(Callback):
    """Calls functions after steps: that of a step once after the step, that of None after each step."""

    def __init__(self, actions: Mapping[int | None, Callable[[], Any]]) -> None:
        self._actions = dict(actions)

    def _trigger_step(self) -> None:
        self._actions.pop(self.global_step, lambda: None)()
        self._actions.get(None, lambda: None)()


def install(change: Callable[[Any, str, Any], Any], actions: Mapping[int | None, Callable[[], Any]],
            more_callbacks: Callable[[Any], list[Any]] = lambda source: []) -> None:
    """Let `towernmt train` of this process train a counting tower.

    Args:
        change: `setattr`, or a function such as monkeypatch's, which undoes it.
        actions: see `AfterSteps`; they act before the run's own callbacks.
        more_callbacks: returns callbacks for an input source, which act before all others.
    """
    architecture = architectures.architecture
    make_batches, make_callbacks = assemble.make_batches, assemble.make_callbacks
    change(architectures, "architecture", lambda name: architecture(name)._replace(
        model=lambda settings, *_: CountingTower(settings.target_vocab_size)))
    change(assemble, "make_batches", lambda *how, **more: BatchesWithEpochs(make_batches(*how, **more)))
    change(assemble, "make_callbacks", lambda settings, data, run, model, source, components: [
        *more_callbacks(source), AfterSteps(actions),
        *make_callbacks(settings, data, run, model, source, components)])


def counted(logdir: Path) -> np.ndarray:
    """Return how often the last checkpoint was trained on each pair: float32 `[epoch, target vocabulary]`."""
    reader = tf.train.load_checkpoint(str(latest_checkpoint(logdir / "checkpoints") / "model"))
    return reader.get_tensor("pairs_trained").reshape(EPOCHS, -1)
