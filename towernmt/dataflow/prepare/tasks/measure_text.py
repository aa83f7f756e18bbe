"""Measuring the text that vocabularies are chosen by: its words and characters, of lines that are drawn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from towernmt.dataflow.prepare.annotations import PairTexts
from towernmt.dataflow.prepare.running.task import Task, putting
from towernmt.dataflow.prepare.tasks.sample_text import drawn_texts

MEASURED_LINES = 100_000
"""Of a larger text so many are drawn, which tells its words to some parts in a thousand."""


@dataclass
class SideMeasure:
    """What was found of one side, in the lines that were drawn.

    Attributes:
        words: between white space.
        characters: how often each comes.
    """

    words: int = 0
    characters: Counter[str] = field(default_factory=Counter)

    def add(self, other: SideMeasure) -> None:
        """Count what was found in other lines."""
        self.words += other.words
        self.characters.update(other.characters)


@dataclass
class TextMeasure:
    """What was found of both sides.

    Attributes:
        share: of the lines, that were drawn; 1: all.
        sides: "source" and "target".
    """

    share: float
    sides: dict[str, SideMeasure]


@dataclass(frozen=True)
class MeasureText(Task):
    """Measures a part.

    Attributes:
        texts: the part.
        share: of the lines, that are drawn.
        factors: that stand behind the words in the source text itself.
        seed: of the draw.
    """

    texts: PairTexts
    share: float
    factors: int
    seed: int

    @classmethod
    def of(cls, number: int, texts: PairTexts, share: float, factors: int, seed: int, work: Path) -> MeasureText:
        """The task for part `number`."""
        return cls(work / f"part-{number:05d}.measure.json", texts.source.lines, texts, share, factors, seed)

    @property
    def title(self) -> str:
        return f"measuring {self.texts.source.title}"

    @property
    def done(self) -> bool:
        """Never: what an interrupted preparation measured may have been another text."""
        return False

    def run(self) -> None:
        sides = {"source": (self.texts.source, self.factors), "target": (self.texts.target, 0)}
        found = {}
        for side, (part, factors) in sides.items():
            measure = measure_sentences(drawn_texts(part, self.share, self.seed, factors))
            found[side] = [measure.words, measure.characters]
        with putting(self.output) as unfinished:
            unfinished.write_text(json.dumps(found), encoding="utf-8")


def measure_sentences(sentences: Iterable[str]) -> SideMeasure:
    """What is in sentences of one side."""
    found = SideMeasure()
    for sentence in sentences:
        found.words += len(sentence.split())
        found.characters.update(sentence)
    return found


def merged(tasks: Iterable[MeasureText], share: float) -> TextMeasure:
    """What tasks that are done have found together."""
    whole = TextMeasure(share, {"source": SideMeasure(), "target": SideMeasure()})
    for task in tasks:
        for side, (words, characters) in json.loads(task.output.read_text(encoding="utf-8")).items():
            whole.sides[side].add(SideMeasure(words, Counter(characters)))
    return whole
