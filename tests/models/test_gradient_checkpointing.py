"""Layers that are recomputed in the backward pass: the same loss, the same gradients, less memory."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import TrainTowerContext

from tests.check.decoder_zoo import TameDecoder
from towernmt.core.errors import SettingsError, TowerRuleError
from towernmt.core.graph_state import GraphSettings, graph_state
from towernmt.core.tf_compat import tf, tf1
from towernmt.models import architecture
from towernmt.models.layers.feed_forward import checkpointed
from towernmt.models.model_settings import TransformerSettings
from towernmt.models.transformer import Transformer
from towernmt.run.assemble import check_gradient_checkpointing
from towernmt.run.run_settings import TrainSettings

pytestmark = pytest.mark.thorough


def batch(rows: int, length: int, words: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    lengths = random.integers(length // 2, length + 1, rows).astype(np.int32)
    lengths[0] = length
    side = random.integers(4, words, (rows, length)).astype(np.int32)
    links = (random.random((rows, length, length)) < 0.2).astype(np.uint8)
    return [side, lengths, side[:, ::-1].copy(), lengths, np.float32(lengths.sum()), links]


def build(again: bool, precision: str = "float32", **settings):
    """Build the loss and its gradients in the default graph."""
    graph_state().settings = GraphSettings(seed=4, precision=precision, gradient_checkpointing=again)
    model = Transformer(TransformerSettings(**{
        "hidden_size": 16, "filter_size": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2,
        "source_vocab_size": 20, "target_vocab_size": 20, **settings}))
    inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
    with TrainTowerContext(""):
        loss = model.build_graph(*inputs)
        variables = tf1.trainable_variables()
        gradients = [tf.convert_to_tensor(g) for g in tf1.gradients(loss, variables)]
    return inputs, loss, dict(zip([v.op.name for v in variables], gradients, strict=True))


def values(again: bool, precision: str = "float32", **settings):
    with tf.Graph().as_default() as graph:
        inputs, loss, gradients = build(again, precision, **settings)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            feed = dict(zip(inputs, batch(4, 6, 20), strict=False))     # links only for guided alignment
            return session.run([loss, gradients], feed), len(graph.get_operations())


@pytest.mark.parametrize("settings", [
    {"residual_dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.2, "decoder_cell": "ssru",
     "lhuc": True},
    pytest.param({"precision": "bfloat16"}, marks=pytest.mark.slow),
    pytest.param({"positions": "relative", "norm": "rms", "feed_forward": "swiglu"}, marks=pytest.mark.slow),
    {"preprocess": "", "postprocess": "drn", "initialization": "deepnorm", "r_drop_alpha": 1.0},
    pytest.param({"guided_alignment_weight": 0.5, "attention_dropout": 0.2}, marks=pytest.mark.slow),
    pytest.param({"guided_alignment_weight": 0.5, "guided_alignment_layer": 2, "r_drop_alpha": 1.0},
                 marks=pytest.mark.slow),
], ids=str)
def test_loss_and_gradients_are_the_same(settings):
    (loss, gradients), size = values(False, encoder_layers=1, **settings)
    (loss_again, gradients_again), size_again = values(True, encoder_layers=1, **settings)
    assert size_again > size
    np.testing.assert_array_max_ulp(loss_again, loss, maxulp=1)     # TensorFlow may merge operations differently
    assert list(gradients) == list(gradients_again)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradients_again[name], gradient, rtol=1e-6,
                                   atol=1e-6 * np.abs(gradient).max(), err_msg=name)


def test_each_layer_is_built_once_more_in_training_towers_alone():
    counts = {}
    for again in (False, True):
        with tf.Graph().as_default() as graph:
            build(again, encoder_layers=1)
            counts[again] = sum(op.type == "Softmax" for op in graph.get_operations())
    assert counts == {False: 1 + 4 + 1, True: 2 * (1 + 4) + 1}
    with tf.Graph().as_default() as graph:
        graph_state().settings = GraphSettings(gradient_checkpointing=True)
        with TrainTowerContext(""):
            assert checkpointed(lambda x: x + 1.0, tf.constant(1.0)).op.type == "IdentityN"
        assert checkpointed(lambda x: x + 1.0, tf.constant(1.0)).op.type == "AddV2"


def traced(again: bool) -> tuple[int, int]:
    """Return the peak bytes of a step by TensorFlow's records, and the number of executed softmaxes of attention."""
    with tf.Graph().as_default():
        inputs, loss, gradients = build(again, hidden_size=32, filter_size=128, encoder_layers=6, decoder_layers=6)
        update = [tf.reduce_sum(g) for g in gradients.values()]
        config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            trace = tf1.RunMetadata()
            feed = dict(zip(inputs, batch(16, 32, 20), strict=False))
            session.run([loss, update], feed)       # the first run keeps more than later ones
            session.run([loss, update], feed, tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), trace)
    nodes = [node for device in trace.step_stats.dev_stats for node in device.node_stats]
    records = sorted((record.alloc_micros, record.alloc_bytes) for node in nodes for memory in node.memory
                     for record in memory.allocation_records)
    return int(np.cumsum([size for _, size in records]).max()), sum("Softmax" in n.node_name for n in nodes)


@pytest.mark.slow
@pytest.mark.optimized
def test_tensorflow_keeps_both_computations_apart_and_needs_less_memory():
    stored_bytes, softmaxes = traced(False)
    recomputed_bytes, softmaxes_again = traced(True)
    assert softmaxes_again > softmaxes + 10
    assert recomputed_bytes < 0.5 * stored_bytes, (recomputed_bytes, stored_bytes)


def test_models_without_such_layers_refuse_the_setting():
    words = {"source_vocab_size": 9, "target_vocab_size": 9}
    on, off = TrainSettings(gradient_checkpointing=True), TrainSettings()
    for name in ("seq2seq", "rnnsearch", "convs2s"):
        kind = architecture(name)
        model = kind.model(kind.settings(**words))
        check_gradient_checkpointing(model, off)
        with pytest.raises(SettingsError, match=f"=true has no effect on {kind.model.__name__}"):
            check_gradient_checkpointing(model, on)
    with pytest.raises(SettingsError, match="=true has no effect on TameDecoder"):
        check_gradient_checkpointing(TameDecoder(), on)
    check_gradient_checkpointing(Transformer(TransformerSettings(**words)), on)


def test_a_variable_from_elsewhere_is_refused_by_name(graph):
    graph_state().settings = GraphSettings(gradient_checkpointing=True)
    w = tf1.get_variable("elsewhere", [])
    with TrainTowerContext(""), pytest.raises(TowerRuleError, match="reads the variable 'elsewhere'"):
        checkpointed(lambda x: x * w, tf.constant(1.0))


def test_a_gradient_outside_of_the_tower_is_refused(graph):
    graph_state().settings = GraphSettings(gradient_checkpointing=True)
    x = tf.constant(1.0)
    with TrainTowerContext(""), tf1.variable_scope("layer"):
        y = checkpointed(lambda x: x * tf1.get_variable("w", []), x)
    with pytest.raises(TowerRuleError, match="'layer'"):
        tf1.gradients(y, x)


def test_tensors_from_outside_of_a_layer_count_once_in_the_gradient(graph):
    graph_state().settings = GraphSettings(gradient_checkpointing=True)
    a = tf.constant(3.0)
    b = a * a
    with TrainTowerContext(""):
        dx, da = tf1.gradients(checkpointed(lambda x: x * a * b, a + 1.0), [a, b])
        with tf1.Session() as session:
            assert session.run([dx, da]) == [3 ** 3 + 4 * 3 * 3 ** 2, 4 * 3]
