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
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with `plain` data of three shards, and `annotated` data with factors and alignments."""
    directory = tmp_path_factory.mktemp("sampled")
    factored = [" ".join(f"{word}|{TAGS[word]}|{word[0]}" for word in text.split()) for text in SOURCES]
    links = [" ".join(f"{index}-{count - 1 - index}" for index in range(count)) for count in (
        len(text.split()) for text in SOURCES)]
    for name, lines in (("source", SOURCES), ("target", TARGETS), ("factored", factored), ("links", links)):
        (directory / name).write_text("".join(line + "\n" for line in lines))
    sides = {"source": str(directory / "source"), "target": str(directory / "target"), "vocab_size": 120,
             "vocab_kind": "bpe"}
    prepare(PrepareSettings(**sides, output=str(directory / "plain"), shard_pairs=100))
    prepare(PrepareSettings(**{**sides, "source": str(directory / "factored")}, output=str(directory / "annotated"),
                            source_factors=2, alignments=str(directory / "links")))
    return directory


def settings(**changes: Any) -> StreamBatchSettings:
    return StreamBatchSettings(**{"batch_tokens": 150, "window": 40, "subword_sampling": True, "subword_alpha": 0.4,
                                  "max_length": 60, **changes})


def sampled(directory: Path, epochs: int | None = 2, data: str = "plain", alignments: bool = False, **changes: Any
            ) -> SampledBatches:
    """Return new batches in each call, like those of a resumed run."""
    batches = make_batches(PreparedData(directory / data), settings(**changes), epochs, alignments=alignments)
    assert isinstance(batches, SampledBatches)
    return batches


def rows(ids: np.ndarray, lengths: np.ndarray) -> Iterator[list[int]]:
    for row, length in zip(ids, lengths, strict=True):
        assert row[length - 1] == EOS
        yield row[:length - 1].tolist()


def pairs_of(batch: Batch, data: Any) -> list[tuple[str, str]]:
    return [(data.source_vocabulary.decode(source), data.target_vocabulary.decode(target)) for source, target in zip(
        rows(batch.source, batch.source_length), rows(batch.target, batch.target_length), strict=True)]


def contents(batches: Iterator[tuple[Position, Batch]]) -> list[tuple[Position, list[Any]]]:
    return [(position, [array.tolist() for array in batch.arrays()]) for position, batch in batches]


def test_each_epoch_has_the_text_of_each_pair_once_in_segmentations_of_its_own(directory: Path) -> None:
    batches = sampled(directory)
    epochs: list[list[list[int]]] = [[], []]
    data, epoch = PreparedData(directory / "plain"), 0
    texts: list[Counter[tuple[str, str]]] = [Counter(), Counter()]
    for position, batch in batches.read():
        assert batch.target_tokens <= 150 or len(batch) == 1
        texts[epoch].update(pairs_of(batch, data))
        epochs[epoch] += rows(batch.source, batch.source_length)
        epoch = position.epoch
    assert texts == [PAIRS, PAIRS]
    stored = {tuple(data.source_vocabulary.encode(text)) for text in SOURCES}
    segmentations = [{tuple(ids) for ids in epoch_ids} for epoch_ids in epochs]
    assert len(segmentations[0] & stored) < 100 and len(segmentations[0] & segmentations[1]) < 100


def test_the_limit_holds_for_what_is_drawn_and_a_pair_does_not_outgrow_the_longest_length(directory: Path) -> None:
    unlimited, limited = (list(sampled(directory, 1, max_length=length).read()) for length in (1000, 30))
    data = PreparedData(directory / "plain")
    longest = max(len(data.target_vocabulary.encode(text)) for text in TARGETS) + 1
    assert max(batch.target_length.max() for _, batch in unlimited) > max(longest, 30)
    assert max(batch.target_length.max() for _, batch in limited) <= max(longest, 30)
    tokens = [sum(float(batch.target_tokens) for _, batch in batches) for batches in (limited, unlimited)]
    assert tokens[0] < tokens[1]


@hypothesis_settings(max_examples=10, deadline=None)
@given(fraction=st.floats(0, 1), readers=st.integers(1, 3), window=st.sampled_from([7, 40, 1000]),
       shuffle=st.booleans(), batch_tokens=st.sampled_from([40, 150, 2000]))
def test_a_run_resumed_anywhere_reads_on_as_if_it_had_never_stopped(
        directory: Path, fraction: float, readers: int, window: int, shuffle: bool, batch_tokens: int) -> None:
    options = {"window": window, "shuffle": shuffle, "batch_tokens": batch_tokens}
    complete = contents(sampled(directory, **options).read())
    index = int(fraction * (len(complete) - 1))
    begin = Position.from_json(complete[index][0].to_json())
    resumed = sampled(directory, **options)
    parts = [contents(resumed.read(begin, reader, readers)) for reader in range(readers)]
    interleaved = [batch for turn in range(len(parts[0])) for part in parts for batch in part[turn:turn + 1]]
    assert interleaved == complete[index + 1:]


def test_readers_in_threads_read_what_one_reads(directory: Path) -> None:
    complete, batches = contents(sampled(directory).read()), sampled(directory)
    parts: list[list[Any]] = [[], [], []]

    def read(reader: int) -> None:
        parts[reader] = contents(batches.read(None, reader, 3))

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [part[turn] for turn in range(len(parts[0])) for part in parts if turn < len(part)] == complete


@pytest.mark.processes
def test_another_process_resumed_in_mid_epoch_reads_the_same_batches(directory: Path) -> None:
    def in_a_process(*positions: str) -> list[str]:
        return subprocess.run([sys.executable, PROGRAM, "prepared", str(directory / "plain"), *positions], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.split("\n\n")

    complete = in_a_process()[0].splitlines()
    middle = len(complete) // 3
    assert in_a_process(complete[middle].rsplit(" ", 1)[0])[0].splitlines() == complete[middle + 1:] and middle > 5


def test_the_size_of_an_epoch_is_estimated_from_what_is_drawn(directory: Path) -> None:
    batches = sampled(directory, 1)
    exact, about = batches.padding_waste(), batches.estimated_size
    assert exact.pairs == about.pairs == 300 and exact.batches == batches.batches_per_epoch() == len(
        list(batches.read()))
    assert about.target_tokens == pytest.approx(exact.target_tokens, rel=0.1)
    stored = Batches(PreparedData(directory / "plain"), settings(), 1).estimated_size
    assert stored.target_tokens < 0.8 * about.target_tokens
    reports: list[str] = []
    data = PreparedData(directory / "plain")
    make_batches(data, settings(batch_tokens=5000), 1, reports.append)
    assert "with about" in reports[0] and "sampled again in each epoch, for 33 pairs at a time" in reports[1]
    assert reports[2].endswith(f"windows of {data.directory} have only 33 pairs each. Set data.window above 40.")


def draws_of(batches: SampledBatches, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the list to which each sampled window is added."""
    drawn_windows: list[tuple[int, int]] = []
    draw = batches._windows.sample
    monkeypatch.setattr(batches._windows, "sample", lambda *key: drawn_windows.append(key) or draw(*key))
    return drawn_windows


