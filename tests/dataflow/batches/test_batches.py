from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.waiting import PATIENCE
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.dataflow.batches.batch_settings import BatchSettings
from towernmt.dataflow.batches.batches import Batches
from towernmt.dataflow.batches.block_plan import cut, permutation
from towernmt.dataflow.preparation.shards import PairBlock

Pair = tuple[list[int], list[int]]
Lengths = list[list[tuple[int, int]]]
PAD, EOS = 0, 2


@dataclass
class Corpus:
    """Blocks in memory; the first id of each non-empty side is unique."""

    blocks: list[list[Pair]]
    length_ratio: float = 1.0
    reads: list[int] = field(default_factory=list)

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    def read_block(self, index: int) -> PairBlock:
        self.reads.append(index)
        flat = []
        for side in (0, 1):
            sentences = [pair[side] for pair in self.blocks[index]]
            flat.append(np.array([i for sentence in sentences for i in sentence], dtype=np.uint16))
            flat.append(np.cumsum([0] + [len(sentence) for sentence in sentences]).astype(np.int64))
        return PairBlock(*flat)


def corpus_of(lengths: Lengths, ratio: float = 1.0) -> Corpus:
    number = itertools.count(10)
    return Corpus([[([next(number) + 10 * i for i in range(s)], [next(number) + 10 * i for i in range(t)])
                    for s, t in block] for block in lengths], ratio)


def pairs_in(batch: Batch) -> list[Pair]:
    """Return the sentences of a batch, after checking EOS and padding."""
    result = []
    for row in range(len(batch)):
        sides = []
        for ids, lengths in ((batch.source, batch.source_length), (batch.target, batch.target_length)):
            length = int(lengths[row])
            assert ids[row, length - 1] == EOS
            assert (ids[row, length:] == PAD).all()
            sides.append(ids[row, :length - 1].tolist())
        result.append((sides[0], sides[1]))
    return result


def as_lists(batch: Batch) -> list:
    return [array.tolist() for array in batch.arrays()]


def interleave(readers: list[Iterator]) -> Iterator:
    for reader in itertools.cycle(readers):
        try:
            yield next(reader)
        except StopIteration:
            return


LENGTH = st.one_of(st.integers(0, 6), st.integers(0, 40))
CORPORA = st.lists(st.lists(st.tuples(LENGTH, LENGTH), max_size=25), min_size=1, max_size=6).filter(any)
SETTINGS = st.builds(
    BatchSettings, batch_tokens=st.integers(1, 120),
    batch_type=st.sampled_from(["target", "source+target", "longest", "sentences"]),
    bucket_width=st.integers(0, 12), max_length=st.integers(1, 50), sort_by_length=st.booleans(),
    shuffle=st.booleans(), seed=st.integers(0, 2**40))


@given(CORPORA, SETTINGS, st.floats(0.2, 5), st.integers(0, 3))
@hypothesis_settings(max_examples=150, deadline=None)
def test_every_epoch_has_each_pair_exactly_once_in_batches_that_keep_the_limit(
        lengths: Lengths, settings: BatchSettings, ratio: float, epoch: int) -> None:
    corpus = corpus_of(lengths, ratio)
    batches = Batches(corpus, settings, epochs=epoch + 1)
    read_pairs: list[Pair] = []
    count = 0
    for _, batch in batches.read(Position(epoch)):
        count += 1
        rows = pairs_in(batch)
        assert rows
        read_pairs += rows
        longest_source = max(len(s) + 1 for s, _ in rows)
        longest_target = max(len(t) + 1 for _, t in rows)
        size = {"target": sum(len(t) + 1 for _, t in rows), "sentences": len(rows),
                "source+target": len(rows) * (longest_source + longest_target),
                "longest": len(rows) * max(longest_source, longest_target)}[settings.batch_type]
        assert size <= settings.batch_tokens or len(rows) == 1
        assert batch.source.shape == (len(rows), longest_source)
        assert batch.target.shape == (len(rows), longest_target)
        assert float(batch.target_tokens) == sum(len(t) + 1 for _, t in rows)
    assert sorted(read_pairs) == sorted(pair for block in corpus.blocks for pair in block)
    assert count == batches.batches_per_epoch(epoch)


@given(CORPORA, SETTINGS, st.integers(1, 9))
@hypothesis_settings(max_examples=100, deadline=None)
def test_the_order_is_the_same_for_any_number_of_readers(lengths: Lengths, settings: BatchSettings,
                                                         feeders: int) -> None:
    alone = Batches(corpus_of(lengths), settings, epochs=3)
    shared = Batches(corpus_of(lengths), settings, epochs=3)
    expected = [(position, as_lists(batch)) for position, batch in alone.read()]
    together = interleave([shared.read(None, i, feeders) for i in range(feeders)])
    assert [(position, as_lists(batch)) for position, batch in together] == expected


