"""Count the operations of each kind in the graph of a training step, to detect additional cost without a clock."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from tensorpack.tfutils.tower import TrainTowerContext

from tests.train.memory_estimate import MemoryEstimate, estimate_memory
from towernmt.core.graph_state import GraphSettings, graph_state
from towernmt.core.tf_compat import tf, tf1
from towernmt.models import Transformer, TransformerSettings

pytestmark = pytest.mark.thorough


def build_step(encoder: int, decoder: int, precision: str = "float32", dropout: float = 0.1, again: bool = False,
               **sizes: int) -> list[Any]:
    """Build forward pass, backward pass and update in the default graph, and return the fetches of a step."""
    graph_state().settings = GraphSettings(precision=precision, gradient_checkpointing=again)
    model = Transformer(TransformerSettings(**{  # type: ignore[arg-type]
        "hidden_size": 16, "filter_size": 32, "heads": 2, "source_vocab_size": 30, "target_vocab_size": 30, **sizes},
        encoder_layers=encoder, decoder_layers=decoder, residual_dropout=dropout, embedding_dropout=dropout))
    inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
    with TrainTowerContext(""):
        optimizer = model.get_optimizer()
        loss = model.build_graph(*inputs)
        update = optimizer.apply_gradients(optimizer.compute_gradients(loss))
    return [loss, update, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)]


@cache
def operations(encoder: int, decoder: int, precision: str, dropout: float = 0.1) -> Counter[str]:
    """Count the kinds of operations in forward pass, backward pass and update."""
    with tf.Graph().as_default() as graph:
        build_step(encoder, decoder, precision, dropout)
        return Counter(operation.type for operation in graph.get_operations())


@cache
def estimate(rows: int, length: int, precision: str, again: bool, layers: int = 2) -> MemoryEstimate:
    """Estimate a step of a small model, for a batch without padding."""
    with tf.Graph().as_default() as graph:
        fetches = build_step(layers, layers, precision, again=again, hidden_size=64, filter_size=256, heads=4,
                             source_vocab_size=1000, target_vocab_size=1000)
        return estimate_memory(graph, fetches, {
            "source:0": [rows, length], "source_length:0": [rows], "target:0": [rows, length],
            "target_length:0": [rows], "target_tokens:0": []})


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_has_the_products_that_the_model_needs_and_no_more(precision: str) -> None:
    encoder, decoder = 1, 2
    count = operations(encoder, decoder, precision)
    # Queries, keys and values in one product, output, two of the feed-forward; a decoder layer also has queries, keys
    # with values, and output of the attention to the source; then the logits. Each has two products in its gradient.
    # The loss has two small ones: the mean of the kernel, and the gradient of the bias.
    assert count["MatMul"] == 3 * (4 * encoder + 7 * decoder + 1) + 2
    # Scores and weighted sums of each attention.
    assert count["BatchMatMul"] + count["BatchMatMulV2"] == 3 * 2 * (encoder + 2 * decoder)
    assert count["Softmax"] == encoder + 2 * decoder + 1


def test_a_step_updates_each_variable_in_one_fused_operation() -> None:
    encoder, decoder = 1, 2
    count = operations(encoder, decoder, "float32")
    # A layer of the encoder: 2 kernels of attention, 2 kernels with biases, 2 norms of 2; of the decoder: 5, 2, 3.
    assert count["ResourceApplyAdam"] == 10 * encoder + 15 * decoder + 2 * 2 + len(["embedding", "softmax bias"])
    assert not any(kind.startswith("ResourceScatter") for kind in count)


def test_a_step_draws_one_mask_for_each_dropout_and_none_without() -> None:
    masks = "StatelessRandomUniformFullIntV2"
    encoder, decoder = 1, 2
    assert operations(encoder, decoder, "float32")[masks] == 2 + 2 * encoder + 3 * decoder
    assert operations(encoder, decoder, "float32", dropout=0.0)[masks] == 0


@pytest.mark.parametrize(("alone", "fills"), [(True, 2 * (1 + 2)), (False, 0)])
def test_on_avx2_alone_both_kernels_of_each_feed_forward_have_a_filled_gradient(
        monkeypatch: pytest.MonkeyPatch, alone: bool, fills: int) -> None:
    monkeypatch.setattr("towernmt.models.kernels._AVX2_ONLY", alone)
    with tf.Graph().as_default() as graph:
        build_step(1, 2, filter_size=1024)
        filled = [op for op in graph.get_operations() if op.type == "MatMul" and op.get_attr("transpose_a")
                  and any(x.op.type in ("Pad", "PadV2") for x in op.inputs)]
    assert len(filled) == fills


def test_the_graph_grows_linearly_and_gently_with_depth() -> None:
    first, second, third = (operations(layers, layers, "float32").total() for layers in (1, 2, 3))
    assert third - second == pytest.approx(second - first, rel=0.01)
    assert second - first < 1800     # 1,740: an encoder and a decoder layer with gradients, update and initial values


def test_a_step_makes_no_dense_one_hot_and_copies_nothing_by_python() -> None:
    count = operations(1, 1, "float32")
    assert count["OneHot"] == count["PyFunc"] == count["EagerPyFunc"] == 0


@pytest.mark.parametrize(("precision", "again", "most"), [
    ("float32", False, 14.0), ("float32", True, 5.4),   # MiB
    pytest.param("bfloat16", False, 11.7, marks=pytest.mark.slow)])
def test_a_step_needs_no_more_memory_than_it_did(precision: str, again: bool, most: float) -> None:
    estimated = estimate(16, 32, precision, again)
    assert estimated.unknown == []
    # Parameters and Adam's two moments: the shared table, softmax bias, kernels with biases, and norms.
    parameters = 1000 * 64 + 1000 + 2 * (4 + 8) * 64 * 64 + 4 * (2 * 64 * 256 + 256 + 64) + 2 * 64 * (4 + 6 + 2)
    assert estimated.variables == pytest.approx(3 * 4 * parameters, rel=0.001)
    assert estimated.peak <= most * 2 ** 20, estimated


def test_memory_grows_with_the_tokens_and_the_depth() -> None:
    small, wide, shallow = (estimate(rows, 32, "float32", False, **depth)
                            for rows, depth in ((8, {}), (16, {}), (8, {"layers": 1})))
    assert wide.peak == pytest.approx(2 * small.peak, rel=0.15)
    assert 1.2 * shallow.peak < small.peak < 2 * shallow.peak


def test_tensors_that_live_at_once_are_counted_once(graph: Any) -> None:
    x = tf1.placeholder(tf.float32, [None, None], "x")
    y = tf.tanh(tf.reshape(x, [-1]) * 2.0)      # the product is written over x, the tangent over the product
    z = tf.reduce_sum(tf.concat([y, y], 0))
    estimated = estimate_memory(graph, [z], {"x:0": [100, 10]})
    assert estimated.variables == 0 and estimated.unknown == [] and estimated.at == "concat"
    assert 4000 + 8000 <= estimated.peak < 12100        # and some constants
