"""Annotations of the text of a preparation, line by line: files of source factors, and alignments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from towernmt.core.errors import DataError
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.text.chunks import Chunk, read_lines
from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.text.text_index import TextIndex, TextPart
from towernmt.dataflow.vocabulary.factored import SEPARATOR, FactorError, split_factors


@dataclass(frozen=True)
class PairTexts:
    """The texts of sentence pairs, or of some consecutive lines of them.

    Attributes:
        source, target: both sides.
        factors: files of source factors, line by line.
        alignments: links of words; None: there are none.
    """

    source: TextPart
    target: TextPart
    factors: tuple[TextPart, ...] = ()
    alignments: TextPart | None = None

    def chunks(self) -> Iterator[tuple[Chunk, Chunk, Chunk | None]]:
        """Chunks of the source (its factors in text form, `word|factor1`), the target, and the alignments.

        Raises:
            DataError: a file cannot be read, or a line has not as many factors as words.
        """
        links: Iterable[Chunk | None] = repeat(None) if self.alignments is None else self.alignments.chunks()
        yield from zip(self.source_chunks(), self.target.chunks(), links, strict=False)

    def source_chunks(self) -> Iterator[Chunk]:
        """The source text, with the factors of parallel files put behind its words.

        Raises:
            DataError: see `chunks`.
        """
        if not self.factors:
            yield from self.source.chunks()
            return
        for chunk, *factors in zip(self.source.chunks(), *(part.chunks() for part in self.factors), strict=True):
            lines = zip(chunk.decode(), *(factor.decode() for factor in factors), strict=True)
            text = "".join(_joined(line, chunk.first_line + index, factors) + "\n" for index, line in enumerate(lines))
            yield Chunk(chunk.path, chunk.first_line, chunk.lines, text.encode())


def text_files(settings: PrepareSettings) -> dict[str, str]:
    """The files that belong together line by line, by the names that manifests give them; the two sides first."""
    names = {"source": settings.source, "target": settings.target}
    names |= {f"source_factor_{number}": path for number, path in enumerate(settings.source_factor_files, 1)}
    return names | ({"alignments": settings.alignments} if settings.alignments else {})


def pair_texts(indexes: Mapping[str, TextIndex], chunks: int) -> list[PairTexts]:
    """The texts in parts of so many chunks.

    Args:
        indexes: of the files of `text_files`.
        chunks: for each part.
    """
    parts = {name: index.parts(chunks) for name, index in indexes.items()}
    factors = [name for name in indexes if name.startswith("source_factor_")]
    return [PairTexts(source, parts["target"][n], tuple(parts[name][n] for name in factors),
                      parts["alignments"][n] if "alignments" in parts else None)
            for n, source in enumerate(parts["source"])]


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
