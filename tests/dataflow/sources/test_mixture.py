"""Mixtures: the order, the shares, the ends of sources, and resuming at any pair."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.sources.mixture import Ingredient, Mixture
from towernmt.dataflow.sources.source import Pair, Source


@pytest.fixture
def mixture(memory_source):
    """Return `mixture({"a": 5, "b": 3}, weights=[...], ...)`; the mixture has its reports in `.reports`."""

    def make(sizes: dict[str, int], weights: Any = None, ends: Any = None, tags: Any = None, **options: Any) -> Mixture:
        reports: list[str] = []
        values = zip(sizes.items(), weights or itertools.repeat(1.0), tags or itertools.repeat(""),
                     ends or itertools.repeat(None), strict=False)
        ingredients = [Ingredient(memory_source(name, size), weight, tag, end)
                       for (name, size), weight, tag, end in values]
        new_mixture = Mixture(ingredients, report=reports.append, **options)
        new_mixture.reports = reports
        return new_mixture

    return make


def words(mixture: Mixture, epoch: int = 0, pairs: int = 10**6) -> list[str]:
    """Return the first words of the pairs of an epoch."""
    return [pair.target.split()[0] for pair in mixture.reader(mixture.begin(epoch)).take(pairs)]


def test_concatenation_reads_each_source_once_in_order(mixture) -> None:
    mixed = mixture({"a": 3, "b": 0, "c": 2}, mix="concatenate")
    assert words(mixed) == ["a0", "a1", "a2", "c0", "c1"]
    assert mixed.count() == 5
    assert "b contains no pair and is dropped" in mixed.reports[1]


def test_weights_are_the_shares_of_the_draws(mixture) -> None:
    counts = Counter(word[0] for word in words(mixture({"a": 40_000, "b": 40_000}, [3, 1]), pairs=20_000))
    assert counts["a"] / 20_000 == pytest.approx(0.75, abs=0.015)  # four standard deviations


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0, float("inf")])
def test_temperature_flattens_the_shares_of_sizes(mixture, temperature: float) -> None:
    sizes = {"a": 20_000, "b": 2_000, "c": 200}
    powers = [size ** (1 / temperature) for size in sizes.values()]
    counts = Counter(word[0] for word in words(
        mixture(sizes, mix="temperature", temperature=temperature), pairs=15_000))
    for name, power in zip(sizes, powers, strict=True):
        assert counts[name] / 15_000 == pytest.approx(power / sum(powers), abs=0.017)


def test_an_epoch_ends_when_every_source_was_read_once_and_the_small_ones_began_again(mixture) -> None:
    mixed = mixture({"a": 30, "b": 4})
    counts = Counter(words(mixed))
    assert all(counts[f"a{i}"] == 1 for i in range(30))
    assert max(counts.values()) > 1 and all(counts[f"b{i}"] >= 1 for i in range(4))
    assert any("b ended after 4 pairs in 1 round(s) and restarts" in text for text in mixed.reports)
    assert "a ended after 30 pairs in 1 round(s), and the epoch ends" in mixed.reports[-1]


def test_a_small_source_does_not_fill_the_log_with_its_restarts(mixture) -> None:
    mixed = mixture({"a": 400, "b": 1})
    assert 128 < Counter(words(mixed))["b0"] < 256
    assert [text for text in mixed.reports if text.endswith("and restarts.")] == [
        f"Epoch 1: b ended after {rounds} pairs in {rounds} round(s) and restarts." for rounds in (
            1, 2, 4, 8, 16, 32, 64, 128)]


def test_dropped_sources_are_read_exactly_once(mixture) -> None:
    read_words = words(mixture({"a": 30, "b": 4}, [1, 5], ["drop", "drop"]))
    assert sorted(read_words) == sorted([f"a{i}" for i in range(30)] + [f"b{i}" for i in range(4)])
    assert mixture({"a": 30, "b": 4}, ends=["drop", "drop"]).count() == 34


def test_the_end_of_one_source_may_end_the_epoch(mixture) -> None:
    mixed = mixture({"a": 1000, "b": 4}, ends=["drop", "end"])
    assert Counter(word[0] for word in words(mixed))["b"] == 4
    assert len(words(mixed)) < 60
    assert "the epoch ends" in mixed.reports[0]


def test_an_empty_source_does_not_end_the_epoch(mixture) -> None:
    mixed = mixture({"a": 9, "b": 0}, ends=["drop", "end"])
    assert sorted(words(mixed)) == [f"a{i}" for i in range(9)]
    assert "b contains no pair and is dropped for the rest of the epoch" in mixed.reports[0]


def test_epochs_and_seeds_have_orders_of_their_own(mixture) -> None:
    sizes = {"a": 50, "b": 50}
    assert words(mixture(sizes), 0) == words(mixture(sizes), 0)
    assert words(mixture(sizes), 0) != words(mixture(sizes), 1)
    assert words(mixture(sizes, seed=1)) != words(mixture(sizes, seed=2))


def test_a_tag_stands_before_the_source_text_alone(mixture) -> None:
    pairs = mixture({"a": 1}, tags=["<crawl>"]).reader(mixture({"a": 1}).begin()).take(2)
    assert [(pair.source, pair.target) for pair in pairs] == [("<crawl> a0", "a0")]


def test_statistics_count_pairs_and_rounds(mixture) -> None:
    mixed = mixture({"a": 30, "b": 4})
    reader = mixed.reader(mixed.begin())
    counts = Counter(pair.target[0] for pair in reader.take(1000))
    assert [(source.name, source.pairs) for source in reader.statistics()] == [("a", counts["a"]), ("b", counts["b"])]
    assert reader.statistics()[0].rounds == 1
    assert reader.statistics()[1].rounds == counts["b"] // 4
    assert reader.at_end()


SIZES = st.lists(st.integers(0, 25), min_size=1, max_size=4)
HOW = st.one_of(
    st.tuples(st.sampled_from(["weight", "temperature"]), st.sampled_from([None, "restart", "drop", "end"])),
    st.tuples(st.just("concatenate"), st.sampled_from([None, "drop", "end"])))


@hypothesis_settings(max_examples=80, deadline=None)
@given(sizes=SIZES, options=HOW, seed=st.integers(0, 99), epoch=st.integers(0, 3), data=st.data())
def test_resuming_anywhere_gives_the_rest_of_the_same_order(memory_source, sizes, options, seed, epoch, data) -> None:
    mix, end = options
    weights = [1 + index for index in range(len(sizes))]

    def make() -> Mixture:
        return Mixture([Ingredient(memory_source("abcd"[index], size), weight, on_end=end)
                        for index, (size, weight) in enumerate(zip(sizes, weights, strict=True))],
                       mix, 2.0, seed, report=lambda _: None)

    mixed = make()
    items = list(itertools.islice(mixed.read(mixed.begin(epoch)), 400))
    pairs = [pair for _, pair in items]
    if not sum(sizes):
        assert pairs == []
        return
    start = data.draw(st.integers(0, len(pairs)))
    cursor = mixed.begin(epoch) if start == 0 else items[start - 1][0]
    resumed = make()
    remaining = [pair for _, pair in itertools.islice(resumed.read(json.loads(json.dumps(cursor))), 400 - start)]
    assert remaining == pairs[start:]
    for ingredient in resumed.ingredients:  # a seek: no earlier pair is read again
        assert ingredient.source.pairs_read <= len(remaining) + 1


def test_looking_for_the_end_takes_nothing(mixture) -> None:
    mixed = mixture({"a": 5}, ends=["drop"])
    reader = mixed.reader(mixed.begin())
    reader.take(3)
    cursor = reader.cursor()
    assert not reader.at_end() and not reader.at_end()
    assert reader.cursor() == cursor and reader.statistics()[0].pairs == 3
    assert [pair.target.split()[0] for pair in reader.take(9)] == ["a3", "a4"]
    assert reader.at_end()


def test_the_weights_of_a_temperature_hold_until_the_epoch_ends(mixture) -> None:
    mixed = mixture({"a": 100, "b": 10}, mix="temperature", temperature=1.0)
    cursor = mixed.begin()
    assert [source["weight"] for source in cursor["sources"]] == [100 / 110, 10 / 110]
    expected = mixed.reader(cursor).take(40)
    mixed.ingredients[1].source.pairs *= 50  # grows, and is counted again in the next epoch only
    assert mixed.reader(cursor).take(40) == expected
    assert mixed.begin(1)["sources"][1]["weight"] == 500 / 600


class ChangingCursor(Source):
    """Ten pairs, whose cursor is always the same list."""

    name = "changing"

    def begin(self) -> list[int]:
        return [0]

    def read(self, cursor: list[int]) -> Iterator[tuple[list[int], Pair]]:
        while cursor[0] < 10:
            cursor[0] += 1
            yield cursor, Pair(str(cursor[0]), "")

    def count(self) -> int:
        return 10


def test_a_source_may_change_its_cursor_in_place() -> None:
    mixed = Mixture([Ingredient(ChangingCursor())], report=print)
    reader = mixed.reader(mixed.begin())
    cursors = [reader.cursor()]
    while reader.take(3):
        cursors.append(reader.cursor())
    assert [[pair.source for pair in mixed.reader(cursor).take(2)] for cursor in cursors] == [
        ["1", "2"], ["4", "5"], ["7", "8"], ["10"], []]


def test_pairs_added_during_an_epoch_are_read_in_the_next(mixture) -> None:
    mixed = mixture({"a": 5}, ends=["drop"])
    cursor = mixed.begin()
    mixed.ingredients[0].source.pairs += mixed.ingredients[0].source.pairs[:2]
    assert len(mixed.reader(cursor).take(100)) == 5
    assert len(mixed.reader(mixed.begin(1)).take(100)) == 7


def test_an_error_names_its_source(memory_source) -> None:
    broken = memory_source("crawl", 10, fails_at=4, error=ValueError("bad row"))
    mixed = Mixture([Ingredient(broken)])
    with pytest.raises(DataError, match=r"crawl: cannot be read \(ValueError: bad row\)"):
        mixed.reader(mixed.begin()).take(10)


@pytest.mark.parametrize("method", ["begin", "count"])
def test_an_error_before_the_first_pair_names_its_source(memory_source, monkeypatch, method: str) -> None:
    ended, other = memory_source("ended", 2), memory_source("other", 500)
    mixed = Mixture([Ingredient(ended), Ingredient(other)], "temperature", 5.0, report=lambda _: None)
    reader = mixed.reader(mixed.begin())

    def fail() -> None:
        raise OSError("the cable is out")

    monkeypatch.setattr(ended, method, fail)
    with pytest.raises(DataError, match=r"ended: cannot be read \(OSError: the cable is out\)"):
        mixed.begin()
    if method == "begin":       # the source restarts
        with pytest.raises(DataError, match=r"ended: cannot be read \(OSError: the cable is out\)"):
            reader.take(500)


def test_the_cursor_of_other_sources_is_refused(mixture) -> None:
    cursor = mixture({"a": 3, "b": 3}).begin()
    with pytest.raises(DataError, match="belongs to a, b, but the sources are now b, a"):
        mixture({"b": 3, "a": 3}).reader(cursor)
    with pytest.raises(DataError, match="damaged"):
        mixture({"b": 3, "a": 3}).reader({"draw": 3})
    state = cursor["sources"][0]
    for change in ({"weight": "1"}, {"weight": -1.0}, {"pairs": None}, {"active": 1}, {"evil": 1}, {"round": -1}):
        with pytest.raises(DataError, match=rf"damaged, .*`sources\[0\].{next(iter(change))}`"):
            mixture({"a": 3, "b": 3}).reader({**cursor, "sources": [{**state, **change}, cursor["sources"][1]]})


@pytest.mark.parametrize(("options", "message"), [
    ({"mix": "weigth"}, "is not one of weight, temperature, concatenate"),
    ({"mix": "temperature", "temperature": 0.5}, "temperature 0.5"),
    ({"weights": [0.0]}, "a: weight 0.0: expected a number above 0"),
    ({"ends": ["stop"]}, "a: on_end 'stop' is not one of restart, drop, end"),
    ({"ends": ["restart"], "mix": "concatenate"}, "the sources after it would never be read"),
])
def test_what_cannot_work_is_refused(mixture, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        mixture({"a": 3}, **options)
    with pytest.raises(SettingsError, match="has no source"):
        Mixture([])
