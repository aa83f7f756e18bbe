"""Sets of tokens, another for each row: from lists of ids to which token of the vocabulary is in."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.dataflow.vocabulary.base import PAD


def listed(ids: Tensor, vocabulary_size: int) -> Tensor:
    """Whether each token is among the ids of its row.

    Args:
        ids: int32 `[rows, n]`, below `vocabulary_size`; PAD stands for none.
    Returns:
        bool `[rows, vocabulary_size]`.
    """
    rows, count = tf.unstack(tf.shape(ids))
    row = tf.broadcast_to(tf.range(rows)[:, None], [rows, count])
    column = tf.where(tf.equal(ids, PAD), vocabulary_size, ids)     # one column too many, for what stands for none
    hits = tf.scatter_nd(tf.stack([row, column], axis=2), tf.ones([rows, count], tf.int32),
                         [rows, vocabulary_size + 1])
    return hits[:, :vocabulary_size] > 0
