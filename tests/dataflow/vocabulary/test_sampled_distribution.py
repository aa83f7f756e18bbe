"""The distribution of sampled segmentations, compared with SentencePiece and with all segmentations by enumeration."""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.dataflow.vocabulary.drawn_probabilities import chi_square, dropout_probabilities, rank_by, segmentations
from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.vocabulary.base import Sampling
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.sentencepiece_model import PieceModel
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.dataflow.vocabulary.subword_sampling import BpeDropout, UnigramSampler, uniform_numbers

REAL_TEXT = """\
All human beings are born free and equal in dignity and rights.
They are endowed with reason and conscience and should act towards one another in a spirit of brotherhood.
Alle Menschen sind frei und gleich an Würde und Rechten geboren.
Sie sind mit Vernunft und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.
Tous les êtres humains naissent libres et égaux en dignité et en droits.
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.
Все люди рождаются свободными и равными в своем достоинстве и правах.
כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.
يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。
人人生而自由，在尊严和权利上一律平等。
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.
ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.""".split("\n")
SYMBOLS = ["<crawl>", "<crawl2>", "ß"]
WORDS = [word for line in REAL_TEXT for word in line.split()]
SENTENCES = st.sampled_from(REAL_TEXT) | st.lists(
    st.sampled_from(WORDS) | st.sampled_from(SYMBOLS) | st.text(max_size=6), max_size=8).map(" ".join)


@cache
def learned(kind: str, fallback: bool) -> SentencePieceVocabulary:
    return learn_sentence_piece(REAL_TEXT, kind, 700 if fallback else 400, 0.98, fallback, SYMBOLS)


@cache
def whitespace_model(kind: str, **options: object) -> SentencePieceVocabulary:
    """Train a model with spaces inside or at the end of pieces, and SentencePiece's default normalisation and ids."""
    import io

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(REAL_TEXT), model_writer=model, model_type=kind,
                                             vocab_size=450, minloglevel=2, hard_vocab_limit=False, **options)
    return SentencePieceVocabulary(model.getvalue())


MODELS = {
    **{f"{kind}{' with bytes' if fallback else ''}": lambda kind=kind, fallback=fallback: learned(kind, fallback)
       for kind, fallback in product(("unigram", "bpe"), (False, True))},
    **{f"{kind}, {name}": lambda kind=kind, options=options: whitespace_model(kind, **options)
       for kind in ("unigram", "bpe")
       for name, options in {"pieces of several words": {"split_by_whitespace": False},
                             "spaces at the end": {"treat_whitespace_as_suffix": True},
                             "another normalisation": {"normalization_rule_name": "nmt_nfkc_cf",
                                                       "add_dummy_prefix": False}}.items()}}


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("bpe")])
@hypothesis_settings(max_examples=30, deadline=None)
@given(texts=st.lists(SENTENCES, min_size=1, max_size=4))
def test_without_dropout_bpe_is_what_the_library_encodes(name: str, texts: list[str]) -> None:
    vocabulary = MODELS[name]()
    assert vocabulary.sample_batch(texts, Sampling(0.0), 3) == vocabulary.encode_batch(texts)
    ids, words = vocabulary.sample_with_words(texts, Sampling(0.0), 3)
    assert (ids, words) == vocabulary.encode_with_words(texts)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("unigram")])
@hypothesis_settings(max_examples=30, deadline=None)
@given(texts=st.lists(SENTENCES, min_size=1, max_size=4))
def test_at_an_alpha_without_end_unigram_is_what_the_library_encodes(name: str, texts: list[str]) -> None:
    vocabulary = MODELS[name]()
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.files()[".model"])
    model, sampler = PieceModel(vocabulary.files()[".model"]), vocabulary._sampler(Sampling(1e30))
    texts = [clean(text) for text in texts]
    for text, ids, pieces in zip(texts, sampler.ids(texts, 3, 0), sampler.piece_names(texts, 3, 0), strict=True):
        encoded = processor.encode(text)
        if ids != encoded:  # only where another segmentation is as probable, to the precision of the library's sums
            theirs = model.score(encoded, processor.encode(text, out_type=str))
            assert model.score(ids, pieces) == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("name", list(MODELS))
