"""Tasks that read the text: index it, sample sentences for the vocabularies, and measure it.

The first task checks a file and writes its index. Sentences are sampled by line number, so each range of the text is
sampled independently. Words and characters are counted in sampled lines; the vocabularies are planned by these
counts. The words and final marks of the source are counted for `source_text`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from towernmt.dataflow.preparation.input_texts import PairTexts
from towernmt.dataflow.preparation.tasks import Task, atomic_output
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.text_index import TextIndex, TextRange, index_text, state_of
from towernmt.dataflow.text.text_lines import Chunk, is_compressed, line_hash
from towernmt.dataflow.vocabulary.source_factors import FactorError, split_factors
from towernmt.dataflow.vocabulary.source_text import SourceCounts


@dataclass(frozen=True)
class IndexText(Task):
    """Checks and indexes a text file.

    Attributes:
        path: path of the file.
        unpacked: path of its decompressed content, if it is compressed.
    """

    path: str
    unpacked: Path

    @classmethod
    def of(cls, path: str, name: str, work: Path) -> IndexText:
        """Return the task."""
        return cls(work / f"text-{name}.json", 0, path, work / f"text-{name}.plain")

    @property
    def title(self) -> str:
        return f"reading {self.path}"

    @property
    def done(self) -> bool:
        """Whether the file was read and has not changed since."""
        if not self.output.exists():
            return False
        index = self.index()
        return (index.summary.path, index.state) == (self.path, state_of(self.path)) and Path(index.file).exists()

    def run(self) -> None:
        if is_compressed(self.path):
            with atomic_output(self.unpacked) as plain:
                index = index_text(self.path, plain, self.unpacked)
        else:
            index = index_text(self.path)
        with atomic_output(self.output) as unfinished:
            unfinished.write_text(index.to_text(), encoding="utf-8")

    def index(self) -> TextIndex:
        """Return the index, after the task is done."""
        return TextIndex.parse(self.output.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class SampleSpec:
    """The sample of sentences.

    Attributes:
        sides: sides whose sentences are sampled, "source" and "target".
        share: share of the sampled lines; 1 or more for all lines.
        factor_share: share of the lines from which values of factors are sampled.
        text_factors: number of factors after each word in the source text.
        factors: number of factors whose values are sampled.
        seed: seed of the sample.
    """

    sides: tuple[str, ...]
    share: float
    factor_share: float
    text_factors: int
    factors: int
    seed: int


@dataclass(frozen=True)
class SampleText(Task):
    """Writes the sampled sentences of a part, cleaned.

    Attributes:
        texts: texts of the part.
        draw: the sample.
    """

    texts: PairTexts
    draw: SampleSpec

    @classmethod
    def of(cls, number: int, texts: PairTexts, draw: SampleSpec, work: Path) -> SampleText:
        """Return the task for part `number`."""
        return cls(work / f"part-{number:05d}.sample.json", texts.source.lines, texts, draw)

    @property
    def title(self) -> str:
        return f"drawing sentences from {self.texts.source.title}"

    def run(self) -> None:
        draw, texts = self.draw, {"source": self.texts.source, "target": self.texts.target}
        samples: dict[str, list[str]] = {
            side: list(sampled_texts(texts[side], draw.share, draw.seed, draw.text_factors if side == "source" else 0))
            for side in draw.sides}
        if draw.factors:
            rows = list(self._factor_values())
            samples |= {f"factor_{n + 1}": [row[n] for row in rows] for n in range(draw.factors)}
        with atomic_output(self.output) as unfinished:
            unfinished.write_text(json.dumps(samples), encoding="utf-8")

    def _factor_values(self) -> Iterator[list[str]]:
        factors = self.draw.factors
        for chunk in self.texts.source_chunks():
            for number, line in sampled_lines(chunk, self.draw.factor_share, self.draw.seed):
                yield [" ".join(values) for values in _split(clean(line), factors, chunk.path, number)[1]]


def sampled_texts(part: TextRange, share: float, seed: int, factors: int) -> Iterator[str]:
    """Yield the sampled sentences of a part: cleaned, not empty, and without factors.

    Args:
        part: range of one side.
        share: share of the lines; see `SampleSpec`.
        seed: seed of the sample.
        factors: number of factors after each word.
    """
    for chunk in part.chunks():
        for number, line in sampled_lines(chunk, share, seed):
            text = clean(line)
            if text and factors:
                text = " ".join(_split(text, factors, chunk.path, number)[0])
            if text:
                yield text


def sampled_lines(chunk: Chunk, share: float, seed: int) -> Iterator[tuple[int, str]]:
    """Yield the numbers and the text of the sampled lines of a chunk."""
    lines = chunk.decode()
    if share >= 1:
        yield from enumerate(lines, chunk.first_line)
        return
    limit = np.uint64(share * (2**64 - 2**11))
    numbers = chunk.first_line + np.arange(chunk.lines, dtype=np.int64)
    for index in np.flatnonzero(line_hash(numbers, seed ^ 0x5EED) <= limit).tolist():
        yield chunk.first_line + index, lines[index]


def sampled_sentences(samples: Iterable[Path], name: str) -> Iterator[str]:
    """Yield the sampled sentences of all parts, in the order of the text.

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


