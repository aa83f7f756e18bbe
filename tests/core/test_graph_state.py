"""The state of a graph belongs to that graph alone, also inside loops and conditions, and is freed with it."""

from __future__ import annotations

import gc
import weakref

from towernmt.core.graph_state import Clock, GraphSettings, configure_graph, graph_state
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.kernels import compute_dtype, set_precision
from towernmt.models.layers.randomness import graph_seed, set_seed, start_clock


def test_each_graph_has_a_separate_state():
    with tf.Graph().as_default() as outer_graph:
        configure_graph(GraphSettings(seed=3, precision="bfloat16"))
        with tf.Graph().as_default():
            assert graph_state().settings == GraphSettings()
            assert graph_state(outer_graph).settings.seed == 3
        assert (graph_seed(), compute_dtype()) == (3, tf.bfloat16)


def test_one_setting_is_changed_without_the_others():
    with tf.Graph().as_default() as graph:
        set_precision("float16")
        assert graph.seed is None       # TensorFlow's own seed is unchanged
        set_seed(5)
        assert graph_state().settings == GraphSettings(seed=5, precision="float16") and graph.seed == 5


def test_a_loop_and_a_condition_have_the_state_of_their_graph():
    states = []

    def note(x):
        states.append(graph_state())
        return x + 1

    with tf.Graph().as_default():
        set_precision("bfloat16")
        tf.while_loop(lambda x: x < 3, lambda x: tf.cond(x < 1, lambda: note(x), lambda: note(x)), [tf.constant(0)])
        assert len(states) >= 2 and all(state is graph_state() for state in states)


def test_the_clock_is_an_update_operation_and_an_exported_graph_has_no_collection_of_towernmt():
    with tf.Graph().as_default():
        set_seed(1)
        start_clock(tf.constant(0))
        clock = graph_state().clock
        assert isinstance(clock, Clock)
        assert tf1.get_collection(tf1.GraphKeys.UPDATE_OPS) == [clock.advance]
        exported = tf1.train.export_meta_graph()
    assert [key for key in exported.collection_def if "towernmt" in key] == []


def test_the_state_does_not_keep_its_graph_in_memory():
    graph = tf.Graph()
    with graph.as_default():
        start_clock(tf.constant(0))
        gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
