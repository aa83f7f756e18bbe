"""Sampled segmentations of stored ids: the same text, the probabilities of the papers, no effect of caches."""

from __future__ import annotations

import io
import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from typing import NamedTuple, cast

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.dataflow.vocabulary.drawn_probabilities import chi_square, dropout_probabilities, rank_by, segmentations
from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.vocabulary import resegmentation
from towernmt.dataflow.vocabulary.base import UNK, Sampling, Vocabulary
from towernmt.dataflow.vocabulary.batch_sampling import BatchUnigramSampler
from towernmt.dataflow.vocabulary.bpe_codes import BpeCodesVocabulary, learn_bpe_codes
from towernmt.dataflow.vocabulary.resegmentation import Resegmented, Resegmenter
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.sentencepiece_model import PieceModel
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import learn_words

TEXT = """\
All human beings are born free and equal in dignity and rights.
They are endowed with reason and conscience and should act towards one another in a spirit of brotherhood.
Alle Menschen sind frei und gleich an Würde und Rechten geboren.
Sie sind mit Vernunft und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.
Tous les êtres humains naissent libres et égaux en dignité et en droits.
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。
人人生而自由，在尊严和权利上一律平等。 人自由尊严和权利，人人平等自由在尊严。
मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।""".split("\n")
SYMBOLS = ["<crawl>", "<crawl2>", "ß"]
WORDS = [word for line in TEXT for word in line.split()]
SENTENCES = st.sampled_from(TEXT) | st.lists(
    st.sampled_from([*WORDS, *SYMBOLS, "x@@", "@@", "\u2581a", "\U0001f600"]) | st.text(max_size=6),
    max_size=8).map(" ".join)


@cache
def vocabulary_of(name: str) -> Vocabulary:
    """Learn a vocabulary of a kind, perhaps with special options; all vocabularies lack some of the characters."""
    if name == "codes":
        pytest.importorskip("subword_nmt")
        return learn_bpe_codes(TEXT * 2, 300)
    kind, _, special = name.partition(" ")
    if special in ("", "with bytes"):
        return learn_sentence_piece(TEXT, kind, 600 if special else 330, 0.98, bool(special), SYMBOLS)
    options: dict[str, object] = {"of several words": {"split_by_whitespace": False},
                                  "with spaces at the end": {"treat_whitespace_as_suffix": True},
                                  "with another normalisation": {"normalization_rule_name": "nmt_nfkc_cf",
                                                                 "add_dummy_prefix": False}}[special]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT * 2), model_writer=model, model_type=kind,
                                             vocab_size=330, minloglevel=2, hard_vocab_limit=False, **options)
    assert PieceModel(model.getvalue()).crosses_spaces == (special == "of several words")
    return SentencePieceVocabulary(model.getvalue())


NAMES = ["codes", *(" ".join(parts).strip() for parts in product(("unigram", "bpe"), (
    "", "with bytes", "of several words", "with spaces at the end", "with another normalisation")))]


class Sentences(NamedTuple):
    """The arguments of `redraw`."""

    ids: np.ndarray
    offsets: np.ndarray


def encoded(vocabulary: Vocabulary, texts: Sequence[str]) -> Sentences:
    lists = vocabulary.encode_batch(texts)
    return Sentences(np.array([id for ids in lists for id in ids], np.uint16),
                     np.cumsum([0, *map(len, lists)]).astype(np.int64))


def sentences(resegmented: Resegmented | Sentences) -> list[list[int]]:
    return [resegmented.ids[begin:end].tolist()
            for begin, end in zip(resegmented.offsets[:-1], resegmented.offsets[1:], strict=True)]


def redrawn(vocabulary: Vocabulary, texts: Sequence[str], alpha: float, key: Sequence[int] = (1, 2),
            longest: int = 10**6) -> list[list[int]]:
    resegmenter = Resegmenter(vocabulary.stored_words(Sampling(alpha)))
    return sentences(resegmenter.resegment(*encoded(vocabulary, texts), key, longest))


