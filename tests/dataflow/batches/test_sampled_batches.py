"""Batches of prepared data with sampled segmentations: the same text in each epoch, the same order for all readers."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.batches.batch import Batch, Position
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.batches import Batches, SampledBatches
from towernmt.dataflow.batches.training_data import make_batches
from towernmt.dataflow.preparation.preparation import prepare
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.vocabulary.base import EOS, Vocabulary

PROGRAM = Path(__file__).parents[1] / "vocabulary" / "subword_sampling.py"
CHANCE = random.Random(4)
WORDS = ["".join(CHANCE.choices("abcdefgh", k=CHANCE.randint(2, 9))) for _ in range(60)]
SOURCES = [" ".join(CHANCE.choices(WORDS, k=CHANCE.randint(1, 9))) for _ in range(300)]
TARGETS = [" ".join(reversed(text.upper().split())) for text in SOURCES]
TAGS = {word: f"T{len(word)}" for word in WORDS}
PAIRS = Counter(zip(SOURCES, TARGETS, strict=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with `plain` data of three shards, and `annotated` data with factors and alignments."""
    place = tmp_path_factory.mktemp("sampled")
    factored = [" ".join(f"{word}|{TAGS[word]}" for word in text.split()) for text in SOURCES]
    links = [" ".join(f"{one}-{count - 1 - one}" for one in range(count)) for count in (
        len(text.split()) for text in SOURCES)]
    for name, lines in (("source", SOURCES), ("target", TARGETS), ("factored", factored), ("links", links)):
        (place / name).write_text("".join(line + "\n" for line in lines))
    sides = {"source": str(place / "source"), "target": str(place / "target"), "vocab_size": 120, "vocab_kind": "bpe"}
    prepare(PrepareSettings(**sides, output=str(place / "plain"), shard_pairs=100))
    prepare(PrepareSettings(**{**sides, "source": str(place / "factored")}, output=str(place / "annotated"),
                            source_factors=1, alignments=str(place / "links")))
    return place


def settings(**changes: Any) -> StreamBatchSettings:
    return StreamBatchSettings(**{"batch_tokens": 150, "window": 40, "subword_sampling": True, "subword_alpha": 0.4,
                                  "max_length": 60, **changes})


def sampled(place: Path, epochs: int | None = 2, data: str = "plain", alignments: bool = False, **changes: Any
            ) -> SampledBatches:
    """Return new batches in each call, like those of a resumed run."""
    found = make_batches(PreparedData(place / data), settings(**changes), epochs, alignments=alignments)
    assert isinstance(found, SampledBatches)
    return found


def rows(ids: np.ndarray, lengths: np.ndarray) -> Iterator[list[int]]:
    for row, length in zip(ids, lengths, strict=True):
        assert row[length - 1] == EOS
        yield row[:length - 1].tolist()


def pairs_of(batch: Batch, data: Any) -> list[tuple[str, str]]:
    return [(data.source_vocabulary.decode(one), data.target_vocabulary.decode(other)) for one, other in zip(
        rows(batch.source, batch.source_length), rows(batch.target, batch.target_length), strict=True)]


def contents(batches: Iterator[tuple[Position, Batch]]) -> list[tuple[Position, list[Any]]]:
    return [(position, [array.tolist() for array in batch.arrays()]) for position, batch in batches]


def test_each_epoch_has_the_text_of_each_pair_once_in_segmentations_of_its_own(place: Path) -> None:
    batches = sampled(place)
    epochs: list[list[list[int]]] = [[], []]
    data, epoch = PreparedData(place / "plain"), 0
    texts: list[Counter[tuple[str, str]]] = [Counter(), Counter()]
    for position, batch in batches.read():
        assert batch.target_tokens <= 150 or len(batch) == 1
        texts[epoch].update(pairs_of(batch, data))
        epochs[epoch] += rows(batch.source, batch.source_length)
        epoch = position.epoch
    assert texts == [PAIRS, PAIRS]
    stored = {tuple(data.source_vocabulary.encode(text)) for text in SOURCES}
    other = [{tuple(ids) for ids in drawn} for drawn in epochs]
    assert len(other[0] & stored) < 100 and len(other[0] & other[1]) < 100


def test_the_limit_holds_for_what_is_drawn_and_a_pair_does_not_outgrow_the_longest_length(place: Path) -> None:
    free, bound = (list(sampled(place, 1, max_length=length).read()) for length in (1000, 30))
    data = PreparedData(place / "plain")
    longest = max(len(data.target_vocabulary.encode(text)) for text in TARGETS) + 1
    assert max(batch.target_length.max() for _, batch in free) > max(longest, 30)
    assert max(batch.target_length.max() for _, batch in bound) <= max(longest, 30)
    assert sum(float(batch.target_tokens) for _, batch in bound) < sum(float(batch.target_tokens) for _, batch in free)