COUNTED_LINES = 1_000_000
"""Maximum number of lines whose words are counted."""


@dataclass(frozen=True)
class CountSource(Task):
    """Counts the words and the lines with final marks of the source text of a part.

    Attributes:
        source: the part.
        share: share of the sampled lines.
        factors: number of factors after each word.
        seed: seed of the sample.
    """

    source: TextRange
    share: float
    factors: int
    seed: int

    @classmethod
    def of(cls, number: int, texts: PairTexts, share: float, factors: int, seed: int, work: Path) -> CountSource:
        """Return the task for part `number`."""
        return cls(work / f"part-{number:05d}.words.json", texts.source.lines, texts.source, share, factors, seed)

    @property
    def title(self) -> str:
        return f"counting words in {self.source.title}"

    def run(self) -> None:
        counts = SourceCounts.of(sampled_texts(self.source, self.share, self.seed, self.factors))
        with atomic_output(self.output) as unfinished:
            unfinished.write_text(json.dumps(vars(counts)), encoding="utf-8")

    def counts(self) -> SourceCounts:
        """Return the counts, after the task is done."""
        counts = json.loads(self.output.read_text(encoding="utf-8"))
        return SourceCounts(Counter(counts["words"]), Counter(counts["first"]), counts["lines"], counts["marked"])


MEASURED_LINES = 100_000
"""Maximum number of measured lines, which give the number of words with an error of some tenths of a percent."""


@dataclass
class SideMeasure:
    """The measures of one side in the sampled lines.

    Attributes:
        words: number of words, separated by white space.
        characters: frequency of each character.
    """

    words: int = 0
    characters: Counter[str] = field(default_factory=Counter)

    def add(self, measure: SideMeasure) -> None:
        """Add the measures of other lines."""
        self.words += measure.words
        self.characters.update(measure.characters)


@dataclass
class TextMeasure:
    """The measures of both sides.

    Attributes:
        share: share of the sampled lines.
        sides: measures of "source" and "target".
    """

    share: float
    sides: dict[str, SideMeasure]


@dataclass(frozen=True)
class MeasureText(Task):
    """Counts the words and characters of a part.

    Attributes:
        texts: texts of the part.
        share: share of the sampled lines.
        factors: number of factors after each word in the source text.
        seed: seed of the sample.
    """

    texts: PairTexts
    share: float
    factors: int
    seed: int

    @classmethod
    def of(cls, number: int, texts: PairTexts, share: float, factors: int, seed: int, work: Path) -> MeasureText:
        """Return the task for part `number`."""
        return cls(work / f"part-{number:05d}.measure.json", texts.source.lines, texts, share, factors, seed)

    @property
    def title(self) -> str:
        return f"measuring {self.texts.source.title}"

    @property
    def done(self) -> bool:
        """False: an interrupted preparation may have measured a different text."""
        return False

    def run(self) -> None:
        sides = {"source": (self.texts.source, self.factors), "target": (self.texts.target, 0)}
        measures = {}
        for side, (part, factors) in sides.items():
            measure = measure_sentences(sampled_texts(part, self.share, self.seed, factors))
            measures[side] = [measure.words, measure.characters]
        with atomic_output(self.output) as unfinished:
            unfinished.write_text(json.dumps(measures), encoding="utf-8")


def measure_sentences(sentences: Iterable[str]) -> SideMeasure:
    """Count the words and characters of sentences of one side."""
    measure = SideMeasure()
    for sentence in sentences:
        measure.words += len(sentence.split())
        measure.characters.update(sentence)
    return measure


def merge_measures(tasks: Iterable[MeasureText], share: float) -> TextMeasure:
    """Return the sum of the results of tasks that are done."""
    total = TextMeasure(share, {"source": SideMeasure(), "target": SideMeasure()})
    for task in tasks:
        for side, (words, characters) in json.loads(task.output.read_text(encoding="utf-8")).items():
            total.sides[side].add(SideMeasure(words, Counter(characters)))
    return total
