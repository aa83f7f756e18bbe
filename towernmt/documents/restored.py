"""A translation as its readers see it: with the shielded words in place of their stand-ins, and the links of these."""

from __future__ import annotations

import numpy as np

from towernmt.documents.alignment import TargetAtom, aligned
from towernmt.documents.sentences import SourceSentence
from towernmt.documents.translation import with_all_shields
from towernmt.predict.alignment.word_alignment import WordAlignment
from towernmt.predict.alignment.words import NO_WORD
from towernmt.predict.hypotheses import Hypothesis, TokenDetails, Translation


def restored(sentence: SourceSentence, translation: Translation) -> Translation:
    """The translations of a sentence; a shielded word is one word, whatever white space it has."""
    if not sentence.names:
        return translation
    found = Translation(_hypothesis(sentence, hypothesis) for hypothesis in translation)
    found.retried, found.terms = translation.retried, translation.terms
    return found


def _hypothesis(sentence: SourceSentence, hypothesis: Hypothesis) -> Hypothesis:
    words: list[list[TargetAtom]] = []
    for atom in with_all_shields(sentence, aligned(sentence, hypothesis.text, hypothesis.links())):
        if atom.space or not words:
            words.append([])
        words[-1].append(atom)
    texts = ["".join(_text(sentence, atom) for atom in word) for word in words]
    details = None if hypothesis.details is None else _details(sentence, hypothesis.details, words, texts)
    return Hypothesis(" ".join(texts), hypothesis.score, details, hypothesis.fault, hypothesis.tokens)


def _text(sentence: SourceSentence, atom: TargetAtom) -> str:
    return atom.text if atom.stands_for is None else sentence.atoms[atom.stands_for].text


def _details(sentence: SourceSentence, details: TokenDetails, words: list[list[TargetAtom]],
             texts: list[str]) -> TokenDetails:
    """Those of a translation whose words have changed."""
    numbers: dict[int, int] = {}
    for number, word in enumerate(words):
        for atom in word:
            if atom.word is not None:
                numbers.setdefault(atom.word, number)
    of_tokens = details.words and [numbers.get(word, NO_WORD) for word in details.words]
    if details.alignment is None or len(details.alignment.source) != len(sentence.words):
        return details._replace(words=of_tokens, alignment=None)
    weights = np.zeros([len(words), len(sentence.words)], np.float32)
    for number, word in enumerate(words):
        if word[0].word is not None:
            weights[number] = details.alignment.weights[word[0].word]
        elif word[0].stands_for is not None:
            weights[number, sum(sentence.spaces[:word[0].stands_for + 1])] = 1.0
    return details._replace(words=of_tokens, alignment=WordAlignment(sentence.words, texts, weights))
