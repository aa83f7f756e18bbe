#!/usr/bin/env python
"""Combine a hook that feeds the learning rate with a run that only fetches data, in plain TensorFlow and in towernmt.

    python examples/hooks.py

TensorFlow's `MonitoredTrainingSession` calls every hook at every `session.run`. The hook below halves the learning rate
when the loss has risen: it fetches the loss in each run and feeds the rate. The program fetches a batch in one run and
feeds it to the train step in another. In plain TensorFlow, the hook makes the first run compute the loss of a batch
that is not fed yet, and the run fails.

In towernmt, a hook belongs to the train step by default, and the first run declares that it only fetches data, so the
hook does not see it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from towernmt import SettingsError, tf, tf1
from towernmt.callbacks import CallbackToHook, Progress, StopAtStep, separate_runs
from towernmt.train import Run, run_as

STEPS = 60


class LearningRateSetter(tf1.train.SessionRunHook):
    """Hook that feeds the learning rate and halves it whenever the loss rises."""

    feeds = ("learning_rate:0",)

    def __init__(self, rate: float) -> None:
        self.rate, self.last_loss = rate, np.inf

    def begin(self) -> None:
        graph = tf1.get_default_graph()
        self._loss, self._rate = (graph.get_tensor_by_name(f"{name}:0") for name in ("loss", "learning_rate"))

    def before_run(self, run_context: Any) -> Any:
        return tf1.train.SessionRunArgs(self._loss, feed_dict={self._rate: self.rate})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results > self.last_loss:
            self.rate /= 2
        self.last_loss = run_values.results


def build() -> tuple[Any, Any, Any]:
    """Build a linear regression; return the next batch (float32 [8, 2]), its placeholder and the train step."""
    pairs = tf1.data.Dataset.range(10_000).map(
        lambda i: tf.stack([tf.sin(tf.cast(i, tf.float32)), 3.0 * tf.sin(tf.cast(i, tf.float32)) + 1.0]))
    batch = tf1.data.make_one_shot_iterator(pairs.batch(8, drop_remainder=True)).get_next()
    fed = tf1.placeholder(tf.float32, [8, 2], "batch")
    rate = tf1.placeholder(tf.float32, [], "learning_rate")
    slope = tf1.get_variable("slope", [], initializer=tf1.zeros_initializer())
    offset = tf1.get_variable("offset", [], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(slope * fed[:, 0] + offset - fed[:, 1]), name="loss")
    step = tf1.train.GradientDescentOptimizer(rate).minimize(loss, tf1.train.get_or_create_global_step())
    return batch, fed, step


def train_in_plain_tensorflow() -> None:
    """Train in plain TensorFlow, where the hook also applies to the run that fetches a batch."""
    with tf.Graph().as_default():
        batch, fed, step = build()
        with tf1.train.MonitoredTrainingSession(hooks=[LearningRateSetter(1.5)]) as session:
            values = session.run(batch)
            session.run(step, {fed: values})


def train_with_separate_runs() -> tuple[float, float]:
    """Train with declared runs and two of towernmt's callbacks, and return the fitted (slope, offset)."""
    with tf.Graph().as_default():
        batch, fed, step = build()
        line = tf1.trainable_variables()
        setter = LearningRateSetter(1.5)
        hooks = separate_runs([setter, CallbackToHook(StopAtStep(STEPS), Progress(STEPS // 3))])
        slope = offset = 0.0
        with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                with run_as(Run.DATA):
                    values = session.run(batch)
                    slope, offset = session.run(line)
                session.run(step, {fed: values})
        print(f"  learning rate 1.5 was halved down to {setter.rate}")
        return float(slope), float(offset)


def register_two_setters() -> None:
    """Register two hooks that feed the same tensor, which towernmt refuses before any run."""
    separate_runs([LearningRateSetter(1.0), LearningRateSetter(0.1)])


def main() -> None:
    """Show the failure in TensorFlow, the solution, and the refusal of conflicting hooks."""
    print("In plain TensorFlow:")
    try:
        train_in_plain_tensorflow()
    except tf.errors.InvalidArgumentError as error:
        print("  InvalidArgumentError: " + next(line for line in error.message.splitlines() if "placeholder" in line))
    print("With separate runs:")
    slope, offset = train_with_separate_runs()
    print(f"  y = {slope:.2f} x + {offset:.2f} after {STEPS} steps")
    print("Two hooks that feed the same tensor:")
    try:
        register_two_setters()
    except SettingsError as error:
        print(f"  SettingsError: {error}")


if __name__ == "__main__":
    main()
