"""Extend a vocabulary by the subwords of another text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.vocabulary.base import MAX_SIZE, MIN_SIZE, Vocabulary
from towernmt.dataflow.vocabulary.character_coverage import automatic_coverage
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.sentencepiece_model import is_unigram
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary, learn_words

_TWO_DIGITS = re.compile("[0-9]{2}")


def extended(vocabulary: Vocabulary, sentences: Iterable[str], size: int) -> Vocabulary:
    """Return a vocabulary with more subwords: those of the old vocabulary keep their ids, and those of a text follow.

    A vocabulary of `size` ids is learned from the text, and its new subwords are added. In a unigram model, they have
    their log probabilities in the text, so sentences are divided into them where that is more probable. If the old
    model splits numbers into digits, no new subword has two digits.

    Args:
        vocabulary: the vocabulary, of SentencePiece or of plain words.
        sentences: text of any length.
        size: number of ids of the vocabulary that is learned from the text.

    Raises:
        SettingsError: the vocabulary is of another kind, or `size` is out of range.
        DataError: the text is empty, or has too many characters for `size`.
    """
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise SettingsError(f"--vocab-size {size} must be at least {MIN_SIZE} and at most {MAX_SIZE}.")
    if isinstance(vocabulary, WordVocabulary):
        words = (each.id_to_piece(id) for each in (vocabulary, learn_words(map(clean, sentences), size))
                 for id in range(each.size))
        return WordVocabulary([*dict.fromkeys(words)])
    if isinstance(vocabulary, SentencePieceVocabulary):
        return _extended_sentence_piece(vocabulary, sentences, size)
    raise SettingsError(f"A vocabulary of kind {vocabulary.kind} cannot be extended: only those of SentencePiece and "
                        "of plain words can.")


def _extended_sentence_piece(vocabulary: SentencePieceVocabulary, sentences: Iterable[str], size: int) -> Vocabulary:
    from sentencepiece import sentencepiece_model_pb2

    content = vocabulary.files()[".model"]
    kind = "unigram" if is_unigram(content) else "bpe"
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    types = sentencepiece_model_pb2.ModelProto.SentencePiece
    # The options of another program's model may be wrong, but its subwords show whether it splits numbers.
    split_digits = model.trainer_spec.split_digits and not any(
        entry.type == types.NORMAL and _TWO_DIGITS.search(entry.piece) for entry in model.pieces)
    text = [vocabulary.normalized(sentence) for sentence in sentences]
    learned = learn_sentence_piece(text, kind, size, automatic_coverage(text, size), split_digits=split_digits)
    old = {entry.piece: entry for entry in model.pieces}
    lowest = min(entry.score for entry in model.pieces)
    for entry in sentencepiece_model_pb2.ModelProto.FromString(learned.files()[".model"]).pieces:
        if entry.type != types.NORMAL:
            continue
        # Scores of BPE are priorities: the new merges follow the old ones.
        score = entry.score if kind == "unigram" else lowest + entry.score
        if entry.piece not in old:
            model.pieces.add(piece=entry.piece, score=score)
        elif old[entry.piece].type == types.UNUSED:     # a subword of the other language in a shared table
            old[entry.piece].type, old[entry.piece].score = types.NORMAL, score
    model.trainer_spec.vocab_size = len(model.pieces)
    model.DiscardUnknownFields()    # some of them contain tests of the old model
    return SentencePieceVocabulary(model.SerializeToString())
