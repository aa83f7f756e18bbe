"""The alignment model, compared with brute force, and on a language with known alignments."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import numpy as np
import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.alignment_model import (
    CONCENTRATION,
    NULL,
    NULL_SHARE,
    AlignmentModel,
    aligned_pairs,
    count_cells,
)
from towernmt.dataflow.preparation.shards import PairBlock, reversed_block

SIZE = 12
Sentences = list[tuple[list[int], list[int]]]


def block(pairs: Sentences) -> PairBlock:
    sides = []
    for side in range(2):
        sentences = [pair[side] for pair in pairs]
        sides += [np.array([id for sentence in sentences for id in sentence], np.uint16),
                  np.cumsum([0, *map(len, sentences)]).astype(np.int64)]
    return PairBlock(*sides)


def drawn_pairs(count: int, seed: int = 1) -> Sentences:
    draw = random.Random(seed)
    return [tuple(draw.choices(range(4, SIZE), k=draw.randint(1, 6)) for _ in range(2)) for _ in range(count)]


def prior(n: int, m: int, j: int, tension: float) -> list[float]:
    """Return the prior of NULL and of each of n source tokens, for target token j of m."""
    weights = [math.exp(-tension * abs((i + 0.5) / n - (j + 0.5) / m)) for i in range(n)]
    return [NULL_SHARE, *((1 - NULL_SHARE) * weight / sum(weights) for weight in weights)]


def digamma(x: float) -> float:
    step = 1e-5 * x
    return (math.lgamma(x + step) - math.lgamma(x - step)) / (2 * step)


def posteriors(pairs: Sentences, probability, tension: float):
    """Return (source token, target token, distance, posterior) of each cell."""
    for source, target in pairs:
        for j, t in enumerate(target):
            joint = [p * probability(s, t) for s, p in zip(
                [NULL, *source], prior(len(source), len(target), j, tension), strict=True)]
            for i, (s, value) in enumerate(zip([NULL, *source], joint, strict=True)):
                distance = abs((i - 0.5) / len(source) - (j + 0.5) / len(target)) if i else None
                yield s, t, distance, value / sum(joint)


def test_an_iteration_is_that_of_variational_bayes_by_brute_force():
    pairs = drawn_pairs(40)
    learned = AlignmentModel.learn([block(pairs[:15]), block(pairs[15:])], SIZE, iterations=1)
    expected: dict[tuple[int, int], float] = defaultdict(float)
    for s, t, _, value in posteriors(pairs, lambda s, t: 1 / SIZE, 4.0):
        expected[s, t] += value
    totals: dict[int, float] = defaultdict(float)
    for (s, _), value in expected.items():
        totals[s] += value + CONCENTRATION
    reference = {s * SIZE + t: math.exp(digamma(value + CONCENTRATION) - digamma(totals[s]))
                 for (s, t), value in expected.items()}
    assert learned.keys.tolist() == sorted(reference)
    np.testing.assert_allclose(learned.probability, [reference[key] for key in sorted(reference)], rtol=2e-4)


def test_the_tension_gives_the_prior_the_expected_distance():
    draw = random.Random(4)
    pairs = [([a for a in words], [a for a in words]) for words in (
        draw.sample(range(4, SIZE), draw.randint(3, 8)) for _ in range(200))]
    learned = AlignmentModel.learn([block(pairs)], SIZE, iterations=5)
    assert learned.tension > 8      # equal order: on the diagonal
    shuffled = [(source, draw.sample(target, len(target))) for source, target in pairs]
    assert AlignmentModel.learn([block(shuffled)], SIZE, iterations=20).tension < 1


def test_the_best_sources_are_those_of_brute_force():
    model = AlignmentModel.learn([block(drawn_pairs(30))], SIZE, iterations=3)
    table = dict(zip(model.keys.tolist(), model.probability.tolist(), strict=True))
    pairs = drawn_pairs(50, seed=2)
    sources, index = model.best_sources(block(pairs)), 0
    for source, target in pairs:
        for j, t in enumerate(target):
            weights = prior(len(source), len(target), j, model.tension)
            joint = [p * table.get(s * SIZE + t, 1e-9) for s, p in zip([NULL, *source], weights, strict=True)]
            assert joint[sources[index] + 1] == pytest.approx(max(joint), rel=1e-4)
            index += 1
    assert index == len(sources)


def test_both_directions_find_the_words_of_a_language_with_another_order():
    """Each target word is source word + 1 in another vocabulary; neighbours are exchanged, and words are dropped."""
    draw, size = random.Random(7), 300
    pairs, gold = [], []
    for _ in range(3000):
        source = draw.sample(range(4, size - 1), draw.randint(3, 10))
        order = list(range(len(source)))
        if draw.random() < 0.5:
            i = draw.randrange(len(source) - 1)
            order[i], order[i + 1] = order[i + 1], order[i]
        order = [i for i in order if draw.random() > 0.1] or order
        pairs.append((source, [source[i] + 1 for i in order]))
        gold.append({(i, j) for j, i in enumerate(order)})
    pair_block = block(pairs)
    forward, backward = (AlignmentModel.learn([pairs], size) for pairs in (pair_block, reversed_block(pair_block)))
    links, counts = aligned_pairs(forward, backward, pair_block)
    link_count, correct, start = 0, 0, 0
    for count, gold_links in zip(counts.tolist(), gold, strict=True):
        links_of_pair = set(map(tuple, links[:, start:start + count].T.tolist()))
        link_count += len(links_of_pair)
        correct += len(links_of_pair & gold_links)
        start += count
    assert correct / link_count > 0.99 and correct / sum(map(len, gold)) > 0.97
    assert links.dtype == np.uint16 and counts.sum() == links.shape[1]


def test_a_model_is_the_same_after_it_was_saved(tmp_path):
    model = AlignmentModel.learn([block(drawn_pairs(10))], SIZE)
    model.save(tmp_path / "model")
    loaded = AlignmentModel.load(tmp_path / "model")
    assert loaded.tension == model.tension and loaded.target_size == SIZE
    assert np.array_equal(loaded.keys, model.keys) and np.array_equal(loaded.probability, model.probability)


def test_pairs_without_words_are_refused_and_align_nothing():
    with pytest.raises(DataError, match="one side of each pair is empty"):
        AlignmentModel.learn([block([([], []), ([4], [])])], SIZE)
    model = AlignmentModel.learn([block(drawn_pairs(5))], SIZE)
    links, counts = aligned_pairs(model, model, block([([4], []), ([5], [6])]))
    assert counts.tolist() in ([0, 0], [0, 1]) and links.shape == (2, counts.sum())


def test_the_memory_of_a_sample_is_counted():
    pairs = drawn_pairs(20)
    assert count_cells(block(pairs).source_lengths, block(pairs).target_lengths) == sum(
        (len(source) + 1) * len(target) for source, target in pairs)