@hypothesis_settings(max_examples=30, deadline=None)
@given(text=SENTENCES, seed=st.integers(0, 2**64), alpha=st.sampled_from([0.0, 0.1, 0.6, 1.0]))
def test_any_draw_is_the_text_that_the_library_reads_back(name: str, text: str, seed: int, alpha: float) -> None:
    vocabulary = MODELS[name]()
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.files()[".model"])
    sampler = vocabulary._sampler(Sampling(alpha))
    pieces = sampler.piece_names([clean(text)], seed, 0)[0]
    assert processor.decode(pieces) == processor.decode(processor.encode(clean(text), out_type=str))
    assert [processor.piece_to_id(piece) for piece in pieces] == sampler.ids([clean(text)], seed, 0)[0]


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0, 2.5])
@pytest.mark.parametrize("word", ["\u2581rechten", "\u2581Würde", "日menschen", "\u2581geboXen"])
def test_a_unigram_lattice_has_the_probabilities_of_all_segmentations(word: str, alpha: float) -> None:
    model = PieceModel(learned("unigram", False).files()[".model"])
    scores = {}
    for pieces in segmentations(word):
        piece_scores = [model.scores.get(piece, model.unknown_score if len(piece) == 1 else None) for piece in pieces]
        if None not in piece_scores:
            scores[tuple(pieces)] = alpha * sum(piece_scores)
    total = math.log(sum(math.exp(score) for score in scores.values()))
    lattice = UnigramSampler(model, alpha).lattice(word)
    assert len(scores) > 1
    for pieces, score in scores.items():
        log_probability, end = 0.0, len(word)
        for piece in reversed(pieces):
            bounds, choices = lattice[end]
            index = choices.index(piece)
            log_probability += math.log(([*bounds, 1.0])[index] - ([0.0, *bounds])[index])
            end -= len(piece)
        assert log_probability == pytest.approx(score - total, abs=1e-9)


def drawn(sampler: BpeDropout | UnigramSampler, word: str, draws: int) -> Counter[tuple[str, ...]]:
    numbers = uniform_numbers(11, 0, [len(word)] * draws)
    return Counter(tuple(sampler.draw(word, iter(uniform))) for uniform in numbers)


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("word", ["\u2581rechten", "\u2581droits", "aaaaaa"])
def test_bpe_dropout_is_distributed_as_the_paper_has_it(word: str, dropout: float) -> None:
    model = PieceModel(learned("bpe", False).files()[".model"])
    model.scores.update({"aa": -1.0, "aaa": -2.0})
    shares = dropout_probabilities(word, rank_by(model.scores), dropout)
    assert sum(shares.values()) == pytest.approx(1)
    assert chi_square(drawn(BpeDropout(model, dropout), word, 20_000), shares) < 4


def test_unigram_draws_are_distributed_as_the_library_draws_them() -> None:
    vocabulary, text, draws = learned("unigram", False), "Würde begeXYen", 20_000
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.files()[".model"])
    ours = Counter(map(tuple, vocabulary.sample_batch([text] * draws, Sampling(0.3), 1)))
    theirs = Counter(map(tuple, processor.encode([text] * draws, out_type=int, enable_sampling=True, alpha=0.3,
                                                 nbest_size=-1)))
    often = [key for key in ours | theirs if ours[key] + theirs[key] >= 40]
    value = sum((ours[key] - theirs[key]) ** 2 / (ours[key] + theirs[key]) for key in often)
    # The library's samples differ in each process; eight standard deviations never occur by chance.
    assert len(often) > 30 and (value - len(often)) / math.sqrt(2 * len(often)) < 8


def test_among_the_best_each_is_drawn_by_its_probability() -> None:
    vocabulary, text, draws = learned("unigram", False), "equal rights", 3000
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.files()[".model"])
    model = PieceModel(vocabulary.files()[".model"])
    segmentations = processor.nbest_encode(text, nbest_size=3, out_type=str)
    weights = [math.exp(0.5 * sum(model.scores[piece] for piece in pieces)) for pieces in segmentations]
    shares = {tuple(map(processor.piece_to_id, pieces)): weight / sum(weights)
              for pieces, weight in zip(segmentations, weights, strict=True)}
    assert len(shares) == 3
    counts = Counter(map(tuple, vocabulary.sample_batch([text] * draws, Sampling(0.5, 3), 1)))
    assert chi_square(counts, shares) < 4


def test_numbers_are_uniform_and_stay_what_they_are() -> None:
    assert uniform_numbers(5, 3, [2, 0, 1]) == GOLDEN
    far = uniform_numbers(5, 0, [0] * 3 + [200])[3]
    assert far[:2] == GOLDEN[0] and uniform_numbers(5, 3, [200])[0] == far
    values = np.array(uniform_numbers(1, 0, [100] * 1000))
    assert abs(values.mean() - 0.5) < 0.005 and abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.1
    assert 0 <= values.min() and values.max() < 1


GOLDEN = [[0.3823466926809722, 0.8991944708957462], [], [0.8741045707768256]]


def test_a_model_of_words_is_refused_in_a_sentence() -> None:
    with pytest.raises(SettingsError, match="words or characters. Set it to false"):
        whitespace_model("char").sample_batch(["a"], Sampling(), 1)


def test_a_long_text_without_spaces_is_drawn_in_time_that_grows_with_it() -> None:
    chance = random.Random(1)
    text = "".join(chance.choices("人生而自由在尊严和权利上一律平等", k=3000))
    for kind in ("unigram", "bpe"):
        vocabulary = learned(kind, False)
        assert vocabulary.decode(vocabulary.sample_batch([text], Sampling(0.1), 1)[0]) == text
