"""Guided alignment: its loss, compared with NumPy, and all four models with the guided attention."""

from __future__ import annotations

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

import tests.models.tiny_models as tiny
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel, shift_right
from towernmt.models.losses import guided_alignment_loss

pytestmark = pytest.mark.thorough

INPUTS = [*tiny.INPUTS, tiny.ALIGNMENT]
FOUR = ("transformer", "seq2seq", "rnnsearch", "convs2s")
VARIANTS = tiny.names_with(pytest.mark.slow, *FOUR)
MOSTLY_SLOW = ["transformer", *(pytest.param(name, marks=pytest.mark.slow) for name in FOUR[1:])]


def missed(attention: np.ndarray, alignment: np.ndarray) -> float:
    """Return the cross-entropy of Chen et al. (2016), target word by target word."""
    total = 0.0
    for weights, links in zip(attention.reshape(-1, attention.shape[-1]), alignment.reshape(-1, alignment.shape[-1]),
                              strict=True):
        sources = np.flatnonzero(links)
        total -= sum(np.log(weights[j]) / len(sources) for j in sources)
    return total


def attention_of(random, *shape: int) -> np.ndarray:
    weights = random.uniform(0.1, 1, shape)
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("passes", [1, 2])
def test_the_loss_is_the_cross_entropy_of_links_and_attention(graph, passes):
    attention = attention_of(np.random.default_rng(1), passes * 2, 5, 6)
    loss = guided_alignment_loss(tf.constant(attention), tf.constant(tiny.ALIGNMENT), passes)
    expected = np.mean([missed(half, tiny.ALIGNMENT) for half in np.split(attention, passes)])
    with tf1.Session() as session:
        assert session.run(loss) == pytest.approx(expected, rel=1e-5)


def test_words_without_links_and_shares_without_rows_cost_nothing(graph):
    attention = attention_of(np.random.default_rng(2), 2, 5, 6)
    losses = [guided_alignment_loss(tf.constant(attention), tf.zeros([2, 5, 6], tf.uint8)),
              guided_alignment_loss(tf.zeros([0, 5, 6]), tf.zeros([0, 5, 6], tf.uint8), 2)]
    with tf1.Session() as session:
        assert session.run(losses) == [0.0, 0.0]


def test_a_link_to_a_word_without_any_attention_is_dear_but_not_infinite(graph):
    attention = tf.constant([[[1.0, 0.0]]])
    loss = guided_alignment_loss(attention, tf.constant([[[0, 1]]], tf.uint8))
    with tf1.Session() as session:
        assert 50 < session.run(loss) < 100


@pytest.mark.parametrize("name", tiny.names_with(pytest.mark.slow, "transformer"))
def test_a_training_tower_adds_it_to_the_loss_and_not_to_the_likelihood(graph, name):
    model = tiny.make(name, quiet=True, guided_alignment_weight=0.3)
    with TrainTowerContext("train"):
        cost = model.build_graph(*map(tf.constant, INPUTS))
    with tf1.variable_scope("", reuse=True), PredictTowerContext("predict"):
        memory = model.encode(tf.constant(tiny.SOURCE), tf.constant(tiny.SOURCE_LENGTH))
        _, attention = model.decode_with_attention(memory, shift_right(tf.constant(tiny.TARGET)))
        plain = tiny.make(name, quiet=True).build_graph(*map(tf.constant, tiny.INPUTS))
    aligned, nll = (graph.get_tensor_by_name(f"train/{x}:0") for x in ("alignment_loss", "nll"))
    with tf1.variable_scope("", reuse=True), TrainTowerContext("plain"):
        unguided = tiny.make(name, quiet=True).build_graph(*map(tf.constant, tiny.INPUTS))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        tiny.scramble(session)
        got = session.run({"cost": cost, "attention": attention, "plain": plain, "aligned": aligned, "nll": nll,
                           "unguided": unguided})
    assert got["aligned"] == pytest.approx(missed(got["attention"], tiny.ALIGNMENT) / 8, rel=1e-3)
    assert got["cost"] == pytest.approx(got["unguided"] + 0.3 * got["aligned"], rel=1e-4)
    assert got["nll"] == pytest.approx(got["plain"], rel=1e-4)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name in tiny.RELATED)) for name in tiny.MODELS])
