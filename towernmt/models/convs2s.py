"""ConvS2S (Gehring et al. 2017).

Stacked gated convolutions with attention in every decoder layer, as a tower function.

As in the paper, position embeddings are added to word embeddings, and layers are gated linear units. Residual
connections and all other sums of two terms are scaled by sqrt(0.5). Each decoder layer attends to the source: the
values are the encoder's output plus its input embedding, and the result is scaled by the root of the source length.
Gradients into the encoder are divided by the number of attentions. Initial values follow section 3.5. The paper's
weight normalisation is left out: it would be computed again in each step of decoding, and with Adam the initialisation
alone is sufficient.

On a CPU, TensorFlow's bfloat16 convolution spends most of its time in the gradient of the kernel. Here the convolution
is one matrix product over windows, which trains a ConvS2S 1.2 times as fast. In float32 it would train at 0.95 times
the speed, so float32 uses TensorFlow's convolution.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import ConfiguredModel, DecoderState
from towernmt.models.kernels import (
    affine,
    compute_dtype,
    matmul,
    on_gpu,
    to_float32,
    token_mask,
    with_ones,
    zeros_like_rows,
)
from towernmt.models.layers.attention import MASKED
from towernmt.models.layers.embeddings import embed_source, embed_target
from towernmt.models.layers.projections import Projection
from towernmt.models.layers.randomness import StatelessNormal, dropout
from towernmt.models.model_settings import CONVS2S_PRESETS, ConvS2SSettings, check_common


def convolution(x: Tensor, kernel: Tensor, bias: Tensor, padding: tuple[int, int]) -> Tensor:
    """Return a convolution of `x` over its positions, plus a bias.

    Args:
        x: `[batch, length, depth]`.
        kernel: float32 `[width, depth, output]`.
        bias: float32 `[output]`.
        padding: numbers of zeros before and after each sequence.

    Returns:
        `[batch, length + sum(padding) - width + 1, output]`; bfloat16 if this is the compute dtype, otherwise float32
        (also if it is float16).
    """
    if compute_dtype() == tf.bfloat16:
        return _over_windows(tf.cast(x, tf.bfloat16), tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias), padding)
    added_rows = tf.maximum(1 - tf.shape(x)[0], 0)       # TensorFlow gives an empty batch a wrong shape
    padded = tf.pad(x, [[0, added_rows], list(padding), [0, 0]])
    return tf.nn.bias_add(tf.nn.conv1d(padded, kernel, stride=1, padding="VALID"), bias)[:tf.shape(x)[0]]


def _over_windows(x: Tensor, kernel: Tensor, bias: Tensor, padding: tuple[int, int]) -> Tensor:
    """Return the `convolution` in bfloat16, as a product; on a CPU the bias is a row of the kernel, as in `affine`."""
    width, depth, output = (int(size) for size in kernel.shape)
    if on_gpu(x):
        output_length = tf.shape(x)[1] + sum(padding) - width + 1
        windows = _side_by_side(x, padding, list(range(width)), output_length)
        y = affine(windows, tf.reshape(kernel, [width * depth, output]), bias)
        return tf.reshape(y, [tf.shape(x)[0], output_length, output])

    @tf.custom_gradient
    def run(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        length = tf.shape(x)[1]
        output_length = length + sum(padding) - width + 1
        # [batch * output_length, width * depth + ones]
        windows = with_ones(_side_by_side(x, padding, list(range(width)), output_length))
        narrow_kernel, bias_row = tf.cast(kernel, tf.bfloat16), tf.cast(bias, tf.bfloat16)[None]
        rows = [tf.reshape(narrow_kernel, [width * depth, output]), bias_row, zeros_like_rows(bias_row, 0)]
        y = tf.matmul(windows, tf.concat(rows, 0))

        def gradient(dy: Tensor) -> list[Tensor]:
            # A position is multiplied by column k of the kernel in the window that begins k positions before it.
            begins = [padding[0] + width - 1 - k for k in range(width)]
            # [batch * length, width * output]
            gradient_windows = _side_by_side(dy, (width - 1, width - 1), begins, length)
            transposed_kernel = tf.reshape(tf.transpose(narrow_kernel, [1, 0, 2]), [depth, width * output])
            d_x = tf.matmul(gradient_windows, transposed_kernel, transpose_b=True)
            d_kernel_and_bias = tf.matmul(windows, tf.reshape(dy, [-1, output]), transpose_a=True)
            d_kernel = tf.reshape(to_float32(d_kernel_and_bias[:width * depth]), [width, depth, output])
            return [tf.reshape(d_x, tf.shape(x)), d_kernel, to_float32(d_kernel_and_bias[width * depth])]

        return tf.reshape(y, [tf.shape(x)[0], output_length, output]), gradient

    return run(x, kernel, bias)


def _side_by_side(x: Tensor, padding: tuple[int, int], begins: list[int], length: Tensor) -> Tensor:
    """Return slices of the padded `x` `[batch, time, depth]` next to each other: `[batch * length, slices * depth]`.

    Args:
        x: the sequences.
        padding: number of zeros before and after each sequence.
        begins: first position of each slice.
        length: number of positions of each slice.
    """
    padded = tf.pad(x, [[0, 0], list(padding), [0, 0]])
    return tf.reshape(tf.concat([padded[:, begin:begin + length] for begin in begins], 2),
                      [-1, len(begins) * int(x.shape[2])])


HALF = 0.5 ** 0.5
"""Keeps the variance of a sum of two."""


class Convolution(NamedTuple):
    """One layer: depth of its output, and kernel width."""

    depth: int
    width: int


class ConvS2SMemory(NamedTuple):
    """Encoded source for the decoder.

    Attributes:
        keys: output of the encoder `[batch, source length, embedding]`, in the compute dtype.
        values: `keys` plus the input embeddings, in the compute dtype.
        bias: float32 `[batch, 1, source length]`: 0 at words, very negative at padding.
        scale: float32 `[batch, 1, 1]`: the root of the source length.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor
    scale: Tensor