@pytest.mark.parametrize("name", NAMES)
@hypothesis_settings(max_examples=20, deadline=None)
@given(texts=st.lists(SENTENCES, max_size=4), alpha=st.sampled_from([0.0, 0.1, 0.5, 1.0]), seed=st.integers(0, 2**40))
def test_a_sample_has_the_words_of_the_stored_text(name: str, texts: list[str], alpha: float, seed: int
                                                   ) -> None:
    vocabulary = vocabulary_of(name)
    stored = encoded(vocabulary, [clean(text) for text in texts])
    resegmented = Resegmenter(vocabulary.stored_words(Sampling(alpha))).resegment(*stored, [seed], 10**6)
    assert resegmented.ids.dtype == stored.ids.dtype
    for old, new in zip(sentences(stored), sentences(resegmented), strict=True):
        assert vocabulary.decode(new) == vocabulary.decode(old)
        assert new.count(UNK) == old.count(UNK)
    old_ends, new_ends = np.append(resegmented.begins, len(stored.ids))[1:], np.cumsum(resegmented.counts)
    new_begins = new_ends - resegmented.counts
    for old, old_end, new, new_end in zip(resegmented.begins, old_ends, new_begins, new_ends, strict=True):
        before, after = stored.ids[old:old_end].tolist(), resegmented.ids[new:new_end].tolist()
        assert UNK not in before or after == before
        assert vocabulary.decode(after) == vocabulary.decode(before)


def unigram_probabilities(word: str, scores: dict[str, float], alpha: float) -> dict[tuple[str, ...], float]:
    """Return the probabilities of all segmentations by enumeration."""
    weights = {tuple(pieces): math.exp(alpha * sum(scores[piece] for piece in pieces))
               for pieces in segmentations(word) if all(piece in scores for piece in pieces)}
    return {pieces: weight / sum(weights.values()) for pieces, weight in weights.items()}


@pytest.mark.parametrize(("name", "alpha"), [
    ("unigram", 0.0), ("unigram", 0.3), ("unigram", 1.0), ("bpe", 0.1), ("bpe", 0.5)])
def test_each_segmentation_of_each_word_comes_as_often_as_it_is_probable(name: str, alpha: float) -> None:
    vocabulary, draws = vocabulary_of(name), 20_000
    scores = PieceModel(vocabulary.files()[".model"]).scores
    words = ["rechten", "Menschen", "geboren"]
    counts_of_words: list[Counter[tuple[str, ...]]] = [Counter() for _ in words]
    for ids in redrawn(vocabulary, [" ".join(words)] * draws, alpha):
        pieces = [vocabulary.id_to_piece(id) for id in ids]
        begins = [*(index for index, piece in enumerate(pieces) if piece[0] == "\u2581"), len(pieces)]
        for counts, (begin, end) in zip(counts_of_words, pairwise(begins), strict=True):
            counts[tuple(pieces[begin:end])] += 1

    for word, counts in zip(words, counts_of_words, strict=True):
        shares = (unigram_probabilities("\u2581" + word, scores, alpha) if name == "unigram" else
                  dropout_probabilities("\u2581" + word, rank_by(scores), alpha))
        assert len(shares) >= 4 and chi_square(counts, shares) < 4


def test_merges_of_codes_are_left_out_as_the_paper_has_it() -> None:
    pytest.importorskip("subword_nmt")
    merges = [("a", "b"), ("ab", "c"), ("b", "c"), ("c", "a"), ("ab", "c</w>"), ("c", "ab"), ("ab", "cab")]
    ranks = {pair: float(rank) for rank, pair in enumerate(merges)}
    text = "#version: 0.2\n" + "".join(f"{first} {second}\n" for first, second in merges)
    symbols = ("a", "b", "c", "ab", "abc", "bc", "ca", "cab", "abcab")
    vocabulary = BpeCodesVocabulary(text.encode(), [
        "<pad>", "<s>", "</s>", "<unk>", *(f"{symbol}@@" for symbol in symbols), "c", "abc"])
    shares = {tuple(f"{symbol}@@" for symbol in pieces[:-1]) + (pieces[-1].removesuffix("</w>"),): share
              for pieces, share in dropout_probabilities(
                  ["a", "b", "c", "a", "b", "c</w>"], lambda *pair: ranks.get(pair), 0.3).items()}
    counts = Counter(tuple(map(vocabulary.id_to_piece, ids)) for ids in redrawn(vocabulary, ["abcabc"] * 20_000, 0.3))
    assert len(shares) > 8 and chi_square(counts, shares) < 4


def test_a_word_keeps_its_segmentation_where_a_drawn_one_is_not_in_the_list_of_pieces() -> None:
    pytest.importorskip("subword_nmt")
    text = "#version: 0.2\na b\nab c</w>\n"
    vocabulary = BpeCodesVocabulary(text.encode(), ["<pad>", "<s>", "</s>", "<unk>", "abc", "ab@@", "c"])
    counts = Counter(tuple(map(vocabulary.id_to_piece, ids)) for ids in redrawn(vocabulary, ["abc"] * 1000, 0.5))
    assert set(counts) == {("abc",), ("ab@@", "c")}  # and never a@@ b@@ c


