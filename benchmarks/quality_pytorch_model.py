"""The pre-norm Transformer of towernmt's automatic settings in PyTorch, its loss, and beam search.

The layers, the initial values and the loss are those of towernmt: sinusoidal positions, three embedding tables, no
dropout, ReLU, outputs of layers that begin at zero, label smoothing, and a softmax over a sample of the vocabulary in
training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

PAD, BOS, EOS = 0, 1, 2
MASKED = -1e9


class Batch(NamedTuple):
    """A batch of sentence pairs as tensors.

    Attributes:
        source: int64 `[batch, source length]`, with EOS.
        target: int64 `[batch, target length]`, with EOS.
        tokens: int64 `[tokens]`, the positions without padding in the flattened target.
        members: int64 `[sample]`, the sampled tokens of the vocabulary, all labels included, ascending.
        offsets: float32 `[sample]`, added to the logits of the sample.
        labels: int64 `[tokens]`, the column of each label in the sample.
    """

    source: torch.Tensor
    target: torch.Tensor
    tokens: torch.Tensor
    members: torch.Tensor
    offsets: torch.Tensor
    labels: torch.Tensor


class Attention(nn.Module):
    """Multi-head attention without biases. Queries, keys and values are one product if it is to the same sequence."""

    def __init__(self, depth: int, heads: int, to_source: bool) -> None:
        super().__init__()
        self.heads, self.to_source = heads, to_source
        parts = (("query", 1), ("kv", 2)) if to_source else (("qkv", 3),)
        for name, count in parts:
            kernel = torch.cat([glorot(depth, depth) for _ in range(count)], 1)
            setattr(self, name, nn.Parameter(kernel))
        self.output = nn.Parameter(torch.zeros(depth, depth))

    def forward(self, x: torch.Tensor, bias: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
        if source is None:
            query, key, value = (self._by_head(part) for part in (x @ self.qkv).chunk(3, -1))
        else:
            query = self._by_head(x @ self.query)
            key, value = (self._by_head(part) for part in (source @ self.kv).chunk(2, -1))
        context = functional.scaled_dot_product_attention(query, key, value, bias)
        return context.transpose(1, 2).reshape(x.shape) @ self.output

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, x.shape[2] // self.heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Two affine maps with a ReLU between them."""

    def __init__(self, depth: int, filter_size: int) -> None:
        super().__init__()
        self.inner, self.inner_bias = nn.Parameter(glorot(depth, filter_size)), nn.Parameter(torch.zeros(filter_size))
        self.outer, self.outer_bias = nn.Parameter(torch.zeros(filter_size, depth)), nn.Parameter(torch.zeros(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.inner + self.inner_bias) @ self.outer + self.outer_bias


class Layer(nn.Module):
    """A layer of the encoder, or of the decoder, which also attends to the source."""

    def __init__(self, depth: int, filter_size: int, heads: int, in_decoder: bool) -> None:
        super().__init__()
        self.self_attention = Attention(depth, heads, to_source=False)
        self.source_attention = Attention(depth, heads, to_source=True) if in_decoder else None
        self.feed_forward = FeedForward(depth, filter_size)
        self.norms = nn.ModuleList(nn.LayerNorm(depth, 1e-6) for _ in range(3 if in_decoder else 2))

    def forward(self, x: torch.Tensor, bias: torch.Tensor, source: torch.Tensor | None = None,
                source_bias: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.self_attention(self.norms[0](x), bias)
        if self.source_attention is not None:
            x = x + self.source_attention(self.norms[1](x), source_bias, source)
        return x + self.feed_forward(self.norms[-1](x))


class Transformer(nn.Module):
    """The model of a towernmt run.

    Args:
        settings: the section `model` of the run's settings.
        vectors: initial vectors of the vocabulary, float32 `[vocabulary, depth]`; a row of zeros begins at random.
    """

    def __init__(self, settings: dict[str, Any], vectors: np.ndarray) -> None:
        super().__init__()
        size, depth = vectors.shape
        shape = depth, int(settings["filter_size"]), int(settings["heads"])
        given = torch.from_numpy(vectors)
        self.source_table, self.target_table, self.softmax_table = (nn.Parameter(torch.where(
            given.any(1, keepdim=True), given, torch.randn(size, depth) * depth ** -0.5)) for _ in range(3))
        self.output_bias = nn.Parameter(torch.zeros(size))
        self.encoder = nn.ModuleList(Layer(*shape, in_decoder=False) for _ in range(settings["encoder_layers"]))
        self.decoder = nn.ModuleList(Layer(*shape, in_decoder=True) for _ in range(settings["decoder_layers"]))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(depth, 1e-6), nn.LayerNorm(depth, 1e-6)
        self.smoothing = float(settings["label_smoothing"])
        self.register_buffer("signal", torch.from_numpy(sinusoids(1024, depth)), persistent=False)
        for layer in self.decoder:
            let_output_invert_values(layer.source_attention)

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoded source `[batch, length, depth]`, and the mask of its padding `[batch, 1, 1, length]`."""
        bias = torch.where(source == PAD, MASKED, 0.0)[:, None, None]
        x = self._embed(source, self.source_table)
        for layer in self.encoder:
            x = layer(x, bias)
        return self.encoder_norm(x), bias

    def decode(self, target_in: torch.Tensor, source: torch.Tensor, source_bias: torch.Tensor) -> torch.Tensor:
        """Return the last hidden layer, float32 `[batch, target length, depth]`."""
        length = target_in.shape[1]
        bias = torch.full((length, length), MASKED).triu(1)[None, None]
        x = self._embed(target_in, self.target_table)
        for layer in self.decoder:
            x = layer(x, bias, source, source_bias)
        return self.decoder_norm(x)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss of a token, with label smoothing over the whole vocabulary, float32 `[]`."""
        start = torch.full_like(batch.target[:, :1], BOS)
        hidden = self.decode(torch.cat([start, batch.target[:, :-1]], 1), *self.encode(batch.source))
        hidden = hidden.reshape(-1, hidden.shape[2])[batch.tokens]
        kernel, bias = self.softmax_table[batch.members], self.output_bias[batch.members]
        logits = hidden @ kernel.T + (bias + batch.offsets)
        loss = functional.cross_entropy(logits, batch.labels)
        label_logits = (hidden * kernel[batch.labels]).sum(1) + bias[batch.labels]
        mean_logits = hidden @ self.softmax_table.mean(0) + self.output_bias.mean()
        return loss + self.smoothing * (label_logits - mean_logits).mean()

    def _embed(self, tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        depth = table.shape[1]
        return functional.embedding(tokens, table) * depth ** 0.5 + self.signal[:tokens.shape[1]]


def glorot(rows: int, columns: int) -> torch.Tensor:
    """Return initial values as in Glorot and Bengio (2010), float32 `[rows, columns]`."""
    limit = math.sqrt(6.0 / (rows + columns))
    return torch.empty(rows, columns).uniform_(-limit, limit)


def sinusoids(length: int, depth: int) -> np.ndarray:
    """Return the signals of positions, sines and then cosines, float32 `[length, depth]`."""
    rates = np.exp(-math.log(10000.0) * np.arange(depth // 2) / (depth // 2 - 1))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def let_output_invert_values(attention: Attention) -> None:
    """Make the values and the output of a cross-attention a random rotation and its inverse."""
    depth = attention.output.shape[0]
    rotation = torch.linalg.qr(torch.randn(depth, depth))[0]
    with torch.no_grad():
        size = attention.kv[:, depth:].norm() / depth ** 0.5
        attention.kv[:, depth:] = rotation * size
        attention.output.copy_(rotation.T * size)


@torch.inference_mode()
def translate(model: Transformer, sources: Sequence[Sequence[int]], beam: int, longest: int) -> list[list[int]]:
    """Return the best translation of each sentence by beam search, without EOS.

    A hypothesis is scored by its log-probability over `length_penalty`. Each step computes
    all positions again, so the time of this search does not show the speed of PyTorch.

    Args:
        model: model to translate with.
        sources: ids of the sentences, with EOS.
        beam: number of hypotheses of a sentence.
        longest: maximum number of tokens of a translation.
    """
    translations: list[list[int]] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    for first in range(0, len(order), 64):
        numbers = order[first:first + 64]
        batch = torch.tensor(padded([sources[number] for number in numbers]))
        for number, translation in zip(numbers, search(model, batch, beam, longest), strict=True):
            translations[number] = translation
    return translations


def search(model: Transformer, source: torch.Tensor, beam: int, longest: int) -> list[list[int]]:
    """Return the best translation of each row of `source`, int64 `[batch, length]`; see `translate`."""
    best: list[tuple[float, list[int]]] = [(-math.inf, [])] * source.shape[0]
    rows = torch.arange(source.shape[0])                                    # those that are not finished
    encoded, bias = (x.repeat_interleave(beam, 0) for x in model.encode(source))
    tokens, scores = torch.full((len(rows) * beam, 1), BOS), torch.full((len(rows), beam), MASKED)
    scores[:, 0] = 0.0
    for length in range(1, longest + 1):
        logits = model.decode(tokens, encoded, bias)[:, -1] @ model.softmax_table.T + model.output_bias
        logits[:, [PAD, BOS]] = MASKED
        totals = scores[:, :, None] + logits.log_softmax(-1).view(len(rows), beam, -1)
        ended, hypotheses = totals[:, :, EOS].max(1)
        for number, row in enumerate(rows.tolist()):
            score = float(ended[number]) / length_penalty(length)
            if score > best[row][0]:
                best[row] = score, tokens[number * beam + int(hypotheses[number]), 1:].tolist()
        totals[:, :, EOS] = 2 * MASKED
        scores, chosen = totals.view(len(rows), -1).topk(beam)
        parents = chosen // logits.shape[1] + torch.arange(len(rows))[:, None] * beam
        tokens = torch.cat([tokens[parents.view(-1)], (chosen % logits.shape[1]).view(-1, 1)], 1)
        reachable = (scores[:, 0] / length_penalty(longest)).tolist()       # by the best live hypothesis
        lives = torch.tensor([best[row][0] < bound for row, bound in zip(rows.tolist(), reachable, strict=True)])
        if not lives.any():
            break
        rows, scores, of_live = rows[lives], scores[lives], lives.repeat_interleave(beam)
        tokens, encoded, bias = tokens[of_live], encoded[of_live], bias[of_live]
    return [hypothesis for _, hypothesis in best]


def length_penalty(length: int) -> float:
    """Return the divisor of the log-probability of a hypothesis (Wu et al. 2016, with an exponent of 0.6)."""
    return float(((5 + length) / 6) ** 0.6)


def padded(sentences: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the ids of sentences, int64 `[sentences, longest]`."""
    rows = np.full((len(sentences), max(map(len, sentences))), PAD, np.int64)
    for row, sentence in zip(rows, sentences, strict=True):
        row[:len(sentence)] = sentence
    return rows
