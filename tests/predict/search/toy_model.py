"""A model with random logits for each prefix, a search of it with lists, and functions that run a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.predict.search.decoding_interfaces import LogitsProcessor
from towernmt.predict.search.decoding_tower import beam_search, search_signature
from towernmt.predict.search.search_settings import SearchSettings

PAD, BOS, EOS = 0, 1, 2
ROWS = 499
Scored = tuple[float, list[int]]


def assert_same(found: list[Scored], expected: list[Scored]) -> None:
    """Assert that hypotheses have the same tokens, and the same scores up to rounding."""
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    np.testing.assert_allclose([s for s, _ in found], [s for s, _ in expected], rtol=1e-5, atol=1e-5)


def prefix_row(source: list[int], prefix: list[int]) -> int:
    """Return the row of the table with the logits after `prefix` (without BOS)."""
    value = 31 * sum(source)
    for token in [BOS, *prefix]:
        value = (value * 7 + token + 1) % ROWS
    return value


class ToyModel(NMTModel):
    """A model whose `decode_step` looks up the row of the prefix, which is its cache and grows by one per step."""

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
        """Return the reference: float64 log-probabilities `[vocabulary]` after `prefix`."""
        logits = self.table[prefix_row(source, prefix)].astype(np.float64)
        return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


class LookingToyModel(ToyModel):
    """A toy model that also has a random attention for each prefix."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        super().__init__(vocabulary, seed)
        self.looks = np.random.default_rng(seed + 1).normal(0, 3.0, [ROWS, 12]).astype(np.float32)

    def encode(self, source: Any, source_length: Any) -> Any:
        there = tf.sequence_mask(source_length, tf.shape(source)[1])
        return {**super().encode(source, source_length), "there": there}

    def decode_with_attention(self, memory: Any, target_in: Any) -> Any:
        raise AssertionError("search must not decode by teacher forcing")

    def decode_step(self, token: Any, state: DecoderState, attention: bool = False) -> tuple[Any, ...]:
        logits, after = super().decode_step(token, state)
        if not attention:
            return logits, after
        there = state.memory["there"]
        rows = tf.repeat(state.memory["sum"], tf.shape(token)[0] // tf.shape(there)[0])
        row = tf.foldl(lambda value, column: (value * 7 + column + 1) % ROWS, tf.transpose(after.cache[0]), rows)
        looks = tf.gather(tf.constant(self.looks), row)[:, :tf.shape(there)[1]]
        there = tf.repeat(there, tf.shape(token)[0] // tf.shape(there)[0], axis=0)
        return logits, after, tf.nn.softmax(tf.where(there, looks, float("-inf")))

    def attention(self, source: list[int], prefix: list[int]) -> np.ndarray:
        """Return the reference: the attention of the step after `prefix`, float64 `[source length]`."""
        looks = np.exp(self.looks[prefix_row(source, prefix)].astype(np.float64)[:len(source)])
        return looks / looks.sum()


class Averaged(ToyModel):
    """The mean of several models, in float64, with the interface for a search with lists."""

    def __init__(self, models: Sequence[ToyModel], weights: Sequence[float] = (1, 1),
                 mean: str = "probabilities") -> None:
        self.target_vocab_size = models[0].target_vocab_size
        self._models, self._mean = models, mean
        self._weights = np.array(weights) / sum(weights)

    def log_prob(self, source: list[int], prefix: list[int]) -> np.ndarray:
        each = np.stack([model.log_prob(source, prefix) for model in self._models])
        if self._mean == "probabilities":
            return np.log(self._weights @ np.exp(each))
        mean = self._weights @ each
        return mean - np.log(np.exp(mean).sum())


def length_limit(source: list[int], settings: SearchSettings) -> int:
    limit = max(1, math.floor(len(source) * settings.max_length_factor) + settings.max_length_constant)
    return min(limit, settings.max_tokens) if settings.max_tokens else limit


def normalised(log_prob: float, length: int, settings: SearchSettings) -> float:
    alpha = settings.length_penalty
    penalty = {"gnmt": ((5 + length) / 6) ** alpha, "average": length ** alpha}[settings.length_normalization]
    return (log_prob + settings.word_reward * length) / penalty


def plain_score(model: ToyModel, source: list[int], total: float, tokens: list[int], settings: SearchSettings) -> float:
    """Return the score of a finished hypothesis from its log-probability."""
    length = len(tokens)
    score = normalised(total, length, settings)
    if settings.coverage_penalty:
        assert isinstance(model, LookingToyModel)
        looked = sum(model.attention(source, tokens[:i]) for i in range(length))
        score += settings.coverage_penalty * np.log(np.clip(looked, 1e-6, 1.0)).sum()
    return score


def plain_log_prob(model: ToyModel, source: list[int], prefix: list[int], settings: SearchSettings) -> np.ndarray:
    """Return the log-probabilities `[vocabulary]` after `prefix` that the search uses."""
    log_prob = model.log_prob(source, prefix) / settings.temperature
    log_prob -= np.log(np.exp(log_prob).sum())
    log_prob[list(set(prefix))] *= settings.repetition_penalty
    return log_prob


def plain_allows(source: list[int], prefix: list[int], token: int, settings: SearchSettings) -> bool:
    """Return whether a token may follow a prefix."""
    least = max(settings.min_length, math.floor((len(source) - 1) * settings.min_length_factor))
    if token < EOS or (token == EOS and len(prefix) < least):
        return False
    size, grown = settings.no_repeat_ngram, [*prefix, token]
    ngrams = [tuple(grown[i:i + size]) for i in range(len(grown) - size + 1)] if size else []
    return len(ngrams) == len(set(ngrams))


def plain_beam_search(model: ToyModel, source: list[int], settings: SearchSettings,
                      allowed: Callable[[list[int], int], bool] = lambda prefix, token: True) -> list[Scored]:
    """Search one sentence with lists; only greedy search and stopping=first end before the limit.

    Args:
        allowed: whether a token may follow a prefix.
    """
    limit = length_limit(source, settings)
    live: list[Scored] = [(0.0, [])]
    finished: list[Scored] = []
    for length in range(1, limit + 1):
        grown = []
        for total, prefix in live:
            log_prob = plain_log_prob(model, source, prefix, settings)
            for token in range(model.target_vocab_size):
                if plain_allows(source, prefix, token, settings) and allowed(prefix, token):
                    grown.append((total + log_prob[token], [*prefix, token]))
        grown.sort(key=lambda item: -item[0])
        for total, tokens in grown[:settings.beam_size]:
            if tokens[-1] == EOS or length == limit:
                finished.append((plain_score(model, source, total, tokens, settings), tokens))
        live = [item for item in grown if item[1][-1] != EOS][:settings.beam_size]
        if settings.beam_size == 1 and finished:
            break
        if settings.stopping == "first" and len(finished) >= settings.patience * settings.beam_size:
            break
    return sorted(finished, key=lambda item: -item[0])[:settings.n_best]


def searcher(model: Any, settings: SearchSettings,
             processors: Sequence[LogitsProcessor] = ()) -> Callable[..., list[list[Scored]]]:
    """Return a function from sentences and further inputs by name to (score, tokens) of the n best, in a session."""
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