@pytest.mark.parametrize("name", ["unigram", "bpe", "codes", "bpe with bytes"])
def test_draws_depend_on_the_key_and_not_on_what_is_remembered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, chance = vocabulary_of(name), random.Random(3)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(0, 9))) for _ in range(300)]
    monkeypatch.setattr(resegmentation, "_SLICE", 70)
    resegmenter = Resegmenter(vocabulary.stored_words(Sampling(0.3)))
    first, second = (resegmenter.resegment(*encoded(vocabulary, texts), [key], 10**6) for key in (1, 2))
    repeated = resegmenter.resegment(*encoded(vocabulary, texts), [1], 10**6)
    monkeypatch.setattr(resegmentation, "_CACHE_BYTES", 0)
    forgetful = Resegmenter(vocabulary.stored_words(Sampling(0.3))).resegment(*encoded(vocabulary, texts), [1], 10**6)
    assert sentences(first) == sentences(repeated) == sentences(forgetful) != sentences(second)
    for index in range(4):
        assert np.array_equal(first[index], forgetful[index])
    assert len({str(ids) for ids in redrawn(vocabulary, ["Gewissen begabt"] * 200, 0.3)}) > 3     # a new sample each


class Pieces(NamedTuple):
    """A fake unigram model with the interface that sampling needs."""

    scores: dict[str, float]
    unknown_score: float
    longest: int


@pytest.mark.parametrize("nodes", [5, 3_000_000, 2 ** 31 - 3])
def test_a_number_draws_the_same_of_a_word_however_many_were_added_before(nodes: int) -> None:
    pieces = {"a": -1.0, "b": -1.0, "ab": -1.0}
    draws = BatchUnigramSampler(cast("PieceModel", Pieces(pieces, -9.0, 2)), 0.0, list(pieces).index)
    early = draws.add("ab")
    draws._nodes = nodes  # like a cache after very many words
    late = draws.add("ab")
    # Uniform samples: "ab" for numbers below one half, "a" and "b" from there on.
    uniform = np.array([0.0, 0.5 - 2.0 ** -53, 0.5 - 2.0 ** -32, 0.5, 0.5 + 2.0 ** -33, 1 - 2.0 ** -53])
    numbers, first = np.repeat([early, late], len(uniform)), np.arange(2 * len(uniform)) * 2
    ids, counts = draws.draw(numbers, np.repeat(np.tile(uniform, 2), 2), first)
    assert counts.tolist() == [1, 1, 1, 2, 2, 2] * 2
    assert ids.tolist() == [2, 2, 2, 0, 1, 0, 1, 0, 1] * 2


@pytest.mark.parametrize("name", ["unigram", "bpe", "codes"])
def test_a_sentence_that_would_be_too_long_stays_as_it_was_stored(name: str) -> None:
    vocabulary, texts = vocabulary_of(name), TEXT[:8] * 10
    stored = sentences(encoded(vocabulary, texts))
    unlimited = redrawn(vocabulary, texts, 0.3)
    longest = int(np.median([len(ids) for ids in unlimited]))
    bounded = redrawn(vocabulary, texts, 0.3, longest=longest)
    assert bounded == [new if len(new) <= longest else old for old, new in zip(stored, unlimited, strict=True)]
    assert bounded != unlimited and bounded != stored


@pytest.mark.parametrize("name", ["unigram", "bpe"])
def test_a_long_text_without_spaces_is_drawn_too(name: str) -> None:
    text = "".join(random.Random(1).choices(["自由", "尊严", "权利", "平等", "人人"], k=600))
    vocabulary = vocabulary_of(name)
    first, second = redrawn(vocabulary, [text, text], 0.3)
    assert first != second and vocabulary.decode(first) == vocabulary.decode(second) == text


def test_a_long_word_is_drawn_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = vocabulary_of("bpe")
    texts = TEXT * 5
    short_segmentations = redrawn(vocabulary, texts, 0.3)
    monkeypatch.setattr("towernmt.dataflow.vocabulary.batch_sampling._LONGEST_CACHED", 4)
    assert redrawn(vocabulary, texts, 0.3) == short_segmentations


def test_words_have_one_segmentation() -> None:
    with pytest.raises(SettingsError, match="a word vocabulary has only one segmentation of a text. Set it to false"):
        learn_words(["ja nein"], 10).stored_words(Sampling())