@hypothesis_settings(max_examples=10, deadline=None)
@given(where=st.floats(0, 1), readers=st.integers(1, 3), window=st.sampled_from([7, 40, 1000]), shuffle=st.booleans(),
       batch_tokens=st.sampled_from([40, 150, 2000]))
def test_a_run_resumed_anywhere_reads_on_as_if_it_had_never_stopped(
        place: Path, where: float, readers: int, window: int, shuffle: bool, batch_tokens: int) -> None:
    how = {"window": window, "shuffle": shuffle, "batch_tokens": batch_tokens}
    whole = contents(sampled(place, **how).read())
    at = int(where * (len(whole) - 1))
    begin = Position.from_json(whole[at][0].to_json())
    resumed = sampled(place, **how)
    parts = [contents(resumed.read(begin, reader, readers)) for reader in range(readers)]
    assert [one for turn in range(len(parts[0])) for part in parts for one in part[turn:turn + 1]] == whole[at + 1:]


def test_readers_in_threads_read_what_one_reads(place: Path) -> None:
    whole, batches = contents(sampled(place).read()), sampled(place)
    parts: list[list[Any]] = [[], [], []]

    def read(reader: int) -> None:
        parts[reader] = contents(batches.read(None, reader, 3))

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [part[turn] for turn in range(len(parts[0])) for part in parts if turn < len(part)] == whole


