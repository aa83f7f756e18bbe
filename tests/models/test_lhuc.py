"""LHUC's scales, compared with their formula."""

from __future__ import annotations

import numpy as np
import pytest

import tests.models.tiny_models as tiny
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.layers.projections import lhuc

pytestmark = pytest.mark.thorough


def test_each_unit_is_scaled_by_twice_the_sigmoid_of_its_variable_and_not_at_all_at_first(graph):
    x = np.random.default_rng(0).normal(size=[2, 3, 4]).astype(np.float32)
    y = lhuc(tf.constant(x), "sublayer")
    variable, = tf1.trainable_variables()
    assert variable.op.name == "sublayer/lhuc" and variable.shape == [4]
    scales = np.array([-50.0, -1.0, 0.5, 50.0], np.float32)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(y), x)
        variable.load(scales, session)
        np.testing.assert_allclose(session.run(y), x * 2 / (1 + np.exp(-scales)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", tiny.names_with(pytest.mark.slow, "transformer", "convs2s"))
def test_a_model_begins_as_the_unadapted_one_and_every_scale_has_a_gradient(name):
    costs = []
    for adapted in (False, True):
        with tf.Graph().as_default(), tf1.Session() as session:
            cost, *gradients = tiny.loss_and_gradients(tiny.make(name, quiet=True, lhuc=adapted), tiny.INPUTS)
            session.run(tf1.global_variables_initializer())
            names = [variable.op.name for variable in tf1.trainable_variables()]
            values = session.run([cost, *gradients])
            costs.append(values[0])
    assert costs[0] == costs[1]
    scales = {name: gradient for name, gradient in zip(names, values[1:], strict=True) if name.endswith("/lhuc")}
    layers = {"/".join(name.split("/")[1:3]) for name in names if "/layer_" in name}
    assert {"/".join(name.split("/")[1:3]) for name in scales} == layers
    assert all(gradient.all() for gradient in scales.values())
