"""Diverse beam search, compared with the paper's algorithm, written with lists."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.predict.search.toy_model import (
    EOS,
    Scored,
    ToyModel,
    length_limit,
    plain_allows,
    plain_log_prob,
    plain_score,
    searcher,
)
from towernmt.core.errors import SettingsError
from towernmt.predict.search.search_settings import SearchSettings

SENTENCES = [[3, w, EOS] for w in range(3, 9)] + [[EOS], [4, 4, 5, 6, EOS]]


class Beam(NamedTuple):
    value: float        # with the penalties of the tokens
    log_prob: float
    tokens: list[int]


def plain_diverse_search(model: ToyModel, source: list[int], settings: SearchSettings) -> list[Scored]:
    """Algorithm 1 of Vijayakumar et al. (2016) up to the length limit, with Hamming diversity."""
    limit, size = length_limit(source, settings), settings.beam_size // settings.beam_groups
    groups = [[Beam(0.0, 0.0, [])] for _ in range(settings.beam_groups)]
    finished: list[list[Scored]] = [[] for _ in groups]
    for length in range(1, limit + 1):
        taken: list[int] = []
        for number, group in enumerate(groups):
            grown = []
            for beam in group:
                log_prob = plain_log_prob(model, source, beam.tokens, settings)
                grown += [Beam(beam.value + log_prob[token] - settings.diversity * taken.count(token),
                               beam.log_prob + log_prob[token], [*beam.tokens, token])
                          for token in range(model.target_vocab_size)
                          if plain_allows(source, beam.tokens, token, settings)]
            grown.sort(key=lambda beam: -beam.value)
            finished[number] += [(plain_score(model, source, beam.log_prob, beam.tokens, settings), beam.tokens)
                                 for beam in grown[:size] if beam.tokens[-1] == EOS or length == limit]
            groups[number] = [beam for beam in grown if beam.tokens[-1] != EOS][:size]
            taken += [beam.tokens[-1] for beam in groups[number]]
    best = [sorted(group, key=lambda item: -item[0])[:size] for group in finished]
    return sorted(sum(best, []), key=lambda item: -item[0])[:settings.n_best]


@pytest.mark.parametrize("options", [
    {"beam_size": 6, "beam_groups": 3, "n_best": 6},
    pytest.param({"beam_size": 4, "beam_groups": 4, "n_best": 4, "diversity": 2.0}, marks=pytest.mark.slow),
    {"beam_size": 4, "beam_groups": 2, "n_best": 1, "diversity": 0.1, "no_repeat_ngram": 2, "min_length": 1}])
def test_groups_find_what_the_papers_algorithm_finds(options: dict[str, Any]) -> None:
    model, settings = ToyModel(vocabulary=9, seed=3, spread=1.5), SearchSettings(**options)
    for source, found in zip(SENTENCES, searcher(model, settings)(SENTENCES), strict=True):
        expected = plain_diverse_search(model, source, settings)
        found = [item for item in found if np.isfinite(item[0])]
        np.testing.assert_allclose([s for s, _ in found], [s for s, _ in expected], rtol=1e-5, atol=1e-5)
        assert sorted(tokens for _, tokens in found) == sorted(tokens for _, tokens in expected)


def test_under_a_strong_diversity_every_group_begins_with_a_word_of_its_own() -> None:
    model = ToyModel(vocabulary=9, seed=3)
    model.table[:, EOS] -= 50.0
    settings = SearchSettings(beam_size=6, beam_groups=6, n_best=6, diversity=30.0, max_length_factor=0,
                              max_length_constant=2)
    for found in searcher(model, settings)(SENTENCES):
        assert sorted(tokens[0] for _, tokens in found) == [3, 4, 5, 6, 7, 8]


def test_groups_that_do_not_share_the_beam_evenly_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"beam_groups=3: .* choose a divisor of beam_size \(4\)"):
        SearchSettings(beam_size=4, beam_groups=3)
