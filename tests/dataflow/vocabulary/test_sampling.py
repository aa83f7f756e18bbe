"""Random segmentations: reproducible, different for each sample, and always of the same text.

A generator may be seeded with a property of the process in addition to the seed, as that of SentencePiece. A comparison
within one process cannot detect this, so these tests compare processes.
"""

from __future__ import annotations

import gzip
import os
import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sentencepiece
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.waiting import PATIENCE
from towernmt.dataflow.batches.batch_settings import StreamBatchSettings
from towernmt.dataflow.batches.stream_batches import StreamBatches
from towernmt.dataflow.sources.mixture import Ingredient, Mixture
from towernmt.dataflow.vocabulary.base import Sampling, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import learn_bpe_codes
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece

PROGRAM = Path(__file__).with_name("subword_sampling.py")
CHANCE = random.Random(2)
WORDS = ["".join(CHANCE.choices("abcdefgh", k=CHANCE.randint(3, 9))) for _ in range(300)]
TEXTS = [" ".join(CHANCE.choices(WORDS, k=CHANCE.randint(1, 15))) for _ in range(400)]


@pytest.fixture(scope="module", params=["unigram", "bpe", "bpe-codes"])
def vocabulary(request) -> Vocabulary:
    if request.param == "bpe-codes":
        pytest.importorskip("subword_nmt")
        return learn_bpe_codes(TEXTS, 250)
    return learn_sentence_piece(TEXTS, request.param, 250)


def test_a_draw_is_a_function_of_texts_and_seed(vocabulary: Vocabulary) -> None:
    first = vocabulary.sample_batch(TEXTS, Sampling(0.2), 5)
    vocabulary.sample_batch(TEXTS[:3], Sampling(0.2), 77)
    vocabulary.encode_batch(TEXTS, threads=2)
    sentencepiece.set_random_generator_seed(1)
    assert vocabulary.sample_batch(TEXTS, Sampling(0.2), 5) == first
    assert vocabulary.sample_batch(TEXTS, Sampling(0.2), 6) != first
    assert vocabulary.sample_batch(TEXTS[:1], Sampling(0.2), 5) == vocabulary.sample_batch(TEXTS[:1], Sampling(0.2), 5)


def test_a_draw_depends_on_the_number_of_the_text_and_on_no_other_text(vocabulary: Vocabulary) -> None:
    for sampling in (Sampling(0.2), Sampling(0.2, 4)):
        together = vocabulary.sample_batch(TEXTS[:60], sampling, 5, 100)
        alone = [vocabulary.sample_batch([text], sampling, 5, number)[0] for number, text in enumerate(TEXTS[:60], 100)]
        assert alone == together
        assert vocabulary.sample_with_words(TEXTS[:60], sampling, 5, 100)[0] == together
        assert vocabulary.sample_batch(TEXTS[:60], sampling, 5, 101) != together


@pytest.mark.thorough
def test_processes_draw_alike(tmp_path: Path) -> None:
    pytest.importorskip("subword_nmt")
    learned = {"unigram": learn_sentence_piece(TEXTS, "unigram", 250), "bpe-codes": learn_bpe_codes(TEXTS, 250),
               "bpe": learn_sentence_piece(TEXTS, "bpe", 400, byte_fallback=True)}
    paths = [str(vocabulary.save(tmp_path / kind)[0]) for kind, vocabulary in learned.items()]
    first, second = (in_a_process(seed, "draws", *paths) for seed in ("1", "2"))
    assert first == second
    assert len({digest for line in first for digest in line.split()}) == 9


