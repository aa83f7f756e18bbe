"""Batches directly from sources: one order for all readers, exact resuming, every pair once, constant memory."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from towernmt.core import machine
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.sources.mixture import Ingredient, Mixture
from towernmt.dataflow.sources.source import Pair
from towernmt.dataflow.text.pair_filters import PairFilter
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary

VOCABULARY = WordVocabulary([*SPECIAL_PIECES, "x", "y", *(f"{name}{i}" for name in "abc" for i in range(400))])


@pytest.fixture(scope="session")
def stream(memory_source):
    """`stream({"a": 5}, window=3, ...)`: the batches of a mixture of sources in memory."""

    def make(sizes: dict[str, int], ends: str | None = "drop", epochs: int | None = 1, sources: Any = None,
             pair_filter: PairFilter | None = None, reports: list[str] | None = None, **settings: Any) -> StreamBatches:
        sources = sources or [memory_source(name, size) for name, size in sizes.items()]
        mixture = Mixture([Ingredient(source, on_end=ends) for source in sources], seed=3, report=lambda _: None)
        settings = {"batch_tokens": 12, "window": 7, "seed": 3, **settings}
        return StreamBatches(mixture, VOCABULARY, VOCABULARY, StreamBatchSettings(**settings), pair_filter, epochs,
                             (reports if reports is not None else []).append)

    return make


def contents(batch: Batch) -> tuple[Any, ...]:
    """Return the content of a batch as values that can be compared."""
    return tuple(array.tobytes() for array in batch.arrays())


def first_words(batches: Any) -> list[str]:
    """Return the first target words of the pairs of batches."""
    return [VOCABULARY.id_to_piece(int(row[0])) for _, batch in batches for row in batch.target]


def test_every_pair_of_an_epoch_is_in_exactly_one_batch(stream) -> None:
    words = first_words(stream({"a": 50, "b": 20, "c": 0}).read())
    assert Counter(words) == Counter([f"a{i}" for i in range(50)] + [f"b{i}" for i in range(20)])


def test_a_batch_holds_the_texts_of_its_pairs(stream) -> None:
    source, target = {}, {}
    for _, batch in stream({"a": 30}).read():
        for side, ids, lengths in ((source, batch.source, batch.source_length),
                                   (target, batch.target, batch.target_length)):
            for row, length in zip(ids, lengths, strict=True):
                text = VOCABULARY.decode(row)
                assert len(text.split()) + 1 == length
                side[text.split()[0]] = text
    assert source == {f"a{i}": " ".join([f"a{i}"] + ["x"] * (i * 7 % 5)) for i in range(30)}
    assert target == {f"a{i}": " ".join([f"a{i}"] + ["y"] * (i % 6)) for i in range(30)}


def test_a_window_is_encoded_with_no_more_threads_than_the_process_may_use(stream, monkeypatch) -> None:
    used, encode = set(), VOCABULARY.encode_batch
    monkeypatch.setattr(machine, "_share", 1)
    monkeypatch.setattr(VOCABULARY, "encode_batch", lambda texts, threads=1: used.add(threads) or encode(texts))
    assert len(first_words(stream({"a": 30}).read())) == 30
    assert used == {1}


@hypothesis_settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=3).filter(any), readers=st.integers(1, 5),
       window=st.integers(1, 30), ends=st.sampled_from(["drop", "restart"]), shuffle=st.booleans(),
       epochs=st.integers(1, 3), data=st.data())
def test_any_readers_from_any_place_give_the_same_order(stream, sizes, readers, window, ends, shuffle, epochs,
                                                        data) -> None:
    def make() -> StreamBatches:
        return stream({"abc"[index]: size for index, size in enumerate(sizes)}, ends, epochs, window=window,
                      shuffle=shuffle)

    complete = [(position, contents(batch)) for position, batch in make().read()]
    start = data.draw(st.integers(0, len(complete)))
    begin = Position() if start == 0 else complete[start - 1][0]
    resumed = make()
    parts = [resumed.read(Position.from_json(begin.to_json()), index, readers) for index in range(readers)]
    in_turn = [(position, contents(batch)) for turn in itertools.zip_longest(*parts) for position, batch in
               filter(None, turn)]
    assert in_turn == complete[start:]


def test_readers_in_threads_share_one_reading_of_the_source(stream, memory_source) -> None:
    source = memory_source("a", 300)
    batches = stream({}, sources=[source], window=40)
    alone = [contents(batch) for _, batch in stream({"a": 300}, window=40).read()]
    parts: list[list[Any]] = [[], [], []]
    readers = [batches.read(None, index, 3) for index in range(3)]
    threads = [threading.Thread(target=lambda i=i: parts[i].extend(contents(b) for _, b in readers[i]))
               for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [b for turn in itertools.zip_longest(*parts) for b in turn if b is not None] == alone
    assert source.pairs_read == 300
    assert len(source.read_from) == 1


def test_resuming_reads_no_pair_before_its_window(stream, memory_source) -> None:
    positions = [position for position, _ in stream({"a": 390}, window=20).read()]
    index = next(index for index, position in enumerate(positions) if position.block == 18 and position.batch == 2)
    source = memory_source("a", 390)
    remaining = list(stream({}, sources=[source], window=20).read(positions[index]))
    assert len(remaining) == len(positions) - index - 1
    assert source.read_from == [[360, 390]]
    assert source.pairs_read == 30


def test_epochs_differ_in_their_order_but_not_in_their_pairs(stream) -> None:
    by_epoch: dict[int, list[str]] = {0: [], 1: []}
    batches = stream({"a": 60}, epochs=2, window=60)
    epoch = 0
    for position, batch in batches.read():
        by_epoch[epoch] += first_words([(position, batch)])
        epoch = position.epoch
    assert sorted(by_epoch[0]) == sorted(by_epoch[1]) == sorted(f"a{i}" for i in range(60))
    assert by_epoch[0] != by_epoch[1]


def test_pairs_are_shuffled_within_their_window_only(stream) -> None:
    words = first_words(stream({"a": 40}, window=10, batch_tokens=1, batch_type="sentences").read())
    numbers = [int(word[1:]) for word in words]
    assert [sorted(numbers[i:i + 10]) for i in range(0, 40, 10)] == [list(range(i, i + 10)) for i in range(0, 40, 10)]
    assert numbers != sorted(numbers)


def test_dropped_pairs_are_counted_and_reported(stream, memory_source) -> None:
    source = memory_source("a", 4)
    source.pairs += [Pair(" ", "a5"), Pair("a6", ""), Pair("a7 " + "x " * 9, "a7"), Pair("a8 x x x", "a8")]
    reports: list[str] = []
    words = first_words(stream({}, sources=[source], pair_filter=PairFilter(6, 3.0), reports=reports).read())
    accepted = [pair.target.split()[0] for pair in source.pairs[:4]
                if 1 / 3 <= len(pair.source.split()) / len(pair.target.split()) <= 3]
    assert sorted(words) == sorted(accepted)
    assert "8 pairs read" in reports[-1]
    for reason in ("1 empty source", "1 empty target", "1 long source", f"{5 - len(accepted)} length ratio"):
        assert reason in reports[-1]


@pytest.mark.parametrize("window", [4, 5])
def test_the_report_counts_the_rounds_also_if_a_window_ends_with_the_epoch(stream, window: int) -> None:
    reports: list[str] = []
    assert len(first_words(stream({"a": 8}, window=window, reports=reports).read())) == 8
    assert "Pairs of the epoch: a: 8 in 1 round(s)." in reports[-1]


def test_an_epoch_without_a_pair_is_an_error_and_no_endless_loop(stream) -> None:
    with pytest.raises(DataError, match="a complete epoch has no sentence pair"):
        next(stream({"a": 0}, epochs=None).read())
    with pytest.raises(DataError, match="9 long"):
        next(stream({"a": 9}, epochs=None, pair_filter=PairFilter(0, 9.0)).read())


@pytest.mark.parametrize("pair_index", [20, 25])
def test_an_error_comes_to_every_reader_after_the_windows_before_it(stream, memory_source, pair_index: int) -> None:
    source = memory_source("a", 40, fails_at=pair_index, error=OSError("the cable is out"))
    batches = stream({}, sources=[source], window=10, batch_tokens=1, batch_type="sentences")
    readers = [batches.read(None, index, 2) for index in range(2)]
    sizes: list[int] = []
    for reader in readers:
        count = 0
        with pytest.raises(DataError, match=r"a: cannot be read \(OSError: the cable is out\)"):
            for _ in reader:
                count += 1
        sizes.append(count)
    assert sizes == [10, 10]  # two windows of ten


def test_positions_of_something_else_are_refused(stream) -> None:
    for position in (Position(0, 3, 0), Position(0, 0, 2), Position(-1)):
        with pytest.raises(DataError, match="is outside these sources"):
            stream({"a": 5}).read(position)
    foreign = next(stream({"b": 5}, batch_tokens=2).read())[0]
    with pytest.raises(DataError, match="the sources are now a"):
        stream({"a": 5}).read(foreign)
    beyond = next(stream({"a": 5}, batch_tokens=2).read())[0]._replace(batch=99)
    with pytest.raises(DataError, match="batch 99"):
        next(stream({"a": 5}).read(beyond))


def test_windows_that_all_readers_left_are_freed(stream) -> None:
    batches = stream({"a": 400}, window=10)
    readers = [batches.read(None, index, 2) for index in range(2)]
    alive: list[weakref.ref[Any]] = []
    for _ in range(15):
        for reader in readers:
            next(reader)
            alive.append(weakref.ref(reader.gi_frame.f_locals["node"]))
    gc.collect()
    nodes = {id(ref()) for ref in alive if ref() is not None}
    assert len(nodes) <= 3


@pytest.mark.parametrize(("settings", "message"), [
    ({"window": 0}, "window=0"), ({"batch_tokens": 0}, "batch_tokens=0"),
    ({"subword_sampling": True, "subword_alpha": -1.0}, "subword_alpha=-1.0"),
    ({"subword_sampling": True, "subword_nbest": 1}, "subword_nbest=1"),
    ({"subword_sampling": True}, "word vocabulary has only one segmentation"),
])
def test_settings_that_cannot_work_are_refused(stream, settings, message) -> None:
    with pytest.raises(SettingsError, match=message):
        stream({"a": 5}, **settings)


def test_the_number_of_batches_is_not_known_in_advance(stream) -> None:
    with pytest.raises(NotImplementedError):
        stream({"a": 5}).batches_per_epoch()


def test_lengths_are_in_the_types_of_the_towers_signature(stream) -> None:
    _, batch = next(stream({"a": 5}).read())
    assert [array.dtype for array in batch.arrays()] == [np.int32] * 4 + [np.float32]
