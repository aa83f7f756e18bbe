"""Extend a vocabulary by the subwords of another text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.vocabulary.base import MAX_SIZE, MIN_SIZE, Vocabulary
from towernmt.dataflow.vocabulary.character_coverage import automatic_coverage
from towernmt.dataflow.vocabulary.sentencepiece_learning import learn_sentence_piece
from towernmt.dataflow.vocabulary.sentencepiece_model import is_unigram
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary, learn_words

_TWO_DIGITS = re.compile("[0-9]{2}")


def extended(vocabularies: Sequence[Vocabulary], sentences: Iterable[str], size: int) -> list[Vocabulary]:
    """Return vocabularies with more subwords: old subwords keep their ids, and those of a text follow.

    For each vocabulary, one of `size` ids is learned from the text as the old model normalises it, and its new subwords
    are added. In a unigram model, they have their log probabilities in the text, so sentences are divided into them
    where that is more probable. If the old model splits numbers into digits, no new subword has two digits.

    Vocabularies with the same subwords still have the same ones: each also gets the subwords that only another one has
    learned, but does not divide text into them.

    Args:
        vocabularies: vocabularies of SentencePiece, or of plain words.
        sentences: text of any length.
        size: number of ids of each vocabulary that is learned from the text.

    Raises:
        SettingsError: a vocabulary is of another kind, or `size` is out of range.
        DataError: the text is empty, or has too many characters for `size`.
    """
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise SettingsError(f"--vocab-size {size} must be at least {MIN_SIZE} and at most {MAX_SIZE}.")
    lines = list(sentences)
    models = [each for each in vocabularies if isinstance(each, SentencePieceVocabulary)]
    if len(models) == len(vocabularies):
        learned = [_learned_subwords(model, lines, size) for model in models]
        subwords = list(dict.fromkeys(subword for scores in learned for subword in scores))
        return [_with_subwords(model, scores, subwords) for model, scores in zip(models, learned, strict=True)]
    return [_with_words(vocabulary, lines, size) for vocabulary in vocabularies]


def _with_words(vocabulary: Vocabulary, sentences: Sequence[str], size: int) -> Vocabulary:
    if not isinstance(vocabulary, WordVocabulary):
        raise SettingsError(f"A vocabulary of kind {vocabulary.kind} cannot be extended: only those of SentencePiece "
                            "and of plain words can.")
    words = (each.id_to_piece(id) for each in (vocabulary, learn_words(map(clean, sentences), size))
             for id in range(each.size))
    return WordVocabulary([*dict.fromkeys(words)])


def _learned_subwords(vocabulary: SentencePieceVocabulary, sentences: Sequence[str], size: int) -> dict[str, float]:
    """Return the subwords of a text, in the order in which they are learned, with their scores in the old model."""
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
    # Scores of BPE are priorities: the new merges follow the old ones.
    first = 0.0 if kind == "unigram" else min(entry.score for entry in model.pieces if entry.type == types.NORMAL)
    return {entry.piece: first + entry.score
            for entry in sentencepiece_model_pb2.ModelProto.FromString(learned.files()[".model"]).pieces
            if entry.type == types.NORMAL}


def _with_subwords(vocabulary: SentencePieceVocabulary, scores: Mapping[str, float], subwords: Iterable[str]
                   ) -> Vocabulary:
    """Return a vocabulary with more subwords: with a score if they have one, otherwise unused."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.files()[".model"])
    types = sentencepiece_model_pb2.ModelProto.SentencePiece
    old = {entry.piece: entry for entry in model.pieces}
    lowest = min([*(entry.score for entry in model.pieces), *scores.values()])  # BPE merges unused subwords, too
    for subword in subwords:
        score = scores.get(subword)
        if subword not in old:
            model.pieces.add(piece=subword, score=lowest if score is None else score,
                             type=types.UNUSED if score is None else types.NORMAL)
        elif score is not None and old[subword].type == types.UNUSED:   # such as a subword of the other language
            old[subword].type, old[subword].score = types.NORMAL, score
    model.trainer_spec.vocab_size = len(model.pieces)
    model.DiscardUnknownFields()    # some of them contain tests of the old model
    return SentencePieceVocabulary(model.SerializeToString())
