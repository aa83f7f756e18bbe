"""Drawing the sentences that vocabularies are learned from: by line number, so that each part is drawn from alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from towernmt.dataflow.prepare.annotations import PairTexts
from towernmt.dataflow.prepare.running.task import Task, putting
from towernmt.dataflow.text.chunks import Chunk
from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.text.line_hash import line_hash
from towernmt.dataflow.text.text_index import TextPart
from towernmt.dataflow.vocabulary.factored import FactorError, split_factors


@dataclass(frozen=True)
class Draw:
    """Which sentences are drawn.

    Attributes:
        sides: "source", "target": whose sentences are wanted.
        share: of the lines, for the sentences of both sides; from 1, all.
        factor_share: the same, for the values of factors.
        text_factors: factors that stand behind the words in the source text itself.
        factors: whose values are wanted.
        seed: of the draw.
    """

    sides: tuple[str, ...]
    share: float
    factor_share: float
    text_factors: int
    factors: int
    seed: int


@dataclass(frozen=True)
class SampleText(Task):
    """Writes the cleaned sentences of a part that are drawn.

    Attributes:
        texts: the part.
        draw: which sentences.
    """

    texts: PairTexts
    draw: Draw

    @classmethod
    def of(cls, number: int, texts: PairTexts, draw: Draw, work: Path) -> SampleText:
        """The task for part `number`."""
        return cls(work / f"part-{number:05d}.sample.json", texts.source.lines, texts, draw)

    @property
    def title(self) -> str:
        return f"drawing sentences from {self.texts.source.title}"

    def run(self) -> None:
        draw, texts = self.draw, {"source": self.texts.source, "target": self.texts.target}
        drawn: dict[str, list[str]] = {
            side: list(drawn_texts(texts[side], draw.share, draw.seed, draw.text_factors if side == "source" else 0))
            for side in draw.sides}
        if self.draw.factors:
            rows = list(self._factor_values())
            drawn |= {f"factor_{n + 1}": [row[n] for row in rows] for n in range(self.draw.factors)}
        with putting(self.output) as unfinished:
            unfinished.write_text(json.dumps(drawn), encoding="utf-8")

    def _factor_values(self) -> Iterator[list[str]]:
        factors = self.draw.factors
        for chunk in self.texts.source_chunks():
            for number, line in chosen(chunk, self.draw.factor_share, self.draw.seed):
                yield [" ".join(values) for values in _split(clean(line), factors, chunk.path, number)[1]]


def drawn_texts(part: TextPart, share: float, seed: int, factors: int) -> Iterator[str]:
    """The cleaned sentences of a part that are drawn, without empty ones, and without the factors behind their words.

    Args:
        part: of one side.
        share, seed: of the draw, see `Draw`.
        factors: behind each word.
    """
    for chunk in part.chunks():
        for number, line in chosen(chunk, share, seed):
            text = clean(line)
            if text and factors:
                text = " ".join(_split(text, factors, chunk.path, number)[0])
            if text:
                yield text


def chosen(chunk: Chunk, share: float, seed: int) -> Iterator[tuple[int, str]]:
    """The lines of a chunk that are drawn, with their numbers."""
    lines = chunk.decode()
    if share >= 1:
        yield from enumerate(lines, chunk.first_line)
        return
    limit = np.uint64(share * (2**64 - 2**11))
    numbers = chunk.first_line + np.arange(chunk.lines, dtype=np.int64)
    for index in np.flatnonzero(line_hash(numbers, seed ^ 0x5EED) <= limit).tolist():
        yield chunk.first_line + index, lines[index]


def drawn_sentences(samples: Iterable[Path], name: str) -> Iterator[str]:
    """What was drawn from all parts, in the order of the text.

    Args:
        samples: outputs of the tasks, in the order of the parts.
        name: "source", "target", "factor_1" and so on.
    """
    for path in samples:
        yield from json.loads(path.read_text(encoding="utf-8"))[name]


def _split(text: str, factors: int, path: str, number: int) -> tuple[list[str], list[list[str]]]:
    try:
        return split_factors(text, factors)
    except FactorError as error:
        raise error.at(path, number) from None
