"""The JSON of the native interface's answers: translated sentences and model cards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from towernmt.predict.lines.hypotheses import Hypothesis
from towernmt.serve.text_translation import Sentence

CARD_TEXTS = ("name", "description", "licence", "date", "intended_use", "limitations", "citation", "homepage",
              "contact")
CARD_SOURCE_TEXTS = ("name", "licence", "url", "note")
"""Text fields of a model card and of its training texts."""


def sentence_json(sentence: Sentence, alignments: bool, confidence: bool) -> dict[str, Any]:
    """Return a sentence and its translations, best first, as JSON.

    Args:
        sentence: translated sentence.
        alignments: include words and alignments: pairs (source word, target word), counted from 0.
        confidence: include the probability of each word of a translation.
    """
    translations = [_translation(hypothesis, alignments, confidence) for hypothesis in sentence.translation]
    result: dict[str, Any] = {"source": sentence.source, "translations": translations}
    if alignments or confidence:
        aligned = sentence.translation[0].alignment
        result["words"] = aligned.source if aligned else sentence.source.split()
    if sentence.translation.terms:
        result["terms"] = [{"source": term.source, "target": term.target} for term in sentence.translation.terms]
    return result


def word_confidences(hypothesis: Hypothesis) -> list[float] | None:
    """Return the probability of each word (geometric mean over its tokens), or None if the engine has none."""
    details = hypothesis.details
    if details is None or details.log_probs is None or details.words is None:
        return None
    log_probs_by_word: dict[int, list[float]] = {}
    for word, log_prob in zip(details.words, details.log_probs.tolist(), strict=True):
        log_probs_by_word.setdefault(word, []).append(log_prob)
    return [round(math.exp(sum(log_probs) / len(log_probs)), 4) if (log_probs := log_probs_by_word.get(word)) else 1.0
            for word in range(len(_words(hypothesis)))]


def _words(hypothesis: Hypothesis) -> list[str]:
    """Return the words of a translation; a protected word may contain spaces."""
    return hypothesis.alignment.target if hypothesis.alignment else hypothesis.text.split()


def _translation(hypothesis: Hypothesis, alignments: bool, confidence: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"text": hypothesis.text, "score": round(float(hypothesis.score), 4)}
    if alignments or confidence:
        result["words"] = _words(hypothesis)
    if alignments:
        result["links"] = [list(link) for link in hypothesis.links() or []]
    if confidence and (confidences := word_confidences(hypothesis)) is not None:
        result["confidence"] = confidences
    return result


def public_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model card that its users need, if they have the right types."""
    def strings(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        values = {name: content.get(name) for name in names}
        return {name: value.strip() for name, value in values.items() if isinstance(value, str) and value.strip()}

    def numbers(content: Mapping[str, Any]) -> dict[str, Any]:
        return {"pairs": content["pairs"]} if type(content.get("pairs")) is int else {}

    public = strings(card, CARD_TEXTS)
    if isinstance(authors := card.get("authors"), list) and authors:
        public["authors"] = [str(author) for author in authors]
    if isinstance(data := card.get("training_data"), Mapping):
        sources = data.get("sources") if isinstance(data.get("sources"), list) else []
        public["training_data"] = {"sources": [
            {**strings(source, CARD_SOURCE_TEXTS), **numbers(source)} for source in sources or ()
            if isinstance(source, Mapping)], **numbers(data)}
    return public
