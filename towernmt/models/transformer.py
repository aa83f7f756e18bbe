"""The Transformer (Vaswani et al. 2017), pre-norm or post-norm, and its SSRU decoder, as a tower function.

The Simpler Simple Recurrent Unit replaces the decoder's self-attention (Kim et al. 2019, "From Research to Production
and Back: Ludicrously Fast Neural Machine Translation", after the SRU of Lei et al. 2018):

f_t = sigmoid(F x_t + b);  c_t = f_t * c_{t-1} + (1 - f_t) * W x_t;  output_t = relu(c_t).

A step of decoding costs the same at every position, and its cache is one vector. Both products are computed for all
positions before the loop, which has only the sum to do, forwards and in its gradient. (On a processor the loop takes
a third of the time of the same sum by doubling: 2.3 and 7.6 ms for 24 x 96 x 256.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import ConfiguredModel, DecoderState
from towernmt.models.kernels import to_float32
from towernmt.models.layers.attention import (
    Attended,
    Attention,
    AttentionInputs,
    causal_bias,
    empty_blocks,
    padding_bias,
    position_of_step,
)
from towernmt.models.layers.embeddings import (
    PairPositions,
    RelativePositions,
    RotaryPositions,
    embed_source,
    embed_target,
    embedding_table,
    shared_table,
    sinusoids,
)
from towernmt.models.layers.feed_forward import checkpointed, feed_forward, layer_norm, rms_norm
from towernmt.models.layers.multi_head import CrossAttention, SelfAttention
from towernmt.models.layers.projections import Projection, linear_layer
from towernmt.models.layers.randomness import dropout
from towernmt.models.model_settings import (
    PLAIN,
    TRANSFORMER_PRESETS,
    Gains,
    TransformerSettings,
    check_settings,
    layer_gains,
)
from towernmt.models.scan import loop_over_time


class SSRU(Attention):
    """The Simpler Simple Recurrent Unit, instead of self-attention. Its cache is c, float32 `[rows, depth]`.

    Args:
        depth: depth of the sequence, which has at least one position.
        gains: factors of the initial kernels.
        name: name of the variable scope.
    """

    def __init__(self, depth: int, gains: Gains = PLAIN, name: str = "ssru") -> None:
        super().__init__(name)
        self.depth, self.gains = depth, gains

    def attend_sequence(self, x: Tensor, inputs: AttentionInputs, with_weights: bool = False) -> Attended:
        forget, new = self._projections(tf.transpose(x, [1, 0, 2]))             # each [length, batch, depth]
        return Attended(tf.transpose(tf.nn.relu(weighted_sums(forget, new)), [1, 0, 2]))

    def empty_cache(self, rows: Tensor) -> Tensor:
        return tf.zeros([rows, self.depth])

    def step(self, x: Tensor, cache: Tensor, inputs: AttentionInputs, with_weights: bool = False
             ) -> tuple[Attended, Tensor]:
        forget, new = self._projections(x)
        cell = forget * cache + new
        return Attended(tf.nn.relu(cell)), cell

    def _projections(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the forget gate f and (1 - f) * W x, each float32 of the shape of `x` `[..., depth]`."""
        packed = linear_layer(x, self.depth, "projection", parts=2, use_bias=False, gains=[self.gains.values] * 2)
        value, gate = tf.split(to_float32(packed), 2, -1)
        forget = tf.sigmoid(gate + tf1.get_variable("forget_bias", [self.depth], initializer=tf1.zeros_initializer()))
        return forget, (1.0 - forget) * value


def weighted_sums(forget: Tensor, new: Tensor) -> Tensor:
    """Return `c[t] = forget[t] * c[t - 1] + new[t]`, starting from zero, over the first dimension.

    The gradient is the same sum backwards: `d_new[t] = dc[t] + forget[t + 1] * d_new[t + 1]` and
    `d_forget[t] = d_new[t] * c[t - 1]`.

    Args:
        forget: float32 `[length, batch, depth]`.
        new: float32 `[length, batch, depth]`.
    """

    @tf.custom_gradient
    def sums(forget: Tensor, new: Tensor) -> Tensor:
        cells = _sum_over_time(forget, new, backwards=False)

        def gradient(d_cells: Tensor) -> tuple[Tensor, Tensor]:
            next_forget = tf.concat([forget[1:], tf.zeros_like(forget[:1])], 0)
            d_new = _sum_over_time(next_forget, d_cells, backwards=True)
            previous_cells = tf.concat([tf.zeros_like(cells[:1]), cells[:-1]], 0)
            return d_new * previous_cells, d_new

        return cells, gradient

    return sums(forget, new)


