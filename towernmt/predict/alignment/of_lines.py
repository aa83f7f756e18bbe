"""The alignments of the translations of lines, from the attention of their tokens."""

from __future__ import annotations

from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.predict.alignment.word_alignment import SourceWords, WordAlignment
from towernmt.predict.alignment.words import words_of_translation
from towernmt.predict.hypotheses import Hypothesis, TokenDetails, Translation


def with_words(details: TokenDetails | None, vocabulary: Vocabulary) -> TokenDetails | None:
    """The details of a piece's translation, where they have attention with the words of its tokens.

    Args:
        vocabulary: of the target.
    """
    if details is None or details.attention is None:
        return details
    return details._replace(words=words_of_translation(vocabulary, details.ids))


def token_alignment(details: TokenDetails, source: Vocabulary, target: Vocabulary) -> WordAlignment | None:
    """What the model saw, by tokens of the vocabularies in place of words, the ends of the sentences among them.

    Returns:
        None without attention.
    """
    if details.attention is None:
        return None
    return WordAlignment([source.id_to_piece(id) for id in details.source_ids],
                         [target.id_to_piece(id) for id in details.ids], details.attention)


def align(translation: Translation, line: str, vocabulary: Vocabulary, limit: int) -> None:
    """Give each hypothesis that has attention the alignment of its words.

    Args:
        translation: of the whole line.
        vocabulary: of the source.
        limit: tokens of a piece, as the line was cut.
    """
    source: SourceWords | None = None
    for place, (hypothesis, details) in enumerate([(one, one.details) for one in translation]):
        if details is None or details.attention is None or details.words is None:
            continue
        source = source or SourceWords.of(vocabulary, line, limit)
        alignment = source.aligned(hypothesis.text, details.words, details.attention)
        translation[place] = Hypothesis(*hypothesis, details._replace(
            source_words=source.of_tokens, alignment=alignment), hypothesis.fault, hypothesis.tokens)
