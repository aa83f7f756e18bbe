"""Systems side by side on one test set: their scores, and whether they differ by more than chance (sacreBLEU's)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sacrebleu.significance import PairedTest

from towernmt.core.errors import DataError
from towernmt.core.settings import check_ranges, setting
from towernmt.predict.evaluation.attention import SentenceAttention
from towernmt.predict.evaluation.metrics import MetricSettings, make_metrics

LEVEL = 0.05
"""A difference that is less probable than this by chance is significant."""


@dataclass(frozen=True)
class SignificanceSettings:
    """How chance is drawn.

    Raises:
        SettingsError: a value that cannot work.
    """

    samples: int = setting(1000, "Test sets drawn by the paired bootstrap.", at_least=1)
    trials: int = setting(10000, "Exchanges drawn by the paired approximate randomisation.", at_least=1)
    seed: int = setting(12345, "Of both, from 1 (to sacreBLEU, 0 is none).", at_least=1)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class System:
    """What one system made of the test set.

    Attributes:
        name: tells it from the others.
        hypotheses: a detokenised sentence each.
        checkpoint: of a run: what it was translated with.
        seconds: of a run: what its translation took.
        attention: of a run: of each sentence, where it was asked for.
    """

    name: str
    hypotheses: Sequence[str]
    checkpoint: str | None = None
    seconds: float | None = None
    attention: Sequence[SentenceAttention | None] | None = None


@dataclass(frozen=True)
class SystemScore:
    """A system by one metric.

    Attributes:
        score: of the whole test set, 0 to 100 (TER may be more).
        mean: of the test sets that the bootstrap drew.
        interval: half the width of the 95 % confidence interval around `mean`.
        bootstrap_p, randomization_p: how probable a difference as large as that from the baseline is by chance; None:
            it is the baseline. Where there is no difference at all, sacreBLEU gives the least probability.
        differs: whether the score is another than the baseline's.
    """

    score: float
    mean: float
    interval: float
    bootstrap_p: float | None = None
    randomization_p: float | None = None
    differs: bool = False

    @property
    def chances(self) -> list[tuple[str, float, bool]]:
        """Of each test its name, the probability, and whether the difference is significant."""
        found = (("bootstrap", self.bootstrap_p), ("randomisation", self.randomization_p))
        return [(name, p, self.differs and p < LEVEL) for name, p in found if p is not None]


@dataclass(frozen=True)
class Comparison:
    """All systems by all metrics; the first system is the baseline.

    Attributes:
        scores: by metric, of each system.
        signatures: by metric, sacreBLEU's, with the draws of the bootstrap.
        randomization_signatures: the same with the draws of the randomisation; none of one system alone.
    """

    scores: dict[str, list[SystemScore]]
    signatures: dict[str, str]
    randomization_signatures: dict[str, str]


def compare(systems: Sequence[System], references: Sequence[Sequence[str]], metrics: MetricSettings,
            significance: SignificanceSettings) -> Comparison:
    """Score systems, and compare each with the first by paired bootstrap and paired approximate randomisation.

    Sources: Koehn 2004 (bootstrap); Riezler and Maxwell 2005 (randomisation); both are sacreBLEU's.

    Args:
        systems: at least one.
        references: all sentences by each translator.
        metrics: what is computed.
        significance: how chance is drawn.
    Raises:
        DataError: no sentences, or not as many of a system as of a reference.
        SettingsError: a package is missing.
    """
    check_sentences(systems, references)
    named = [(system.name, list(system.hypotheses)) for system in systems]
    signatures, bootstrap = _test("bs", named, references, metrics, significance)
    if len(systems) == 1:
        found = {metric: [SystemScore(float(one.score), float(one.mean), float(one.ci))]
                 for metric, (one,) in bootstrap.items()}
        return Comparison(found, signatures, {})
    others, randomization = _test("ar", named, references, metrics, significance)
    scores = {metric: [SystemScore(float(b.score), float(b.mean), float(b.ci), b.p_value, r.p_value,
                                   b.score != results[0].score)
                       for b, r in zip(results, randomization[metric], strict=True)]
              for metric, results in bootstrap.items()}
    return Comparison(scores, signatures, others)


def check_sentences(systems: Sequence[System], references: Sequence[Sequence[str]]) -> None:
    """Refuse an empty test set, and a system with more or fewer sentences than a reference.

    Raises:
        DataError: as said.
    """
    if not references or not references[0]:
        raise DataError("There are no sentences to score: the reference is empty.")
    for system in systems:
        for lines in references:
            if len(system.hypotheses) != len(lines):
                raise DataError(f"{system.name}: {len(system.hypotheses)} hypotheses for {len(lines)} references: "
                                "there must be one line of each for every sentence.")


def _test(kind: str, named: list[tuple[str, list[str]]], references: Sequence[Sequence[str]], metrics: MetricSettings,
          significance: SignificanceSettings) -> tuple[dict[str, str], dict[str, list]]:
    """sacreBLEU's signatures and results by metric, from its test "bs" or "ar"."""
    draws = significance.samples if kind == "bs" else significance.trials
    with _seed(significance.seed):
        test = PairedTest(named, make_metrics(metrics, references), None, test_type=kind, n_samples=draws)
    signatures, results = test()
    return ({name: str(signature) for name, signature in signatures.items()},
            {name: results[name] for name in signatures})


@contextmanager
def _seed(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment alone."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
