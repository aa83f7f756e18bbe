"""The choice of how several GPUs add their gradients, and copies of the weights, without GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from tensorpack.utils.argtools import memoized_method

from tests.train.plain_model import PlainModel, train_plainly
from towernmt.core.errors import SettingsError, TowerRuleError
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World
from towernmt.optim.gradients import GradsAndVars, SumOverTowers
from towernmt.train import collectives as collectives_module
from towernmt.train import trainer as trainer_module
from towernmt.train.collectives import Collectives, chosen_transport
from towernmt.train.replicas import Replicas, uncached
from towernmt.train.trainer import SyncMultiGPUTrainer

GPUS = ["/gpu:0", "/gpu:1"]


class OwnSum(SumOverTowers):
    """A custom reducer."""


@pytest.mark.parametrize(("collectives", "nccl", "transport"), [
    ("auto", True, "nccl"), ("auto", False, None), ("nccl", True, "nccl"), ("ring", True, "ring"),
    ("ring", False, "ring"), ("sum", True, None)])
def test_nccl_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, collectives: str, nccl: bool,
                                            transport: str | None) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(collectives_module, "has_nccl", lambda: nccl)
    monkeypatch.setattr(collectives_module.logger, "warning", warnings.append)
    assert chosen_transport(collectives, GPUS, SumOverTowers(), World()) == transport
    assert bool(warnings) is (collectives == "auto" and not nccl)


@pytest.mark.parametrize(("devices", "reducer", "world"), [
    (["/cpu:0", "/cpu:0"], SumOverTowers(), World()), (["/gpu:0"], SumOverTowers(), World()),
    (["/gpu:0", "/gpu:0"], SumOverTowers(), World()), (GPUS, OwnSum(), World()), (GPUS, SumOverTowers(), World(0, 2))])
def test_gradients_are_added_on_one_device_wherever_collectives_cannot(
        monkeypatch: pytest.MonkeyPatch, devices: list[str], reducer: SumOverTowers, world: World) -> None:
    monkeypatch.setattr(collectives_module, "has_nccl", lambda: True)
    assert chosen_transport("auto", devices, reducer, world) is None


def test_a_missing_nccl_and_an_unknown_value_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives_module, "has_nccl", lambda: False)
    with pytest.raises(SettingsError, match="libnccl.so.2 was not found.*train.collectives=ring"):
        chosen_transport("nccl", GPUS, SumOverTowers(), World())
    with pytest.raises(SettingsError, match="train.collectives=mpi is unknown: choose auto, nccl, ring, sum"):
        chosen_transport("mpi", GPUS, SumOverTowers(), World())


def test_the_caches_of_decorators_are_removed() -> None:
    class Maker:
        @memoized_method
        def make(self) -> Any:
            return object()

    cached = lru_cache(Maker().make)
    assert cached() is cached()
    assert uncached(cached)() is not uncached(cached)()
    assert uncached(object) is object


def make_replicas(*optimizers: Any) -> Replicas:
    """Return the replicas of two towers, which get these optimizers."""
    remaining_optimizers = iter(optimizers)
    devices = ["/cpu:0", "/cpu:1"]
    return Replicas(devices, Collectives(devices, "ring"), lambda: next(remaining_optimizers),
                    lambda: next(remaining_optimizers))


def test_an_optimizer_that_is_not_made_anew_is_refused(graph: Any) -> None:
    optimizer = tf1.train.AdamOptimizer()
    replicas = make_replicas(optimizer, optimizer)
    assert replicas.getter(0) is None and replicas.optimizer() is optimizer
    replicas.getter(1)
    with pytest.raises(SettingsError, match="returns the same one again.*train.collectives=sum"):
        replicas.optimizer()


def test_a_tower_that_keeps_the_variables_of_the_first_is_refused(graph: Any) -> None:
    variable = tf1.get_variable("weights", [2], use_resource=True)
    gradient = tf.ones([2])
    with pytest.raises(TowerRuleError, match="gradient of 'weights' exists in the first tower, but not in tower 1"):
        make_replicas().update([[(gradient, variable)], []], "train_op")


def test_copies_are_neither_saved_nor_trained(graph: Any) -> None:
    variable = tf1.get_variable("weights", [2], use_resource=True)
    getter = make_replicas().getter(1)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=True, custom_getter=getter):
        copy = tf1.get_variable("weights", [2], use_resource=True)
    assert copy is not variable and copy.op.name == "replica1/weights" and "cpu:1" in copy.device.lower()
    assert tf1.trainable_variables() == [variable] and tf1.global_variables() == [variable]
    assert tf1.local_variables() == [copy]


class SumsOnCPU(Collectives):
    """Sums for towers that share a CPU, where TensorFlow's collectives do not work."""

    def sums(self, towers: Sequence[GradsAndVars], with_rows: bool) -> list[GradsAndVars]:
        sums = [tf.add_n([gradient for gradient, _ in pairs]) for pairs in zip(*towers, strict=True)]
        return [[(total, variable) for total, (_, variable) in zip(sums, tower, strict=True)] for tower in towers]


@pytest.fixture
def copies_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each tower on the CPU a copy of the weights, as on several GPUs."""
    monkeypatch.setattr(trainer_module, "chosen_transport", lambda *arguments: "ring")
    monkeypatch.setattr(trainer_module, "Collectives", SumsOnCPU)


class PlainRates(PlainModel):
    """The model with an optimizer that makes no variables."""

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(0.1)


class HalvingTrainer(SyncMultiGPUTrainer):
    """Halves the weights after each update."""

    def run_step(self) -> None:
        super().run_step()
        (weights,) = tf1.trainable_variables()
        weights.load(self.sess.run(weights) / 2, self.sess)
        self.weights_changed()


@pytest.mark.parametrize("update_cycle", [1, 2])
def test_the_copies_have_the_weights_that_a_custom_step_assigned(request: pytest.FixtureRequest,
                                                                 update_cycle: int) -> None:
    def train() -> np.ndarray:
        return train_plainly(lambda: HalvingTrainer(towers=2, update_cycle=update_cycle), [], PlainRates())

    shared = train()
    request.getfixturevalue("copies_on_cpu")
    np.testing.assert_allclose(train(), shared, rtol=1e-5)


class OwnSteps(SyncMultiGPUTrainer):
    """Makes its steps without the parent, so nothing would make copies of the weights equal."""

    def run_step(self) -> None:
        self.hooked_sess.run(self.train_op)


def test_towers_of_a_trainer_with_own_steps_share_the_weights(copies_on_cpu: None,
                                                              caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "tensorpack")
    weights = train_plainly(lambda: OwnSteps(towers=2), [], PlainRates())
    assert "OwnSteps.run_step does not call super().run_step(), so the first GPU sends all weights" in caplog.text
    np.testing.assert_allclose(weights, train_plainly(lambda: OwnSteps(towers=1), [], PlainRates()), rtol=1e-5)