@pytest.mark.processes
def test_a_stream_resumed_in_another_process_gives_the_batches_of_the_one_never_stopped(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    pairs = [(text, " ".join(reversed(text.split()))) for text in TEXTS * 5]
    for side in (0, 1):
        with gzip.open(tmp_path / f"files.{'st'[side]}.gz", "wt") as file:
            file.writelines(pair[side] + "\n" for pair in pairs[:900])
    with sqlite3.connect(tmp_path / "base.db") as database:
        database.execute("create table pairs (id integer primary key, source text, target text)")
        database.executemany("insert into pairs (source, target) values (?, ?)", pairs[900:])
    uris = [f"{tmp_path}/files.{{s,t}}.gz", f"sqlite:///{tmp_path}/base.db?table=pairs"]
    corpora = tmp_path / "corpora.yaml"
    corpora.write_text(yaml.safe_dump({"sources": [{"uri": uri, "on_end": "drop"} for uri in uris]}))
    model = learn_sentence_piece(TEXTS, "unigram", 250).save(tmp_path / "shared")[0]

    uninterrupted = in_a_process("1", "batches", corpora, model)[:-1]
    starts = [3, len(uninterrupted) // 3, len(uninterrupted) // 2, len(uninterrupted) - 3]
    positions = [uninterrupted[start].rsplit(" ", 1)[0] for start in starts]
    resumed = "\n".join(in_a_process("2", "batches", corpora, model, *positions)).split("\n\n")
    assert len(uninterrupted) > 60
    assert [part.splitlines() for part in resumed if part] == [uninterrupted[start + 1:] for start in starts]


def in_a_process(hash_seed: str, *arguments: str | Path) -> list[str]:
    """Return the lines that `subword_sampling.py` prints."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run([sys.executable, PROGRAM, *map(str, arguments)], env=environment, check=True,
                          capture_output=True, text=True, timeout=PATIENCE).stdout.splitlines()


def test_the_segmentation_of_a_pair_does_not_depend_on_the_window(memory_source) -> None:
    vocabulary, segmentations = sampled_vocabulary(), []
    for window in (50, 77, 1000):
        mixture = Mixture([Ingredient(memory_source("a", 120))], report=lambda _: None)
        settings = StreamBatchSettings(batch_tokens=10**6, window=window, subword_sampling=True)
        stream = StreamBatches(mixture, vocabulary, vocabulary, settings, epochs=2, report=lambda _: None)
        batches = [[sorted(ids[ids != 0].tolist() for ids in batch.source)] for _, batch in stream.read()]
        segmentations.append(sorted(ids for batch in batches for rows in batch for ids in rows))
    assert segmentations[0] == segmentations[1] == segmentations[2]


def test_a_draw_is_another_segmentation_of_the_same_text(vocabulary: Vocabulary) -> None:
    sampled = vocabulary.sample_batch(TEXTS, Sampling(0.2), 5)
    assert [vocabulary.decode(ids) for ids in sampled] == TEXTS
    assert sum(ids != encoded for ids, encoded in zip(sampled, vocabulary.encode_batch(TEXTS), strict=True)) > 100


def test_draws_in_several_threads_do_not_disturb_each_other(vocabulary: Vocabulary) -> None:
    expected = {seed: vocabulary.sample_batch(TEXTS[:50], Sampling(0.2), seed) for seed in range(6)}
    segmentations: dict[int, list[list[int]]] = {}

    def draw(seed: int) -> None:
        segmentations[seed] = vocabulary.sample_batch(TEXTS[:50], Sampling(0.2), seed)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert segmentations == expected


def test_dropout_has_the_ends_that_the_paper_names() -> None:
    pytest.importorskip("subword_nmt")
    vocabulary = learn_bpe_codes(TEXTS, 250)
    assert vocabulary.sample_batch(TEXTS, Sampling(0.0), 1) == vocabulary.encode_batch(TEXTS)
    sampled = zip(WORDS, vocabulary.sample_batch(WORDS, Sampling(1.0), 1), vocabulary.encode_batch(WORDS), strict=True)
    in_letters = [len(ids) == len(word) for word, ids, encoded in sampled if ids != encoded]
    assert len(in_letters) > 200 and all(in_letters)


def test_no_word_becomes_unknown_by_chance() -> None:
    pytest.importorskip("subword_nmt")
    vocabulary = learn_bpe_codes(TEXTS, 60)
    encoded, sampled = (sum(ids.count(3) for ids in segmentations) for segmentations in (
        vocabulary.encode_batch(TEXTS), vocabulary.sample_batch(TEXTS, Sampling(0.5), 1)))
    assert sampled == encoded


def test_symbols_are_pieces_of_their_own() -> None:
    vocabulary = learn_sentence_piece(TEXTS, "unigram", 250, symbols=["<crawl>"])
    pieces = [vocabulary.id_to_piece(id) for id in vocabulary.encode("<crawl> " + TEXTS[0])]
    assert "<crawl>" in pieces[:2]


@hypothesis_settings(max_examples=15, deadline=None)
@given(start=st.integers(0, 60), readers=st.integers(1, 3))
def test_a_resumed_stream_draws_what_the_one_never_stopped_drew(memory_source, start: int, readers: int) -> None:
    vocabulary = sampled_vocabulary()

    def make() -> StreamBatches:
        mixture = Mixture([Ingredient(memory_source("a", 120))], report=lambda _: None)
        settings = StreamBatchSettings(batch_tokens=40, window=50, subword_sampling=True)
        return StreamBatches(mixture, vocabulary, vocabulary, settings, epochs=2, report=lambda _: None)

    uninterrupted = [(position, [a.tobytes() for a in batch.arrays()]) for position, batch in make().read()]
    start = min(start, len(uninterrupted) - 1)
    resumed_batches = make()
    parts = [resumed_batches.read(uninterrupted[start][0], index, readers) for index in range(readers)]
    resumed = [next(parts[number % readers]) for number in range(len(uninterrupted) - start - 1)]
    contents = [(position, [a.tobytes() for a in batch.arrays()]) for position, batch in resumed]
    assert contents == uninterrupted[start + 1:]


def test_epochs_draw_anew(memory_source) -> None:
    vocabulary = sampled_vocabulary()
    mixture = Mixture([Ingredient(memory_source("a", 60))], report=lambda _: None)
    settings = StreamBatchSettings(batch_tokens=10**6, window=60, subword_sampling=True)
    batches = StreamBatches(mixture, vocabulary, vocabulary, settings, epochs=2, report=lambda _: None)
    first, second = ([ids[ids != 0].tolist() for ids in batch.target] for _, batch in batches.read())
    texts = [sorted(vocabulary.decode(ids) for ids in epoch) for epoch in (first, second)]
    assert texts[0] == texts[1]
    assert sorted(first) != sorted(second)


_MADE: list[Vocabulary] = []


def sampled_vocabulary() -> Vocabulary:
    """Learn a vocabulary from the texts of `memory_source`."""
    if not _MADE:
        texts = [f"a{number} x y x x y" for number in range(200)]
        _MADE.append(learn_sentence_piece(texts, "unigram", 40))
    return _MADE[0]
