"""A model uses the optimizer that was set for it, and imports no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.core.tf_compat import tf, tf1
from towernmt.models import Transformer, TransformerSettings
from towernmt.optim import OptimizerSettings
from towernmt.run.assemble import set_model_optimizer
from towernmt.run.run_settings import Settings

SIZES = TransformerSettings(source_vocab_size=8, target_vocab_size=8)


class OwnOptimizer(Transformer):
    def optimizer(self):
        return tf1.train.FtrlOptimizer(0.1)


def slots_and_graph(model: Any) -> tuple[set[str], tf.Graph]:
    """Return the optimizer's slots of a variable w, and the graph of its update."""
    with tf.Graph().as_default() as graph:
        w = tf1.get_variable("w", [2, 2], initializer=tf1.ones_initializer())
        model.optimizer().minimize(tf.reduce_sum(w))
        return {v.op.name for v in tf1.global_variables() if v.op.name.startswith("w/")}, graph


def clips(graph: tf.Graph, norm: float) -> bool:
    """Return whether the graph clips gradients to this norm."""
    constants = [op.get_attr("value").float_val for op in graph.get_operations() if op.type == "Const"]
    return any(list(values) == [norm] for values in constants)


def test_a_model_without_any_has_adam_by_default():
    slots, graph = slots_and_graph(Transformer(SIZES))
    assert slots == {"w/Adam", "w/Adam_1"} and not clips(graph, 0.25)


def with_adagrad() -> Transformer:
    model = Transformer(SIZES)
    model.make_optimizer = lambda: tf1.train.AdagradOptimizer(0.1)
    return model


def test_a_handed_function_makes_the_optimizer():
    assert slots_and_graph(with_adagrad())[0] == {"w/Adagrad"}


@pytest.mark.parametrize("model, expected", [
    (Transformer(SIZES), {"w/LAMB", "w/LAMB_1"}),
    (with_adagrad(), {"w/Adagrad"}),
    (OwnOptimizer(SIZES), {"w/Ftrl", "w/Ftrl_1"})])
def test_a_run_hands_its_optimizer_to_a_model_that_has_none(model, expected):
    settings = Settings("transformer", SIZES, optimizer=OptimizerSettings("lamb"))
    settings.train.clip_norm = 0.25
    set_model_optimizer(model, settings)
    slots, graph = slots_and_graph(model)
    assert slots == expected and clips(graph, 0.25) == ("w/LAMB" in expected)


def test_a_tower_function_that_is_no_model_of_ours_is_left_alone():
    stranger = SimpleNamespace(optimizer=None)
    set_model_optimizer(stranger, Settings("transformer", SIZES))
    assert vars(stranger) == {"optimizer": None}
