"""Which embedding tables a model has, one for all, one for each language, or three, and what is looked up in them."""

from __future__ import annotations

from typing import Any

from towernmt.core.tensors import Tensor, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS
from towernmt.models.kernels.precision import to_float32
from towernmt.models.layers.initializers import StatelessNormal
from towernmt.models.layers.projections import linear


def embedding_table(vocabulary: int, depth: int, name: str) -> Variable:
    """A variable float32 `[vocabulary, depth]`, normal with deviation 1/sqrt(depth) at first."""
    return tf1.get_variable(name, [vocabulary, depth], initializer=StatelessNormal(depth ** -0.5, name))


def shared_table(role: str, tie: str, vocabulary: int, depth: int) -> Variable:
    """The table of `role` (source, target, softmax) float32 `[vocabulary, depth]` in the enclosing variable scope.

    Args:
        tie: `all` for one table (Press & Wolf 2017: softmax and embeddings), `target` for target and softmax in
            one, or `none`.
    """
    name = {"all": "embedding", "target": "source_embedding" if role == "source" else "target_embedding",
            "none": f"{role}_embedding"}[tie]
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
        return embedding_table(vocabulary, depth, name)


def embed_source(table: Tensor | Variable, source: Tensor, settings: Any) -> Tensor:
    """Embeddings of the source's words, and of their factors if there are any, in the enclosing variable scope.

    The embeddings of factors are added to the word's (as in Sockeye 2, Domhan et al. 2020), or are
    concatenated with it (Sennrich & Haddow 2016) and mapped back to its depth.

    Args:
        table: of the words, float32 `[vocabulary, depth]`.
        source: int32 `[batch, length]`, or `[batch, length, 1 + factors]`; batch and length in any order.
        settings: a model's `CommonSettings`.
    Returns:
        float32 `[batch, length, depth]`.
    """
    if not settings.source_factor_vocab_sizes:
        return look_up(table, source)
    depth = int(table.shape[1])
    streams = [look_up(table, source[:, :, 0])]
    for factor, size in enumerate(settings.source_factor_vocab_sizes, 1):
        factor_depth = depth if settings.source_factors == "sum" else settings.source_factor_size
        name = f"source_factor_{factor}_embedding"
        own = tf1.get_variable(name, [size, factor_depth], initializer=StatelessNormal(depth ** -0.5, name))
        streams.append(look_up(own, source[:, :, factor]))
    if settings.source_factors == "sum":
        return tf.add_n(streams)
    return to_float32(linear(tf.concat(streams, 2), depth, "source_factors", use_bias=False))


def embed_target(table: Tensor | Variable, target: Tensor, settings: Any) -> Tensor:
    """Embeddings of what the decoder reads; zeros for BOS with `start` zero (as Marian, Junczys-Dowmunt et al. 2018).

    Args:
        table: float32 `[vocabulary, depth]`.
        target: int32 `[...]`.
        settings: a model's `CommonSettings`.
    Returns:
        float32 `[..., depth]`.
    """
    words = look_up(table, target)
    if settings.start == "bos":
        return words
    return words * tf.cast(tf.not_equal(target, BOS), words.dtype)[..., None]


def look_up(table: Tensor | Variable, ids: Tensor) -> Tensor:
    """Rows of a table: float32 `[..., depth]` for `ids` int32 `[...]`.

    The table is read first. To gather from the variable itself would have TensorFlow copy it at each other read.
    """
    return tf.gather(tf.convert_to_tensor(table), ids)


def by_time(ids: Tensor) -> Tensor:
    """`[batch, length, ...]` as `[length, batch, ...]`."""
    return tf.transpose(ids, [1, 0, 2][:ids.shape.rank])
