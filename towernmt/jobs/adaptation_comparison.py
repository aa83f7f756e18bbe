"""The comparison of an adapted model with the old one on held-out corrections and on the old test set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towernmt.checkpoint.packaged_run import PackagedRun
from towernmt.dataflow.text.language_codes import written_language
from towernmt.evaluate.comparison import SIGNIFICANCE_LEVEL, SignificanceSettings, System, compare
from towernmt.evaluate.metrics import MetricSettings
from towernmt.interop.model_card import CardText
from towernmt.predict.engine_support import ENGINES, default_precision
from towernmt.predict.lines.line_options import LineOptions
from towernmt.predict.translator import Translator
from towernmt.run.started_run import StartingModel

_SIGNIFICANCE = SignificanceSettings(trials=1)
"""The bootstrap decides, so the approximate randomisation, which takes longer, is as short as possible."""


@dataclass(frozen=True)
class SetResult:
    """The BLEU of both models on one set.

    Attributes:
        name: name of the set.
        sentences: number of sentences.
        old, new: BLEU of both models.
        p: p-value of the difference by paired bootstrap.
    """

    name: str
    sentences: int
    old: float
    new: float
    p: float

    @property
    def is_better(self) -> bool:
        """Whether the new model has the higher score."""
        return self.new > self.old

    @property
    def is_significantly_worse(self) -> bool:
        """Whether the new model has a lower score, and the difference is significant."""
        return self.new < self.old and self.p < SIGNIFICANCE_LEVEL

    @property
    def line(self) -> str:
        """The result as a line of text."""
        return (f"{self.name}: {self.sentences} sentences, BLEU {self.old:.2f} before and {self.new:.2f} after "
                f"(p = {self.p:.3f}, paired bootstrap)")


def metrics_of_comparison(card: CardText) -> MetricSettings:
    """Return the metric of the comparison, BLEU with the tokeniser of the target language.

    Args:
        card: the user's statements on the model card, which may contain the languages.
    """
    languages = card.pair()
    return MetricSettings(("bleu",), target_language=languages[1] if languages else "")


def compare_models(model: StartingModel, package: Path, unpacked: Path, card: CardText,
                   sets: Mapping[str, Sequence[Sequence[str]]], report: Callable[[str], None]) -> list[SetResult]:
    """Translate sets with the old model and the new package as users do, and return the scores.

    Both models have the precision, the languages and the source prefix of the new package, so that only the training
    makes a difference.

    Args:
        model: the old model.
        package: the new package.
        unpacked: directory in which it is unpacked.
        card: the user's statements on its model card.
        sets: source and references of each set, by name.
        report: called with the result of each set.
    """
    run, languages = PackagedRun(package, trust_code=True, cache=unpacked), card.pair()
    options: dict[str, Any] = {"precision": default_precision([run], ENGINES[0]), "export_first": True,
                               "options": LineOptions(source_prefix=card.source_prefix),
                               "languages": languages and tuple(map(written_language, languages))}
    translators = {"old": Translator(model.run, checkpoint=model.checkpoint, **options),
                   "new": Translator(run, **options)}
    metric, results = metrics_of_comparison(card), []
    for name, (source, *references) in sets.items():
        systems = [System(label, translator.translate(list(source))) for label, translator in translators.items()]
        old, new = compare(systems, references, metric, _SIGNIFICANCE).scores["BLEU"]
        p = new.bootstrap_p if new.bootstrap_p is not None and new.differs else 1.0
        results.append(SetResult(name, len(source), old.score, new.score, p))
        report(results[-1].line)
    return results


def rejection_of(corrections: SetResult, test: SetResult) -> str:
    """Return the reason for which the new model is not packaged, a clause; "" if it is packaged."""
    if not corrections.is_better:
        return "the new model is not better on the held-out corrections"
    if test.is_significantly_worse:
        return "the new model is significantly worse on the old test set"
    return ""
