"""A sentence and its translations as JSON: texts, scores, words, links between words, and how sure the model is."""

from __future__ import annotations

import math
from typing import Any

from towernmt.predict.hypotheses import Hypothesis
from towernmt.serve.text import Sentence


def as_json(sentence: Sentence, alignments: bool, confidence: bool) -> dict[str, Any]:
    """The sentence, and its translations, best first.

    Args:
        alignments: with the words of both, and the links (source word, target word), from 0.
        confidence: with the probability of each word of a translation.
    """
    found = [_translation(hypothesis, alignments, confidence) for hypothesis in sentence.translation]
    told: dict[str, Any] = {"source": sentence.source, "translations": found}
    if alignments or confidence:
        aligned = sentence.translation[0].alignment
        told["words"] = aligned.source if aligned else sentence.source.split()
    if sentence.translation.terms:
        told["terms"] = [{"source": term.source, "target": term.target} for term in sentence.translation.terms]
    return told


def word_confidences(hypothesis: Hypothesis) -> list[float] | None:
    """The probability of each word, the geometric mean of its tokens'; None where the engine does not give them."""
    details = hypothesis.details
    if details is None or details.log_probs is None or details.words is None:
        return None
    of_words: dict[int, list[float]] = {}
    for word, log_prob in zip(details.words, details.log_probs.tolist(), strict=True):
        of_words.setdefault(word, []).append(log_prob)
    return [round(math.exp(sum(found) / len(found)), 4) if (found := of_words.get(word)) else 1.0
            for word in range(len(_words(hypothesis)))]


def _words(hypothesis: Hypothesis) -> list[str]:
    """The words of a translation; one that is shielded may have spaces in it."""
    return hypothesis.alignment.target if hypothesis.alignment else hypothesis.text.split()


def _translation(hypothesis: Hypothesis, alignments: bool, confidence: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"text": hypothesis.text, "score": round(float(hypothesis.score), 4)}
    if alignments or confidence:
        told["words"] = _words(hypothesis)
    if alignments:
        told["links"] = [list(link) for link in hypothesis.links() or []]
    if confidence and (found := word_confidences(hypothesis)) is not None:
        told["confidence"] = found
    return told