PRESETS = CONVS2S_PRESETS
"""The presets of the classes in this module."""


@dataclass
class ConvS2S(ConfiguredModel):
    """A convolutional encoder and decoder with an attention in each decoder layer.

    Args:
        settings: settings including both vocabulary sizes.

    Raises:
        SettingsError: sizes that do not match.
    """

    architecture = "convs2s"
    compiles: ClassVar[bool] = True
    settings: ConvS2SSettings

    def __post_init__(self) -> None:
        s = self.settings
        self._encoder, self._decoder = convolutions(s.encoder, "encoder"), convolutions(s.decoder, "decoder")
        _check(s, self._encoder)
        super().__post_init__()

    def encode(self, source: Tensor, source_length: Tensor) -> ConvS2SMemory:
        s = self.settings
        longest = tf.shape(source)[1]
        mask = tf.cast(token_mask(source_length, longest), tf.float32)                 # [batch, source length]
        with tf1.variable_scope("convs2s"):
            words = embed_source(self._table("source"), source, s)
            with tf1.variable_scope("encoder"):
                embedded = self._embed(words, tf.range(longest))                # [batch, source length, embedding]
                x = self._affine(embedded, self._encoder[0].depth, "input")
                for number, layer in enumerate(self._encoder):
                    with tf1.variable_scope(f"layer_{number}"):
                        half_width = (layer.width - 1) // 2
                        y = dropout(x, s.dropout, "input") * mask[:, :, None]   # the kernel sees zeros for padding
                        y = self.adapted(_gated(self._convolve(y, layer, (half_width, half_width))), "convolution")
                        x = (y + self._residual(x, layer)) * HALF
                x = self._affine(x, s.embedding_size, "output")
                if s.scale_encoder_gradients:
                    x = _scale_gradient(x, 1.0 / len(self._decoder))
        keys, values = (tf.cast(y, compute_dtype()) for y in (x, (x + embedded) * HALF))
        scale = tf.sqrt(tf.cast(source_length, tf.float32))[:, None, None]
        return ConvS2SMemory(keys, values, ((1.0 - mask) * MASKED)[:, None, :], scale)

    def decode_hidden(self, memory: ConvS2SMemory, target_in: Tensor) -> Tensor:
        return self.decode_with_attention(memory, target_in)[0]

    def decode_with_attention(self, memory: ConvS2SMemory, target_in: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden layer and the attention of the last layer."""
        def convolve(x: Tensor, layer: Convolution, _: int) -> Tensor:
            return self._convolve(x, layer, (layer.width - 1, 0))       # nothing from later positions

        return self._decode(self._words(target_in), tf.range(tf.shape(target_in)[1]), memory, convolve)

    def start_state(self, memory: ConvS2SMemory, beam: int) -> DecoderState:
        """Return zeros `[batch * beam, width - 1, depth]` for each layer, the input before the first word."""
        rows = tf.shape(memory.bias)[0] * beam
        input_depths = [self._decoder[0].depth] + [layer.depth for layer in self._decoder]
        cache = [tf.zeros([rows, layer.width - 1, depth], compute_dtype())
                 for layer, depth in zip(self._decoder, input_depths, strict=False)]
        return DecoderState(memory, cache, tf.constant(0))

    def decode_step(self, token: Tensor, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        memory: ConvS2SMemory = state.memory
        cache = []

        def convolve(x: Tensor, layer: Convolution, number: int) -> Tensor:
            current = tf.reshape(tf.cast(x, compute_dtype()), [-1, 1, int(x.shape[-1])])
            window = tf.concat([state.cache[number], current], 1)           # [batch * beam, width, depth]
            cache.append(window[:, 1:])
            kernel, bias = self._convolution_variables(int(x.shape[-1]), layer)
            y = affine(tf.reshape(window, [-1, kernel.shape[0] * kernel.shape[1]]),
                       tf.reshape(kernel, [-1, 2 * layer.depth]), bias)
            return tf.reshape(y, tf.concat([tf.shape(x)[:2], [2 * layer.depth]], 0))

        # The hypotheses of a sentence take the dimension of the positions in training: [batch, beam].
        words = self._words(token)
        words = tf.reshape(words, [tf.shape(memory.bias)[0], -1, int(words.shape[1])])
        hidden, weights = self._decode(words, state.step[None], memory, convolve)
        hidden = tf.reshape(hidden, [-1, self.settings.output_size])
        attentions = [tf.reshape(weights, [-1, tf.shape(memory.bias)[2]])] if attention else []
        return self.output_projection().logits(hidden), DecoderState(memory, cache, state.step + 1), *attentions

    def output_projection(self) -> Projection:
        with tf1.variable_scope("convs2s"):
            bias = tf1.get_variable("softmax_bias", [self.target_vocab_size], initializer=tf1.zeros_initializer())
            return Projection(self._table("softmax"), bias)

    def _words(self, target: Tensor) -> Tensor:
        """Return the embeddings of target tokens int32 `[...]`, float32 `[..., embedding]`."""
        with tf1.variable_scope("convs2s"):
            return embed_target(self._table("target"), target, self.settings)

    def _decode(self, words: Tensor, positions: Tensor, memory: ConvS2SMemory,
                convolve: Callable[[Tensor, Convolution, int], Tensor]) -> tuple[Tensor, Tensor]:
        """Apply the decoder up to its last hidden layer.

        Args:
            words: float32 `[batch, queries, embedding]`, at the positions of a sentence, or of its hypotheses at one
                position.
            positions: int32 `[queries]`, or `[1]` for all.
            memory: encoded source.
            convolve: maps (float32 `[batch, queries, depth]`, layer, its number) to
                `[batch, queries, 2 * layer depth]`.

        Returns:
            float32 `[batch, queries, output size]`, and the attention of the last layer, float32
            `[batch, queries, source length]`.
        """
        s = self.settings
        with tf1.variable_scope("convs2s"):
            with tf1.variable_scope("decoder"):
                embedded = self._embed(words, positions)
                x = self._affine(embedded, self._decoder[0].depth, "input")
                for number, layer in enumerate(self._decoder):
                    with tf1.variable_scope(f"layer_{number}"):
                        y = _gated(convolve(dropout(x, s.dropout, "input"), layer, number))
                        y = self.adapted(y, "convolution")
                        context, weights = self._attention(y, embedded, memory)
                        x = ((y + context) * HALF + self._residual(x, layer)) * HALF
                return dropout(self._affine(x, s.output_size, "output"), s.dropout, "output"), weights

    def _attention(self, hidden: Tensor, embedded: Tensor, memory: ConvS2SMemory) -> tuple[Tensor, Tensor]:
        """Return the attention to the source for each hidden state `[batch, queries, depth]`.

        Returns:
            float32 of the shape of `hidden`, and the attention weights float32 `[batch, queries, source length]`.
        """
        with tf1.variable_scope("attention"):
            query = (self._affine(hidden, self.settings.embedding_size, "query") + embedded) * HALF
            logits = to_float32(matmul(query, memory.keys, transpose_b=True)) + memory.bias
            weights = tf.nn.softmax(logits)
            context = to_float32(matmul(weights, memory.values)) * memory.scale
            return self._affine(context, int(hidden.shape[-1]), "output"), weights

    def _residual(self, x: Tensor, layer: Convolution) -> Tensor:
        """Return `x` `[batch, length, depth]`, mapped to the depth of the layer if that differs."""
        return x if int(x.shape[-1]) == layer.depth else self._affine(x, layer.depth, "residual")

    def _embed(self, words: Tensor, positions: Tensor) -> Tensor:
        """Return `words` float32 `[batch, length, embedding]` plus the embeddings of their positions."""
        s = self.settings
        signal = tf.gather(_normal("positions", [s.max_positions, s.embedding_size], 0.1),
                           tf.minimum(positions, s.max_positions - 1))
        return dropout(words + signal[None], s.dropout, "embedding")

    def _table(self, role: str) -> Tensor:
        """Return the table of a role (source, target, softmax), float32 `[vocabulary, depth]`; roles may share it."""
        s = self.settings
        name = {"all": "embedding", "target": "source_embedding" if role == "source" else "target_embedding",
                "none": f"{role}_embedding"}[s.tie_embeddings]
        size = self.source_vocab_size if role == "source" else self.target_vocab_size
        depth = s.output_size if role == "softmax" else s.embedding_size
        stddev = ((1.0 - s.dropout) / depth) ** 0.5 if name == "softmax_embedding" else 0.1
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            return _normal(name, [size, depth], stddev)

    def _affine(self, x: Tensor, depth: int, name: str) -> Tensor:
        """Map `x` `[batch, length, input depth]` to float32 `[batch, length, depth]`."""
        input_depth = int(x.shape[-1])
        with tf1.variable_scope(name):
            kernel = _normal("kernel", [input_depth, depth], ((1.0 - self.settings.dropout) / input_depth) ** 0.5)
            y = affine(tf.reshape(x, [-1, input_depth]), kernel, _bias(depth))
            return to_float32(tf.reshape(y, tf.concat([tf.shape(x)[:2], [depth]], 0)))

    def _convolve(self, x: Tensor, layer: Convolution, padding: tuple[int, int]) -> Tensor:
        """Map `x` `[batch, length, depth]` to `[batch, length + sum(padding) - width + 1, 2 * layer depth]`."""
        return convolution(x, *self._convolution_variables(int(x.shape[-1]), layer), padding)

    def _convolution_variables(self, input_depth: int, layer: Convolution) -> tuple[Tensor, Tensor]:
        """Return the kernel, float32 `[width, before, 2 * depth]`, and the bias, float32 `[2 * depth]`."""
        with tf1.variable_scope("convolution"):
            stddev = (4.0 * (1.0 - self.settings.dropout) / (layer.width * input_depth)) ** 0.5
            kernel = _normal("kernel", [layer.width, input_depth, 2 * layer.depth], stddev)
            graph_state().maps_in_kernel[kernel.op.name] = 2        # the values and their gates
            return kernel, _bias(2 * layer.depth)


_LARGEST = (1000, 65536, 1000)


def convolutions(text: str, name: str) -> list[Convolution]:
    """Return the layers that a setting describes, such as "2x512/3,1x1024/1" (two of depth 512 and width 3, and one).

    Args:
        text: the value of the setting.
        name: the name of the setting, for messages.

    Raises:
        SettingsError: the value is not valid.
    """
    layers = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)x(\d+)/(\d+)\s*", item)
        numbers = [int(number) for number in match.groups()] if match else []
        if match is None or not all(1 <= n <= largest for n, largest in zip(numbers, _LARGEST, strict=True)):
            raise SettingsError(f"model.{name}={text}: '{item}' is not LAYERSxDEPTH/WIDTH, for example 6x256/3, with "
                                f"numbers from 1 to {', '.join(map(str, _LARGEST))}.")
        count, depth, width = numbers
        layers += [Convolution(depth, width)] * count
    return layers


def _gated(x: Tensor) -> Tensor:
    """Apply a gated linear unit (Dauphin et al. 2017) to `x` `[..., 2 * depth]`: float32 `[..., depth]`."""
    value, gate = tf.split(to_float32(x), 2, -1)
    return value * tf.sigmoid(gate)


def _scale_gradient(x: Tensor, scale: float) -> Tensor:
    """Return `x`, with its gradient multiplied by `scale`."""
    return tf.custom_gradient(lambda y: (tf.identity(y), lambda dy: dy * scale))(x)


def _bias(depth: int) -> Tensor:
    return tf1.get_variable("bias", [depth], initializer=tf1.zeros_initializer())


def _normal(name: str, shape: list[int], stddev: float) -> Tensor:
    return tf1.get_variable(name, shape, initializer=StatelessNormal(stddev, name))


def _check(s: ConvS2SSettings, encoder: list[Convolution]) -> None:
    check_common(s)
    if any(layer.width % 2 == 0 for layer in encoder):
        raise SettingsError(f"model.encoder={s.encoder}: the encoder's kernels have an odd width, as many words to "
                            "the left as to the right.")
    if s.tie_embeddings != "none" and s.output_size != s.embedding_size:
        raise SettingsError(f"model.output_size={s.output_size} must be model.embedding_size={s.embedding_size} to "
                            f"share their table, or set model.tie_embeddings=none.")
