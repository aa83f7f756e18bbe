"""IBM model 1, compared with expectation maximisation in dictionaries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.alignment_model import NULL, count_by_model_1, learn_model_1
from towernmt.dataflow.preparation.shards import PairBlock

Pairs = list[tuple[list[int], list[int]]]
TARGET_SIZE = 12


def block(pairs: Pairs) -> PairBlock:
    def side(sentences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        return (np.array([id for sentence in sentences for id in sentence], np.uint16),
                np.cumsum([0, *map(len, sentences)]))
    return PairBlock(*side([source for source, _ in pairs]), *side([target for _, target in pairs]))


def by_dictionaries(pairs: Pairs, iterations: int, earlier: Mapping[tuple[int, int], float] = MappingProxyType({})
                    ) -> tuple[dict[tuple[int, int], float], list[float]]:
    """Return p(target | source), and the perplexity before each iteration.

    Args:
        pairs: the sentence pairs.
        iterations: number of iterations.
        earlier: counts that are added in each iteration.
    """
    probability: dict[tuple[int, int], float] = defaultdict(lambda: 1.0 / TARGET_SIZE)
    perplexities = []
    for _ in range(iterations):
        counts: dict[tuple[int, int], float] = defaultdict(float, earlier)
        log_likelihood, words = 0.0, 0
        for source, target in pairs:
            for t in target:
                total = sum(probability[s, t] for s in [NULL, *source])
                log_likelihood += np.log(total / (len(source) + 1))
                words += 1
                for s in [NULL, *source]:
                    counts[s, t] += probability[s, t] / total
        sums: dict[int, float] = defaultdict(float)
        for (s, _), count in counts.items():
            sums[s] += count
        probability = defaultdict(float, {(s, t): count / sums[s] for (s, t), count in counts.items()})
        perplexities.append(float(np.exp(-log_likelihood / words)))
    return dict(probability), perplexities


def random_pairs(seed: int, count: int) -> Pairs:
    rng = np.random.default_rng(seed)
    return [(rng.integers(4, 9, rng.integers(0, 6)).tolist(), rng.integers(4, TARGET_SIZE, rng.integers(0, 5)).tolist())
            for _ in range(count)]


@pytest.mark.parametrize("iterations", [1, 4])
def test_the_table_is_that_of_plain_expectation_maximisation_however_the_pairs_are_cut_into_blocks(
        iterations: int) -> None:
    pairs = random_pairs(1, 40)
    expected, perplexities = by_dictionaries(pairs, iterations)
    reported: list[float] = []
    blocks = [block(pairs[:15]), block([([4], [])]), block(pairs[15:16]), block(pairs[16:])]
    learned = learn_model_1(blocks, TARGET_SIZE, iterations, lambda _, perplexity: reported.append(perplexity))
    learned_table = as_dictionary(learned.source, learned.target, learned.probability)
    assert learned_table.keys() == expected.keys()
    np.testing.assert_allclose([learned_table[key] for key in expected], list(expected.values()), rtol=1e-9)
    np.testing.assert_allclose(reported, perplexities, rtol=1e-9)
    assert learned.frequency.tolist() == np.bincount(
        [t for _, target in pairs for t in target], minlength=TARGET_SIZE).tolist()


def as_dictionary(source: np.ndarray, target: np.ndarray, values: np.ndarray) -> dict[tuple[int, int], float]:
    return dict(zip(zip(source.tolist(), target.tolist(), strict=True), values.tolist(), strict=True))


def test_earlier_counts_are_added_in_each_iteration_and_alone_are_the_table_of_their_pairs() -> None:
    first, second = random_pairs(1, 40), random_pairs(2, 10)
    earlier = count_by_model_1([block(first)], TARGET_SIZE)
    alone = count_by_model_1([], TARGET_SIZE, earlier=earlier).entries()
    assert as_dictionary(alone.source, alone.target, alone.probability) == pytest.approx(by_dictionaries(first, 5)[0])
    counts = as_dictionary(earlier.source, earlier.target, earlier.expected)
    learned = count_by_model_1([block(second)], TARGET_SIZE, 3, earlier=earlier).entries()
    assert as_dictionary(learned.source, learned.target, learned.probability) == pytest.approx(
        by_dictionaries(second, 3, counts)[0])


def test_words_that_come_together_are_found_and_the_perplexity_falls() -> None:
    rng, reported = np.random.default_rng(3), []
    pairs = [(source, [word + 3 for word in rng.permutation(source)])
             for source in (rng.integers(4, 9, rng.integers(1, 5)).tolist() for _ in range(200))]
    learned = learn_model_1([block(pairs)], TARGET_SIZE, 6, lambda _, perplexity: reported.append(perplexity))
    table = np.zeros([9, TARGET_SIZE])
    table[learned.source, learned.target] = learned.probability
    assert all(table[word].argmax() == word + 3 for word in range(4, 9))
    assert reported == sorted(reported, reverse=True)
    np.testing.assert_allclose(table[[NULL, *range(4, 9)]].sum(axis=1), 1.0)


def test_no_pair_with_words_is_an_error() -> None:
    with pytest.raises(DataError, match="no sentence pair"):
        learn_model_1([block([([4], [])])], TARGET_SIZE)
