"""RNNSearch (Bahdanau et al. 2015): a bidirectional encoder and an attentional decoder, as a tower function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import ConfiguredModel, DecoderState
from towernmt.models.kernels import to_float32
from towernmt.models.layers.embeddings import by_time, embed_source, embed_target, shared_table
from towernmt.models.layers.projections import Projection, linear_layer
from towernmt.models.layers.randomness import dropout
from towernmt.models.model_settings import RNNSEARCH_PRESETS, RNNSearchSettings, check_common
from towernmt.models.recurrent_cells import Cell, run_both_ways, sequence_dropout
from towernmt.models.scan import Step, scan
from towernmt.models.single_head_attention import AttentionMemory, SingleHeadAttention, by_hypothesis, by_sentence


class RNNSearchMemory(NamedTuple):
    """Encoded source for the decoder.

    Attributes:
        attention: keys and values.
        start: state of each decoder layer before the first word, a list of `[batch, decoder_size]`.
    """

    attention: AttentionMemory
    start: list[list[Tensor]]


PRESETS = RNNSEARCH_PRESETS
"""The presets of the classes in this module."""


@dataclass
class RNNSearch(ConfiguredModel):
    """An RNNSearch with a GRU or LSTM, additive, dot or general attention, and optional coverage.

    The read-out sees the state after the step, as in equation 4 of the paper (the appendix uses the state before it).

    Args:
        settings: settings including both vocabulary sizes.

    Raises:
        SettingsError: sizes that do not match.
    """

    architecture = "rnnsearch"
    settings: RNNSearchSettings

    def __post_init__(self) -> None:
        _check(self.settings)
        super().__post_init__()

    def encode(self, source: Tensor, source_length: Tensor) -> RNNSearchMemory:
        s = self.settings
        with tf1.variable_scope("rnnsearch"):
            x = embed_source(self._table("source"), by_time(source), s)     # [source length, batch, embedding]
            with tf1.variable_scope("encoder"):
                x = sequence_dropout(x, s.embedding_dropout, "embedding")
                for layer in range(s.encoder_layers):
                    if layer:
                        x = sequence_dropout(x, s.dropout, f"layer_{layer}_input")
                    depth = int(x.shape[2])
                    forward, backward = run_both_ways(self._encoder_cell(layer, depth, "forward"),
                                                      self._encoder_cell(layer, depth, "backward"), x, source_length)
                    x = self.adapted(tf.concat([forward, backward], 2), f"layer_{layer}")
            annotations = tf.transpose(x, [1, 0, 2])                        # [batch, source length, 2 * encoder]
            with tf1.variable_scope("decoder"):
                return RNNSearchMemory(self._attention().memory(annotations, source_length),
                                       [self._start(backward[0], layer) for layer in range(s.decoder_layers)])

    def decode_hidden(self, memory: RNNSearchMemory, target_in: Tensor) -> Tensor:
        return self._teacher_forced(memory, target_in, False)[0]

    def decode_with_attention(self, memory: RNNSearchMemory, target_in: Tensor) -> tuple[Tensor, Tensor]:
        hidden, (weights,) = self._teacher_forced(memory, target_in, True)
        return hidden, by_time(weights)

    def _teacher_forced(self, memory: RNNSearchMemory, target_in: Tensor, with_attention: bool
                        ) -> tuple[Tensor, list[Tensor]]:
        """Return the last hidden layer and, if requested, the attention `[target length, batch, source length]`."""
        s = self.settings
        with tf1.variable_scope("rnnsearch"):
            x = embed_target(self._table("target"), by_time(target_in), s)       # [target length, batch, embedding]
            with tf1.variable_scope("decoder"):
                x = sequence_dropout(x, s.embedding_dropout, "embedding")
                h, context, *weights = self._attending_layer(memory, x, with_attention)
                h = self.adapted(h, "layer_0")
                for layer in range(1, s.decoder_layers):
                    h = sequence_dropout(h, s.dropout, f"layer_{layer}_input")
                    h = self.adapted(self._decoder_cell(layer).run(h, memory.start[layer])[-1], f"layer_{layer}")
                return tf.transpose(self._read_out([h, x, context]), [1, 0, 2]), weights

    def _attending_layer(self, memory: RNNSearchMemory, x: Tensor, with_attention: bool) -> list[Tensor]:
        """Run the first decoder layer; return its states, contexts and, if `with_attention`, attention.

        Each is float32 `[target length, batch, depth]`; the depth of attention is the source length.
        """
        cell, attention = self._decoder_cell(0), self._attention()
        states, cells = cell.state_size, len(cell.matrices)
        norms = len(cell.norms)

        def run_step(step: Step) -> tuple[list[Tensor], list[Tensor]]:
            state, coverage = step.state[:states], step.state[states:]
            attended = attention.attend(state[-1][:, None], coverage, step.fixed[0],
                                        lambda a, i: step.multiply(a, cells + i), step.shared[norms:], step.apply)
            context = attended.context[:, 0]
            state = cell.advance(step.inputs, [context], state, step.multiply, step.shared[:norms], step.apply)
            attentions = [attended.weights[:, 0]] if with_attention else []
            return [*state, *attended.coverage], [state[-1], context, *attentions]

        return scan(run_step, 2 + with_attention, cell.project(x),
                    [*memory.start[0], *_no_coverage(memory.attention, 1)],
                    [*cell.matrices, *attention.matrices(memory.attention)],
                    [*cell.norms, *attention.shared(memory.attention)], [memory.attention.bias],
                    [*attention.operations, *cell.operations])

    def start_state(self, memory: RNNSearchMemory, beam: int) -> DecoderState:
        start = [[tf.repeat(x, beam, 0) for x in state] for state in memory.start]
        coverage = [by_hypothesis(x) for x in _no_coverage(memory.attention, beam)]
        return DecoderState(memory, {"states": start, "coverage": coverage}, tf.constant(0))

    def decode_step(self, token: Tensor, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        memory: AttentionMemory = state.memory.attention
        batch = tf.shape(memory.bias)[0]
        first, *upper = state.cache["states"]
        with tf1.variable_scope("rnnsearch"):
            x = embed_target(self._table("target"), token, self.settings)       # [rows, embedding]
            with tf1.variable_scope("decoder"):
                attended = self._attention().attend_once(
                    by_sentence(first[-1], batch), [by_sentence(c, batch) for c in state.cache["coverage"]], memory)
                context = by_hypothesis(attended.context)
                states = [self._decoder_cell(0).step(x, [context], first)]
                h = self.adapted(states[-1][-1], "layer_0")
                for layer, cell_state in enumerate(upper, 1):
                    states.append(self._decoder_cell(layer).step(h, [], cell_state))
                    h = self.adapted(states[-1][-1], f"layer_{layer}")
                hidden = self._read_out([h, x, context])
        cache = {"states": states, "coverage": [by_hypothesis(c) for c in attended.coverage]}
        attentions = [by_hypothesis(attended.weights)] if attention else []
        return self.output_projection().logits(hidden), DecoderState(state.memory, cache, state.step + 1), *attentions

    def output_projection(self) -> Projection:
        with tf1.variable_scope("rnnsearch"):
            bias = tf1.get_variable("softmax_bias", [self.target_vocab_size], initializer=tf1.zeros_initializer())
            return Projection(self._table("softmax"), bias)

    def _table(self, role: str) -> Tensor:
        s = self.settings
        return shared_table(role, s.tie_embeddings, self.source_vocab_size if role == "source" else
                            self.target_vocab_size, s.read_out_size if role == "softmax" else s.embedding_size)

    def _encoder_cell(self, layer: int, depth: int, direction: str) -> Cell:
        s = self.settings
        return Cell(s.cell, depth, s.encoder_size, f"layer_{layer}/{direction}", layer_norm=s.layer_norm,
                    kernels=s.kernels)

    def _decoder_cell(self, layer: int) -> Cell:
        s = self.settings
        return Cell(s.cell, s.decoder_size if layer else s.embedding_size, s.decoder_size, f"layer_{layer}",
                    extra_depth=0 if layer else 2 * s.encoder_size, layer_norm=s.layer_norm, kernels=s.kernels)

    def _attention(self) -> SingleHeadAttention:
        s = self.settings
        return SingleHeadAttention(s.attention, s.decoder_size, s.attention_size, s.coverage, "attention")

    def _start(self, first: Tensor, layer: int) -> list[Tensor]:
        """Return the state before the first word, from the backward annotation of the first source word."""
        s = self.settings
        states = 1 if s.cell == "gru" else 2
        packed = to_float32(linear_layer(first, s.decoder_size, f"start_{layer}", parts=states))
        *cell, h = tf.split(packed, states, 1)
        return [*cell, tf.tanh(h)]

    def _read_out(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the last hidden layer, float32 `[..., read_out_size]` (deep output, Pascanu et al. 2014)."""
        s = self.settings
        x = tf.concat(vectors, -1)
        if s.read_out == "maxout":      # Goodfellow et al. 2013: the larger of two
            hidden = to_float32(linear_layer(x, 2 * s.read_out_size, "read_out"))
            hidden = tf.maximum(*tf.split(hidden, 2, -1))
        else:
            hidden = to_float32(linear_layer(x, s.read_out_size, "read_out"))
            hidden = tf.tanh(hidden) if s.read_out == "tanh" else hidden
        return dropout(hidden, s.dropout, "read_out")


def _no_coverage(memory: AttentionMemory, beam: int) -> list[Tensor]:
    """Return the coverage before the first word: a list of zeros `[batch, beam, source length]`, or an empty list."""
    return [tf.repeat(tf.zeros_like(fertility)[:, None], beam, 1) for fertility in memory.fertility]


def _check(s: RNNSearchSettings) -> None:
    check_common(s)
    if s.tie_embeddings != "none" and s.read_out_size != s.embedding_size:
        raise SettingsError(f"model.read_out_size={s.read_out_size} must be model.embedding_size="
                            f"{s.embedding_size} where the softmax has the embeddings: set them equal, or "
                            "model.tie_embeddings=none.")
    if s.attention == "dot" and s.decoder_size != 2 * s.encoder_size:
        raise SettingsError(f"model.attention=dot needs model.decoder_size={s.decoder_size} to be twice "
                            f"model.encoder_size={s.encoder_size}: change one of them, or set "
                            "model.attention=general.")
    if s.coverage != "none" and s.attention != "additive":
        raise SettingsError(f"model.coverage={s.coverage} needs model.attention=additive, not {s.attention}: "
                            "change one of them.")
