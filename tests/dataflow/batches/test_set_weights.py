"""Weights of a mixture that are set while it is read: the window from which they apply, and exact resuming."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.world import World, in_world
from towernmt.dataflow.batches.batch import Position
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.sources.mixture import Ingredient, Mixture
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary

VOCABULARY = WordVocabulary([*SPECIAL_PIECES, "x", "y", *(f"{name}{i}" for name in "abc" for i in range(600))])
NEVER = 1e-300


@pytest.fixture(scope="session")
def stream(memory_source):
    def make(sizes: dict[str, int], mix: str = "weight", epochs: int | None = None, window: int = 20) -> StreamBatches:
        mixture = Mixture([Ingredient(memory_source(name, size)) for name, size in sizes.items()], mix, seed=3,
                          report=lambda _: None)
        settings = StreamBatchSettings(batch_tokens=12, window=window, seed=3)
        return StreamBatches(mixture, VOCABULARY, VOCABULARY, settings, epochs=epochs, report=lambda _: None)

    return make


def by_window(batches: Any) -> dict[tuple[int, int], list[str]]:
    """Return the first letters of the target sentences of each window, by (epoch, window)."""
    letters: dict[tuple[int, int], list[str]] = {}
    for batch, window in batches:
        words = [VOCABULARY.id_to_piece(int(row[0])) for row in batch.target]
        letters.setdefault(window, []).extend(word[0] for word in words)
    return letters


def read(batches: StreamBatches, count: int, position: Position | None = None, changes: dict[int, Any] | None = None,
         ahead: int = 0) -> list[tuple[str, Any, tuple[int, int]]]:
    """Train on `count` batches: the position to save after each, the batch, and its window.

    Args:
        changes: weights to set, by the number of batches that were trained on.
        ahead: number of batches that are read before they are trained on, as by a queue.
    """
    reader = batches.read(position)
    queue: list[Any] = []
    trained, before = [], position or Position()
    for number in range(count):
        queue += itertools.islice(reader, ahead + 1 - len(queue))
        after, batch = queue.pop(0)
        window = (before.epoch, before.block)
        before = after
        if changes and number + 1 in changes:
            batches.mixture.set_weights(changes[number + 1])
        trained.append((batches.saved_position(after.to_json()), batch, window))
    return trained


def same(batch: Any, expected: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(batch.arrays(), expected.arrays(), strict=True))


def test_weights_act_from_the_next_window_and_in_later_epochs(stream) -> None:
    batches = read(stream({"a": 200, "b": 200}, window=20), 300, changes={1: {"a": NEVER, "b": 1}})
    untouched = read(stream({"a": 200, "b": 200}, window=20), 300)
    letters, before = (by_window((batch, window) for _, batch, window in items) for items in (batches, untouched))
    assert letters[0, 0] == before[0, 0] and set(letters[0, 0]) == {"a", "b"}
    assert set(letters[0, 1]) == {"b"} and set(before[0, 1]) == {"a", "b"}
    assert all(set(window_letters) == {"b"} for window, window_letters in letters.items() if window > (0, 0))


def test_the_shares_are_those_that_were_set(stream) -> None:
    items = read(stream({"a": 600, "b": 600, "c": 600}, window=500), 400, changes={1: [1, 2, 5]})
    counts = Counter(by_window((batch, window) for _, batch, window in items)[0, 1])
    assert sum(counts.values()) > 300
    expected = {letter: share * sum(counts.values()) / 8 for letter, share in zip("abc", (1, 2, 5), strict=True)}
    # within four standard deviations of a binomial draw
    assert all(abs(counts[letter] - value) < 4 * math.sqrt(value) for letter, value in expected.items())


def test_weights_that_are_set_before_the_first_window_act_there(stream) -> None:
    batches = stream({"a": 200, "b": 200})
    batches.mixture.set_weights([NEVER, 1])
    assert set(by_window((batch, window) for _, batch, window in read(batches, 3))[0, 0]) == {"b"}


def test_temperature_no_longer_applies(stream) -> None:
    items = read(stream({"a": 500, "b": 5}, "temperature", window=100), 60, changes={1: [NEVER, 1]})
    assert set(by_window((batch, window) for _, batch, window in items)[0, 1]) == {"b"}


@hypothesis_settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 60), min_size=2, max_size=3), window=st.integers(1, 30), ahead=st.integers(0, 9),
       changes=st.dictionaries(st.integers(1, 30), st.integers(1, 9), max_size=4), data=st.data())
def test_a_resumed_run_reads_what_the_run_would_have_read(stream, sizes, window, ahead, changes, data) -> None:
    changes = {number: [weight, 5, 2][:len(sizes)] for number, weight in changes.items()}

    def make() -> StreamBatches:
        return stream({"abc"[index]: size for index, size in enumerate(sizes)}, window=window)

    expected = read(make(), 60, changes=changes, ahead=ahead)
    stop = data.draw(st.integers(max(changes, default=1), 59))
    resumed_items = read(make(), 60 - stop, Position.from_json(expected[stop - 1][0]))
    assert [position for position, _, _ in resumed_items] == [position for position, _, _ in expected[stop:]]
    assert all(same(resumed[1], uninterrupted[1])
               for resumed, uninterrupted in zip(resumed_items, expected[stop:], strict=True))


def test_weights_that_are_set_before_a_resumed_run_reads_leave_a_begun_window_as_it_was(stream) -> None:
    expected = read(stream({"a": 200, "b": 200}), 60)
    resumed = stream({"a": 200, "b": 200})
    position = Position.from_json(expected[4][0])
    assert position.batch > 0
    reader = resumed.read(position)
    resumed.mixture.set_weights([NEVER, 1])
    windows = [window for _, _, window in expected]
    rest_of_window = windows[5:].count((position.epoch, position.block))
    items = [batch for _, batch in itertools.islice(reader, rest_of_window + 1)]
    assert all(same(batch, uninterrupted) for batch, (_, uninterrupted, _) in zip(
        items[:-1], expected[5:], strict=False))
    assert set(by_window([(items[-1], (0, 0))])[0, 0]) == {"b"}


def test_parallel_readers_read_the_same_windows(stream) -> None:
    alone = read(stream({"a": 300, "b": 300}), 80, changes={5: [NEVER, 1]})
    batches = stream({"a": 300, "b": 300})
    readers = [batches.read(None, index, 3) for index in range(3)]
    items = []
    for number in range(80):
        items.append(next(readers[number % 3]))
        if number == 4:
            batches.mixture.set_weights([NEVER, 1])
    assert all(same(batch, expected) for (_, batch), (_, expected, _) in zip(items, alone, strict=True))


def test_a_position_is_as_it_was_where_no_weights_are_set(stream) -> None:
    batches = stream({"a": 30, "b": 30})
    assert [saved for saved, _, _ in read(batches, 5)] == [
        position.to_json() for position, _ in itertools.islice(stream({"a": 30, "b": 30}).read(), 5)]


@pytest.mark.parametrize("weights, message", [
    ([1], "expected 2 weights (a, b); got 1"), ([1, 2, 3], "expected 2 weights (a, b); got 3"),
    ({"a": 1}, "expected a weight for each of a, b; got a"), ({}, "got none"),
    ({"a": 1, "z": 2}, "expected a weight for each of a, b; got a, z"),
    ([1, 0], "b: weight 0: expected a number above 0"), ([-1, 1], "a: weight -1"), ([math.nan, 1], "a: weight nan"),
    ([1, math.inf], "b: weight inf"), ([1, "2"], "b: weight 2"), ([1, True], "b: weight True"),
    ([None, 1], "a: weight None"),
])
def test_weights_that_cannot_work_are_refused_and_change_nothing(stream, weights, message) -> None:
    batches = stream({"a": 30, "b": 30})
    with pytest.raises(SettingsError) as error:
        batches.mixture.set_weights(weights)
    assert message in str(error.value)
    assert batches.mixture.weight_log.at((5, 5)) is None


def test_concatenated_sources_and_several_workers_are_refused(stream) -> None:
    with pytest.raises(SettingsError, match="one after another"):
        Mixture([Ingredient(ingredient.source) for ingredient in stream({"a": 5, "b": 5}).mixture.ingredients],
                "concatenate").set_weights([1, 2])
    with in_world(World(0, 2)), pytest.raises(SettingsError, match="several workers"):
        stream({"a": 5, "b": 5}).mixture.set_weights([1, 2])


@pytest.mark.parametrize("damaged", ["x", 5, [[1, 2]], [{"after": [0, 0]}], [{"after": [0, 0], "weights": [-1, 1]}],
                                     [{"after": "0", "weights": [1, 1]}], [{"after": [0, 0], "weights": [1]}],
                                     [{"after": [0], "weights": [1, 1]}]])
def test_a_damaged_position_is_refused(stream, damaged) -> None:
    position = Position(0, 1, 0, stream({"a": 30, "b": 30}).mixture.begin(), damaged)
    with pytest.raises(DataError, match="damaged"):
        next(stream({"a": 30, "b": 30}).read(Position.from_json(position.to_json())))
