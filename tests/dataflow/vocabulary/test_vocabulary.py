"""Vocabularies: round trips, special ids, files, and edge cases."""

from __future__ import annotations

import io
import random
import re
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from towernmt.core.errors import DataError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK, Sampling, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import BpeCodesVocabulary, learn_bpe_codes
from towernmt.dataflow.vocabulary.sentencepiece_learning import LONGEST_SENTENCE, _learnable, learn_sentence_piece
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies, load_vocabulary, save_vocabularies
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary, learn_words


def _sentences(count: int = 400, seed: int = 5) -> list[str]:
    """Return random sentences of a made-up language with a skewed frequency of words."""
    draw = random.Random(seed)
    words = ["".join(draw.choice("abcdeäöüßé") for _ in range(draw.randint(1, 7))) for _ in range(150)]
    return [" ".join(words[min(int(draw.expovariate(0.05)), 149)] for _ in range(draw.randint(1, 9)))
            for _ in range(count)]


SENTENCES = _sentences()


def _learn(kind: str, size: int = 120) -> Vocabulary:
    if kind == "word":
        return learn_words(SENTENCES, 1000)
    if kind == "bpe-codes":
        return learn_bpe_codes(SENTENCES, 200)
    return learn_sentence_piece(SENTENCES, kind, size)