@given(CORPORA, SETTINGS, st.integers(1, 5), st.data())
@hypothesis_settings(max_examples=100, deadline=None)
def test_reading_on_from_any_position_gives_exactly_the_rest(lengths: Lengths, settings: BatchSettings,
                                                             feeders: int, data: st.DataObject) -> None:
    everything = [(position, as_lists(batch)) for position, batch in
                  Batches(corpus_of(lengths), settings, epochs=3).read()]
    done = data.draw(st.integers(1, len(everything)))
    position = Position.from_json(everything[done - 1][0].to_json())
    resumed_batches = Batches(corpus_of(lengths), settings, epochs=3)
    remaining = interleave([resumed_batches.read(position, i, feeders) for i in range(feeders)])
    assert [(p, as_lists(batch)) for p, batch in remaining] == everything[done:]


def many_pairs(blocks: int = 3, pairs: int = 60) -> Lengths:
    generator = np.random.default_rng(7)
    return [[(int(s), int(t)) for s, t in generator.integers(1, 30, (pairs, 2))] for _ in range(blocks)]


def test_every_epoch_and_every_seed_has_an_order_of_its_own() -> None:
    def order(seed: int, epoch: int) -> list:
        settings = BatchSettings(batch_tokens=100, seed=seed)
        batches = Batches(corpus_of(many_pairs()), settings, epochs=epoch + 1)
        return [as_lists(batch) for _, batch in batches.read(Position(epoch))]

    orders = [order(1, 0), order(1, 1), order(1, 2), order(2, 0), order(2, 1)]
    assert all(a != b for a, b in itertools.combinations(orders, 2))
    assert order(1, 1) == orders[1]


def test_blocks_batches_and_pairs_are_each_shuffled() -> None:
    lengths: Lengths = [[(4, 4)] * 40 for _ in range(8)]
    corpus = corpus_of(lengths)
    block_of = {tuple(pair[0]): i for i, block in enumerate(corpus.blocks) for pair in block}
    batches = Batches(corpus, BatchSettings(batch_tokens=10, batch_type="sentences"), epochs=1)
    read = [pairs_in(batch) for _, batch in batches.read()]
    blocks = [block_of[tuple(rows[0][0])] for rows in read][::4]
    assert sorted(blocks) == list(range(8)) and blocks != list(range(8))
    firsts = [pair[0] for rows in read[:4] for pair in rows]
    assert firsts != sorted(firsts)


def test_without_shuffling_and_bucketing_the_order_is_the_corpus_order() -> None:
    corpus = corpus_of(many_pairs())
    settings = BatchSettings(batch_tokens=64, shuffle=False, bucket_width=0, sort_by_length=False)
    read = [pair for _, batch in Batches(corpus, settings, epochs=1).read() for pair in pairs_in(batch)]
    assert read == [pair for block in corpus.blocks for pair in block]


def test_without_shuffling_batches_come_by_length() -> None:
    settings = BatchSettings(batch_tokens=64, shuffle=False)
    batches = Batches(corpus_of([[(5, 9), (5, 2), (5, 40), (5, 1), (5, 30)]]), settings, epochs=1)
    assert [b.target_length.tolist() for _, b in batches.read()] == [[3, 2, 10, 31], [41]]


def test_a_batch_looks_as_written_by_hand() -> None:
    corpus = Corpus([[([11, 12, 13], [21]), ([14], [22, 23])]])
    settings = BatchSettings(batch_tokens=100, shuffle=False, sort_by_length=False)
    [(position, batch)] = Batches(corpus, settings, epochs=1).read()
    assert position == Position(1, 0, 0)
    assert as_lists(batch) == [[[11, 12, 13, 2], [14, 2, 0, 0]], [4, 2],
                               [[21, 2, 0], [22, 23, 2]], [2, 3], 5.0]
    assert [array.dtype for array in batch.arrays()] == [np.int32] * 4 + [np.float32]
    assert batch.target_tokens.shape == ()


def test_positions_step_through_batches_blocks_and_epochs() -> None:
    settings = BatchSettings(batch_tokens=1, batch_type="sentences")
    batches = Batches(corpus_of([[(1, 1)] * 2, [(1, 1)] * 2]), settings)
    positions = [position[:3] for position, _ in itertools.islice(batches.read(), 5)]
    assert positions == [(0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)]


def test_a_single_pair_over_the_limit_is_a_batch_of_its_own() -> None:
    settings = BatchSettings(batch_tokens=10, max_length=5)
    sizes = [(len(b), float(b.target_tokens)) for _, b in
             Batches(corpus_of([[(2, 50), (3, 3), (3, 3)]]), settings, epochs=1).read()]
    assert sorted(sizes) == [(1, 51.0), (2, 8.0)]


@pytest.mark.parametrize("blocks", [[], [[]], [[], [], []]])
def test_an_empty_corpus_is_an_error_at_once(blocks: Lengths) -> None:
    with pytest.raises(DataError, match="no sentence pair"):
        Batches(corpus_of(blocks), BatchSettings())


@pytest.mark.parametrize("position", [Position(0, 9, 0), Position(0, 0, 999), Position(0, -1, 0)])
def test_a_position_outside_the_corpus_is_an_error_at_once(position: Position) -> None:
    with pytest.raises(DataError, match="outside this corpus"):
        Batches(corpus_of(many_pairs()), BatchSettings()).read(position)


