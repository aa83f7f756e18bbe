"""Ancestral sampling, compared with the exact probabilities of every sequence over a tiny vocabulary."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD
from towernmt.models.interface import DecoderState, NMTModel
from towernmt.models.layers.randomness import set_seed
from towernmt.predict.search.decoding_tower import build_search_predictor
from towernmt.predict.search.sampling_tower import SamplingSettings, build_sampler, sample
from towernmt.predict.search.search_settings import SearchSettings

SIZE = 6
DRAWS = 20_000


class MarkovModel(NMTModel):
    """Logits are a table's row of the source's first word and the last two tokens."""

    source_vocab_size = target_vocab_size = SIZE
    table = np.random.default_rng(3).normal(0, 1.0, [SIZE, SIZE, SIZE, SIZE]).astype(np.float32)

    def optimizer(self) -> Any:
        raise NotImplementedError

    def encode(self, source: Any, source_length: Any) -> Any:
        return source[:, 0]

    def start_state(self, memory: Any, beam: int) -> DecoderState:
        return DecoderState(memory, tf.fill([tf.shape(memory)[0] * beam], PAD), tf.constant(0))

    def decode_step(self, token: Any, state: DecoderState) -> tuple[Any, DecoderState]:
        table = tf1.get_variable("table", initializer=self.table)
        first = tf.repeat(state.memory, tf.shape(token)[0] // tf.shape(state.memory)[0])
        logits = tf.gather_nd(table, tf.stack([first, state.cache, token], axis=1))
        return logits, DecoderState(state.memory, token, state.step + 1)

    def decode_hidden(self, memory: Any, target_in: Any) -> Any:
        raise AssertionError("sampling must not decode by teacher forcing")

    def output_projection(self) -> Any:
        raise AssertionError("sampling must not decode by teacher forcing")


def draw(settings: SamplingSettings, source: list[list[int]], number: int = 0, seed: int = 5) -> tuple:
    with tf1.Graph().as_default(), PredictTowerContext(""):
        set_seed(seed)
        result = sample(MarkovModel(), tf.constant(source), tf.constant([len(s) for s in source]),
                        tf.constant(number, tf.int64), settings)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            return session.run(result)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum())


def truncated(probability: np.ndarray, settings: SamplingSettings) -> np.ndarray:
    order = np.argsort(-probability)
    nucleus = np.cumsum(probability[order]) - probability[order] < settings.top_p
    probability[order[~nucleus]] = 0.0
    probability /= probability.sum()
    probability[probability < min(settings.epsilon, probability.max())] = 0.0
    return probability / probability.sum()


def exact(first: int, limit: int, settings: SamplingSettings) -> dict[tuple[int, ...], tuple[float, float]]:
    """Return, for every sequence, the probability that it is sampled, and the model's log-probability of it."""
    found = {}
    words = range(3, SIZE)
    sequences = [(*body, EOS) for n in range(limit) for body in itertools.product(words, repeat=n)]
    for tokens in sequences + list(itertools.product(words, repeat=limit)):
        drawn, log_prob = 1.0, 0.0
        context = (PAD, BOS, *tokens)
        for i, token in enumerate(tokens):
            logits = MarkovModel.table[first, context[i], context[i + 1]].astype(np.float64)
            log_prob += log_softmax(logits)[token]
            allowed = np.where(np.isin(np.arange(SIZE), [PAD, BOS]), -np.inf, logits) / settings.temperature
            if 0 < settings.top_k < SIZE:
                allowed[allowed < np.sort(allowed)[-settings.top_k]] = -np.inf
            drawn *= truncated(np.exp(log_softmax(allowed)), settings)[token]
        found[tokens] = drawn, log_prob
    return found


@pytest.mark.parametrize("options", [
    {}, {"top_k": 3, "temperature": 2.0}, {"top_k": 3, "top_p": 0.9, "epsilon": 0.1},
    *(pytest.param(options, marks=pytest.mark.slow) for options in (
        {"epsilon": 0.2, "temperature": 1.3}, {"temperature": 0.5}, {"temperature": 1.7}, {"top_k": 2}, {"top_k": 99},
        {"top_p": 0.6}))])
