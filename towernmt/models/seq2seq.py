"""Seq2Seq (Sutskever et al. 2014): a stack of LSTMs that reads and one that writes, with Luong's attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import ConfiguredModel, DecoderState
from towernmt.models.kernels import matmul, to_float32
from towernmt.models.layers.embeddings import by_time, embed_source, embed_target, shared_table
from towernmt.models.layers.projections import Projection, lhuc_scale, linear_layer
from towernmt.models.layers.randomness import StatelessUniform, dropout
from towernmt.models.model_settings import SEQ2SEQ_PRESETS, Seq2SeqSettings, check_common
from towernmt.models.recurrent_cells import Cell, at_end, reverse, sequence_dropout, sequence_mask
from towernmt.models.scan import Step, scan
from towernmt.models.single_head_attention import AttentionMemory, SingleHeadAttention, by_hypothesis, by_sentence


class Seq2SeqMemory(NamedTuple):
    """Encoded source for the decoder.

    Attributes:
        start: last state of each encoder layer, a list of float32 `[batch, hidden_size]`.
        attention: tuple with keys and values; empty without attention.
    """

    start: list[list[Tensor]]
    attention: tuple[AttentionMemory, ...]


PRESETS = SEQ2SEQ_PRESETS
"""The presets of the classes in this module."""


@dataclass
class Seq2Seq(ConfiguredModel):
    """Stacked LSTMs or GRUs with or without attention from the top layer of the decoder.

    With attention, the last hidden layer is tanh(W [context; h]) (Luong et al. 2015, equation 5). Without attention, it
    is h, or an affine map of h if the softmax has another depth.

    Args:
        settings: settings including both vocabulary sizes.

    Raises:
        SettingsError: sizes that do not match.
    """

    architecture = "seq2seq"
    settings: Seq2SeqSettings

    def __post_init__(self) -> None:
        _check(self.settings)
        super().__post_init__()

    def encode(self, source: Tensor, source_length: Tensor) -> Seq2SeqMemory:
        s = self.settings
        last = []
        with tf1.variable_scope("seq2seq"):
            embedded = embed_source(self._table("source"), by_time(source), s)
            x = self._scaled(embedded)                                          # [source length, batch, embedding]
            with tf1.variable_scope("encoder"):
                x = sequence_dropout(x, s.embedding_dropout, "embedding")
                if s.reverse_source:
                    x = reverse(x, source_length)
                for layer in range(s.layers):
                    cell = self._cell(layer, int(x.shape[2]))
                    states = cell.run(self._layer_input(x, layer), cell.zero_state(tf.shape(source)[0]),
                                      whole_state=True)
                    last.append(at_end(states, source_length))
                    x = self.adapted(states[-1], f"layer_{layer}")
            if s.attention == "none":
                return Seq2SeqMemory(last, ())
            with tf1.variable_scope("decoder"):
                return Seq2SeqMemory(last, (self._attention().memory(tf.transpose(x, [1, 0, 2]), source_length),))

    def decode_hidden(self, memory: Seq2SeqMemory, target_in: Tensor) -> Tensor:
        return self._teacher_forced(memory, target_in, False)[0]

    @property
    def gives_attention(self) -> bool:
        return self.settings.attention != "none"

    def decode_with_attention(self, memory: Seq2SeqMemory, target_in: Tensor) -> tuple[Tensor, Tensor]:
        hidden, weights = self._teacher_forced(memory, target_in, True)
        return hidden, self._in_order_of_source(weights, memory)

    def _in_order_of_source(self, weights: Tensor, memory: Seq2SeqMemory) -> Tensor:
        """Return attention to the annotations `[batch, queries, annotations]` in the order of the source words."""
        if not self.settings.reverse_source:
            return weights
        (attended,) = memory.attention
        length = tf.math.count_nonzero(tf.equal(attended.bias[:, 0], 0.0), 1)
        return tf.reverse_sequence(weights, length, seq_axis=2, batch_axis=0)

    def _teacher_forced(self, memory: Seq2SeqMemory, target_in: Tensor, with_attention: bool) -> tuple[Tensor, Tensor]:
        """Return the last hidden layer and, if requested, the attention `[batch, target length, annotations]`."""
        s = self.settings
        with tf1.variable_scope("seq2seq"):
            embedded = embed_target(self._table("target"), by_time(target_in), s)
            x = self._scaled(embedded)                                          # [target length, batch, embedding]
            with tf1.variable_scope("decoder"):
                x = sequence_dropout(x, s.embedding_dropout, "embedding")
                if s.input_feeding:
                    hidden, *weights = [by_time(y) for y in self._feed_inputs(memory, x, with_attention)]
                else:
                    for layer in range(s.layers):
                        cell = self._cell(layer, int(x.shape[2]))
                        x = cell.run(self._layer_input(x, layer), memory.start[layer])[-1]
                        x = self.adapted(x, f"layer_{layer}")
                    hidden, *weights = self._last_hidden(tf.transpose(x, [1, 0, 2]), memory)
                return dropout(hidden, s.dropout, "hidden"), weights[0] if with_attention else None

    def _feed_inputs(self, memory: Seq2SeqMemory, x: Tensor, with_attention: bool) -> list[Tensor]:
        """Decode with input feeding: all layers and the attention are within the loop.

        Args:
            memory: encoded source.
            x: embeddings float32 `[target length, batch, embedding_size]`.
            with_attention: whether to return the attention.

        Returns:
            The last hidden layer, float32 `[target length, batch, embedding_size]`, and if requested the attention,
            float32 `[target length, batch, annotations]`.
        """
        s = self.settings
        cells, attention, kernel = self._decoder_cells(), self._attention(), self._attentional_kernel()
        (attention_memory,) = memory.attention
        rows = tf.shape(x)[1]
        states, maps, norms = cells[0].state_size, len(cells[0].matrices), len(cells[0].norms)
        scales = [lhuc_scale(s.hidden_size, f"layer_{layer}") for layer in range(s.layers)] if s.lhuc else []

        def run_step(step: Step) -> tuple[list[Tensor], list[Tensor]]:
            *flat, layer_input = step.state
            states_before, states_after = _by_layer(flat, states, s.layers), []
            projected, norm = _by_layer(step.inputs, maps, s.layers), _by_layer(step.shared, norms, s.layers)
            for layer, cell in enumerate(cells):
                extra = layer_input * step.fixed[layer] if layer else layer_input
                states_after.append(cell.advance(projected[layer], [extra], states_before[layer],
                                                 _from(step.multiply, layer * maps), norm[layer], step.apply))
                layer_output = states_after[-1][-1]
                layer_input = layer_output * step.shared[norms * s.layers + layer] if scales else layer_output
            multiply = _from(step.multiply, s.layers * maps)
            attended = attention.attend(layer_input[:, None], [], step.fixed[0], multiply, [])
            hidden = tf.tanh(step.multiply(tf.concat([attended.context[:, 0], layer_input], 1), s.layers * maps + 2))
            return [*chain(*states_after), hidden], [hidden, attended.weights[:, 0]] if with_attention else [hidden]

        inputs = [cells[0].project(x), *[cell.project(_no_input(x)) for cell in cells[1:]]]
        masks = [sequence_mask(rows, s.hidden_size, s.dropout, f"layer_{layer}_input") for layer in range(1, s.layers)]
        return scan(run_step, 1 + with_attention, [*chain(*inputs)], [*chain(*memory.start), self._no_hidden(rows)],
                    [*chain(*[cell.matrices for cell in cells]), *attention.matrices(attention_memory), kernel],
                    [*chain(*[cell.norms for cell in cells]), *scales], [attention_memory.bias, *masks],
                    [*chain(*[cell.operations for cell in cells])])

    def start_state(self, memory: Seq2SeqMemory, beam: int) -> DecoderState:
        states = [[tf.repeat(x, beam, 0) for x in state] for state in memory.start]
        rows = tf.shape(memory.start[0][0])[0] * beam
        hidden = [self._no_hidden(rows)] if self.settings.input_feeding else []
        return DecoderState(memory, {"states": states, "hidden": hidden}, tf.constant(0))

    def decode_step(self, token: Tensor, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        s = self.settings
        states = []
        with tf1.variable_scope("seq2seq"):
            x = self._scaled(embed_target(self._table("target"), token, s))         # [rows, embedding]
            with tf1.variable_scope("decoder"):
                for layer, (cell, cell_state) in enumerate(zip(self._decoder_cells(), state.cache["states"],
                                                               strict=True)):
                    if s.input_feeding:
                        cell_input, extra = (_no_input(x), [x]) if layer else (x, state.cache["hidden"])
                    else:
                        cell_input, extra = x, []
                    states.append(cell.step(cell_input, extra, cell_state))
                    x = self.adapted(states[-1][-1], f"layer_{layer}")
                hidden, *weights = self._last_hidden(x, state.memory)
        cache = {"states": states, "hidden": [hidden] if s.input_feeding else []}
        attentions = [by_hypothesis(self._in_order_of_source(weights[0], state.memory))] if attention else []
        return self.output_projection().logits(hidden), DecoderState(state.memory, cache, state.step + 1), *attentions

    def output_projection(self) -> Projection:
        with tf1.variable_scope("seq2seq"):
            bias = tf1.get_variable("softmax_bias", [self.target_vocab_size], initializer=tf1.zeros_initializer())
            return Projection(self._table("softmax"), bias)

    def _last_hidden(self, h: Tensor, memory: Seq2SeqMemory) -> list[Tensor]:
        """Return the last hidden layer.

        Args:
            h: output of the top layer, `[batch, target length, hidden_size]`, or `[batch * beam, hidden_size]` of one
                step.
            memory: encoded source.

        Returns:
            float32 with the last dimension embedding_size; with attention also its weights, float32
            `[batch, target length or beam, annotations]`.
        """
        s = self.settings
        if not memory.attention:
            return [h if s.hidden_size == s.embedding_size else to_float32(linear_layer(h, s.embedding_size, "hidden"))]
        (attention_memory,) = memory.attention
        query = h if h.shape.rank == 3 else by_sentence(h, tf.shape(attention_memory.bias)[0])
        attended = self._attention().attend_once(query, [], attention_memory)
        joined = tf.concat([by_hypothesis(attended.context), by_hypothesis(query)], 1)
        hidden = tf.tanh(to_float32(matmul(joined, self._attentional_kernel())))
        return [tf.reshape(hidden, tf.concat([tf.shape(h)[:-1], [s.embedding_size]], 0)), attended.weights]

    def _scaled(self, embeddings: Tensor) -> Tensor:
        """Scale embeddings, whose table is initialised for the softmax, to the size that stacked cells need.

        Without it, so little of a sentence reaches the upper layers that the model hardly learns attention: after 500
        updates of 1,024 tokens the training loss is 5.2 instead of 4.2.
        """
        return embeddings * self.settings.embedding_size ** 0.5

    def _table(self, role: str) -> Tensor:
        size = self.source_vocab_size if role == "source" else self.target_vocab_size
        return shared_table(role, self.settings.tie_embeddings, size, self.settings.embedding_size)

    def _layer_input(self, x: Tensor, layer: int) -> Tensor:
        return sequence_dropout(x, self.settings.dropout, f"layer_{layer}_input") if layer else x

    def _cell(self, layer: int, input_depth: int, extra: int = 0) -> Cell:
        s = self.settings
        return Cell(s.cell, input_depth, s.hidden_size, f"layer_{layer}", extra, s.layer_norm, s.kernels)

    def _decoder_cells(self) -> list[Cell]:
        """Return the decoder layers. With input feeding, only the embedding is known before the loop."""
        s = self.settings
        if s.input_feeding:
            return [self._cell(layer, 0 if layer else s.embedding_size, s.hidden_size if layer else s.embedding_size)
                    for layer in range(s.layers)]
        return [self._cell(layer, s.hidden_size if layer else s.embedding_size) for layer in range(s.layers)]

    def _attention(self) -> SingleHeadAttention:
        s = self.settings
        return SingleHeadAttention(s.attention, s.hidden_size, s.hidden_size, "none", "attention")

    def _attentional_kernel(self) -> Tensor:
        """Return W of the attentional layer, float32 `[2 * hidden_size, embedding_size]`."""
        s = self.settings
        limit = math.sqrt(6.0 / (2 * s.hidden_size + s.embedding_size))
        with tf1.variable_scope("attentional"):
            return tf.convert_to_tensor(tf1.get_variable(
                "kernel", [2 * s.hidden_size, s.embedding_size], initializer=StatelessUniform(limit, "kernel")))

    def _no_hidden(self, rows: Tensor) -> Tensor:
        """Return the last hidden layer before the first word, which is zero."""
        zeros = tf.zeros([rows, self.settings.embedding_size])
        zeros.set_shape([None, self.settings.embedding_size])
        return zeros


def _no_input(x: Tensor) -> Tensor:
    """Return an input of depth 0, for a layer whose input is not known before the loop."""
    return x[..., :0]


def _by_layer(flat: Sequence[Tensor], size: int, layers: int) -> list[Sequence[Tensor]]:
    return [flat[layer * size:(layer + 1) * size] for layer in range(layers)]


def _from(multiply: Callable[..., Tensor], first: int) -> Callable[..., Tensor]:
    """Return `multiply` for matrices numbered from `first`."""
    return lambda a, i, *addends: multiply(a, first + i, *addends)


def _check(s: Seq2SeqSettings) -> None:
    check_common(s)
    if s.input_feeding and s.attention == "none":
        raise SettingsError("model.input_feeding=true needs attention to feed: set model.attention=general or dot.")
    if s.guided_alignment_weight and s.attention == "none":
        raise SettingsError(f"model.guided_alignment_weight={s.guided_alignment_weight} needs attention to guide: set "
                            "model.attention=general or dot.")
