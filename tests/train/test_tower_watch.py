"""A trainer refuses tower functions that would break training, and warns of smaller problems, at no cost per step."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
from tensorpack.dataflow import DataFromList
from tensorpack.input_source import FeedInput
from tensorpack.tfutils.tower import get_current_tower_context
from tensorpack.train.model_desc import ModelDesc

from towernmt.core.errors import TowerRuleError
from towernmt.core.tf_compat import tf, tf1
from towernmt.train.trainer import SyncMultiGPUTrainer


class Line(ModelDesc):
    """The sum of `layer(x)`; derived classes break a rule there."""

    def inputs(self):
        return [tf.TensorSpec([3], tf.float32, "x")]

    def build_graph(self, x):
        return tf.reduce_sum(self.layer(x), name="loss")

    def layer(self, x):
        return x * tf1.get_variable("scale", [3])

    def optimizer(self):
        return tf1.train.GradientDescentOptimizer(tf1.get_variable("learning_rate", initializer=0.1, trainable=False))


def set_up(model, towers=2):
    with tf.Graph().as_default():
        trainer = SyncMultiGPUTrainer(towers=towers)
        data = FeedInput(DataFromList([[np.ones(3, np.float32)]]))
        trainer.setup_graph(model.get_input_signature(), data, model.build_graph, model.get_optimizer)
        return trainer


class MadeAgain(Line):
    def layer(self, x):
        return super().layer(x) * tf.Variable(2.0, name="factor")


class NamedByItsTower(Line):
    def layer(self, x):
        return x * tf1.get_variable(f"scale_{get_current_tower_context().index}", [3])


class SwitchesReuse(Line):
    def layer(self, x):
        y = super().layer(x)
        tf1.get_variable_scope().reuse_variables()
        return y + super().layer(x)


class TrainsTwice(Line):
    def layer(self, x):
        scale = tf1.get_variable("scale", [3])
        tf1.add_to_collection(tf1.GraphKeys.TRAINABLE_VARIABLES, scale)
        return x * scale


class TrainsAnInteger(Line):
    def layer(self, x):
        return super().layer(x) + tf.cast(tf1.get_variable("count", [], tf.int32, initializer=tf1.zeros_initializer()),
                                          tf.float32)


class CostOfEachRow(Line):
    def build_graph(self, x):
        return self.layer(x)


class SeveralCosts(Line):
    def build_graph(self, x):
        cost = super().build_graph(x)
        return cost, cost


class NoCost(Line):
    def build_graph(self, x):
        super().build_graph(x)


class WholeNumber(Line):
    def build_graph(self, x):
        return tf.cast(super().build_graph(x), tf.int32)


class WithoutGradient(Line):
    def build_graph(self, x):
        return tf.stop_gradient(super().build_graph(x))


@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("model, sentence", [
    (CostOfEachRow, r"\[cost\] it returns float32 \(3,\) instead of one cost"),
    (SeveralCosts, r"\[cost\] it returns 2 values instead of one cost.*: add several costs"),
    (NoCost, r"\[cost\] it returns None instead of one cost"),
    (WholeNumber, r"\[cost\] it returns int32 \(\) instead of one cost"),
    (WithoutGradient, r"The cost has no gradient for any trainable variable: .*tf.stop_gradient"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_function_without_one_differentiable_cost_is_refused(model, sentence, towers):
    with pytest.raises(TowerRuleError, match=sentence):
        set_up(model(), towers)


@pytest.mark.parametrize("model, sentence", [
    (MadeAgain, r"test_tower_watch.py:\d+: \[second-tower\] the second training tower creates the trainable variable "
                "'tower1/factor'"),
    (NamedByItsTower, r"test_tower_watch.py:\d+: \[second-tower\] training tower 1 requests the variable 'scale_1', "
                      r"which the first training tower did not create"),
    (SwitchesReuse, r"test_tower_watch.py:\d+: \[reuse\] it switches on reuse"),
    (TrainsTwice, r"\[trainable-collection\] 'scale' is in TRAINABLE_VARIABLES, but it occurs twice"),
    (TrainsAnInteger, r"\[trainable-collection\] 'count' is in TRAINABLE_VARIABLES, but it is of type int32"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_tower_function_that_breaks_a_rule_is_refused_with_a_message(model, sentence):
    with pytest.raises(TowerRuleError, match=sentence):
        set_up(model())


def test_a_predicting_tower_with_variables_of_its_own_is_refused():
    class PredictsMore(Line):
        def layer(self, x):
            return super().layer(x) * (1.0 if self.training else tf.Variable(1.0, name="temperature"))

    trainer = set_up(PredictsMore(), towers=1)
    with trainer.tower_func.towers[0].inputs[0].graph.as_default(), pytest.raises(
            TowerRuleError, match=r"\[mode\] the predicting tower creates the trainable variable"):
        trainer.get_predictor(["x"], ["loss"], device=-1)


def test_names_that_break_a_rule_are_warnings(caplog):
    class Odd(Line):
        def layer(self, x):
            with tf1.variable_scope("watchtower"):
                return super().layer(x) * tf.Variable(2.0, name="factor")

    with caplog.at_level(logging.WARNING, "tensorpack"):
        set_up(Odd(), towers=1)
    warnings = [message for message in caplog.messages if "breaks a rule" in message]
    assert {(rule, variable) for message in warnings for rule in ("name-scope", "tower-word")
            for variable in ("watchtower/scale", "watchtower/factor") if rule in message and variable in message} == {
        ("tower-word", "watchtower/scale"), ("name-scope", "watchtower/factor"), ("tower-word", "watchtower/factor")}


@pytest.mark.parametrize("rate, warnings", [(0.5, 1), (0.0, 0)])
def test_random_numbers_with_a_hidden_state_are_a_warning(rate, warnings, caplog):
    class Drops(Line):
        def layer(self, x):
            y = super().layer(x)        # whose initial values are random
            return tf.nn.dropout(y, rate) if rate else y

    with caplog.at_level(logging.WARNING, "tensorpack"):
        set_up(Drops())
    messages = [message for message in caplog.messages if "[random]" in message]
    assert len(messages) == warnings and all("test_tower_watch.py:" in message for message in messages)


def test_any_other_error_of_the_model_is_raised_unchanged():
    class Fails(Line):
        def layer(self, x):
            return tf.reshape(x, [7])

    with pytest.raises(ValueError, match="reshape"):
        set_up(Fails())


def test_the_look_takes_less_than_a_fiftieth_of_the_building(monkeypatch):
    class Deep(Line):
        def layer(self, x):
            for depth in range(40):
                with tf1.variable_scope(f"layer_{depth}"):
                    x = tf.nn.relu(super().layer(x) + tf1.get_variable("bias", [3]))
            return x

    monkeypatch.setattr(time, "perf_counter", time.thread_time)     # other programs do not count
    began = time.perf_counter()
    trainer = set_up(Deep())
    assert trainer.watch.seconds < 0.02 * (time.perf_counter() - began)