def test_the_attention_is_a_distribution_over_the_words_of_the_source_whatever_the_padding(graph, name):
    model = tiny.make(name)
    shown = []
    for i, source in enumerate([tiny.SOURCE, tiny.wider(tiny.SOURCE)]):
        with tf1.variable_scope("", reuse=i > 0), PredictTowerContext(f"t{i}"):
            memory = model.encode(tf.constant(source), tf.constant(tiny.SOURCE_LENGTH))
            hidden, attention = model.decode_with_attention(memory, shift_right(tf.constant(tiny.TARGET)))
            shown += [attention, model.decode_hidden(memory, shift_right(tf.constant(tiny.TARGET))) - hidden
                      ] if i else [attention]
    with tf1.Session() as session:
        tiny.scramble(session)
        attention, wide, difference = session.run(shown)
    assert attention.shape == (2, 5, 6) and wide.shape == (2, 5, 9)
    np.testing.assert_allclose(attention.sum(-1), 1.0, rtol=1e-5)
    assert not attention[0, :, 4:].any() and (attention[0, :, :4] > 0).all() and (attention[1] > 0).all()
    np.testing.assert_allclose(wide[:, :, :6], attention, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(difference, 0.0, atol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_with_guidance_agree_with_finite_differences_and_ignore_padding(graph, name):
    options = {"kernels": "loop"} if name.startswith(("seq2seq", "rnnsearch")) else {}
    model = tiny.make(name, quiet=True, guided_alignment_weight=0.7, lhuc=True, **tiny.FACTORS, **options)
    source, further_inputs = tiny.FACTORED_SOURCE, [tiny.SOURCE_LENGTH, tiny.TARGET, tiny.TARGET_LENGTH, np.float32(8)]
    cost, *gradients = tiny.loss_and_gradients(model, [source, *further_inputs, tiny.ALIGNMENT], "narrow")
    further_inputs[1] = tiny.wider(tiny.TARGET, 2)
    wide = tiny.loss_and_gradients(model, [tiny.wider(source, 1), *further_inputs, np.pad(
        tiny.ALIGNMENT, [[0, 0], [0, 2], [0, 1]])], "wide", reuse=True)
    variables = tf1.trainable_variables()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        tiny.scramble(session)
        values, narrow, padded = session.run([variables, [cost, *gradients], wide])
        for a, b in zip(narrow, padded, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        for variable, expected, got in tiny.slopes_by_differences(session, cost, variables, values, narrow[1:]):
            assert got == pytest.approx(expected, rel=0.02, abs=5e-4), variable


@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_two_passes_are_guided_as_one_is(name):
    losses = []
    for more in ({}, {"r_drop_alpha": 5.0}):
        with tf.Graph().as_default(), tf1.Session() as session:
            fetches = tiny.loss_and_gradients(tiny.make(name, quiet=True, guided_alignment_weight=0.5, **more), INPUTS)
            session.run(tf1.global_variables_initializer())
            losses.append(session.run(fetches))
    for once, twice in zip(*losses, strict=True):
        np.testing.assert_allclose(once, twice, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_without_a_weight_nothing_of_it_is_in_the_graph(graph, name):
    model = tiny.make(name)
    assert [spec.name for spec in model.inputs()] == ["source", "source_length", "target", "target_length",
                                                      "target_tokens"]
    with TrainTowerContext(""):
        model.build_graph(*map(tf.constant, tiny.INPUTS))
    assert not [op.name for op in graph.get_operations() if "alignment_loss" in op.name]


@pytest.mark.parametrize("layer, depth, head", [(0, 1, 0), (0, 3, 1), (3, 3, 2), (1, 2, 0)])
def test_the_guided_layer_of_a_transformer_is_the_last_but_one_or_the_one_that_is_set(graph, layer, depth, head):
    """A change after the guided layer's source attention does not change the attention; a change in it does."""
    model = tiny.make("transformer", guided_alignment_layer=layer, decoder_layers=depth, guided_alignment_weight=0.1)
    with PredictTowerContext(""):
        memory = model.encode(tf.constant(tiny.SOURCE), tf.constant(tiny.SOURCE_LENGTH))
        _, attention = model.decode_with_attention(memory, shift_right(tf.constant(tiny.TARGET)))
    scope = "transformer/decoder/layer_{}/source_attention/query/kernel"
    kernels = {v.op.name: v for v in tf1.trainable_variables()}
    gradients = tf1.gradients(tf.square(attention), [kernels[scope.format(i)] for i in range(depth)])
    assert [g is not None for g in gradients] == [i <= head for i in range(depth)]
    with tf1.Session() as session:
        tiny.scramble(session)
        of_heads = session.run(gradients[head])
    assert of_heads[:, :4].any() and not of_heads[:, 4:].any()


@pytest.mark.parametrize("name, wrong, message", [
    ("transformer", {"guided_alignment_layer": 3}, "model.guided_alignment_layer=3"),
    ("transformer", {"guided_alignment_heads": 9}, "model.guided_alignment_heads=9 must be at most model.heads="),
    ("seq2seq", {"guided_alignment_weight": 0.1, "attention": "none"}, "needs attention to guide"),
    ("rnnsearch", {"guided_alignment_weight": -0.1}, "model.guided_alignment_weight=-0.1"),
])
def test_guidance_that_cannot_work_is_refused_with_its_setting(name, wrong, message):
    with pytest.raises(SettingsError, match=message):
        tiny.make(name, **wrong)


def test_the_error_of_a_custom_model_without_attention_names_the_missing_method():
    class Mute(NMTModel):
        guided_alignment_weight = 0.5
        encode = decode_hidden = output_projection = start_state = decode_step = optimizer = None

    with pytest.raises(SettingsError, match="Mute has guided_alignment_weight=0.5 but no decode_with_attention"):
        Mute().decode_with_attention(None, None)
