"""A guard of the training step's cost that needs no clock: how many operations of each kind its graph has."""

from __future__ import annotations

from collections import Counter

import pytest
from tensorpack.tfutils.tower import TrainTowerContext

from towernmt.models import Transformer, TransformerSettings
from towernmt.models.precision import set_precision
from towernmt.tf_compat import tf, tf1


def operations(encoder: int, decoder: int, precision: str = "float32", dropout: float = 0.1) -> Counter[str]:
    """Kinds of operations of forward pass, backward pass and update."""
    with tf.Graph().as_default() as graph:
        set_precision(precision)
        model = Transformer(TransformerSettings(
            hidden_size=16, filter_size=32, heads=2, encoder_layers=encoder, decoder_layers=decoder,
            source_vocab_size=30, target_vocab_size=30, residual_dropout=dropout, embedding_dropout=dropout))
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
        with TrainTowerContext(""):
            optimizer = model.get_optimizer()
            optimizer.apply_gradients(optimizer.compute_gradients(model.build_graph(*inputs)))
        return Counter(operation.type for operation in graph.get_operations())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_has_the_products_that_the_model_needs_and_no_more(precision: str) -> None:
    encoder, decoder = 2, 3
    count = operations(encoder, decoder, precision)
    # Queries, keys and values in one product, output, two of the feed-forward; a decoder layer has queries, keys with
    # values, and output towards the source besides; then the logits. Each has two products in its gradient.
    assert count["MatMul"] == 3 * (4 * encoder + 7 * decoder + 1)
    # Scores and weighted sums of each attention.
    assert count["BatchMatMulV2"] == 3 * 2 * (encoder + 2 * decoder)
    assert count["Softmax"] == encoder + 2 * decoder + 1


def test_a_step_updates_each_variable_in_one_fused_operation() -> None:
    encoder, decoder = 2, 3
    count = operations(encoder, decoder)
    # A layer of the encoder: 2 kernels of attention, 2 kernels with biases, 2 norms of 2; of the decoder: 5, 2, 3.
    assert count["ResourceApplyAdam"] == 10 * encoder + 15 * decoder + 2 * 2 + len(["embedding", "softmax bias"])
    assert not any(kind.startswith("ResourceScatter") for kind in count)


def test_a_step_draws_one_mask_for_each_dropout_and_none_without() -> None:
    masks = "StatelessRandomUniformFullIntV2"
    encoder, decoder = 2, 3
    assert operations(encoder, decoder)[masks] == 2 + 2 * encoder + 3 * decoder
    assert operations(encoder, decoder, dropout=0.0)[masks] == 0


def test_the_graph_grows_linearly_and_gently_with_depth() -> None:
    one, two, four = (operations(layers, layers).total() for layers in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)
    assert two - one < 1800     # 1,720: an encoder and a decoder layer with gradients, update and initial values


def test_a_step_makes_no_dense_one_hot_and_copies_nothing_by_python() -> None:
    count = operations(1, 1)
    assert count["OneHot"] == count["PyFunc"] == count["EagerPyFunc"] == 0
