"""The report on sources or prepared data: number of pairs, lengths, reading speed, and errors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from operator import itemgetter

import numpy as np

from towernmt.core.errors import TowerNMTError
from towernmt.core.text_table import align_columns
from towernmt.dataflow.preparation.corpus_statistics import describe_annotations
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.sources.mixture import Ingredient
from towernmt.dataflow.sources.source import Pair, Source
from towernmt.dataflow.text.clean_text import clean, with_tag
from towernmt.dataflow.text.pair_filters import DROP_REASONS, PairFilter
from towernmt.dataflow.vocabulary.base import UNK, Vocabulary
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary, FactorError, factors_of, split_factors

_EXAMPLES = 3
_LONGEST_TEXT = 60  # characters of an example
_SLICE = 4096


@dataclass
class SourceReport:
    """The report on one source. All figures except `pairs` are those of the first pairs, which were inspected.

    Attributes:
        name: name of the source, without credentials.
        pairs: number of pairs; None if they could not be counted.
        read: number of inspected pairs.
        read_seconds: duration of reading them, without encoding.
        unit: unit of the lengths, "tokens" or "words".
        lengths: lengths of both sides.
        unknown: share of unknown tokens of both sides; None without a vocabulary.
        prepared: whether the source is prepared data.
        dropped: number of pairs that training would drop, by reason; of prepared data, those that were dropped.
        duplicates: number of pairs that occurred before.
        repeated_sources: number of pairs whose source sentence occurred before, with any translation.
        often: the most frequent source sentences, and their frequencies.
        samples: the first pairs.
        annotations: sentences on the source factors and alignments of prepared data.
        errors: messages of errors.
    """

    name: str
    pairs: int | None = None
    read: int = 0
    read_seconds: float = 0.0
    unit: str = "words"
    lengths: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    unknown: tuple[float, float] | None = None
    prepared: bool = False
    dropped: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    repeated_sources: int = 0
    often: list[tuple[str, int]] = field(default_factory=list)
    samples: list[Pair] = field(default_factory=list)
    annotations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def pairs_per_second(self) -> float | None:
        """Reading speed; None if nothing was read."""
        return self.read / self.read_seconds if self.read and self.read_seconds > 0 else None


class SourceInspector:
    """Reads sources in turn, and reports on each.

    Args:
        limit: maximum number of inspected pairs of each source; the count of pairs is not limited.
        samples: number of pairs to show.
        count: whether to count the pairs, which may read everything.
        vocabularies: vocabularies of both sides, or None to measure in words.
        pair_filter: filter of the training.
        factors: number of factors after each source word, if there are no vocabularies.
    """

    def __init__(self, limit: int = 100_000, samples: int = 3, count: bool = True,
                 vocabularies: tuple[Vocabulary, Vocabulary] | None = None,
                 pair_filter: PairFilter | None = None, factors: int = 0) -> None:
        self._limit, self._samples, self._count = limit, samples, count
        self._vocabularies = vocabularies
        self._factors = factors if vocabularies is None else len(factors_of(vocabularies[0]))
        self._filter = pair_filter or PairFilter(200, 9.0)

    def inspect(self, ingredient: Ingredient) -> SourceReport:
        """Return the report on one source; its `errors` contain the errors of the source."""
        source = ingredient.source
        report = SourceReport(source.name, unit="words" if self._vocabularies is None else "tokens")
        try:
            self._read(source, ingredient.tag, report)
            if self._count:
                report.pairs = source.count()
        except TowerNMTError as error:
            report.errors.append(str(error))
        return report

    def _read(self, source: Source, tag: str, report: SourceReport) -> None:
        known_hashes: set[int] = set()
        repeated_sources = _Repeated()
        unknown, tokens = [0, 0], [0, 0]
        pairs = (pair for _, pair in source.read(source.begin()))
        while report.read < self._limit:
            begin = time.perf_counter()
            raw_pairs, error = _take(pairs, min(_SLICE, self._limit - report.read))
            report.read_seconds += time.perf_counter() - begin
            cleaned = [Pair(clean(pair.source), clean(pair.target)) for pair in raw_pairs]
            report.read += len(raw_pairs)
            report.samples += cleaned[:self._samples - len(report.samples)]
            hashes = [hash(pair) for pair in cleaned]
            report.duplicates += len(hashes) - len(set(hashes) - known_hashes)
            known_hashes.update(hashes)
            repeated_sources.add([pair.source for pair in cleaned])
            report.repeated_sources, report.often = repeated_sources.count, repeated_sources.most_often(_EXAMPLES)
            self._measure([Pair(with_tag(tag, pair.source), pair.target) for pair in cleaned], report, unknown, tokens)
            if error is not None:
                raise error
            if not raw_pairs:
                break
        if self._vocabularies is not None and all(tokens):
            report.unknown = unknown[0] / tokens[0], unknown[1] / tokens[1]

    def _measure(self, pairs: Sequence[Pair], report: SourceReport, unknown: list[int], tokens: list[int]) -> None:
        lengths: list[list[int]] = []
        for side in (0, 1):
            texts = [pair[side] for pair in pairs]
            if self._vocabularies is None:
                lengths.append([len(text.split()) for text in texts])
            else:
                encoded = self._encode(self._vocabularies[side], texts, report)
                lengths.append([len(ids) for ids in encoded])
                unknown[side] += sum(ids.count(UNK) for ids in encoded)
                tokens[side] += sum(lengths[side])
            report.lengths[side].extend(lengths[side])
        names = list(DROP_REASONS)
        codes = self._filter.reasons(*(np.array(side, np.int64) for side in lengths))
        for index, (pair, code) in enumerate(zip(pairs, codes.tolist(), strict=True)):
            try:
                reason = names[code] if code >= 0 else self._text_reason(pair)
            except FactorError as error:
                raise error.at(report.name, report.read - len(pairs) + index + 1) from None
            if reason is not None:
                report.dropped[reason] += 1

    def _text_reason(self, pair: Pair) -> str | None:
        """Return the reason for which the filters of text drop a pair, or None."""
        if not self._filter.texts.active:
            return None
        source = " ".join(split_factors(pair.source, self._factors)[0]) if self._factors else pair.source
        return self._filter.texts.reason(source, pair.target)

    def _encode(self, vocabulary: Vocabulary, texts: list[str], report: SourceReport) -> list[list[int]]:
        """Return the ids of the subwords, without factors."""
        if not isinstance(vocabulary, FactoredVocabulary):
            return vocabulary.encode_batch(texts)
        try:
            return vocabulary.encode_texts(texts).ids
        except FactorError as error:
            raise error.at(report.name, report.read - len(texts) + error.index + 1) from None


class _Repeated:
    """Counts repeated sentences by their hashes; stores the text of repeated sentences only."""

    def __init__(self) -> None:
        self._times: Counter[int] = Counter()
        self._texts: dict[int, str] = {}
        self.count = 0

    def add(self, texts: Sequence[str]) -> None:
        for text in filter(None, texts):
            key = hash(text)
            self._times[key] += 1
            if self._times[key] > 1:
                self.count += 1
                self._texts[key] = text

    def most_often(self, count: int) -> list[tuple[str, int]]:
        """Return the most frequent repeated sentences and their frequencies; ties are in the order of repetition."""
        return nlargest(count, ((text, self._times[key]) for key, text in self._texts.items()), key=itemgetter(1))


def _take(pairs: Iterator[Pair], count: int) -> tuple[list[Pair], TowerNMTError | None]:
    """Return the next pairs, and the error after them, or None."""
    taken_pairs: list[Pair] = []
    try:
        for pair in islice(pairs, count):
            taken_pairs.append(pair)
    except TowerNMTError as error:
        return taken_pairs, error
    return taken_pairs, None


def inspect_prepared(data: PreparedData, samples: int = 3) -> SourceReport:
    """Return the report on prepared data, from its statistics; read every file and verify its checksum.

    Args:
        data: the prepared data.
        samples: number of pairs to show.

    Raises:
        DataError: the statistics cannot be read.
    """
    report = SourceReport(str(data.directory), data.pairs, unit="tokens", prepared=True)
    statistics = data.statistics
    report.unknown = statistics["source"]["unknown_rate"], statistics["target"]["unknown_rate"]
    report.dropped.update({reason: entry["pairs"] for reason, entry in statistics["dropped"].items() if entry["pairs"]})
    report.annotations = describe_annotations(statistics, data.manifest["vocabularies"])
    for index in range(data.num_blocks):
        begin = time.perf_counter()
        try:
            block = data.read_block(index)
        except TowerNMTError as error:
            report.errors.append(str(error))
            continue
        report.read_seconds += time.perf_counter() - begin
        report.read += len(block)
        for side, lengths in enumerate((block.source_lengths, block.target_lengths)):
            report.lengths[side].extend(lengths.tolist() if len(report.lengths[side]) < 1_000_000 else [])
        for row in range(min(samples - len(report.samples), len(block))):
            source, target = block.ids_of_pair(row)
            report.samples.append(Pair(data.source_vocabulary.decode(source), data.target_vocabulary.decode(target)))
    for content in ("validation_sets", "statistics_table", "pair_lengths", "source_text"):
        try:
            getattr(data, content)      # compares the files with the manifest
        except TowerNMTError as error:
            report.errors.append(str(error))
    return report


def report_table(reports: Sequence[SourceReport], shares: Sequence[float | None] = ()) -> str:
    """Return all reports as text: one table, then errors and samples of each source.

    Args:
        reports: report on each source.
        shares: share of each source in the draws of the mixture; None if it is unknown.
    """
    head = ["", "pairs", "share", "source length", "target length", "unknown", "pairs/s", "trouble"]
    rows = [head]
    for number, report in enumerate(reports, 1):
        share = shares[number - 1] if shares else None
        rate = report.pairs_per_second
        rows.append([f"[{number}]", f"{report.pairs:,}" if report.pairs is not None else f"{report.read:,} or more",
                     "-" if share is None else f"{100 * share:.1f} %", *(_lengths(side) for side in report.lengths),
                     "-" if report.unknown is None else " / ".join(f"{100 * rate:.2f} %" for rate in report.unknown),
                     "-" if rate is None else f"{rate:,.0f}", _trouble(report)])
    lines = align_columns(rows, alignment=">" * (len(head) - 1) + "<")
    units = sorted({report.unit for report in reports})
    lines.append(f"Lengths are {' or '.join(units)}: mean, 99 % up to, longest; unknown tokens: source / target.")
    for number, report in enumerate(reports, 1):
        lines += ["", f"[{number}] {report.name}", *(f"  {line}" for line in _details(report))]
    return "\n".join(lines) + "\n"


def _details(report: SourceReport) -> Iterator[str]:
    """Yield the errors, annotations, dropped and repeated pairs, and samples of a source."""
    yield from (f"error: {error}" for error in report.errors)
    yield from report.annotations
    for reason, count in sorted(report.dropped.items()):
        yield (f"{count:,} dropped: {reason}" if report.prepared else
               f"{count:,} of {report.read:,} pairs would be dropped: {reason}")
    if report.duplicates:
        yield f"{report.duplicates:,} of {report.read:,} pairs came before"
    if report.repeated_sources:
        often = ", ".join(f"'{_shortened(text)}' ({times:,} times)" for text, times in report.often)
        yield f"{report.repeated_sources:,} of {report.read:,} pairs have a source that came before: {often}"
    yield from (f"{pair.source}\n    {pair.target}" for pair in report.samples)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT - 3] + "..."


def _lengths(lengths: Sequence[int]) -> str:
    if not lengths:
        return "-"
    values = np.array(lengths)
    return f"{values.mean():.1f}, {int(np.quantile(values, 0.99, method='higher'))}, {values.max()}"


def _trouble(report: SourceReport) -> str:
    troubles = ["error"] if report.errors else []
    dropped = sum(report.dropped.values())
    troubles += [f"{dropped:,} to drop"] if dropped and not report.prepared else []
    troubles += ["no pair"] if not report.read and not report.errors else []
    return ", ".join(troubles) or "none"
