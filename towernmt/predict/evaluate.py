"""Scores of translations against references: BLEU and chrF by sacreBLEU, with their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF

from towernmt.core.errors import DataError


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
    everyone = [list(lines) for lines in (references, *more)]
    bleu, chrf = BLEU(force=True), CHRF()  # force: no warning about text that looks tokenised
    bleu_score = bleu.corpus_score(list(hypotheses), everyone)
    chrf_score = chrf.corpus_score(list(hypotheses), everyone)
    return Scores(bleu=float(bleu_score.score), chrf=float(chrf_score.score),
                  signature=str(bleu.get_signature()), chrf_signature=str(chrf.get_signature()))
