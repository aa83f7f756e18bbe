"""Towers that XLA compiles (`train.xla`): against the same towers without XLA, and the shapes that it compiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import TrainTowerContext

import tests.models.tiny_models as tiny
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.compiled_towers import SIZES, check_compilation, padded_batch, padded_size
from towernmt.models.interface import NMTModel


def switch(**settings: Any) -> None:
    graph_state().settings = replace(graph_state().settings, **settings)


def steps(name: str, xla: bool, count: int = 3) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses of a few updates on two batches of different shapes, and the weights after them."""
    batches = [tiny.INPUTS, [x[:1] if np.ndim(x) else np.float32(3) for x in tiny.INPUTS]]
    with tf.Graph().as_default():
        switch(seed=3, xla=xla)
        model = tiny.make(name, quiet=True, **({"decoder_layers": 1} if name == "transformer" else {}))
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
        with TrainTowerContext("tower0"):
            loss = model.build_graph(*inputs)
            update = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            losses = [session.run([loss, update], dict(zip(inputs, batches[step % 2], strict=True)))[0]
                      for step in range(count)]
            return losses, {v.op.name: value for v, value in zip(
                tf1.trainable_variables(), session.run(tf1.trainable_variables()), strict=True)}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["transformer", pytest.param("convs2s", marks=pytest.mark.slow)])
def test_compiled_towers_learn_the_same(name: str) -> None:
    expected_losses, expected = steps(name, xla=False)
    losses, weights = steps(name, xla=True)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert list(weights) == list(expected)
    for variable, value in expected.items():
        np.testing.assert_allclose(weights[variable], value, rtol=1e-4, atol=1e-6, err_msg=variable)


def test_batches_are_padded_to_few_shapes(graph: Any) -> None:
    inputs = [tf1.placeholder(tf.int32, shape) for shape in ([None, None], [None], [None, None], [None])]
    padded = padded_batch(*inputs)
    random, shapes = np.random.default_rng(0), set()
    with tf1.Session() as session:
        for _ in range(300):
            longest = random.integers(3, 100, 2)
            rows = int(random.integers(0.8 * 1000, 1000)) // max(longest)
            lengths = [random.integers(1, size + 1, rows) for size in longest]
            ids = [random.integers(1, 9, (rows, size)) for size in longest]
            batch = [ids[0], lengths[0], ids[1], lengths[1]]
            source, source_length, target, target_length = session.run(padded, dict(zip(inputs, batch, strict=True)))
            assert source.shape == target.shape and set(source.shape) <= set(SIZES)
            for padded_array, array in zip((source, source_length, target, target_length), batch, strict=True):
                inside = tuple(slice(size) for size in array.shape)
                np.testing.assert_array_equal(padded_array[inside], array)
                assert padded_array.sum() == array.sum()
            shapes.add(source.shape)
    assert len(shapes) <= 24        # 8 lengths, each with up to three numbers of rows


def test_a_size_grows_by_at_most_a_half(graph: Any) -> None:
    sizes = tf.map_fn(padded_size, tf.range(1, 400))
    with tf1.Session() as session:
        padded_sizes = session.run(sizes)
    assert (padded_sizes >= np.arange(1, 400)).all() and (padded_sizes <= np.maximum(1.5 * np.arange(1, 400), 1)).all()


class OwnLoss(tiny.MODELS["transformer"][0]):       # type: ignore[misc, name-defined]
    def loss(self, logits: Any, batch: Any) -> Any:
        return NMTModel.loss(self, logits, batch)


@pytest.mark.parametrize(("make", "name"), [
    (lambda: tiny.make("rnnsearch"), "RNNSearch"),
    (lambda: tiny.make("seq2seq"), "Seq2Seq"),
    (lambda: tiny.make("transformer", decoder_cell="ssru"), "decoder_cell=ssru"),
    (lambda: tiny.make("transformer", r_drop_alpha=1.0), "r_drop_alpha"),
    (lambda: tiny.make("transformer", guided_alignment_weight=0.1), "guided_alignment_weight"),
    (lambda: OwnLoss(tiny.make("transformer").settings), "the loss of OwnLoss")])
def test_models_that_do_not_work_with_xla_are_refused(graph: Any, make: Any, name: str) -> None:
    switch(xla=True)
    with pytest.raises(SettingsError, match=f"train.xla=true does not work with .*{name}"):
        check_compilation(make())


def test_gradient_checkpointing_is_refused(graph: Any) -> None:
    switch(xla=True, gradient_checkpointing=True)
    with pytest.raises(SettingsError, match="gradient_checkpointing=true: XLA compiles"):
        check_compilation(tiny.make("transformer"))