def _sum_over_time(forget: Tensor, new: Tensor, backwards: bool) -> Tensor:
    def run_step(arrived: list[Tensor], carry: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        cell = arrived[0] * carry[0] + arrived[1]
        return [cell], [cell]

    return loop_over_time(run_step, [forget, new], [tf.zeros_like(new[0])], 1, backwards=backwards)[1][0]


class TransformerMemory(NamedTuple):
    """Encoded source for the decoder.

    Attributes:
        prepared: results of `Attention.prepare`, by decoder layer and attention.
        bias: float32 `[batch, 1, 1, source length]`.
    """

    prepared: list[list[Any]]
    bias: Tensor


PRESETS = TRANSFORMER_PRESETS
"""The presets of the classes in this module."""


@dataclass
class Transformer(ConfiguredModel):
    """The Transformer (Vaswani et al. 2017) and its variants.

    Args:
        settings: settings including both vocabulary sizes.

    Raises:
        SettingsError: sizes that do not match.
    """

    architecture = "transformer"
    compiles: ClassVar[bool] = True
    recomputes: ClassVar[bool] = True
    settings: TransformerSettings

    def __post_init__(self) -> None:
        check_settings(self.settings)
        super().__post_init__()

    def encoder_attention(self, layer: int) -> Attention:
        """Return the attention of an encoder layer, counted from 0, between source words."""
        s = self.settings
        return SelfAttention(s.hidden_size, s.heads, s.attention_dropout, self.pair_positions(),
                             self.gains("encoder", layer), biases=s.attention_biases)

    def decoder_attention(self, layer: int) -> list[Attention]:
        """Return the attentions of a decoder layer, counted from 0, to earlier target positions and to the source.

        Each one is a sublayer, in this order, followed by the feed-forward layer.
        """
        s, gains = self.settings, self.gains("decoder", layer)
        self_attention: Attention = SSRU(s.hidden_size, gains)
        if s.decoder_cell == "attention":
            self_attention = SelfAttention(s.hidden_size, s.heads, s.attention_dropout, self.pair_positions(), gains,
                                           biases=s.attention_biases)
        return [self_attention, CrossAttention(s.heads, s.attention_dropout, gains, shown_heads=s.aligning_heads,
                                               biases=s.attention_biases)]

    def encode(self, source: Tensor, source_length: Tensor) -> TransformerMemory:
        s = self.settings
        # Without `source_end`, EOS, which is the last token, is masked like padding, unless the source has no other
        # token.
        length = source_length if s.source_end else tf.maximum(source_length - 1, 1)
        bias = padding_bias(length, tf.shape(source)[1])
        with tf1.variable_scope("transformer"):
            x = embed_source(self._table("source"), source, s)
            with tf1.variable_scope("encoder"):
                x = self._embed(x, tf.range(tf.shape(source)[1]))               # [batch, source length, depth]
                for layer in range(s.encoder_layers):
                    with tf1.variable_scope(f"layer_{layer}"):
                        x = checkpointed(partial(self._encoder_layer, bias=bias, layer=layer), x)
                x = self._final_norm(x)
            with tf1.variable_scope("decoder"):
                return TransformerMemory([self._prepared(x, layer) for layer in range(s.decoder_layers)], bias)

    def _prepared(self, source: Tensor, layer: int) -> list[Any]:
        prepared = []
        for attention in self.decoder_attention(layer):
            with tf1.variable_scope(f"layer_{layer}/{attention.name}"):
                prepared.append(attention.prepare(source))
        return prepared

    def decode_hidden(self, memory: TransformerMemory, target_in: Tensor) -> Tensor:
        return self._teacher_forced(memory, target_in, None)[0]

    def decode_with_attention(self, memory: TransformerMemory, target_in: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden layer and the cross-attention of `guided_alignment_layer` (Garg et al. 2019).

        With guided alignment, it is the attention of the first head, which is guided; otherwise the mean of all heads,
        or of `guided_alignment_heads`.
        """
        hidden, (attention,) = self._teacher_forced(memory, target_in, self.settings.aligning_layer)
        return hidden, attention

    def _teacher_forced(self, memory: TransformerMemory, target_in: Tensor, shown_layer: int | None
                        ) -> tuple[Tensor, list[Tensor]]:
        """Return the last hidden layer, and a list of the attention to the source in layer `shown_layer`, if any."""
        length = tf.shape(target_in)[1]
        bias, weights = causal_bias(length), []

        def attend(y: Tensor, attention: Attention, layer: int, sublayer: int) -> Tensor:
            inputs = AttentionInputs(bias, memory.prepared[layer][sublayer], memory.bias)
            attended = attention.attend_sequence(y, inputs, layer == shown_layer)
            if attended.weights is not None:
                weights.append(attended.weights)
            return attended.output

        with tf1.variable_scope("transformer"):
            x = embed_target(self._table("target"), target_in, self.settings)
            with tf1.variable_scope("decoder"):
                x = self._embed(x, tf.range(length))                            # [batch, target length, depth]
                return self._decoder_layers(x, attend), weights

    def start_state(self, memory: TransformerMemory, beam: int) -> DecoderState:
        batch = tf.shape(memory.bias)[0]
        cache: list[list[Any]] = []
        values: list[list[Any]] = []
        for layer in range(self.settings.decoder_layers):
            attentions = self.decoder_attention(layer)
            cache.append([attention.empty_cache(batch * beam) for attention in attentions])
            values.append([() if tf.nest.flatten(empty_cache) else attention.empty_values(batch, beam)
                           for attention, empty_cache in zip(attentions, cache[-1], strict=True)])
        blocks = empty_blocks(values, batch, beam) if tf.nest.flatten(values) else ()
        return DecoderState(memory, cache, tf.constant(0), blocks)

    def decode_step(self, token: Tensor, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        memory: TransformerMemory = state.memory
        decoding_step = _DecodingStep(memory, state)
        shown_layer, weights = self.settings.aligning_layer if attention else None, []

        def attend(y: Tensor, attention: Attention, layer: int, sublayer: int) -> Tensor:
            attended = decoding_step.attend(y, attention, layer, sublayer, layer == shown_layer)
            if attended.weights is not None:
                weights.append(attended.weights)
            return attended.output

        with tf1.variable_scope("transformer"):
            x = embed_target(self._table("target"), token, self.settings)[:, None]     # a slice of int32 is a copy
            with tf1.variable_scope("decoder"):
                x = self._embed(x, state.step[None])[:, 0]                      # [rows, depth]
                x = self._decoder_layers(x, attend)
        return self.output_projection().logits(x), decoding_step.after(), *weights

    def _decoder_layers(self, x: Tensor, attend: _Attend) -> Tensor:
        """Apply the layers and the final normalisation of the decoder to `x` `[..., depth]`.

        Args:
            x: input of the first layer.
            attend: applies an attention of a layer to complete sentences or to a step.
        """
        for layer in range(self.settings.decoder_layers):
            with tf1.variable_scope(f"layer_{layer}"):
                x = checkpointed(partial(self._decoder_layer, attend=attend, layer=layer), x)
        return self._final_norm(x)

    def _encoder_layer(self, x: Tensor, bias: Tensor, layer: int) -> Tensor:
        """Apply a layer of the encoder to `x` `[batch, source length, depth]`; `bias` masks padding."""
        gains, attention = self.gains("encoder", layer), self.encoder_attention(layer)
        x = self._attention(x, attention, gains, lambda y: attention.attend_sequence(y, AttentionInputs(bias)).output)
        return self._feed_forward(x, gains)

    def _decoder_layer(self, x: Tensor, attend: _Attend, layer: int) -> Tensor:
        """Apply a layer of the decoder to `x` `[..., depth]`; see `_decoder_layers`."""
        gains = self.gains("decoder", layer)
        for sublayer, attention in enumerate(self.decoder_attention(layer)):
            x = self._attention(x, attention, gains,
                                partial(attend, attention=attention, layer=layer, sublayer=sublayer))
        return self._feed_forward(x, gains)

    def output_projection(self) -> Projection:
        with tf1.variable_scope("transformer"):
            bias = tf1.get_variable("softmax_bias", [self.target_vocab_size], initializer=tf1.zeros_initializer())
            return Projection(self._table("softmax"), bias)

    def _table(self, role: str) -> Tensor:
        """Return the table of a role (source, target, softmax), float32 `[vocabulary, depth]`; see `shared_table`."""
        size = self.source_vocab_size if role == "source" else self.target_vocab_size
        return shared_table(role, self.settings.tie_embeddings, size, self.settings.hidden_size)

    def _embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Scale embeddings and add positions, unless `pair_positions` returns those of self-attention.

        Args:
            x: embeddings float32 `[batch, length, depth]`.
            positions: int32 `[length]`.

        Returns:
            float32 `[batch, length, depth]`.
        """
        s = self.settings
        x *= s.hidden_size ** 0.5
        if self.pair_positions() is not None:
            return dropout(x, s.embedding_dropout, "embedding")
        if s.positions == "learned":
            signal = tf.gather(embedding_table(s.max_positions, s.hidden_size, "positions"),
                               tf.minimum(positions, s.max_positions - 1))
        else:
            signal = sinusoids(positions + s.first_position if s.first_position else positions, s.hidden_size)
        return dropout(x + signal[None], s.embedding_dropout, "embedding")

    def pair_positions(self) -> PairPositions | None:
        """Return relative or rotary positions, or None if positions are added to the embeddings."""
        if self.settings.positions == "relative":
            return RelativePositions(self.settings.max_distance)
        return RotaryPositions() if self.settings.positions == "rotary" else None

    def gains(self, stack: str, layer: int) -> Gains:
        """Return the gains of a layer.

        Args:
            stack: "encoder" or "decoder".
            layer: number of the layer, from 0.
        """
        s = self.settings
        return layer_gains(s.initialization, stack, layer, s.encoder_layers, s.decoder_layers)

    def _attention(self, x: Tensor, attention: Attention, gains: Gains, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply the sublayer of an attention to `x` `[..., depth]`; `attend` applies the attention itself."""
        def in_scope(y: Tensor) -> Tensor:
            with tf1.variable_scope(attention.name):
                return attend(y)

        return self._sublayer(x, attention.name, gains, in_scope)

    def _sublayer(self, x: Tensor, name: str, gains: Gains, layer: Callable[[Tensor], Tensor]) -> Tensor:
        s = self.settings
        y = self.adapted(layer(self._process(x, None, s.preprocess, f"{name}_pre", gains)), name)
        return self._process(y, x, s.postprocess, f"{name}_post", gains)

    def _process(self, x: Tensor, residual: Tensor, sequence: str, name: str, gains: Gains) -> Tensor:
        for index, operation in enumerate(sequence):
            if operation == "n":
                x = self._norm(x, f"{name}_norm")
            elif operation == "d":
                x = dropout(x, self.settings.residual_dropout, f"{name}_{index}")
            else:
                x = tf.add_n([to_float32(x),  # its gradient computes no shapes, unlike that of a sum that broadcasts
                              residual if gains.residual == 1.0 else residual * gains.residual])
        return x

    def _feed_forward(self, x: Tensor, gains: Gains) -> Tensor:
        s = self.settings
        return self._sublayer(x, "feed_forward", gains, partial(
            feed_forward, filter_size=s.filter_size, dropout_rate=s.activation_dropout, kind=s.feed_forward,
            gains=gains))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        norm = rms_norm if self.settings.norm == "rms" else layer_norm
        return norm(x, name, self.settings.norm_epsilon)

    def _final_norm(self, x: Tensor) -> Tensor:
        """Normalise the output of a pre-norm stack, which is a sum of unnormalised sublayers."""
        return self._norm(x, "final_norm") if "n" in self.settings.preprocess else x


class _DecodingStep:
    """A decoding step of all attentions, and the state after it."""

    def __init__(self, memory: TransformerMemory, state: DecoderState) -> None:
        self._memory, self._state = memory, state
        self._cache: list[list[Any]] = [[] for _ in state.cache]
        self._values: list[list[Any]] = [[] for _ in state.cache]
        self._position, self._blocks = None, state.blocks
        if state.blocks:
            self._position, self._blocks = position_of_step(state.blocks, state.step)

    def attend(self, x: Tensor, attention: Attention, layer: int, sublayer: int, with_weights: bool) -> Attended:
        """Apply attention `sublayer` of a layer to `x` `[rows, depth]`, and record its state after the step."""
        inputs = AttentionInputs(None, self._memory.prepared[layer][sublayer], self._memory.bias, self._position)
        cache = self._state.cache[layer][sublayer]
        values = self._blocks.values[layer][sublayer] if self._blocks else ()
        has_values = bool(tf.nest.flatten(values))
        attended, state_after = attention.step(x, values if has_values else cache, inputs, with_weights)
        self._cache[layer].append(cache if has_values else state_after)
        self._values[layer].append(state_after if has_values else values)
        return attended

    def after(self) -> DecoderState:
        """Return the state after all attentions."""
        blocks = self._blocks._replace(values=self._values) if self._blocks else ()
        return DecoderState(self._memory, self._cache, self._state.step + 1, blocks)


_Attend = Callable[..., Tensor]
"""Maps (`[..., depth]`, an `attention`, the index of its `layer`, the index of its `sublayer`) to `[..., depth]`."""