def test_sequences_are_drawn_with_their_probabilities(options: dict[str, Any]) -> None:
    settings = SamplingSettings(samples=DRAWS, max_length_factor=1.0, max_length_constant=1, **options)
    tokens, log_prob = draw(settings, [[3, EOS], [5, EOS]])
    for row, first in enumerate((3, 5)):
        probabilities = exact(first, 3, settings)
        assert sum(p for p, _ in probabilities.values()) == pytest.approx(1.0)
        sequences = [tuple(int(t) for t in ids if t != PAD) for ids in tokens[row]]
        counts = Counter(sequences)
        for sequence, (probability, _) in probabilities.items():
            deviation = np.sqrt(probability * (1 - probability) * DRAWS)
            assert abs(counts[sequence] - probability * DRAWS) <= 4.5 * deviation + 1e-6, sequence
        np.testing.assert_allclose(log_prob[row], [probabilities[s][1] for s in sequences], atol=1e-4)


def test_one_draw_repeats_itself_and_another_number_or_seed_draws_anew() -> None:
    settings, source = SamplingSettings(samples=50), [[3, 4, EOS], [4, 4, EOS]]
    once, again = draw(settings, source), draw(settings, source)
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    for other in (draw(settings, source, number=1), draw(settings, source, seed=6)):
        assert once[0].shape != other[0].shape or not np.array_equal(once[0], other[0])
    assert len({tuple(ids) for ids in once[0][0].tolist()}) > 10


@pytest.mark.parametrize("options", [
    {"top_k": 3, "temperature": 1.5},
    *(pytest.param(options, marks=pytest.mark.slow) for options in ({}, {"top_p": 0.8, "epsilon": 0.05}))])
def test_a_sentence_draws_the_same_samples_in_every_batch_and_the_first_ones_however_many_are_drawn(
        options: dict[str, Any]) -> None:
    settings = SamplingSettings(samples=6, **options)
    tokens, _ = draw(settings, [[4, 5, EOS], [3, 4, EOS], [5, 3, EOS], [3, 4, EOS]])
    fewer, _ = draw(SamplingSettings(samples=3, **options), [[3, 4, EOS]])
    longest = max(tokens.shape[2], fewer.shape[2])
    padded = [np.pad(one, [(0, 0), (0, 0), (0, longest - one.shape[2])]) for one in (tokens, fewer)]
    assert np.array_equal(padded[0][1], padded[0][3])
    assert np.array_equal(padded[0][1, :3], padded[1][0])
    assert not np.array_equal(padded[0][1], padded[0][0])


def test_a_sample_ends_at_its_own_sentences_limit() -> None:
    settings = SamplingSettings(samples=300, max_length_factor=1.0, max_length_constant=0)
    tokens, _ = draw(settings, [[3, 0, 0, 0], [4, 4, 4, EOS]])
    assert tokens.shape == (2, 300, 4)
    with tf1.Graph().as_default(), PredictTowerContext(""):
        result = sample(MarkovModel(), tf.constant([[3, 2, 0, 0], [4, 4, 4, EOS]]), tf.constant([2, 4]),
                        tf.constant(0, tf.int64), settings)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            tokens = session.run(result).tokens
    assert (tokens[0, :, 2:] == PAD).all() and (tokens[1, :, 2:] != PAD).any()


def test_a_sampler_uses_the_variables_of_a_training_tower(graph: Any) -> None:
    model = MarkovModel()
    with TrainTowerContext(""):
        memory = model.encode(tf.constant([[3, EOS]]), tf.constant([2]))
        model.decode_step(tf.constant([BOS]), model.start_state(memory, 1))
    variables = tf1.global_variables()
    sampler = build_sampler(model, SamplingSettings(samples=4))
    build_sampler(model, SamplingSettings(samples=2))
    assert tf1.global_variables() == variables
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        with pytest.raises(RuntimeError, match="set_session"):
            sampler(np.array([[3, EOS]]), np.array([2]), 7)
        sampler.set_session(session)
        tokens, log_prob = sampler(np.array([[3, EOS]]), np.array([2]), 7)
    assert tokens.shape[:2] == log_prob.shape == (1, 4)


def test_the_settings_of_a_search_draw_in_a_training_graph_as_their_seed_says(graph: Any) -> None:
    model = MarkovModel()
    with TrainTowerContext(""):
        memory = model.encode(tf.constant([[3, EOS]]), tf.constant([2]))
        model.decode_step(tf.constant([BOS]), model.start_state(memory, 1))
    drawn = [build_search_predictor(model, SearchSettings(selection="sampling", n_best=20, seed=seed))
             for seed in (1, 1, 2)]
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        found = []
        for predictor in drawn:
            predictor.set_session(session)
            found.append(predictor(np.array([[3, 4, EOS]]), np.array([3]))[1].tolist())
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"temperature": 0.0}, {"temperature": float("nan")},
                                   {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"epsilon": 1.0},
                                   {"max_length_factor": -1.0}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        SamplingSettings(**wrong)