def test_another_process_resumed_in_mid_epoch_reads_the_same_batches(place: Path) -> None:
    def in_a_process(*positions: str) -> list[str]:
        return subprocess.run([sys.executable, PROGRAM, "prepared", str(place / "plain"), *positions], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.split("\n\n")

    whole = in_a_process()[0].splitlines()
    middle = len(whole) // 3
    assert in_a_process(whole[middle].rsplit(" ", 1)[0])[0].splitlines() == whole[middle + 1:] and middle > 5


def test_the_size_of_an_epoch_is_estimated_from_what_is_drawn(place: Path) -> None:
    batches = sampled(place, 1)
    exact, about = batches.padding_waste(), batches.estimated_size
    assert exact.pairs == about.pairs == 300 and exact.batches == batches.batches_per_epoch() == len(
        list(batches.read()))
    assert about.target_tokens == pytest.approx(exact.target_tokens, rel=0.1)
    stored = Batches(PreparedData(place / "plain"), settings(), 1).estimated_size
    assert stored.target_tokens < 0.8 * about.target_tokens
    said: list[str] = []
    make_batches(PreparedData(place / "plain"), settings(batch_tokens=5000), 1, said.append)
    assert "with about" in said[0] and "sampled again in each epoch, for 33 pairs at a time" in said[1]
    assert said[2].endswith(f"the 9 windows of {place / 'plain'} have only 33 pairs each. Set data.window above 40.")


def draws_of(batches: SampledBatches, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the list to which each sampled window is added."""
    drawn: list[tuple[int, int]] = []
    draw = batches._windows.sample
    monkeypatch.setattr(batches._windows, "sample", lambda *key: drawn.append(key) or draw(*key))
    return drawn


def finished(drawn: list[tuple[int, int]], batches: SampledBatches) -> list[tuple[int, int]]:
    """Return the list of sampled windows after the background thread has finished its work."""
    batches._background.submit(lambda: None).result()
    return drawn


def test_the_next_window_is_drawn_before_it_is_needed_and_few_are_kept(place: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    batches = sampled(place, 1)
    drawn = draws_of(batches, monkeypatch)
    next(batches.read())
    assert finished(drawn, batches) == [(0, index) for index in batches._block_order(0)[:2]]
    assert sum(1 for _ in batches.read()) > 9 and len(drawn) == batches.num_blocks == 9
    assert len(batches._plans) == 3


def test_a_resumed_run_draws_the_window_of_the_estimate_and_its_own_before_the_next(
        place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = sampled(place)
    drawn = draws_of(batches, monkeypatch)
    assert batches.estimated_size.pairs == 300
    first = batches._block_order(0)[0]
    assert finished(drawn, batches) == [(0, first)]
    next(batches.read(Position(1, 3, 1)))
    assert finished(drawn, batches)[1:] == [(1, index) for index in batches._block_order(1)[3:5]]


def test_what_is_counted_is_drawn_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = sampled(place)
    drawn = draws_of(batches, monkeypatch)
    batches.batches_per_epoch()
    assert finished(drawn, batches) == [(0, index) for index in range(9)]


def test_readers_beside_each_other_draw_each_window_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch_tokens in (40, 5000):
        batches = sampled(place, batch_tokens=batch_tokens)
        drawn = draws_of(batches, monkeypatch)
        readers = [batches.read(None, reader, 3) for reader in range(3)]
        read = sum(1 for turn in itertools.zip_longest(*readers) for one in turn if one)
        assert read == batches.batches_per_epoch() + batches.batches_per_epoch(1)
        assert sorted(finished(drawn, batches)) == [(epoch, index) for epoch in range(2) for index in range(9)]


def test_a_few_batches_for_a_look_draw_no_window_ahead(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = make_batches(PreparedData(place / "plain"), settings(), 1, ahead=False)
    assert isinstance(batches, SampledBatches)
    drawn = draws_of(batches, monkeypatch)
    whole = contents(sampled(place, 1).read())
    assert contents(itertools.islice(batches.read(), 2)) == whole[:2]
    assert finished(drawn, batches) == [(0, batches._block_order(0)[0])]
    assert contents(batches.read()) == whole


def words_of(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """Return the index of each subword's word, by the space marks in the subwords."""
    return (np.cumsum([vocabulary.id_to_piece(id).startswith("\u2581") for id in ids]) - 1).tolist()


def test_pieces_that_are_drawn_have_the_factors_and_the_links_of_their_words(place: Path) -> None:
    data = PreparedData(place / "annotated")
    factors = cast("Any", data.source_vocabulary).factors[0]
    seen: Counter[tuple[str, str]] = Counter()
    longer = 0
    for _, batch in sampled(place, 2, "annotated", alignments=True).read():
        assert batch.alignment is not None
        seen.update(pairs_of(Batch(batch.source[:, :, 0], *batch.arrays()[1:5]), data))
        for source, tags, target, links in zip(
                rows(batch.source[:, :, 0], batch.source_length), rows(batch.source[:, :, 1], batch.source_length),
                rows(batch.target, batch.target_length), batch.alignment, strict=True):
            words = data.source_vocabulary.decode(source).split()
            places = words_of(source, data.source_vocabulary), words_of(target, data.target_vocabulary)
            assert tags == [factors.piece_to_id(TAGS[words[word]]) for word in places[0]]
            expected = np.zeros(links.shape, np.uint8)
            for row, to in enumerate(places[1]):
                for column, word in enumerate(places[0]):
                    expected[row, column] = word + to == len(words) - 1
            assert np.array_equal(links, expected)
            longer += len(source) > len(data.source_vocabulary.words.encode(" ".join(words)))
    assert seen == PAIRS + PAIRS and longer > 300


def test_words_stay_linked_whichever_of_their_subwords_were_linked(place: Path, tmp_path: Path) -> None:
    learned = prepare(PrepareSettings(source=str(place / "source"), target=str(place / "target"), vocab_size=120,
                                      vocab_kind="bpe", output=str(tmp_path / "learned"), alignments="learn"))

    def linked_words(batches: Any) -> Counter[tuple[str, int, int]]:
        """Return the sources with the indices of two words that have linked subwords."""
        found: Counter[tuple[str, int, int]] = Counter()
        for _, batch in batches.read():
            for source, target, links in zip(rows(batch.source, batch.source_length),
                                             rows(batch.target, batch.target_length), batch.alignment, strict=True):
                words = words_of(source, learned.source_vocabulary), words_of(target, learned.target_vocabulary)
                text = learned.source_vocabulary.decode(source)
                found.update({(text, words[0][column], words[1][row]) for row, column in np.argwhere(links).tolist()})
        return found

    stored = make_batches(learned, settings(subword_sampling=False), 1, alignments=True)
    again = make_batches(learned, settings(), 1, alignments=True)
    assert linked_words(again) == linked_words(stored)


def test_what_cannot_be_drawn_is_refused_in_a_sentence(place: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="subword_nbest=8 samples among .* prepared data .* Set it to -1"):
        sampled(place, subword_nbest=8)
    with pytest.raises(SettingsError, match="subword_nbest=1: expected 2 to 512"):
        sampled(place, subword_nbest=1)
    with pytest.raises(DataError, match="is outside this corpus"):
        sampled(place).read(Position(0, 9))
    model = tmp_path / "several.model"
    with open(model, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*SOURCES, *TARGETS, *["ab cd"] * 200]), model_writer=file, model_type="bpe",
            vocab_size=90, split_by_whitespace=False, minloglevel=2, pad_id=0, bos_id=1, eos_id=2, unk_id=3)
    prepare(PrepareSettings(str(place / "source"), str(place / "target"), output=str(tmp_path / "linked"),
                            source_vocab=str(model), target_vocab=str(model), alignments=str(place / "links")))
    with pytest.raises(SettingsError, match="cannot keep the source factors or word alignments .* span several"):
        sampled(tmp_path, data="linked")
