"""Segmentations drawn at random: reproducible, different from draw to draw, and always of the same text."""

from __future__ import annotations

import random
import threading

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from towernmt.dataflow.batch_settings import StreamSettings
from towernmt.dataflow.mixture import Ingredient, Mixture
from towernmt.dataflow.stream import StreamBatches
from towernmt.dataflow.subword.bpe_codes import learn_bpe_codes
from towernmt.dataflow.subword.sentence_piece import learn_sentence_piece
from towernmt.dataflow.vocabulary import Sampling, Vocabulary

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


def test_a_draw_is_another_segmentation_of_the_same_text(vocabulary: Vocabulary) -> None:
    drawn = vocabulary.sample_batch(TEXTS, Sampling(0.2), 5)
    assert [vocabulary.decode(ids) for ids in drawn] == TEXTS
    assert sum(ids != best for ids, best in zip(drawn, vocabulary.encode_batch(TEXTS), strict=True)) > 100


def test_draws_in_several_threads_do_not_disturb_each_other(vocabulary: Vocabulary) -> None:
    expected = {seed: vocabulary.sample_batch(TEXTS[:50], Sampling(0.2), seed) for seed in range(6)}
    found: dict[int, list[list[int]]] = {}

    def draw(seed: int) -> None:
        found[seed] = vocabulary.sample_batch(TEXTS[:50], Sampling(0.2), seed)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_dropout_has_the_ends_that_the_paper_names() -> None:
    pytest.importorskip("subword_nmt")
    vocabulary = learn_bpe_codes(TEXTS, 250)
    assert vocabulary.sample_batch(TEXTS, Sampling(0.0), 1) == vocabulary.encode_batch(TEXTS)
    drawn = zip(WORDS, vocabulary.sample_batch(WORDS, Sampling(1.0), 1), vocabulary.encode_batch(WORDS), strict=True)
    in_letters = [len(ids) == len(word) for word, ids, best in drawn if ids != best]
    assert len(in_letters) > 200 and all(in_letters)


def test_no_word_becomes_unknown_by_chance() -> None:
    pytest.importorskip("subword_nmt")
    vocabulary = learn_bpe_codes(TEXTS, 60)
    best, drawn = (sum(ids.count(3) for ids in found) for found in (
        vocabulary.encode_batch(TEXTS), vocabulary.sample_batch(TEXTS, Sampling(0.5), 1)))
    assert drawn == best


def test_symbols_are_pieces_of_their_own() -> None:
    vocabulary = learn_sentence_piece(TEXTS, "unigram", 250, symbols=["<crawl>"])
    pieces = [vocabulary.id_to_piece(id) for id in vocabulary.encode("<crawl> " + TEXTS[0])]
    assert "<crawl>" in pieces[:2]


@hypothesis_settings(max_examples=15, deadline=None)
@given(place=st.integers(0, 60), readers=st.integers(1, 3))
def test_a_resumed_stream_draws_what_the_one_never_stopped_drew(memory_source, place: int, readers: int) -> None:
    vocabulary = sampled_vocabulary()

    def make() -> StreamBatches:
        mixture = Mixture([Ingredient(memory_source("a", 120))], report=lambda _: None)
        settings = StreamSettings(batch_tokens=40, window=50, subword_sampling=True)
        return StreamBatches(mixture, vocabulary, vocabulary, settings, epochs=2, report=lambda _: None)

    whole = [(position, [a.tobytes() for a in batch.arrays()]) for position, batch in make().read()]
    place = min(place, len(whole) - 1)
    again = make()
    parts = [again.read(whole[place][0], index, readers) for index in range(readers)]
    rest = [next(parts[number % readers]) for number in range(len(whole) - place - 1)]
    assert [(position, [a.tobytes() for a in batch.arrays()]) for position, batch in rest] == whole[place + 1:]


def test_epochs_draw_anew(memory_source) -> None:
    vocabulary = sampled_vocabulary()
    mixture = Mixture([Ingredient(memory_source("a", 60))], report=lambda _: None)
    settings = StreamSettings(batch_tokens=10**6, window=60, subword_sampling=True)
    batches = StreamBatches(mixture, vocabulary, vocabulary, settings, epochs=2, report=lambda _: None)
    first, second = ([ids[ids != 0].tolist() for ids in batch.target] for _, batch in batches.read())
    texts = [sorted(vocabulary.decode(ids) for ids in epoch) for epoch in (first, second)]
    assert texts[0] == texts[1]
    assert sorted(first) != sorted(second)


_MADE: list[Vocabulary] = []


def sampled_vocabulary() -> Vocabulary:
    """Of the texts of `memory_source`."""
    if not _MADE:
        texts = [f"a{number} x y x x y" for number in range(200)]
        _MADE.append(learn_sentence_piece(texts, "unigram", 40))
    return _MADE[0]
