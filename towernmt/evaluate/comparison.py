"""Compare the scores of systems on one test set, with significance tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sacrebleu.significance import PairedTest

from towernmt.core.errors import DataError
from towernmt.core.settings import check_ranges, setting
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.evaluate.metrics import MetricSettings, NamedMetrics, make_metrics
from towernmt.predict.lines.hypotheses import TokenDetails

_DIGITS = np.array(list("0123456789abcdefghijklmnopqrstuvwxyz"))
LARGEST_DIGIT = len(_DIGITS) - 1


class SentenceAttention(NamedTuple):
    """The attention of a translation.

    Attributes:
        source, target: the tokens.
        weights: one base-36 digit per pair of target and source token, row by row; `z` is 1.
    """

    source: list[str]
    target: list[str]
    weights: str


def sentence_attention(details: TokenDetails | None, source_vocabulary: Vocabulary,
                       target_vocabulary: Vocabulary) -> SentenceAttention | None:
    """Return the attention of a hypothesis in 36 steps; None for a blank line, or if it was not requested."""
    if details is None or (attention := details.attention) is None:
        return None
    steps = np.rint(LARGEST_DIGIT * np.clip(attention, 0, 1)).astype(np.int64)    # [tokens, source tokens]
    return SentenceAttention([source_vocabulary.id_to_piece(id) for id in details.source_ids],
                             [target_vocabulary.id_to_piece(id) for id in details.ids],
                             "".join(_DIGITS[steps.ravel()]))


SIGNIFICANCE_LEVEL = 0.05
"""A difference with a smaller p-value is significant."""


@dataclass(frozen=True)
class SignificanceSettings:
    """Settings of the significance tests.

    Raises:
        SettingsError: a value is out of range.
    """

    samples: int = setting(1000, "Test sets drawn by the paired bootstrap.", at_least=1, at_most=1_000_000)
    trials: int = setting(
        10000, "Exchanges drawn by the paired approximate randomisation.", at_least=1, at_most=1_000_000)
    seed: int = setting(12345, "Seed of both tests, from 1 (sacreBLEU takes 0 for no seed).", at_least=1)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class System:
    """The translations of the test set by one system.

    Attributes:
        name: a unique name.
        hypotheses: detokenised translations, one per sentence.
        checkpoint: for a run, the checkpoint used.
        seconds: for a run, the duration of translation.
        attention: for a run, the attention of each sentence, if requested.
    """

    name: str
    hypotheses: Sequence[str]
    checkpoint: str | None = None
    seconds: float | None = None
    attention: Sequence[SentenceAttention | None] | None = None


@dataclass(frozen=True)
class SystemScore:
    """The score of a system by one metric.

    Attributes:
        score: score of the complete test set, 0 to 100 (TER may be larger).
        mean: mean score of the test sets drawn by the bootstrap.
        interval: half the width of the 95 % confidence interval around `mean`.
        bootstrap_p, randomization_p: p-values of the difference from the baseline; None for the baseline itself. If
            there is no difference at all, sacreBLEU returns the smallest p-value.
        differs: whether the score differs from that of the baseline.
    """

    score: float
    mean: float
    interval: float
    bootstrap_p: float | None = None
    randomization_p: float | None = None
    differs: bool = False

    @property
    def chances(self) -> list[tuple[str, float, bool]]:
        """Name, p-value and significance of each test."""
        tests = (("bootstrap", self.bootstrap_p), ("randomisation", self.randomization_p))
        return [(name, p, self.differs and p < SIGNIFICANCE_LEVEL) for name, p in tests if p is not None]


@dataclass(frozen=True)
class Comparison:
    """All systems by all metrics; the first system is the baseline.

    Attributes:
        scores: the score of each system, by metric.
        signatures: sacreBLEU's signatures with the number of bootstrap samples, by metric.
        randomization_signatures: the same with the number of randomisation trials; empty for a single system.
    """

    scores: dict[str, list[SystemScore]]
    signatures: dict[str, str]
    randomization_signatures: dict[str, str]


class BleuDifference(NamedTuple):
    """BLEU of a system minus that of another system on the same text.

    Attributes:
        value: difference of the scores of the complete text.
        low, high: limits of its 95 % confidence interval.
    """

    value: float
    low: float
    high: float


def compare(systems: Sequence[System], references: Sequence[Sequence[str]], metrics: MetricSettings,
            significance: SignificanceSettings, source: Sequence[str] | None = None) -> Comparison:
    """Score systems, and compare each with the first by paired bootstrap and paired approximate randomisation.

    Sources: Koehn 2004 (bootstrap); Riezler and Maxwell 2005 (randomisation); both are sacreBLEU's.

    Args:
        systems: at least one.
        references: all sentences by each translator.
        metrics: the metrics.
        significance: settings of the tests.
        source: the source text for custom metrics, or None.

    Raises:
        DataError: there are no sentences, or a system has another number of sentences than a reference.
        SettingsError: a required package is missing.
    """
    check_sentences(systems, references)
    named = [(system.name, list(system.hypotheses)) for system in systems]
    signatures, bootstrap = _test("bs", named, make_metrics(metrics, references, source), significance)
    if len(systems) == 1:
        scores = {metric: [SystemScore(float(result.score), float(result.mean), float(result.ci))]
                  for metric, (result,) in bootstrap.items()}
        return Comparison(scores, signatures, {})
    randomization_signatures, randomization = _test(
        "ar", named, make_metrics(metrics, references, source), significance)
    scores = {metric: [SystemScore(float(b.score), float(b.mean), float(b.ci), b.p_value, r.p_value,
                                   b.score != results[0].score)
                       for b, r in zip(results, randomization[metric], strict=True)]
              for metric, results in bootstrap.items()}
    return Comparison(scores, signatures, randomization_signatures)


def bleu_difference(first: Sequence[str], second: Sequence[str], references: Sequence[Sequence[str]],
                    target_language: str = "",
                    significance: SignificanceSettings = SignificanceSettings()  # noqa: B008 -- immutable
                    ) -> BleuDifference:
    """Return the BLEU of one system minus that of another, with an interval by paired bootstrap (Koehn 2004).

    Args:
        first: translations by the first system, one per sentence.
        second: translations by the second system.
        references: all sentences by each translator.
        target_language: see `MetricSettings`.
        significance: number of bootstrap samples, and their seed.

    Raises:
        DataError: there are no sentences, or the numbers of sentences differ.
        SettingsError: a required package is missing.
    """
    check_sentences([System("first", first), System("second", second)], references)
    metric = make_metrics(MetricSettings(("bleu",), target_language=target_language), references)["BLEU"]
    counts = np.array([metric._extract_corpus_statistics(list(lines), None) for lines in (first, second)], np.int64)
    draws = np.random.default_rng(significance.seed).integers(len(first), size=(significance.samples, len(first)))

    def difference(rows: Any) -> float:
        scores = [metric._compute_score_from_stats(sums).score for sums in counts[:, rows].sum(1)]
        return float(scores[0] - scores[1])

    low, high = np.quantile([difference(rows) for rows in draws], [0.025, 0.975])
    return BleuDifference(difference(slice(None)), float(low), float(high))


def check_sentences(systems: Sequence[System], references: Sequence[Sequence[str]]) -> None:
    """Refuse an empty test set, and a system with more or fewer sentences than a reference.

    Raises:
        DataError: the test set is empty, or the numbers of sentences differ.
    """
    if not references or not references[0]:
        raise DataError("There are no sentences to score: the reference is empty.")
    for system in systems:
        for lines in references:
            if len(system.hypotheses) != len(lines):
                raise DataError(f"{system.name}: {len(system.hypotheses)} hypotheses for {len(lines)} references: "
                                "pass one line for each sentence.")


def _test(kind: str, named: list[tuple[str, list[str]]], metrics: NamedMetrics, significance: SignificanceSettings
          ) -> tuple[dict[str, str], dict[str, list]]:
    """Return signatures and results by metric of sacreBLEU's test "bs" or "ar"."""
    draws = significance.samples if kind == "bs" else significance.trials
    with _seed(significance.seed):
        test = PairedTest(named, metrics, None, test_type=kind, n_samples=draws)
    signatures, results = test()
    return ({name: str(signature) for name, signature in signatures.items()},
            {name: results[name] for name in signatures})


@contextmanager
def _seed(seed: int) -> Iterator[None]:
    """Set sacreBLEU's seed, which it reads only from the environment, inside the context."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
