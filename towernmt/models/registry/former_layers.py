"""Attention and SSRU as functions, as earlier code calls them; today they are objects, which do the work here."""

from __future__ import annotations

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf1
from towernmt.models.layers.attention import AttentionInputs
from towernmt.models.layers.gains import PLAIN, Gains
from towernmt.models.layers.multi_head import CrossAttention, SelfAttention
from towernmt.models.layers.positions import PairPositions
from towernmt.models.recurrent.single_head_attention import AttentionMemory, SingleHeadAttention
from towernmt.models.transformer.ssru import SSRU


def self_attention(x: Tensor, bias: Tensor, heads: int, dropout_rate: float, name: str,
                   positions: PairPositions | None = None, gains: Gains = PLAIN) -> Tensor:
    """`SelfAttention.whole` of `x` `[batch, length, depth]`."""
    with tf1.variable_scope(name):
        attention = SelfAttention(int(x.shape[-1]), heads, dropout_rate, positions, gains)
        return attention.whole(x, AttentionInputs(bias)).output


def self_attention_step(x: Tensor, cache: Tensor, heads: int, name: str, positions: PairPositions | None = None,
                        gains: Gains = PLAIN) -> tuple[Tensor, Tensor]:
    """`SelfAttention.step` of `x` `[rows, depth]`, and the new cache."""
    with tf1.variable_scope(name):
        attended, cache = SelfAttention(int(x.shape[-1]), heads, 0.0, positions, gains).step(
            x, cache, AttentionInputs())
    return attended.output, cache


def memory_keys_values(memory: Tensor, heads: int, name: str, gains: Gains = PLAIN) -> tuple[Tensor, Tensor]:
    """`CrossAttention.prepare` of `memory` `[batch, source length, depth]`."""
    with tf1.variable_scope(name):
        return CrossAttention(heads, gains=gains).prepare(memory)


def source_attention(x: Tensor, keys_values: tuple[Tensor, Tensor], bias: Tensor, heads: int, dropout_rate: float,
                     name: str, gains: Gains = PLAIN) -> Tensor:
    """`CrossAttention.whole` of `x` `[batch, queries, depth]`."""
    with tf1.variable_scope(name):
        inputs = AttentionInputs(None, keys_values, bias)
        return CrossAttention(heads, dropout_rate, gains).whole(x, inputs).output


def source_attention_with_weights(x: Tensor, keys_values: tuple[Tensor, Tensor], bias: Tensor, heads: int,
                                  dropout_rate: float, name: str, gains: Gains = PLAIN) -> tuple[Tensor, Tensor]:
    """`source_attention`, and the weights of its first head, float32 `[batch, queries, source length]`."""
    with tf1.variable_scope(name):
        inputs = AttentionInputs(None, keys_values, bias)
        output, weights = CrossAttention(heads, dropout_rate, gains).whole(x, inputs, with_weights=True)
    return output, weights


def ssru(x: Tensor, name: str, gains: Gains = PLAIN) -> Tensor:
    """`SSRU.whole` of `x` `[batch, length, depth]`."""
    with tf1.variable_scope(name):
        return SSRU(int(x.shape[-1]), gains).whole(x, AttentionInputs()).output


def ssru_step(x: Tensor, cell: Tensor, name: str, gains: Gains = PLAIN) -> tuple[Tensor, Tensor]:
    """`SSRU.step` of `x` `[rows, depth]`, and the new cell."""
    with tf1.variable_scope(name):
        attended, cell = SSRU(int(x.shape[-1]), gains).step(x, cell, AttentionInputs())
    return attended.output, cell


def attention_memory(annotations: Tensor, length: Tensor, score: str, query_depth: int, depth: int, coverage: str,
                     name: str) -> AttentionMemory:
    """`SingleHeadAttention.memory` of `annotations` `[batch, source length, depth]`."""
    return SingleHeadAttention(score, query_depth, depth, coverage, name).memory(annotations, length)
