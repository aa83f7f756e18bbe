"""The report of a validation on one set: its figures next to those of training, and some translations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from towernmt.callbacks.reporting.summaries import markdown_cell
from towernmt.callbacks.validation.metrics import METRICS, OF_LOSS, Outcome
from towernmt.dataflow.text.line_hash import line_hash
from towernmt.dataflow.text.validation_set import ValidationSet


def figures(outcome: Outcome, training_nll: float | None) -> str:
    """`BLEU 31.40, chrF 55.10, nll 2.1234 (training 2.0012), ...`: comparable figures, all without label smoothing.

    Args:
        outcome: of the set.
        training_nll: of the last batches trained on, in nats a target token; None: not known.
    """
    parts = []
    for name, metric in METRICS.items():
        value = metric.value(outcome)
        if value is not None:
            training = None
            if training_nll is not None and name in OF_LOSS:
                training = metric.value(Outcome((), outcome.scores, training_nll))
            of_training = "" if training is None else f" (training {metric.text(training)})"
            parts.append(f"{metric.label} {metric.text(value)}{of_training}")
    return ", ".join(parts)


def sample_numbers(sentences: int, samples: int, step: int, seed: int) -> list[int]:
    """Which sentences a validation shows: others at each step, and the same whenever that step is made again.

    Args:
        sentences: of the set.
        samples: how many are drawn, without replacement.
        step: of the validation.
        seed: of the run.
    Returns:
        numbers from 0, rising.
    """
    key = int(line_hash(np.array([step]), seed)[0] >> np.uint64(1))
    order = np.argsort(line_hash(np.arange(sentences), key), kind="stable")
    return sorted(order[:samples].tolist())


def sample_lines(validation: ValidationSet, translations: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Source, references and translation of some sentences, a line each."""
    lines = []
    for number in numbers:
        lines.append(f"  source      {validation.source[number]}")
        lines += [f"  reference   {reference[number]}" for reference in validation.references]
        lines.append(f"  translation {translations[number]}")
    return lines


def sample_table(validation: ValidationSet, translations: Sequence[str], numbers: Sequence[int]) -> str:
    """The same as a table in Markdown, for TensorBoard."""
    rows = ["| | |", "|---|---|"]
    for number in numbers:
        texts = [("source", validation.source[number]),
                 *(("reference", reference[number]) for reference in validation.references),
                 ("translation", translations[number])]
        rows += [f"| {side} {number + 1} | {markdown_cell(text)} |" for side, text in texts]
    return "\n".join(rows)
