"""Count the floating-point operations of a training step from a model's settings.

Matrix products and convolutions over real tokens count, two operations per multiply-add. A training step counts three
times the forward pass, since each product has one gradient per factor. Additional work of a program (padding,
recomputation, columns added for a bias) does not count, so the ratio to the machine's peak rate is the model FLOPs
utilisation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from towernmt.models.convs2s import convolutions

LENGTH = 24.0
"""Tokens per sentence of the usual workload, EOS included: the number of positions that attention reads."""


class Costs(NamedTuple):
    """Operations of the forward pass per source token, per target token and per sentence."""

    source: float
    target: float
    sentence: float = 0.0


def train_flops(architecture: str, settings: Any, source: float, target: float, length: float = LENGTH) -> float:
    """Return the operations of the forward and the backward pass: three times `forward_flops`."""
    return 3.0 * forward_flops(architecture, settings, source, target, length)


def forward_flops(architecture: str, settings: Any, source: float, target: float, length: float = LENGTH) -> float:
    """Return the operations of one forward pass including the logits.

    Args:
        architecture: one of `towernmt.models.ARCHITECTURES`.
        settings: settings of the architecture; a Transformer must have plain attention and feed-forward layers.
        source: source tokens, with EOS, without padding.
        target: target tokens, with EOS, without padding.
        length: mean tokens per sentence on both sides, for attention.
    """
    costs = _COSTS[architecture](settings, length)
    return source * costs.source + target * costs.target + source / length * costs.sentence


def transformer_costs(s: Any, length: float) -> Costs:
    """Return the costs of projections (4, or 2 + 2 for attention to the source), attention and feed-forward layers."""
    d, f = s.hidden_size, s.filter_size
    encoder = s.encoder_layers * (8 * d * d + 4 * d * f + 4 * length * d)
    keys_values = s.decoder_layers * 4 * d * d
    decoder = s.decoder_layers * (12 * d * d + 4 * d * f + 8 * length * d)
    return Costs(encoder + keys_values, decoder + 2 * d * s.target_vocab_size)


def seq2seq_costs(s: Any, length: float) -> Costs:
    """Return the costs of the cells of both stacks, the attention of the top layer and the layer before the softmax."""
    e, h = s.embedding_size, s.hidden_size
    upper = (s.layers - 1) * _cell(s.cell, h, h)
    encoder = _cell(s.cell, e, h) + upper
    decoder = _cell(s.cell, 2 * e if s.input_feeding else e, h) + upper
    if s.attention == "none":
        hidden = 0.0 if h == e else 2 * h * e
        return Costs(encoder, decoder + hidden + 2 * e * s.target_vocab_size)
    keys = 2 * h * h if s.attention == "general" else 0.0
    attention = 4 * length * h + 4 * h * e
    return Costs(encoder + keys, decoder + attention + 2 * e * s.target_vocab_size)


def rnnsearch_costs(s: Any, length: float) -> Costs:
    """Return the costs of the bidirectional encoder, the decoder (layer 1 reads the context) and the read-out."""
    e, enc, dec, inner = s.embedding_size, s.encoder_size, s.decoder_size, s.attention_size
    encoder = 2 * (_cell(s.cell, e, enc) + (s.encoder_layers - 1) * _cell(s.cell, 2 * enc, enc))
    decoder = _cell(s.cell, e + 2 * enc, dec) + (s.decoder_layers - 1) * _cell(s.cell, dec, dec)
    if s.attention == "additive":
        keys, scores = 2 * 2 * enc * inner, 2 * dec * inner + 2 * length * inner
    else:
        keys, scores = (2 * 2 * enc * dec if s.attention == "general" else 0.0), 2 * length * dec
    fertility = 2 * 2 * enc if s.coverage != "none" else 0.0
    read_out = 2 * (dec + e + 2 * enc) * s.read_out_size * (2 if s.read_out == "maxout" else 1)
    start = s.decoder_layers * 2 * enc * dec * (1 if s.cell == "gru" else 2)
    return Costs(encoder + keys + fertility,
                 decoder + scores + 2 * length * 2 * enc + read_out + 2 * s.read_out_size * s.target_vocab_size, start)


def convs2s_costs(s: Any, length: float) -> Costs:
    """Return the costs of convolutions to twice their depth, their projections, and one attention per decoder layer."""
    e = s.embedding_size
    encoder, source = _convolutions(s.encoder, e)
    decoder, target = _convolutions(s.decoder, e)
    attention = sum(4 * layer.depth * e + 4 * length * e for layer in convolutions(s.decoder, "decoder"))
    return Costs(encoder + 2 * source * e,
                 decoder + attention + 2 * target * s.output_size + 2 * s.output_size * s.target_vocab_size)


def _convolutions(text: str, depth: int) -> tuple[float, int]:
    """Return the operations per token of a stack with its input projection, and the depth of its output."""
    layers = convolutions(text, "stack")
    total = 2.0 * depth * layers[0].depth
    depth = layers[0].depth
    for layer in layers:
        total += 2 * layer.width * depth * 2 * layer.depth
        total += 0 if depth == layer.depth else 2 * depth * layer.depth
        depth = layer.depth
    return total, depth


def _cell(kind: str, inputs: int, depth: int) -> float:
    """Return the operations of one step of a cell."""
    return 2.0 * (inputs + depth) * depth * {"gru": 3, "lstm": 4}[kind]


_COSTS: dict[str, Callable[[Any, float], Costs]] = {
    "transformer": transformer_costs, "seq2seq": seq2seq_costs, "rnnsearch": rnnsearch_costs, "convs2s": convs2s_costs}
