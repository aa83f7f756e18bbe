"""Source factors: their form in text, the words of subwords, and the vocabulary that joins both."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, UNK, Sampling, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import learn_bpe_codes
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary, FactorError, split_factors
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies, save_vocabularies
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary, learn_words

KINDS = ("unigram", "bpe", "bpe-codes", "word")
LETTERS = "abäcd日"
TEXT = ["abc abc dab äb", "dd 日abc c ab", "ab äc bad cab", "cab 日 dab abab", "a b c d ä"] * 4

learned_words = st.text(LETTERS, min_size=1, max_size=6)
any_words = st.text(LETTERS + "zß🙂.|", min_size=1, max_size=6)
marked_words = st.text(LETTERS + "z🙂▁", min_size=1, max_size=6)


def learn(kind: str) -> Vocabulary:
    if kind == "word":
        return learn_words(TEXT, 100)
    if kind == "bpe-codes":
        return learn_bpe_codes(TEXT, 60)
    return learn_sentence_piece(TEXT, kind, 24)


VOCABULARIES = {kind: learn(kind) for kind in KINDS}


def other_model(**options: object) -> SentencePieceVocabulary:
    """Train a SentencePiece model with other options than those of towernmt."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ab cd ab cd ab cd", "cd ab ef", "ab cd ef ab cd"] * 30), model_writer=model,
        vocab_size=22, hard_vocab_limit=False, minloglevel=2, **options)
    return SentencePieceVocabulary(model.getvalue())


@given(words=st.lists(st.tuples(any_words, learned_words, learned_words), max_size=6))
def test_words_may_hold_the_separator_and_factors_are_the_last_fields(words: list[tuple[str, str, str]]) -> None:
    texts, factors = split_factors(" ".join("|".join(word) for word in words), 2)
    assert texts == [word for word, _, _ in words]
    assert factors == [[word[k] for word in words] for k in (1, 2)]


@pytest.mark.parametrize("word", ["Haus", "Haus|", "|N|x", "Haus|N", "Haus||x", "||"])
def test_a_word_without_its_factors_is_refused_with_its_place(word: str) -> None:
    with pytest.raises(FactorError) as error:
        split_factors(f"das|D|das {word}", 2, index=4)
    assert error.value.index == 4
    assert str(error.value).startswith(f"line 5: '{word}' does not have the form word|factor1|factor2")
    assert str(error.value.at("a.de", 7)).startswith(f"a.de line 7: '{word}'")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(words=st.lists(any_words, max_size=7))
def test_each_piece_is_of_the_word_that_it_is_cut_from(kind: str, words: list[str]) -> None:
    vocabulary = VOCABULARIES[kind]
    alone = [vocabulary.encode(word) for word in words]
    text = " ".join(words)
    assume(vocabulary.encode(text) == [id for ids in alone for id in ids])  # with equal scores, it may differ
    ids, word_indices = vocabulary.encode_with_words([text, text])
    assert ids == vocabulary.encode_batch([text, text])
    assert word_indices == [[word for word, ids in enumerate(alone) for _ in ids]] * 2


@pytest.mark.parametrize("kind", ("unigram", "bpe", "bpe-codes"))
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.lists(learned_words, min_size=1, max_size=5), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_the_pieces_of_a_word_drawn_at_random_spell_it(kind: str, texts: list[list[str]], seed: int) -> None:
    vocabulary = VOCABULARIES[kind]
    lines = [" ".join(words) for words in texts]
    ids, word_indices = vocabulary.sample_with_words(lines, Sampling(), seed)
    assert ids == vocabulary.sample_batch(lines, Sampling(), seed)
    for words, pieces, indices in zip(texts, ids, word_indices, strict=True):
        assert sorted(set(indices)) == list(range(len(words)))
        for number, word in enumerate(words):
            word_ids = [id for id, index in zip(pieces, indices, strict=True) if index == number]
            assert UNK in word_ids or vocabulary.decode(word_ids) == word


@pytest.mark.parametrize("kind", ("unigram", "bpe"))
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.lists(marked_words, max_size=6), max_size=4), seed=st.integers(0, 9))
def test_word_indices_are_valid_and_ascending_for_any_text(kind: str, texts: list[list[str]], seed: int) -> None:
    vocabulary = VOCABULARIES[kind]
    lines = [" ".join(words) for words in texts]
    for ids, word_indices in (vocabulary.encode_with_words(lines),
                              vocabulary.sample_with_words(lines, Sampling(), seed)):
        for line, pieces, indices in zip(lines, ids, word_indices, strict=True):
            assert len(pieces) == len(indices)
            assert indices == sorted(indices)
            assert all(0 <= index < len(line.split()) for index in indices)


