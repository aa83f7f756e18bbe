"""Annotations of the text of a preparation, line by line: files of source factors, and alignments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from towernmt.core.errors import DataError
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.text.chunks import Chunk, read_chunks, read_lines
from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.text.text_scan import TextSummary, scan_parallel_file
from towernmt.dataflow.vocabulary.factored import SEPARATOR, FactorError, split_factors

Chunks = tuple[Chunk, Chunk, Chunk | None]
"""Lines of source (with its factors), target, and alignments if there are any."""


def scan_annotations(settings: PrepareSettings, source: TextSummary) -> dict[str, TextSummary]:
    """Check the files of annotations: UTF-8, with as many lines as the source.

    Returns:
        the name of each in manifests, and its summary.

    Raises:
        DataError: one is missing, not UTF-8, or of another number of lines.
    """
    names = {f"source_factor_{number}": path for number, path in enumerate(settings.source_factor_files, 1)}
    if settings.alignments:
        names["alignments"] = settings.alignments
    return {name: scan_parallel_file(path, source) for name, path in names.items()}


def training_chunks(settings: PrepareSettings) -> Iterator[Chunks]:
    """The training text as chunks, the source with its factors in text form (`word|factor1`).

    Raises:
        DataError: a file cannot be read, or a line has not as many factors as words.
    """
    chunks = zip(source_chunks(settings), read_chunks(settings.target), strict=True)
    if not settings.alignments:
        for source, target in chunks:
            yield source, target, None
        return
    for (source, target), links in zip(chunks, read_chunks(settings.alignments), strict=True):
        yield source, target, links


def source_chunks(settings: PrepareSettings) -> Iterator[Chunk]:
    """The source text, with the factors of parallel files put behind its words.

    Raises:
        DataError: see `training_chunks`.
    """
    if not settings.source_factor_files:
        yield from read_chunks(settings.source)
        return
    factor_files = [read_chunks(path) for path in settings.source_factor_files]
    for chunk, *factors in zip(read_chunks(settings.source), *factor_files, strict=True):
        lines = zip(chunk.decode(), *(factor.decode() for factor in factors), strict=True)
        text = "".join(_joined(line, chunk.first_line + index, factors) + "\n" for index, line in enumerate(lines))
        yield Chunk(chunk.path, chunk.first_line, chunk.lines, text.encode())


def check_factored_text(path: str, factors: int) -> None:
    """Check that each word of a file has its factors behind it.

    Raises:
        DataError: one has not; with file and line.
    """
    for number, line in enumerate(read_lines(path), 1):
        try:
            split_factors(clean(line), factors)
        except FactorError as error:
            raise error.at(path, number) from None


def _joined(line: Sequence[str], number: int, files: Sequence[Chunk]) -> str:
    words, *factors = (clean(text).split() for text in line)
    for file, values in zip(files, factors, strict=True):
        if len(values) != len(words):
            raise DataError(f"{file.path} line {number}: {len(values)} factors, but the source has {len(words)} words "
                            "there: write one factor for each word, white space between them.")
        wrong = next((value for value in values if SEPARATOR in value), None)
        if wrong is not None:
            raise DataError(f"{file.path} line {number}: the factor '{wrong[:40]}' holds '{SEPARATOR}', which stands "
                            "between a word and its factors in text to translate: write it otherwise.")
    return " ".join(map(SEPARATOR.join, zip(words, *factors, strict=True)))
