"""Scores of translations against references: BLEU and chrF by sacreBLEU, with their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from towernmt.core.errors import DataError
from towernmt.predict.evaluation.metrics import MetricSettings, score_corpus


@dataclass(frozen=True)
class Scores:
    """Corpus scores, 0 to 100.

    Attributes:
        bleu: BLEU (13a tokenisation, cased) on detokenised text.
        chrf: chrF2.
        signature: sacreBLEU's signature of `bleu`; quote it beside the score.
        chrf_signature: the same of `chrf`.
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str = ""


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str], *more: Sequence[str]) -> Scores:
    """Score detokenised translations against one reference each, or several.

    Args:
        hypotheses: a sentence each.
        references: the translation of each by people.
        more: further translations, all sentences by each translator; sacreBLEU counts what agrees with any of them.
    Raises:
        DataError: no sentences, or not as many hypotheses as references.
    """
    for lines in (references, *more):
        if len(hypotheses) != len(lines):
            raise DataError(f"{len(hypotheses)} hypotheses for {len(lines)} references: "
                            "there must be one line of each for every sentence.")
    if not references:
        raise DataError("There are no sentences to score: the reference is empty.")
    found = score_corpus(hypotheses, [references, *more], MetricSettings(("bleu", "chrf")))
    (bleu, signature), (chrf, chrf_signature) = found["BLEU"], found["chrF2"]
    return Scores(bleu=bleu, chrf=chrf, signature=signature, chrf_signature=chrf_signature)
