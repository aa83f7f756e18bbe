"""Where a system is good and where it is not: by the length of sentences, and by how frequent words are.

Source of the idea: compare-mt (Neubig et al. 2019, arXiv:1903.07926).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from towernmt.core.errors import SettingsError
from towernmt.predict.evaluation.comparison import System
from towernmt.predict.evaluation.metrics import MetricSettings, score_corpus
from towernmt.predict.evaluation.words import words

LENGTHS = (5, 10, 15, 20, 30, 50)
"""The longest sentence (words) of each bucket but the last."""
FREQUENCIES = (0, 1, 4, 9, 99, 999)
"""The largest frequency of each bucket but the last."""


@dataclass(frozen=True)
class LengthBucket:
    """Sentences of similar length.

    Attributes:
        label: the lengths, in words.
        sentences: how many there are.
        scores: by metric, of each system, of these sentences as a corpus.
    """

    label: str
    sentences: int
    scores: dict[str, list[float]]


@dataclass(frozen=True)
class WordMatches:
    """How well the words of a bucket are translated, as shares from 0 to 1.

    Attributes:
        precision: of those in the translations, those in the reference of the same sentence.
        recall: of those in the references, those in the translation.
    """

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True)
class FrequencyBucket:
    """Words of similar frequency.

    Attributes:
        label: the frequencies.
        words: how often such words occur in the first reference.
        matches: of each system.
    """

    label: str
    words: int
    matches: list[WordMatches]


def by_length(lengths: Sequence[int], systems: Sequence[System], references: Sequence[Sequence[str]],
              metrics: MetricSettings, bounds: Sequence[int] = LENGTHS) -> list[LengthBucket]:
    """Score the sentences of each range of lengths; ranges without a sentence are left out.

    Args:
        lengths: of each sentence, in words.
        systems: what is scored.
        references: all sentences by each translator.
        metrics: by what.
        bounds: the longest of each range but the last.
    Raises:
        SettingsError: bounds that do not rise.
    """
    places: list[list[int]] = [[] for _ in range(len(bounds) + 1)]
    for sentence, length in enumerate(lengths):
        places[bucket_of(length, bounds)].append(sentence)
    buckets = []
    for label, chosen in zip(labels(bounds, min(1, *lengths)), places, strict=True):
        if not chosen:
            continue
        others = [[lines[i] for i in chosen] for lines in references]
        found = [score_corpus([system.hypotheses[i] for i in chosen], others, metrics) for system in systems]
        buckets.append(LengthBucket(label, len(chosen), {
            metric: [scores[metric][0] for scores in found] for metric in found[0]}))
    return buckets


def count_words(lines: Iterable[str], lowercase: bool = False) -> Counter[str]:
    """How often each word occurs in a text."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(_words(line, lowercase))
    return counts


def by_frequency(counts: Counter[str], systems: Sequence[System], references: Sequence[Sequence[str]],
                 lowercase: bool = False, bounds: Sequence[int] = FREQUENCIES) -> list[FrequencyBucket]:
    """How well words of each range of frequencies are translated; ranges without a word are left out.

    A word of a translation matches a word of the reference of the same sentence, each once. Of several references,
    that one counts with which a translation shares most words.

    Args:
        counts: the frequency of each word, in the training data or in the reference.
        systems: whose translations.
        references: all sentences by each translator.
        lowercase: whether case makes no difference.
        bounds: the largest frequency of each range but the last.
    Raises:
        SettingsError: bounds that do not rise.
    """
    size = len(bounds) + 1
    place = {word: bucket_of(count, bounds) for word, count in counts.items()}
    unseen = bucket_of(0, bounds)
    texts = [[Counter(_words(line, lowercase)) for line in lines] for lines in references]
    in_reference = _sums(texts[0], place, unseen, size)
    tables = []
    for system in systems:
        said = [Counter(_words(line, lowercase)) for line in system.hypotheses]
        best = [_nearest(mine, others) for mine, *others in zip(said, *texts, strict=True)]
        matched = _sums((mine & other for mine, other in zip(said, best, strict=True)), place, unseen, size)
        tables.append([WordMatches(_share(hits, ours), _share(hits, theirs)) for hits, ours, theirs in zip(
            matched, _sums(said, place, unseen, size), _sums(best, place, unseen, size), strict=True)])
    return [FrequencyBucket(label, in_reference[i], [table[i] for table in tables])
            for i, label in enumerate(labels(bounds, 0)) if in_reference[i]]


def bucket_of(value: int, bounds: Sequence[int]) -> int:
    """The index of the first bound that is not below `value`; behind the last: their number."""
    return next((i for i, bound in enumerate(bounds) if value <= bound), len(bounds))


def labels(bounds: Sequence[int], least: int) -> list[str]:
    """The ranges that bounds part, in words.

    Args:
        bounds: the largest value of each range but the last.
        least: the smallest value of the first.
    Raises:
        SettingsError: bounds that do not rise.
    """
    if any(one >= other for one, other in pairwise([least - 1, *bounds])):
        raise SettingsError(f"{', '.join(map(str, bounds))}: the bounds of ranges must rise, from {least} on.")
    starts = [least, *(bound + 1 for bound in bounds)]
    ends = [f"{first:,}" if first == last else f"{first:,}-{last:,}"
            for first, last in zip(starts, bounds, strict=False)]
    return [*ends, f"{starts[-1]:,}+"]


def _words(line: str, lowercase: bool) -> list[str]:
    return words(line.lower() if lowercase else line)


def _nearest(mine: Counter[str], others: Sequence[Counter[str]]) -> Counter[str]:
    """That of the others which shares most words."""
    return max(others, key=lambda other: (mine & other).total())


def _sums(texts: Iterable[Counter[str]], place: dict[str, int], unseen: int, size: int) -> list[int]:
    """Of each range, how many words there are."""
    sums = [0] * size
    for text in texts:
        for word, count in text.items():
            sums[place.get(word, unseen)] += count
    return sums


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
