"""Sentence pairs of documents: from aligned sentences, checked by evidence, and in a table for reviewers.

The table has a line for each bead and each sentence without a counterpart, in the order of the documents. People may
change its first column, `keep`, and both texts. A checksum of these columns, which is the same in each line, shows
later whether they did.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from towernmt.core.errors import DataError
from towernmt.core.line_progress import StageProgress
from towernmt.dataflow.sources.column_files import CsvReader, read_csv
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.word_segmentation import joined_sentences
from towernmt.documents.alignment.document_aligner import (
    AlignedSentences,
    KnownPairs,
    SentenceTexts,
    align_in_orders,
)
from towernmt.documents.alignment.matched_files import MatchedFiles

DEFAULT_THRESHOLD = 0.1
"""Score from which pairs are kept."""
CERTAIN_SHARE, MIN_SHARE = 0.65, 0.1
"""Shares of the sentences of the shorter text that are in pairs with `DEFAULT_THRESHOLD`: from the first on, texts are
certainly translations of each other, and below the second one they are not."""
MIN_QUOTIENT = 1.3
"""Minimum quotient of the share and the highest share of texts in random order, where all pairs are coincidences."""
MIN_STANDARD_ERRORS = 3.0
"""Minimum difference of the two in standard errors of the share, which is uncertain in short texts."""
_RANDOM_ORDERS, _MAX_IN_RANDOM_ORDER = 4, 2000
"""Number of random orders, and maximum number of sentences that are compared in them."""
MIN_RUN_OF_EXCERPT = 10
"""Minimum number of pairs in a row, without a gap, that count for the share of an excerpt of a book. An unrelated text
has counterparts by chance all over the book, also with similar lengths, so only scores by words count."""
MAX_EQUAL_SHARE = 0.5
"""Maximum share of pairs with the same text on both sides."""
MIN_SENTENCES_TO_JUDGE = 30
"""Number of sentences of the shorter text below which the share is not evidence."""
_COLUMNS = ("keep", "score", "kind", "document", "source_sentences", "target_sentences", "checksum", "source", "target")
_CHANGED_COLUMNS = ("keep", "source", "target")
"""The columns that reviewers may change."""
_YES, _NO = ("yes", "y", "1", "x", "true"), ("no", "n", "0", "", "false")


class ScoredPair(NamedTuple):
    """A pair of sentences, or of up to two sentences on a side.

    Attributes:
        source, target: the texts.
        score: 0 to 1.
    """

    source: str
    target: str
    score: float


@dataclass(frozen=True)
class AlignedDocument:
    """The alignment of a document.

    Attributes:
        files: the files of the document.
        texts: the sentences of both sides.
        aligned: their alignment.
    """

    files: MatchedFiles
    texts: SentenceTexts
    aligned: AlignedSentences

    def pairs(self, threshold: float) -> Iterator[ScoredPair]:
        """Yield the pairs with at least a score."""
        for row in self.rows(threshold):
            if row.is_kept:
                yield row.pair

    def rows(self, threshold: float) -> Iterator[ReviewRow]:
        """Yield the rows of the document in a table for reviewers."""
        for bead, score in zip(self.aligned.beads, self.aligned.scores.tolist(), strict=True):
            source = joined_sentences(self.texts.source[bead.source_first:bead.source_after])
            target = joined_sentences(self.texts.target[bead.target_first:bead.target_after])
            yield ReviewRow(
                not bead.is_gap and score >= threshold, "{}-{}".format(*bead.shape), self.files.name,
                _numbers(bead.source_first, bead.source_after), _numbers(bead.target_first, bead.target_after),
                ScoredPair(source, target, score))

    def check(self, known: Sequence[tuple[str, str]] | KnownPairs = (), progress: StageProgress | None = None) -> None:
        """Check that the texts are translations of each other.

        Args:
            known: known sentence pairs; see `align_sentences`.
            progress: shows the progress; None to show nothing.

        Raises:
            DataError: too few sentences have a counterpart, or both texts are the same.
        """
        pairs = list(self.pairs(DEFAULT_THRESHOLD))
        if pairs and sum(pair.source == pair.target for pair in pairs) > MAX_EQUAL_SHARE * len(pairs):
            raise DataError(f"{self.files.name} have the same text: pass a document and its translation, or "
                            "--no-text-check if most of its sentences stay as they are.")
        share, sentences = self._share_in_good_pairs(self.aligned), min(map(len, self.texts))
        if sentences < MIN_SENTENCES_TO_JUDGE or share >= CERTAIN_SHARE and not self.texts.has_excerpt:
            return
        by_chance = self._share_by_chance(known, (progress or StageProgress()).of_part(f"checking {self.files.name}"))
        error = math.sqrt(by_chance * (1 - by_chance) / sentences)
        if share < max(MIN_SHARE, MIN_QUOTIENT * by_chance, by_chance + MIN_STANDARD_ERRORS * error):
            advice = ("If the shorter one translates a part of the other, cut the other to this part, or pass --known "
                      "or --model. Otherwise, pass" if self.texts.has_excerpt else "Pass")
            raise DataError(f"{self.files.name} are probably no translations of each other: {share:.0%} of the "
                            f"sentences of the shorter one have a counterpart, and {by_chance:.0%} have one by chance "
                            f"if the sentences are in a random order. {advice} documents that belong together, or "
                            "--no-text-check if they do.")

    def _share_by_chance(self, known: Sequence[tuple[str, str]] | KnownPairs, progress: StageProgress) -> float:
        """Return the highest share of sentences in good pairs if the target is in a random order."""
        # An excerpt is compared with all sentences of the other text, among which it finds coincidences.
        shorter = min(map(len, self.texts))
        limits = [len(side) if self.texts.has_excerpt and len(side) > shorter else _MAX_IN_RANDOM_ORDER
                  for side in self.texts]
        texts = SentenceTexts(self.texts.source[:limits[0]], self.texts.target[:limits[1]])
        orders = [Random(seed).sample(range(len(texts.target)), len(texts.target)) for seed in range(_RANDOM_ORDERS)]
        return max(map(self._share_in_good_pairs, align_in_orders(
            texts, orders, known, self.aligned.translations[:limits[0]], progress)))

    def _share_in_good_pairs(self, aligned: AlignedSentences) -> float:
        if self.texts.has_excerpt:
            return aligned.share_in_runs(DEFAULT_THRESHOLD, MIN_RUN_OF_EXCERPT)
        return aligned.share_in_good_beads(DEFAULT_THRESHOLD)


class ReviewRow(NamedTuple):
    """A row of a table for reviewers.

    Attributes:
        is_kept: whether the pair is kept.
        kind: numbers of source and target sentences, such as `1-2`; `1-0` and `0-1` are sentences without a
            counterpart.
        document: the names of the files.
        source_sentences, target_sentences: numbers of the sentences in the documents, from 1.
        pair: the texts and the score.
    """

    is_kept: bool
    kind: str
    document: str
    source_sentences: str
    target_sentences: str
    pair: ScoredPair


def review_lines(rows: Iterable[ReviewRow]) -> Iterator[str]:
    """Yield the lines of a table for reviewers, with the names of the columns first.

    As spreadsheets do, cells with quotes are in quotes, and their quotes are doubled.
    """
    yield _line(_COLUMNS)
    keep_and_rows = [("yes" if row.is_kept else "no", row) for row in rows]
    checksum = _review_checksum((keep, row.pair.source, row.pair.target) for keep, row in keep_and_rows)
    for keep, row in keep_and_rows:
        source, target, score = row.pair
        yield _line((keep, f"{score:.3f}", row.kind, row.document, row.source_sentences, row.target_sentences, checksum,
                     source, target))


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="").writerow(cells)
    return text.getvalue()


def _review_checksum(rows: Iterable[Sequence[str]]) -> str:
    """Return the checksum of a table, which no spreadsheet program takes for a number.

    Args:
        rows: the cells of `_CHANGED_COLUMNS` in each row.
    """
    digest = hashlib.sha256()
    for cells in rows:
        digest.update("".join(f"{len(cell)} {cell}" for cell in cells).encode())
    return f"sha-{digest.hexdigest()[:8]}"


def is_unchanged_review(text: str) -> bool:
    """Return whether a table has the same columns, decisions and texts as when `review_lines` wrote it.

    Args:
        text: the content of the file; empty if nothing was written.
    """
    try:
        rows = [row for row in _rows_of_table(text) if row]
    except csv.Error:
        return False
    if not rows:
        return True
    if any(len(row) != len(_COLUMNS) for row in rows) or tuple(rows[0]) != _COLUMNS:
        return False
    cells = [dict(zip(_COLUMNS, row, strict=True)) for row in rows[1:]]
    checksum = _review_checksum([row[column] for column in _CHANGED_COLUMNS] for row in cells)
    return all(row["checksum"] == checksum for row in cells)


def read_review(text: str, name: str) -> Iterator[ScoredPair]:
    """Yield the pairs that reviewers kept.

    Args:
        text: the table.
        name: name of the file, for messages.

    Raises:
        DataError: the lines are not such a table, or a kept pair has no text on one side.
    """
    reader = _rows_of_table(text)
    try:
        yield from _kept_pairs(reader, name)
    except csv.Error as error:
        raise DataError(f"{name} line {reader.line_num}: the quotes do not match ({error}): save the table again as "
                        "tab-separated text.") from None


def _rows_of_table(text: str) -> CsvReader:
    return read_csv(io.StringIO(text, newline=""), "\t", longest=len(text))


def _kept_pairs(rows: CsvReader, name: str) -> Iterator[ScoredPair]:
    header: list[str] = next(rows, [])
    missing = [column for column in _CHANGED_COLUMNS if column not in header]
    if missing:
        raise DataError(f"{name} line 1: the columns {', '.join(missing)} are missing: pass a table that `towernmt "
                        "pairs --review` wrote.")
    for row in rows:
        if not row:
            continue
        number = rows.line_num      # the last line of the row, whose cells may have several lines
        if len(row) != len(header):
            raise DataError(f"{name} line {number}: {len(row)} columns where {len(header)} were expected: "
                            "separate them by tabs.")
        cells = dict(zip(header, row, strict=True))
        keep = cells["keep"].strip().lower()
        if keep not in _YES + _NO:
            raise DataError(f"{name} line {number}: keep is '{cells['keep']}': write yes or no.")
        if keep in _NO:
            continue
        source, target = clean(cells["source"]), clean(cells["target"])
        if not (source and target):
            raise DataError(f"{name} line {number}: the pair is kept, but has no {'target' if source else 'source'}: "
                            "write a text, or change keep to no.")
        yield ScoredPair(source, target, _score(cells.get("score", "")))


def _score(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return 1.0


def _numbers(first: int, after: int) -> str:
    """Return the numbers of sentences from 1, as `3` or `3-4`."""
    return "" if after == first else str(after) if after == first + 1 else f"{first + 1}-{after}"