KINDS = ("unigram", "bpe", "bpe-codes", "word")
VOCABULARIES = {kind: _learn(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_the_corpus_survives_encoding_and_decoding(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    for sentence, ids in zip(SENTENCES, vocabulary.encode_batch(SENTENCES), strict=True):
        assert vocabulary.decode(ids) == sentence
        assert not {PAD, BOS, EOS, UNK} & set(ids)
        assert max(ids) < vocabulary.size == len(vocabulary)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(codec=None, exclude_categories=())))
def test_any_text_at_all_is_encoded_and_decoded(kind: str, text: str) -> None:
    vocabulary = VOCABULARIES[kind]
    ids = vocabulary.encode(text)
    assert all(UNK <= id < vocabulary.size for id in ids)
    assert vocabulary.decode(ids) == " ".join(vocabulary.decode(ids).split())
    assert vocabulary.encode_batch([text, text]) == [ids, ids]


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_characters_become_unk_and_white_space_becomes_nothing(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    assert UNK in vocabulary.encode("漢")
    assert vocabulary.encode(" \t\u2003\n") == vocabulary.encode("") == []


@pytest.mark.parametrize("kind", KINDS)
def test_both_unicode_forms_of_a_letter_are_encoded_alike(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    for sentence in SENTENCES[:50]:
        assert vocabulary.encode(unicodedata.normalize("NFD", sentence)) == vocabulary.encode(sentence)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_stops_at_eos_and_skips_pad_and_bos(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    ids = vocabulary.encode(SENTENCES[0])
    padded = [BOS, *ids[:1], PAD, *ids[1:], EOS, *ids, PAD]
    assert vocabulary.decode(padded) == SENTENCES[0]
    assert vocabulary.decode([EOS]) == vocabulary.decode([]) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_outside_the_vocabulary_is_refused(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    for id in (-1, vocabulary.size):
        with pytest.raises(DataError, match=f"Id {id} is not in this vocabulary"):
            vocabulary.decode([id])


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_ids_are_each_others_inverse(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    pieces = [vocabulary.id_to_piece(id) for id in range(vocabulary.size)]
    assert tuple(pieces[:4]) == SPECIAL_PIECES
    assert [vocabulary.piece_to_id(piece) for piece in pieces] == list(range(vocabulary.size))
    assert vocabulary.piece_to_id("no such piece") == UNK


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_vocabulary_is_loaded_the_same(kind: str, tmp_path: Path) -> None:
    vocabulary = VOCABULARIES[kind]
    paths = vocabulary.save(tmp_path / "deep" / "de.v2")
    for path in (paths[0], tmp_path / "deep" / "de.v2"):
        loaded = load_vocabulary(path)
        assert type(loaded) is type(vocabulary)
        assert dict(loaded.files()) == dict(vocabulary.files())
        assert loaded.encode_batch(SENTENCES) == vocabulary.encode_batch(SENTENCES)


def test_vocabularies_of_a_directory_know_whether_they_are_shared(tmp_path: Path) -> None:
    unigram, word, codes = (VOCABULARIES[kind] for kind in ("unigram", "word", "bpe-codes"))
    save_vocabularies(codes, codes, tmp_path)
    source, target, shared = load_vocabularies(tmp_path)
    assert shared and source is target
    save_vocabularies(unigram, word, tmp_path)
    source, target, shared = load_vocabularies(tmp_path)
    assert (source.kind, target.kind, shared) == ("sentencepiece", "word", False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.model", "target.words"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_unigram_model_has_probabilities_also_where_words_have_factors(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    assert vocabulary.has_probabilities == (kind == "unigram")
    factor = WordVocabulary([*SPECIAL_PIECES, "NOUN"])
    assert FactoredVocabulary(vocabulary, [factor]).has_probabilities == (kind == "unigram")


@pytest.mark.parametrize("kind", KINDS)
def test_learning_again_gives_the_same_files(kind: str) -> None:
    assert dict(_learn(kind).files()) == dict(VOCABULARIES[kind].files())


@pytest.mark.parametrize("kind", ("unigram", "bpe"))
def test_a_size_that_the_text_cannot_fill_gives_a_smaller_vocabulary(kind: str) -> None:
    vocabulary = learn_sentence_piece(SENTENCES, kind, 50_000)
    assert 20 < vocabulary.size < 5_000
    assert vocabulary.decode(vocabulary.encode(SENTENCES[3])) == SENTENCES[3]


@pytest.mark.parametrize("kind", ("unigram", "bpe", "bpe-codes"))
def test_a_size_below_the_number_of_characters_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match="is too small: .* characters.*--vocab-size"):
        learn_bpe_codes(SENTENCES, 12) if kind == "bpe-codes" else learn_sentence_piece(SENTENCES, kind, 12)


@pytest.mark.parametrize("learn", (
    lambda: learn_words([], 10),
    lambda: learn_bpe_codes([], 10),
    lambda: learn_sentence_piece([], "unigram", 10),
))
def test_no_text_gives_no_vocabulary(learn: object) -> None:
    with pytest.raises(DataError, match="text to learn a vocabulary from is empty"):
        learn()  # type: ignore[operator]


def test_byte_fallback_leaves_nothing_unknown() -> None:
    vocabulary = learn_sentence_piece(SENTENCES, "unigram", 400, byte_fallback=True)
    ids = vocabulary.encode("漢字 äb")
    assert UNK not in ids
    assert vocabulary.decode(ids) == "漢字 äb"


NUMBERS = [f"{text} {number}{unit}" for text, number, unit in zip(
    SENTENCES, [str(11 * index % 70 * 11) for index in range(400)], ["", "kg", "%", "th"] * 100, strict=True)]
NUMBERS += [f"x{number} \u0663\u0663 \u0967\u0968\u0969kg" for number in (20, 2020)] * 50


def _learn_numbers(kind: str, split_digits: bool) -> Vocabulary:
    if kind == "bpe-codes":
        return learn_bpe_codes(NUMBERS, 260, split_digits=split_digits)
    return learn_sentence_piece(NUMBERS, kind, 160, split_digits=split_digits)


DIGITS = {kind: _learn_numbers(kind, True) for kind in ("unigram", "bpe", "bpe-codes")}


def _pieces_with_digits(vocabulary: Vocabulary) -> list[str]:
    pieces = [vocabulary.id_to_piece(id).replace("\u2581", "").replace("@@", "") for id in range(vocabulary.size)]
    return [piece for piece in pieces if re.search(r"\d", piece)]


@pytest.mark.parametrize("kind", DIGITS)
def test_split_digits_are_subwords_of_their_own(kind: str) -> None:
    assert set(_pieces_with_digits(DIGITS[kind])) == {*"0123456789", *"\u0663\u0967\u0968\u0969"}
    assert max(map(len, _pieces_with_digits(_learn_numbers(kind, False)))) > 1


@pytest.mark.parametrize("kind", DIGITS)
@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.tuples(st.sampled_from(["", "a", "de"]), st.text("0123456789", min_size=1, max_size=9),
                                  st.sampled_from(["", "a", "kg"])).map("".join), min_size=1, max_size=5),
       seed=st.integers(0, 1 << 30))
def test_numbers_survive_encoding_digit_by_digit(kind: str, numbers: list[str], seed: int) -> None:
    vocabulary, text = DIGITS[kind], " ".join(numbers)
    for ids in (vocabulary.encode(text), vocabulary.sample_batch([text], Sampling(alpha=0.3), seed)[0]):
        assert vocabulary.decode(ids) == text
        pieces = [vocabulary.id_to_piece(id) for id in ids]
        assert sum(bool(re.search(r"\d", piece)) for piece in pieces) == sum(map(str.isdigit, text))


def test_a_sentence_piece_model_with_other_special_ids_is_moved_to_ours() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # SentencePiece's own ids: UNK 0, BOS 1, EOS 2, no PAD
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=100, hard_vocab_limit=False,
        user_defined_symbols=["@X@"], minloglevel=2)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = SentencePieceVocabulary(model.getvalue())
    assert ours.size == theirs.get_piece_size() + 1  # PAD is new
    for sentence in SENTENCES[:50]:
        pieces = [ours.id_to_piece(id) for id in ours.encode(sentence)]
        assert pieces == theirs.encode(sentence, out_type=str)
        assert ours.decode(ours.encode(sentence)) == sentence
    assert ours.encode("漢")[-1] == UNK
    assert ours.piece_to_id("@X@") > UNK


@pytest.mark.parametrize(("sentences", "split_digits"), [
    (["我 爱 你", "你 好"], False), (["10 20", "2 2024"], True), (["ab"], False)])
def test_bpe_codes_of_text_without_anything_to_merge_have_its_characters(sentences: list[str], split_digits: bool
                                                                        ) -> None:
    vocabulary = learn_bpe_codes(sentences, 40, split_digits=split_digits)
    ids = vocabulary.encode_batch(sentences)
    assert [vocabulary.decode(line) for line in ids] == sentences and UNK not in {id for line in ids for id in line}
    assert [len(line) for line in ids] == [len(sentence.replace(" ", "")) for sentence in sentences]
    content = vocabulary.files()
    assert BpeCodesVocabulary.parse(content[".codes"], content[".pieces"]).encode_batch(sentences) == ids


def test_bpe_codes_agree_with_subword_nmt() -> None:
    from subword_nmt.apply_bpe import BPE

    vocabulary = VOCABULARIES["bpe-codes"]
    assert isinstance(vocabulary, BpeCodesVocabulary)
    reference = BPE(io.StringIO(vocabulary.files()[".codes"].decode()))
    for sentence in SENTENCES:
        pieces = [vocabulary.id_to_piece(id) for id in vocabulary.encode(sentence)]
        assert " ".join(pieces) == reference.process_line(sentence)
    assert vocabulary.size <= 200


def test_words_have_ids_by_frequency_and_then_by_alphabet() -> None:
    vocabulary = learn_words(["b a c", "c a d", "c <unk>"], 7)
    assert [vocabulary.id_to_piece(id) for id in range(vocabulary.size)] == [*SPECIAL_PIECES, "c", "a", "b"]
    assert vocabulary.encode("c d a") == [4, UNK, 5]
    counts = Counter(word for sentence in SENTENCES for word in sentence.split())
    big = VOCABULARIES["word"]
    ordered = [counts[big.id_to_piece(id)] for id in range(4, big.size)]
    assert ordered == sorted(ordered, reverse=True)


def test_a_word_list_of_another_make_gets_the_special_pieces(tmp_path: Path) -> None:
    path = tmp_path / "list.words"
    path.write_bytes("\ufeffHaus\r\nBaum\r\n</s>\r\n".encode())
    assert load_vocabulary(path).encode("Baum Haus </s>") == [5, 4, UNK]


@pytest.mark.parametrize(("name", "content", "message"), (
    ("a.words", b"one\ntwo\none\n", "a.words line 3: 'one' is already in line 1"),
    ("a.words", b"one\n\ntwo\n", "a.words line 2: the line is empty"),
    ("a.words", b"", "a.words line 1: the line is empty"),
    ("a.words", b"<pad>\n<s>\n</s>\n<unk>\none\n\n", "a.words line 6: the line is empty"),
    ("a.words", b"\xff\xfe", "not UTF-8"),
    ("a.model", b"no protocol buffer", "not a SentencePiece model"),
    ("a.model", b"", "not a SentencePiece model"),
    ("a.codes", b"#version: 0.2\na b c d\n", "not a file of subword-nmt codes"),
    ("a.txt", b"one\n", "no vocabulary found"),
))
def test_a_file_that_is_no_vocabulary_is_refused_by_name(name: str, content: bytes, message: str,
                                                         tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "a.pieces").write_bytes(b"a\n")
    with pytest.raises(DataError, match=message) as caught:
        load_vocabulary(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_missing_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("none.model", "none.codes", "none"):
        with pytest.raises(DataError, match=name):
            load_vocabulary(tmp_path / name)


def test_bpe_codes_without_the_package_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("subword_nmt", "subword_nmt.apply_bpe", "subword_nmt.learn_bpe"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"pip install 'towernmt\[bpe\]'"):
        learn_bpe_codes(SENTENCES, 200)


def test_any_white_space_separates_words() -> None:
    assert WordVocabulary([*SPECIAL_PIECES, "a", "b"]).encode("a\u2028b\u00a0a\x0bb") == [4, 5, 4, 5]


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_cleaning_is_idempotent_and_leaves_single_spaces(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert not any(c.isspace() and c != " " for c in cleaned) and "  " not in cleaned
    assert cleaned == cleaned.strip()
    cleaned.encode("utf-8")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_long_lines_are_learned_from_as_their_sentences_are(kind: str) -> None:
    documents = [" ".join(_sentences(3000, seed)) for seed in (5, 6)]
    assert all(len(document.encode()) > 10 * LONGEST_SENTENCE for document in documents)
    learned = learn_sentence_piece(documents, kind, 120)
    assert learned.size == 120
    ids = [index for document in documents for index in learned.encode(document)]
    assert UNK not in ids and len(ids) < sum(map(len, documents))


@given(parts=st.lists(st.sampled_from(["a", " ", "ü", "e\u0301", "\u0301" * 9, "字" * 50, "x" * 60, "\U0001f600 "]),
                      min_size=1, max_size=12), repeat=st.integers(1, 90))
def test_the_parts_of_a_long_line_are_its_text_within_the_limit(parts: list[str], repeat: int) -> None:
    text = "".join(parts) * repeat
    chunks = list(_learnable(text))
    assert "".join(chunks) == text
    assert all(0 < len(part.encode()) <= LONGEST_SENTENCE for part in chunks) or text == ""
    if len(text.encode()) > LONGEST_SENTENCE and " " not in text and "\u0301\u0301" not in text:
        assert not any(unicodedata.combining(part[0]) for part in chunks[1:])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("character", ["\u2585", "\u2581", "\u2047", "\ufffd", "\ufeff", "\u200b", "<unk>", "<s>"])
def test_lines_with_any_character_are_learned_from(kind: str, character: str) -> None:
    lines = ["the cat sat on the mat", "a dog ran in the park"] * 50 + [f"zebra {character} quiz jumpw"] * 50
    assert UNK not in learn_sentence_piece(lines, kind, 60).encode("zebra quiz jumpw")


def test_a_line_of_megabytes_is_learnable_in_linear_time() -> None:
    assert len(list(_learnable("x" * (1 << 23)))) > 2000
