"""Sampled tokens, compared with NumPy; their random numbers depend only on sentence, sample and step."""

from __future__ import annotations

import numpy as np
import pytest

from towernmt.core.tf_compat import tf, tf1
from towernmt.predict.search.distribution import NEG_INF
from towernmt.predict.search.sampling_search import Truncation, sample_keys, sample_tokens, uniform

SIZE = 1000


def plain_draw(logits: np.ndarray, number: float, truncation: Truncation) -> int:
    """Return the sampled token of one row; each truncation acts on the renormalised rest."""
    probability = np.exp(logits.astype(np.float64))
    probability /= probability.sum()
    order = np.argsort(-probability, kind="stable")
    if truncation.top_k:
        probability[order[truncation.top_k:]] = 0.0
        probability /= probability.sum()
    before = np.cumsum(probability[order]) - probability[order]
    probability[order[before >= truncation.top_p]] = 0.0
    probability /= probability.sum()
    least = min(truncation.epsilon, probability.max())
    probability[probability < least] = 0.0
    if truncation.top_k:        # then tokens are in the order of their probability
        return int(order[np.searchsorted(np.cumsum(probability[order]), number * probability.sum(), "right")])
    return int(np.searchsorted(np.cumsum(probability), number * probability.sum(), "right"))


@pytest.mark.parametrize("truncation", [
    Truncation(), Truncation(top_k=7), Truncation(top_p=0.7), Truncation(top_p=0.999), Truncation(epsilon=0.002),
    Truncation(epsilon=0.9), Truncation(top_k=40, top_p=0.8, epsilon=0.01)], ids=str)
def test_a_number_means_the_token_at_which_the_distribution_exceeds_it(
        graph: object, truncation: Truncation) -> None:
    random = np.random.default_rng(5)
    logits = random.normal(0, 1.5, [60, SIZE]).astype(np.float32)
    logits[:, 4] += np.linspace(0, 12, 60)          # from flat to nearly certain
    logits[:, :3] = NEG_INF
    numbers = random.random(60)
    with tf1.Session() as session:
        found = session.run(sample_tokens(tf.constant(logits), tf.constant(numbers), truncation))
    assert found.tolist() == [plain_draw(row, number, truncation)
                              for row, number in zip(logits, numbers, strict=True)]


def test_the_ends_of_the_numbers_mean_the_first_and_the_last_token_that_may_come(graph: object) -> None:
    logits = np.full([2, 50], NEG_INF, np.float32)
    logits[:, [7, 31, 44]] = [0.0, -1.0, -30.0]
    with tf1.Session() as session:
        assert session.run(sample_tokens(tf.constant(logits), tf.constant([0.0, 1 - 2.0 ** -52], tf.float64),
                                Truncation())).tolist() == [7, 44]


def numbers(source: list[list[int]], length: list[int], samples: int, steps: int, seed: int = 3) -> np.ndarray:
    """Return the random numbers, `[steps, batch, samples]`."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        keys = sample_keys(tf.constant(seed, tf.int64), tf.constant(source, tf.int32), tf.constant(length), samples)
        return session.run(tf.stack([uniform(keys, tf.constant(step)) for step in range(steps)]))


def test_numbers_are_those_of_the_sentence_wherever_it_stands_and_of_the_sample_however_many_there_are() -> None:
    alone = numbers([[5, 6, 2]], [3], 2, 3)
    batch = numbers([[6, 5, 2, 0, 0], [9, 4, 4, 4, 2], [5, 6, 2, 0, 0], [5, 6, 0, 2, 0]], [3, 5, 3, 4], 5, 3)
    assert np.array_equal(batch[:, 2, :2], alone[:, 0])
    assert len(np.unique(batch)) == batch.size          # other sentences, samples and steps have other numbers
    assert not np.isin(numbers([[5, 6, 2]], [3], 2, 3, seed=4), alone).any()


def test_numbers_of_like_sentences_samples_seeds_and_steps_are_even_and_independent() -> None:
    found = np.concatenate([numbers([[word, 2] for word in range(3, 103)], [2] * 100, 50, 4, seed) for seed in (0, 1)])
    assert found.min() >= 0.0 and found.max() < 1.0
    counts = np.histogram(found, 50, (0, 1))[0]
    assert ((counts - found.size / 50) ** 2 / (found.size / 50)).sum() < 96        # chi-square, 49 degrees: 1 in 10,000
    for axis in range(3):
        pairs = np.moveaxis(found, axis, 0)
        assert abs(np.corrcoef(pairs[:-1].ravel(), pairs[1:].ravel())[0, 1]) < 4.0 / np.sqrt(found.size)
