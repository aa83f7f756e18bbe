"""Robustness: a test set in several forms that people type, and how well a system translates each of them.

Each form is derived from the source and its references by `modifiers` of training pairs or by similar changes, with a
seed. A span that was added, such as an address, is added to the references as well, and must be in the translation.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.letter_case import lower_case, title_case, upper_case
from towernmt.dataflow.text.modifiers import (
    drawn_address,
    drawn_emoji,
    drawn_number,
    drawn_placeholder,
    with_span,
    with_typos,
)
from towernmt.evaluate.metrics import MetricSettings, score_corpus
from towernmt.predict.lines.faults import EMPTY, LOOP, fault_of_text

_SPACE_BEFORE_UNIT = re.compile(r"(?<=\d) (?=\D)")
_FINAL = re.compile(r"\s*[.!?…。！？]+\s*$")
_DRAWS = 100
"""Maximum number of spans that are drawn for a line; a line may contain all emoji."""


@dataclass
class RobustnessText:
    """A test set in one form.

    Attributes:
        name: name of the form.
        source: the lines to translate.
        references: the references of each translator, line by line.
        spans: the span of each line that must be in its translation exactly once; "" for none.
        compared: maps a hypothesis or a reference to what is scored.
        lowercase: whether scores ignore the case.
    """

    name: str
    source: list[str]
    references: list[list[str]]
    spans: list[str]
    compared: Callable[[str], str] = str
    lowercase: bool = False


class RobustnessScore(NamedTuple):
    """Scores of a system on one form of the test set.

    Attributes:
        name: name of the form.
        sentences: number of lines.
        bleu: BLEU, 0 to 100; without regard to the case for the forms that change it.
        relative: BLEU divided by that of the unchanged test set, with the same regard to case and final marks.
        chrf: chrF, 0 to 100.
        copied: share of the lines with a span whose translation has it exactly once; None without spans.
        loops: share of the lines whose translation repeats itself.
        empty: share of the lines without a translation.
    """

    name: str
    sentences: int
    bleu: float
    relative: float
    chrf: float
    copied: float | None
    loops: float
    empty: float


def robustness_texts(source: Sequence[str], references: Sequence[Sequence[str]], seed: int = 1,
                     languages: tuple[str, str] = ("", "")) -> list[RobustnessText]:
    """Return the test set in all forms, the unchanged one first.

    Args:
        source: lines of the test set.
        references: the references of each translator, line by line.
        seed: seed of typos and spans; different ones give different places and spans.
        languages: ISO 639-1 codes of source and target, for the letter case, or "".
    """
    lines, reference_texts = list(source), [list(lines) for lines in references]
    clean_text = RobustnessText("clean", lines, reference_texts, [""] * len(lines))

    def changed(name: str, change: Callable[[str, random.Random], str], **options: Any) -> RobustnessText:
        draws = (random.Random(f"{seed}:{name}:{number}") for number in range(len(lines)))
        changed_lines = [change(text, draw) for text, draw in zip(lines, draws, strict=True)]
        return replace(clean_text, name=name, source=changed_lines, **options)

    def with_spans(name: str, draw_span: Callable[[random.Random], str]) -> RobustnessText:
        spans = [_new_span(draw_span, random.Random(f"{seed}:{name}:{number}"), texts)
                 for number, texts in enumerate(zip(lines, *reference_texts, strict=True))]
        return replace(clean_text, name=name, spans=spans, source=_added(lines, spans),
                       references=[_added(texts, spans) for texts in reference_texts])

    return [
        clean_text,
        changed("upper case", lambda text, _: upper_case(text, languages[0]), lowercase=True),
        changed("title case", lambda text, _: title_case(text, languages[0]), lowercase=True),
        changed("lower case", lambda text, _: lower_case(text, languages[0]), lowercase=True),
        changed("no final punctuation", lambda text, _: _without_end(text), compared=_without_end),
        changed("one typo", lambda text, draw: with_typos(text, 1, draw, languages[0])),
        changed("two typos", lambda text, draw: with_typos(text, 2, draw, languages[0])),
        with_spans("emoji", drawn_emoji), with_spans("address", drawn_address), with_spans("number", drawn_number),
        with_spans("placeholder", drawn_placeholder),
        changed("zero-width space", _with_zero_width_space), _joined(clean_text)]


def _new_span(draw_span: Callable[[random.Random], str], draw: random.Random, texts: Sequence[str]) -> str:
    """Return a span that no text contains, since a translation must have it exactly once; "" if none is found."""
    spans = (draw_span(draw) for _ in range(_DRAWS))
    return next((span for span in spans if not any(span in text for text in texts)), "")


def _without_end(text: str) -> str:
    """Return a text without its final punctuation, which some translations have and others lack."""
    return _FINAL.sub("", text)


def _added(texts: Sequence[str], spans: Sequence[str]) -> list[str]:
    return [with_span(text, span, "before the full stop") if span else text
            for text, span in zip(texts, spans, strict=True)]


def _with_zero_width_space(text: str, draw: random.Random) -> str:
    index = draw.randint(0, len(text))
    return text[:index] + "\u200b" + text[index:]


def _joined(text: RobustnessText) -> RobustnessText:
    """Return the lines joined in twos; a last line without a partner stays alone."""
    def join(lines: Sequence[str]) -> list[str]:
        return [" ".join(lines[first:first + 2]) for first in range(0, len(lines), 2)]

    source = join(text.source)
    return replace(text, name="joined in twos", source=source, references=[join(lines) for lines in text.references],
                   spans=[""] * len(source))


def robustness_scores(texts: Sequence[RobustnessText], hypotheses: Sequence[Sequence[str]], metrics: MetricSettings
                      ) -> list[RobustnessScore]:
    """Return the scores of a system on all forms.

    Args:
        texts: all forms, the unchanged one first.
        hypotheses: the translations of each form.
        metrics: tokeniser and language of the metrics.
    """
    base: dict[tuple[Callable[[str], str], bool], float] = {}
    scores = []
    for text, translations in zip(texts, hypotheses, strict=True):
        bleu, chrf = _bleu_and_chrf(text, translations, metrics, text.lowercase)
        scored = text.compared, text.lowercase
        if scored not in base:
            base[scored], _ = _bleu_and_chrf(replace(texts[0], compared=text.compared), hypotheses[0], metrics,
                                             text.lowercase)
        faults = [fault_of_text(clean(hypothesis), line)
                  for line, hypothesis in zip(text.source, translations, strict=True)]
        copies = [_is_copied(span, hypothesis)
                  for span, hypothesis in zip(text.spans, translations, strict=True) if span]
        copied = sum(copies) / len(copies) if copies else None
        count = max(len(translations), 1)
        scores.append(RobustnessScore(
            text.name, len(translations), bleu, bleu / base[scored] if base[scored] else 0.0, chrf,
            copied, faults.count(LOOP) / count, faults.count(EMPTY) / count))
    return scores


def _is_copied(span: str, hypothesis: str) -> bool:
    """Return whether a translation has a span exactly once.

    The space between a number and its unit may be missing, because languages differ: `5 %` and `5%`.
    """
    without_space = _SPACE_BEFORE_UNIT.sub("", span)
    return hypothesis.count(span) == 1 or without_space != span and hypothesis.count(without_space) == 1


def _bleu_and_chrf(text: RobustnessText, hypotheses: Sequence[str], metrics: MetricSettings, lowercase: bool
                   ) -> tuple[float, float]:
    settings = replace(metrics, names=("bleu", "chrf"), lowercase=lowercase, custom=())
    scores = score_corpus([text.compared(line) for line in hypotheses],
                          [[text.compared(line) for line in lines] for lines in text.references], settings)
    return scores["BLEU"][0], scores["chrF2"][0]


def robustness_rows(scores: Sequence[RobustnessScore]) -> list[list[str]]:
    """Return the table of scores as text, its header first."""
    header = ["form", "sentences", "BLEU", "of clean", "chrF", "spans copied", "loops", "empty"]
    return [header, *([
        score.name, f"{score.sentences:,}", f"{score.bleu:.2f}", f"{score.relative:.3f}", f"{score.chrf:.2f}",
        "" if score.copied is None else f"{score.copied:.1%}", f"{score.loops:.1%}", f"{score.empty:.1%}"]
        for score in scores)]