def test_a_piece_of_several_words_is_of_the_first() -> None:
    vocabulary = other_model(split_by_whitespace=False)
    (ids,), (words,) = vocabulary.encode_with_words(["ab cd ab cd ef"])
    pieces = [vocabulary.id_to_piece(id) for id in ids]
    assert max(piece.count("▁") for piece in pieces) > 1     # otherwise the test would show nothing
    starts = [sum(piece.count("▁") for piece in pieces[:index]) for index in range(len(pieces))]
    assert words == starts


def test_models_that_mark_spaces_after_words_or_normalise_are_supported() -> None:
    behind = other_model(treat_whitespace_as_suffix=True)
    (ids,), (words,) = behind.encode_with_words(["ab ef cd"])
    spelt = ["".join(behind.id_to_piece(id) for id, word in zip(ids, words, strict=True) if word == number)
             for number in range(3)]
    assert [text.strip("▁") for text in spelt] == ["ab", "ef", "cd"]
    normalising = other_model(normalization_rule_name="nfkc")
    (ids,), (words,) = normalising.encode_with_words(["ab ㌀ ﬁﬁ cd"])    # one character becomes several
    assert (words[0], words[-1]) == (0, 3)
    assert words == sorted(words)


def factored() -> FactoredVocabulary:
    tags = WordVocabulary([*SPECIAL_PIECES, "N", "V"])
    return FactoredVocabulary(VOCABULARIES["word"], [tags, WordVocabulary([*SPECIAL_PIECES, "x"])])


def test_every_piece_has_the_factors_of_its_word_and_unknown_values_are_unknown() -> None:
    vocabulary = FactoredVocabulary(VOCABULARIES["bpe"], factored().factors)
    ids = vocabulary.encode("abc|N|x  dab|?|x")
    first, second = (VOCABULARIES["bpe"].encode(word) for word in ("abc", "dab"))
    assert ids == [(id, 4, 4) for id in first] + [(id, UNK, 4) for id in second]
    assert vocabulary.encode_batch(["", "c|N|x"]) == [[], [(id, 4, 4) for id in VOCABULARIES["bpe"].encode("c")]]
    assert vocabulary.decode(ids) == "abc dab"
    assert (vocabulary.streams, vocabulary.size) == (3, VOCABULARIES["bpe"].size)


def test_a_value_that_reads_like_a_special_piece_is_an_unknown_one() -> None:
    ids = factored().encode("abc|</s>|x abc|<pad>|<s>")
    assert [id[1:] for id in ids] == [(UNK, 4), (UNK, UNK)]


def test_sampling_keeps_the_factors_and_a_word_vocabulary_refuses_it() -> None:
    vocabulary = FactoredVocabulary(VOCABULARIES["unigram"], factored().factors[:1])
    (ids,) = vocabulary.sample_batch(["abc|N dab|V"], Sampling(), 5)
    plain, words = VOCABULARIES["unigram"].sample_with_words(["abc dab"], Sampling(), 5)
    assert ids == [(id, 4 + word) for id, word in zip(plain[0], words[0], strict=True)]
    with pytest.raises(SettingsError, match="only one segmentation"):
        factored().sample_batch([""], Sampling(), 5)


@pytest.mark.parametrize("shared", (False, True))
def test_factors_are_saved_next_to_the_vocabularies_and_old_ones_removed(shared: bool, tmp_path: Path) -> None:
    source, target = factored(), VOCABULARIES["word" if shared else "unigram"]
    (tmp_path / "source_factor_3.words").write_text("old\n")
    save_vocabularies(source, target, tmp_path)
    assert {path.name for path in tmp_path.glob("source_factor*")} == {
        "source_factor_1.words", "source_factor_2.words"}
    loaded_source, loaded_target, is_shared = load_vocabularies(tmp_path)
    assert isinstance(loaded_source, FactoredVocabulary)
    assert is_shared is shared and (loaded_source.words is loaded_target) is shared
    assert loaded_source.encode("abc|V|x") == source.encode("abc|V|x")
    save_vocabularies(target, target, tmp_path)
    assert not list(tmp_path.glob("source_factor*"))
    assert load_vocabularies(tmp_path)[0].streams == 1


def test_a_damaged_list_of_factors_is_refused_by_name(tmp_path: Path) -> None:
    save_vocabularies(factored(), VOCABULARIES["word"], tmp_path)
    (tmp_path / "source_factor_2.words").write_text("x\nx\n")
    with pytest.raises(DataError, match="source_factor_2.words line 2: 'x' is already in line 1"):
        load_vocabularies(tmp_path)