def finished(drawn_windows: list[tuple[int, int]], batches: SampledBatches) -> list[tuple[int, int]]:
    """Return the list of sampled windows after the background thread has finished its work."""
    batches._background.submit(lambda: None).result()
    return drawn_windows


def test_the_next_window_is_drawn_before_it_is_needed_and_few_are_kept(directory: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    batches = sampled(directory, 1)
    drawn_windows = draws_of(batches, monkeypatch)
    next(batches.read())
    assert finished(drawn_windows, batches) == [(0, index) for index in batches._block_order(0)[:2]]
    assert sum(1 for _ in batches.read()) > 9 and len(drawn_windows) == batches.num_blocks == 9
    assert len(batches._plans) == 3


def test_a_resumed_run_draws_the_window_of_the_estimate_and_its_own_before_the_next(
        directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = sampled(directory)
    drawn_windows = draws_of(batches, monkeypatch)
    assert batches.estimated_size.pairs == 300
    first = batches._block_order(0)[0]
    assert finished(drawn_windows, batches) == [(0, first)]
    next(batches.read(Position(1, 3, 1)))
    assert finished(drawn_windows, batches)[1:] == [(1, index) for index in batches._block_order(1)[3:5]]


def test_counting_batches_samples_each_window_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = sampled(directory)
    drawn_windows = draws_of(batches, monkeypatch)
    batches.batches_per_epoch()
    assert finished(drawn_windows, batches) == [(0, index) for index in range(9)]


def test_parallel_readers_sample_each_window_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch_tokens in (40, 5000):
        batches = sampled(directory, batch_tokens=batch_tokens)
        drawn_windows = draws_of(batches, monkeypatch)
        readers = [batches.read(None, reader, 3) for reader in range(3)]
        read = sum(1 for turn in itertools.zip_longest(*readers) for batch in turn if batch)
        assert read == batches.batches_per_epoch() + batches.batches_per_epoch(1)
        assert sorted(finished(drawn_windows, batches)) == [(epoch, index) for epoch in range(2) for index in range(9)]


def test_a_few_batches_for_a_look_draw_no_window_ahead(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = make_batches(PreparedData(directory / "plain"), settings(), 1, ahead=False)
    assert isinstance(batches, SampledBatches)
    drawn_windows = draws_of(batches, monkeypatch)
    complete = contents(sampled(directory, 1).read())
    assert contents(itertools.islice(batches.read(), 2)) == complete[:2]
    assert finished(drawn_windows, batches) == [(0, batches._block_order(0)[0])]
    assert contents(batches.read()) == complete


def words_of(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """Return the index of each subword's word, by the space marks in the subwords."""
    return (np.cumsum([vocabulary.id_to_piece(id).startswith("\u2581") for id in ids]) - 1).tolist()


def test_pieces_that_are_drawn_have_the_factors_and_the_links_of_their_words(directory: Path) -> None:
    data = PreparedData(directory / "annotated")
    factors = cast("Any", data.source_vocabulary).factors
    read_pairs: Counter[tuple[str, str]] = Counter()
    longer = 0
    for _, batch in sampled(directory, 2, "annotated", alignments=True).read():
        assert batch.alignment is not None
        read_pairs.update(pairs_of(Batch(batch.source[:, :, 0], *batch.arrays()[1:5]), data))
        streams = [rows(batch.source[:, :, stream], batch.source_length) for stream in range(3)]
        for source, tags, letters, target, links in zip(
                *streams, rows(batch.target, batch.target_length), batch.alignment, strict=True):
            words = data.source_vocabulary.decode(source).split()
            word_indices = words_of(source, data.source_vocabulary), words_of(target, data.target_vocabulary)
            assert tags == [factors[0].piece_to_id(TAGS[words[word]]) for word in word_indices[0]]
            assert letters == [factors[1].piece_to_id(words[word][0]) for word in word_indices[0]]
            expected = np.zeros(links.shape, np.uint8)
            for row, target_word in enumerate(word_indices[1]):
                for column, word in enumerate(word_indices[0]):
                    expected[row, column] = word + target_word == len(words) - 1
            assert np.array_equal(links, expected)
            longer += len(source) > len(data.source_vocabulary.words.encode(" ".join(words)))
    assert read_pairs == PAIRS + PAIRS and longer > 300


def test_words_stay_linked_whichever_of_their_subwords_were_linked(directory: Path, tmp_path: Path) -> None:
    learned = prepare(PrepareSettings(source=str(directory / "source"), target=str(directory / "target"),
                                      vocab_size=120, vocab_kind="bpe", output=str(tmp_path / "learned"),
                                      alignments="learn"))

    def linked_words(batches: Any) -> Counter[tuple[str, int, int]]:
        """Return the sources with the indices of two words that have linked subwords."""
        counts: Counter[tuple[str, int, int]] = Counter()
        for _, batch in batches.read():
            for source, target, links in zip(rows(batch.source, batch.source_length),
                                             rows(batch.target, batch.target_length), batch.alignment, strict=True):
                words = words_of(source, learned.source_vocabulary), words_of(target, learned.target_vocabulary)
                text = learned.source_vocabulary.decode(source)
                counts.update({(text, words[0][column], words[1][row]) for row, column in np.argwhere(links).tolist()})
        return counts

    stored = make_batches(learned, settings(subword_sampling=False), 1, alignments=True)
    resampled = make_batches(learned, settings(), 1, alignments=True)
    assert linked_words(resampled) == linked_words(stored)


def test_impossible_sampling_is_refused_with_a_message(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="subword_nbest=8 samples among .* prepared data .* Set it to -1"):
        sampled(directory, subword_nbest=8)
    with pytest.raises(SettingsError, match="subword_nbest=1: expected 2 to 512"):
        sampled(directory, subword_nbest=1)
    with pytest.raises(DataError, match="is outside this corpus"):
        sampled(directory).read(Position(0, 9))
    model = tmp_path / "several.model"
    with open(model, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*SOURCES, *TARGETS, *["ab cd"] * 200]), model_writer=file, model_type="bpe",
            vocab_size=90, split_by_whitespace=False, minloglevel=2, pad_id=0, bos_id=1, eos_id=2, unk_id=3)
    prepare(PrepareSettings(str(directory / "source"), str(directory / "target"), output=str(tmp_path / "linked"),
                            source_vocab=str(model), target_vocab=str(model), alignments=str(directory / "links")))
    with pytest.raises(SettingsError, match="cannot keep the source factors or word alignments .* span several"):
        sampled(tmp_path, data="linked")
