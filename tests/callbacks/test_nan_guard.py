"""The NaN guard: what it reports, when it ends training, and that nothing bad is saved."""

from __future__ import annotations

import pytest
from tensorpack.callbacks import Callback

from towernmt.callbacks.nan_guard import NaNGuard
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.optim.gradients import watch_gradients
from towernmt.optim.optimizer import make_optimizer
from towernmt.optim.optimizer_settings import OptimizerSettings


class Saver(Callback):
    """Saves at each step unless training has diverged, as CheckpointSaver does."""

    def __init__(self):
        self.saved = []

    def latest(self):
        return self.saved[-1] if self.saved else None

    def save_now(self):
        if not self.trainer.diverged:
            self.saved.append(f"checkpoints/step-{self.global_step}")

    def _trigger_step(self):
        self.save_now()

    def _after_train(self):
        self.save_now()


def test_a_finite_run_is_left_alone(train):
    trainer, _ = train([NaNGuard(check_steps=1)], steps=3)
    assert trainer.loop.global_step == 3 and not trainer.diverged


def test_a_loss_that_is_not_finite_ends_training_and_keeps_the_last_good_checkpoint(train):
    saver = Saver()
    with pytest.raises(DivergenceError) as caught:
        train([NaNGuard(), saver], steps=10, inputs=(1.0, 2.0, float("nan")))
    message = str(caught.value)
    assert "step 3" in message and "the loss is not finite" in message
    assert "checkpoints/step-2" in message and "learning_rate" in message
    assert saver.saved == ["checkpoints/step-1", "checkpoints/step-2"]


def chain(x):
    """c * sqrt(b * a * x): at x = 0 the loss is finite, and the gradient is not from b on backwards."""
    a, b, c = (tf1.get_variable(name, [], initializer=tf1.ones_initializer()) for name in "abc")
    root = tf.sqrt(b * (a * x))
    return tf.multiply(c, root, name="loss")


def small_steps():
    return tf1.train.GradientDescentOptimizer(0.1)


def test_the_bad_gradient_that_is_nearest_to_the_loss_is_named(train):
    saver = Saver()
    with pytest.raises(DivergenceError, match="step 2: the gradient of b is not finite"):
        train([NaNGuard(), saver], steps=5, inputs=(1.0, 0.0), tower=chain, optimizer=small_steps)
    assert saver.saved == ["checkpoints/step-1"]


def test_gradients_are_seen_as_they_were_before_clipping(train):
    class Clipped(tf1.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            watch_gradients(grads_and_vars)
            clipped, _ = tf.clip_by_global_norm([g for g, _ in grads_and_vars], 1.0)
            return super().apply_gradients(
                list(zip(clipped, [v for _, v in grads_and_vars], strict=True)), *args, **kwargs)

    with pytest.raises(DivergenceError, match="the gradient of b is not finite"):
        train([NaNGuard()], steps=5, inputs=(1.0, 0.0), tower=chain, optimizer=lambda: Clipped(0.1))


OVERFLOW = {"tower": lambda x: tf.multiply(x, square_of_one(), name="loss"), "inputs": (100.0,),
            "optimizer": lambda: tf1.train.GradientDescentOptimizer(1e38)}
"""A finite loss and gradient, and an update that is not."""


def square_of_one():
    return tf.square(tf1.get_variable("w", [], initializer=tf1.ones_initializer()))


def test_an_update_that_overflows_is_found_before_anything_is_saved(train):
    class CheckedSaver(Saver):
        def save_now(self):
            guard.check_variables()
            super().save_now()

    guard, saver = NaNGuard(check_steps=0), CheckedSaver()
    with pytest.raises(DivergenceError, match="step 1: the variable w is not finite"):
        train([guard, saver], steps=5, **OVERFLOW)
    assert saver.saved == []


def test_variables_are_looked_at_every_check_steps(train):
    with pytest.raises(DivergenceError, match="step 1: the variable w is not finite"):
        train([NaNGuard(check_steps=1)], steps=5, **OVERFLOW)


def test_a_poisoned_start_is_found_before_the_first_step(train):
    def poisoned(x):
        w = tf1.get_variable("w", [], initializer=tf1.constant_initializer(float("nan")))
        return tf.multiply(w, x, name="loss")

    with pytest.raises(DivergenceError, match="step 0: the variable w is not finite.*No checkpoint"):
        train([NaNGuard()], steps=1, tower=poisoned)


def test_further_tensors_can_be_watched_by_name(train):
    def tower(x):
        w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        tf.math.log(w, name="attention")  # -inf, and not part of the loss
        return tf.multiply(w, x, name="loss")

    with pytest.raises(DivergenceError, match="the tensor attention is not finite"):
        train([NaNGuard(tensors=["attention"])], steps=1, tower=tower)


def test_a_name_that_is_not_in_the_tower_is_refused(train):
    with pytest.raises(SettingsError, match="tensor 'cost', which is not in"):
        train([NaNGuard(loss="cost")], steps=1)


def test_the_guard_reads_the_norms_by_which_the_gradients_are_clipped(train):
    trainer, _ = train([NaNGuard()], steps=1, tower=chain,
                       optimizer=lambda: make_optimizer(OptimizerSettings(), clip_norm=1.0))
    norms = [op for op in trainer.train_op.graph.get_operations() if op.type == "L2Loss"]
    assert len(norms) == 3 + 1 + 3      # gradients, loss, variables