def test_a_position_after_the_last_epoch_has_nothing_left_to_read() -> None:
    assert list(Batches(corpus_of(many_pairs()), BatchSettings(), epochs=2).read(Position(2, 0, 0))) == []


@pytest.mark.parametrize("settings", [
    {"batch_type": "words"}, {"batch_tokens": 0}, {"seed": -1}, {"bucket_width": -1}, {"max_length": 0}])
def test_a_setting_that_cannot_work_is_refused_by_name(settings: dict) -> None:
    with pytest.raises(SettingsError, match=next(iter(settings))):
        Batches(corpus_of(many_pairs()), BatchSettings(**settings))
    with pytest.raises(SettingsError, match="epochs=0"):
        Batches(corpus_of(many_pairs()), BatchSettings(), epochs=0)
    with pytest.raises(ValueError, match="step"):
        Batches(corpus_of(many_pairs()), BatchSettings()).read(step=0)


@given(CORPORA, SETTINGS)
@hypothesis_settings(max_examples=60, deadline=None)
def test_the_reported_padding_is_that_of_the_arrays(lengths: Lengths, settings: BatchSettings) -> None:
    batches = Batches(corpus_of(lengths), settings, epochs=2)
    read = [batch for _, batch in batches.read(Position(1))]
    waste = batches.padding_waste(epoch=1)
    assert (waste.batches, waste.pairs) == (len(read), sum(map(len, read)))
    source = [np.array([(b.source == PAD).sum(), b.source.size]) for b in read]
    target = [np.array([(b.target == PAD).sum(), b.target.size]) for b in read]
    for share, counts in ((waste.source, sum(source)), (waste.target, sum(target))):
        assert share == pytest.approx(counts[0] / counts[1])
    assert f"{len(read)} batches" in str(waste)


def test_sorting_by_length_inside_buckets_saves_padding() -> None:
    lengths = [[(min(t + 2, 30), t) for _, t in many_pairs(blocks=1, pairs=2000)[0]]]
    waste = []
    for width, sort in ((0, False), (8, False), (8, True)):
        settings = BatchSettings(batch_tokens=500, bucket_width=width, sort_by_length=sort)
        waste.append(Batches(corpus_of(lengths), settings).padding_waste().target)
    assert waste[0] > 2 * waste[1] > 4 * waste[2]


def test_batch_counts_do_not_depend_on_the_epoch_when_sorted_by_length() -> None:
    batches = Batches(corpus_of(many_pairs()), BatchSettings(batch_tokens=90))
    assert len({batches.batches_per_epoch(epoch) for epoch in range(5)}) == 1


def test_many_threads_read_what_one_reads() -> None:
    settings = BatchSettings(batch_tokens=60)
    expected = [as_lists(batch) for _, batch in Batches(corpus_of(many_pairs(8)), settings, epochs=4).read()]
    shared = Batches(corpus_of(many_pairs(8)), settings, epochs=4)
    parts: list[list] = [[] for _ in range(5)]

    def feed(i: int) -> None:
        parts[i] += [as_lists(batch) for _, batch in shared.read(None, i, 5)]

    threads = [threading.Thread(target=feed, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert list(interleave([iter(part) for part in parts])) == expected


def test_readers_in_step_plan_each_block_once_and_keep_few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "planned_pairs", 0)
    corpus = corpus_of(many_pairs(blocks=10))
    batches = Batches(corpus, BatchSettings(batch_tokens=90), epochs=2)
    corpus.reads.clear()
    for _ in interleave([batches.read(None, i, 3) for i in range(3)]):
        assert len(batches._plans) <= 3
    assert sorted(corpus.reads) == sorted([*range(10)] * 2)


def test_resuming_reads_only_the_block_of_the_position() -> None:
    corpus = corpus_of(many_pairs(blocks=10))
    batches = Batches(corpus, BatchSettings(batch_tokens=90))
    corpus.reads.clear()
    next(batches.read(Position(epoch=4, block=6, batch=2)))
    assert len(corpus.reads) == 1


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60),
       st.sampled_from(["target", "source+target", "longest", "sentences"]), st.integers(1, 200))
def test_cutting_agrees_with_a_loop_over_pairs(pairs: list[tuple[int, int]], batch_type: str,
                                               limit: int) -> None:
    def size(part: list[tuple[int, int]]) -> int:
        longest = [max(p[side] for p in part) for side in (0, 1)]
        return {"target": sum(t for _, t in part), "source+target": len(part) * sum(longest),
                "longest": len(part) * max(longest), "sentences": len(part)}[batch_type]

    ends: list[int] = []
    start = 0
    for i in range(len(pairs)):
        if i > start and size(pairs[start:i + 1]) > limit:
            ends.append(i)
            start = i
    ends += [len(pairs)] if pairs else []
    lengths = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    assert cut(lengths[:, 0], lengths[:, 1], batch_type, limit).tolist() == ends


def test_the_random_order_is_pinned() -> None:
    """A new NumPy or a code change that alters the order would break the resuming of runs."""
    assert permutation([1, 0, 0], 8).tolist() == [2, 0, 1, 4, 5, 6, 7, 3]
    assert sorted(permutation([3], 1000).tolist()) == list(range(1000))

