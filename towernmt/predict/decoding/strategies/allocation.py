"""Who stays in a beam that is shared by hypotheses which have come differently far with their phrases."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.predict.decoding.processors.processor import NEVER


def allocated(log_prob: Tensor, bank: Tensor, count: int) -> Tensor:
    """The first `count` candidates of each sentence in the order in which they get places.

    Candidates of one bank are compared with each other only. The best of each bank come first, that of the highest bank
    before the others, then the second best of each, and so on: so the banks share the places evenly, and what a bank
    does not fill goes to the others (dynamic beam allocation: Post & Vilar 2018; dealt out in turn: Hu et al. 2019). Of
    one bank this is the order by log-probability; of equal ones, the earlier is first.

    Args:
        log_prob: float32 `[batch, m]`; what has `NEVER` comes last.
        bank: int32 `[batch, m]`, from 0.
        count: at most m.
    Returns:
        int32 `[batch, count]`, from 0 to m - 1.
    """
    number = tf.shape(log_prob)[1]
    log_prob, by_score = tf.math.top_k(log_prob, number)
    bank = tf.gather(bank, by_score, batch_dims=1)
    banks = tf.reduce_max(bank, axis=1, keepdims=True) + 1
    member = tf.one_hot(bank, tf.reduce_max(banks), dtype=tf.int32)                 # [batch, m, banks]
    rank = tf.reduce_sum(tf.cumsum(member, axis=1, exclusive=True) * member, axis=2)
    turn = rank * banks + banks - 1 - bank
    turn = tf.where(log_prob > NEVER, turn, number * banks)
    _, place = tf.math.top_k(-turn, count)
    return tf.gather(by_score, place, batch_dims=1)
