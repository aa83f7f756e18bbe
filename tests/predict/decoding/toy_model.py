"""A model whose every prefix has random logits of its own, a search of it with lists, and how tests run a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.predict.decoding.processors.processor import LogitsProcessor
from towernmt.predict.decoding.search import SearchSettings, beam_search, search_signature

PAD, BOS, EOS = 0, 1, 2
ROWS = 499
Scored = tuple[float, list[int]]


def prefix_row(source: list[int], prefix: list[int]) -> int:
    """The row of the table that holds the logits behind `prefix` (without BOS)."""
    value = 31 * sum(source)
    for token in [BOS, *prefix]:
        value = (value * 7 + token + 1) % ROWS
    return value


class ToyModel(NMTModel):
    """`decode_step` looks the row of the prefix up; the prefix is its cache, which grows by one a step."""

    def __init__(self, vocabulary: int, seed: int, spread: float = 2.0) -> None:
        self.source_vocab_size = self.target_vocab_size = vocabulary
        self.table = np.random.default_rng(seed).normal(0, spread, [ROWS, vocabulary]).astype(np.float32)

    def optimizer(self) -> Any:
        return tf1.train.GradientDescentOptimizer(0.1)

    def encode(self, source: Any, source_length: Any) -> Any:
        mask = tf.sequence_mask(source_length, tf.shape(source)[1], dtype=tf.int32)
        weight = tf1.get_variable("encoder/weight", [], tf.float32, tf1.constant_initializer(31.0))
        return {"sum": tf.cast(weight, tf.int32) * tf.reduce_sum(source * mask, axis=1)}  # [batch]

    def start_state(self, memory: Any, beam: int) -> DecoderState:
        rows = tf.shape(memory["sum"])[0] * beam
        return DecoderState(memory, (tf.zeros([rows, 0], tf.int32), tf.zeros([rows, 1, 2])), tf.constant(0))

    def decode_step(self, token: Any, state: DecoderState) -> tuple[Any, DecoderState]:
        prefix = tf.concat([state.cache[0], token[:, None]], axis=1)  # [rows, step + 1]
        batch = tf.shape(state.memory["sum"])[0]
        beam = tf.shape(prefix)[0] // tf.maximum(batch, 1)
        start = tf.repeat(state.memory["sum"], beam)
        row = tf.foldl(lambda value, column: (value * 7 + column + 1) % ROWS, tf.transpose(prefix), start)
        with tf1.variable_scope("decoder"):
            table = tf1.get_variable("table", self.table.shape, tf.float32,
                                     tf1.constant_initializer(self.table))
        return tf.gather(table, row), DecoderState(state.memory, (prefix, state.cache[1]), state.step + 1)

    def decode_hidden(self, memory: Any, target_in: Any) -> Any:
        raise AssertionError("search must not decode by teacher forcing")

    def output_projection(self) -> Any:
        raise AssertionError("search must not decode by teacher forcing")

    def log_prob(self, source: list[int], prefix: list[int]) -> np.ndarray:
        """Reference: float64 log-probabilities `[vocabulary]` behind `prefix`."""
        logits = self.table[prefix_row(source, prefix)].astype(np.float64)
        return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def length_limit(source: list[int], settings: SearchSettings) -> int:
    return max(1, math.floor(len(source) * settings.max_length_factor) + settings.max_length_constant)


def normalised(log_prob: float, length: int, settings: SearchSettings) -> float:
    return log_prob / ((5 + length) / 6) ** settings.length_penalty


def plain_beam_search(model: ToyModel, source: list[int], settings: SearchSettings,
                      allowed: Callable[[list[int], int], bool] = lambda prefix, token: True) -> list[Scored]:
    """Beam search of one sentence with lists; it never stops before the length limit (but greedily).

    Args:
        allowed: whether a token may follow a prefix.
    """
    limit = length_limit(source, settings)
    live: list[Scored] = [(0.0, [])]
    finished: list[Scored] = []
    for length in range(1, limit + 1):
        grown = []
        for total, prefix in live:
            log_prob = model.log_prob(source, prefix)
            for token in range(EOS, model.target_vocab_size):
                if (token != EOS or length > settings.min_length) and allowed(prefix, token):
                    grown.append((total + log_prob[token], [*prefix, token]))
        grown.sort(key=lambda item: -item[0])
        for total, tokens in grown[:settings.beam_size]:
            if tokens[-1] == EOS or length == limit:
                finished.append((normalised(total, length, settings), tokens))
        live = [item for item in grown if item[1][-1] != EOS][:settings.beam_size]
        if settings.beam_size == 1 and finished:
            break
    return sorted(finished, key=lambda item: -item[0])[:settings.n_best]


def searcher(model: Any, settings: SearchSettings,
             processors: Sequence[LogitsProcessor] = ()) -> Callable[..., list[list[Scored]]]:
    """A function from sentences, and further inputs by name, to (score, tokens) of the n best, in a session."""
    graph = tf1.Graph()
    with graph.as_default():
        inputs = {spec.name: tf1.placeholder(spec.dtype, spec.shape)
                  for spec in search_signature(model, settings, processors)}
        further = {name: tensor for name, tensor in inputs.items() if not name.startswith("source")}
        with PredictTowerContext(""):
            result = beam_search(model, inputs["source"], inputs["source_length"], settings, processors, further)
        session = tf1.Session(graph=graph)
        session.run(tf1.global_variables_initializer())

    def search(sentences: list[list[int]], **arrays: Any) -> list[list[Scored]]:
        longest = max(map(len, sentences))
        arrays |= {"source": [s + [PAD] * (longest - len(s)) for s in sentences],
                   "source_length": [len(s) for s in sentences]}
        tokens, scores = session.run(result, {inputs[name]: array for name, array in arrays.items()})
        return [[(float(score), [int(t) for t in ids if t != PAD])
                 for score, ids in zip(row_scores, row, strict=True)]
                for row_scores, row in zip(scores, tokens, strict=True)]
    return search
