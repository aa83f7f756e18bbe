"""Vocabularies with the subwords of another text: old ids stay, and the text has fewer tokens."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Sequence

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, UNK
from towernmt.dataflow.vocabulary.bpe_codes import BpeCodesVocabulary
from towernmt.dataflow.vocabulary.extension import extended
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.dataflow.vocabulary.vocabulary_files import same_pieces
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary


def text_of(words: Sequence[str], lines: int = 400) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(words, k=6)) for _ in range(lines)]


OLD = text_of(["haus", "baum", "haustür", "garten", "baumhaus", "der", "die", "das"])
NEW = text_of(["gerät", "geräte", "{entity}", "haus", "einrichten", "the_state"])


def learned_with_case_folding(lines: Sequence[str], kind: str = "unigram") -> SentencePieceVocabulary:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=60, model_type=kind,
        normalization_rule_name="nmt_nfkc_cf", hard_vocab_limit=False, minloglevel=2)
    return SentencePieceVocabulary(model.getvalue())


def of_shared_table(vocabulary: SentencePieceVocabulary, subwords: Sequence[str]) -> SentencePieceVocabulary:
    """Return the model with all subwords of a table, those of the other language unused, as imported models have it."""
    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.files()[".model"])
    types = sentencepiece_model_pb2.ModelProto.SentencePiece
    own = {piece.piece: piece for piece in model.pieces if piece.type == types.NORMAL}
    specials = [piece for piece in model.pieces if piece.type != types.NORMAL]
    del model.pieces[:]
    model.pieces.extend(specials)
    model.pieces.extend(own.get(subword) or types(piece=subword, score=-1e9, type=types.UNUSED) for subword in subwords)
    return SentencePieceVocabulary(model.SerializeToString())


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_models_of_one_table_keep_the_same_subwords_though_they_normalise_differently(kind: str) -> None:
    folding = learned_with_case_folding(OLD, kind)
    exact = learn_sentence_piece(text_of(["House", "Garden", "TREE", "the"]), kind, 60)
    subwords = [*{piece: None for each in (folding, exact) for id in range(4, each.size)
                  if (piece := each.id_to_piece(id)) not in SPECIAL_PIECES}]
    old = [of_shared_table(each, subwords) for each in (folding, exact)]
    assert same_pieces(*old)
    new = extended(old, text_of(["Gerät", "GERÄTE", "State", "Entity"]), 100)
    assert same_pieces(*new) and new[0].size > old[0].size
    used = [{piece for id in range(old[0].size, each.size) if not each.is_unused(id)
             for piece in [each.id_to_piece(id)]} for each in new]
    assert used[0] and all(piece == piece.lower() for piece in used[0])
    assert any("G" in piece for piece in used[1])
    assert new[0].decode(new[0].encode("Gerät GERÄTE")) == "gerät geräte"
    assert new[1].decode(new[1].encode("Gerät GERÄTE")) == "Gerät GERÄTE"


def test_new_merges_follow_the_old_ones_in_their_order_though_the_model_has_unused_subwords() -> None:
    lines = text_of(["gerät", "geräte", "einrichten"])
    old = learn_sentence_piece(OLD, "bpe", 60)
    plain = [old.id_to_piece(id) for id in range(4, old.size)]
    [expected] = extended([old], lines, 100)
    [new] = extended([of_shared_table(old, [*plain, "▁garden"])], lines, 100)
    assert [new.id_to_piece(id) for id in new.encode("geräten")] == [
        expected.id_to_piece(id) for id in expected.encode("geräten")] == ["▁gerä", "ten"]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_old_subwords_keep_their_ids_and_a_new_text_has_fewer_tokens(kind: str) -> None:
    old = learn_sentence_piece(OLD, kind, 60)
    [new] = extended([old], NEW, 100)
    assert new.size > old.size
    assert [new.id_to_piece(id) for id in range(old.size)] == [old.id_to_piece(id) for id in range(old.size)]
    pieces = [new.id_to_piece(id) for id in range(new.size)]
    assert len({*pieces}) == new.size
    assert UNK in {id for line in old.encode_batch(NEW) for id in line}
    before, after = (sum(map(len, vocabulary.encode_batch(NEW))) for vocabulary in (old, new))
    assert after < 0.8 * before
    assert [new.decode(ids) for ids in new.encode_batch(NEW)] == NEW
    assert [new.decode(ids) for ids in new.encode_batch(OLD)] == OLD
    assert sum(map(len, new.encode_batch(OLD))) <= 1.1 * sum(map(len, old.encode_batch(OLD)))


def test_the_text_is_normalised_as_the_old_model_normalises_it() -> None:
    old = learned_with_case_folding(OLD)     # with SentencePiece's ids: UNK 0, BOS 1, EOS 2, no PAD
    [new] = extended([old], [line.upper() for line in NEW], 100)
    added = [new.id_to_piece(id) for id in range(old.size, new.size)]
    assert added and all(piece == piece.lower() for piece in added)
    assert [new.id_to_piece(id) for id in range(old.size)] == [old.id_to_piece(id) for id in range(old.size)]
    assert new.decode(new.encode(NEW[0].upper())) == NEW[0]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("split_digits", [True, False])
def test_new_subwords_have_several_digits_only_if_the_old_model_joins_digits(kind: str, split_digits: bool) -> None:
    lines = text_of(["jahr", "jahre", "1990", "1991", "1999", "2019"])
    old = learn_sentence_piece(lines, kind, 30, split_digits=split_digits)
    [new] = extended([old], lines, 120)
    numbers = [piece for id in range(new.size) if re.search(r"\d\d", piece := new.id_to_piece(id))]
    assert bool(numbers) != split_digits


def test_a_model_that_claims_to_split_digits_but_has_numbers_gets_further_numbers() -> None:
    lines = text_of(["jahr", "1990", "1991"])
    model = sentencepiece_model_pb2.ModelProto.FromString(learn_sentence_piece(lines, "bpe", 30).files()[".model"])
    model.trainer_spec.split_digits = True
    old = SentencePieceVocabulary(model.SerializeToString())
    [new] = extended([old], text_of(["jahr", "2019", "2018"]), 60)
    assert any("201" in new.id_to_piece(id) for id in range(old.size, new.size))


def test_rare_characters_fill_at_most_half_of_the_new_subwords() -> None:
    old = learn_sentence_piece(OLD, "unigram", 60)
    rare = [chr(ord("一") + number) for number in range(200)]
    [new] = extended([old], [*NEW * 20, "".join(rare)], 100)
    assert "{" in "".join(map(new.id_to_piece, range(old.size, new.size)))
    assert sum(new.piece_to_id(character) != UNK for character in rare) < 50


def test_words_are_added_by_their_frequency() -> None:
    old = WordVocabulary([*SPECIAL_PIECES, "haus", "baum"])
    [new] = extended([old], ["haus tür", "tür neu", "tür"], 7)
    assert [new.id_to_piece(id) for id in range(4, new.size)] == ["haus", "baum", "tür", "neu"]


def test_what_cannot_be_extended_is_refused() -> None:
    pytest.importorskip("subword_nmt")
    codes = BpeCodesVocabulary(b"#version: 0.2\na b</w>\n", [*SPECIAL_PIECES, "ab"])
    with pytest.raises(SettingsError, match="kind bpe-codes cannot be extended"):
        extended([codes], NEW, 100)
    old = learn_sentence_piece(OLD, "unigram", 60)
    with pytest.raises(SettingsError, match="--vocab-size 4 must be at least 5"):
        extended([old], NEW, 4)
    for vocabulary in (old, WordVocabulary([*SPECIAL_PIECES, "haus"])):
        with pytest.raises(DataError, match="every line is blank"):
            extended([vocabulary], ["", " "], 100)
