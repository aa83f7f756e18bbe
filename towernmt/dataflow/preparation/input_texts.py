"""The texts of a preparation: source and target files, annotations line by line, and the validation text.

A preparation reads its text several times, and the content of a database may change in between. So sources are read
once and written to two text files. Annotations are files of source factors, and alignments.

The validation text is checked first, then written as raw text next to the shards. The first set is `valid.source` and
`valid.target`; its further references are `valid.target-2` and so on, and the second set is `valid-2.source` and
`valid-2.target`. The manifest has the names of the sets.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import BinaryIO, TextIO

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files import naming, write_text
from towernmt.core.line_progress import LineProgress
from towernmt.dataflow.preparation.manifest import ValidationInfo
from towernmt.dataflow.preparation.prepare_settings import SENTENCEPIECE_KINDS, PrepareSettings
from towernmt.dataflow.sources.corpora import Corpora, read_corpora
from towernmt.dataflow.sources.mixture import Mixture
from towernmt.dataflow.sources.source import Cursor
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.text_index import TextIndex, TextRange, TextSummary, scan_pair
from towernmt.dataflow.text.text_lines import LONGEST_LINE, Chunk, line_too_long, read_lines
from towernmt.dataflow.text.validation_set import NO_VALIDATION_TEXT, ValidationFiles, check_has_text, files_of_set
from towernmt.dataflow.vocabulary.source_factors import SEPARATOR, FactorError, split_factors

_READ_PAIRS = 4096  # number of pairs of a read
_RECORD_PAIRS = 1 << 18  # number of pairs between two records of the position


def open_sources(settings: PrepareSettings, stream: TextIO | None) -> tuple[PrepareSettings, Mixture | None]:
    """Return settings that include those of a `corpora.yaml`, and the mixture of its sources.

    The mixture is None if `settings.target` is set, so that source and target are text files. The validation text and
    the filters of the YAML file apply if the settings do not specify them.

    Args:
        settings: settings of the preparation.
        stream: destination of messages; None for none.

    Raises:
        SettingsError: a source is invalid or missing.
    """
    if settings.target:
        return settings, None
    corpora = read_corpora(settings.source)
    mixture = _open(settings, corpora, stream)
    factors = settings.source_factors or corpora.source_factors or 0
    return _with_corpora(settings, corpora, factors, _tag_symbols(settings, corpora, factors)), mixture


def write_text_files(settings: PrepareSettings, mixture: Mixture, directory: Path, stream: TextIO | None,
                     on_resumable: Callable[[], None]) -> PrepareSettings:
    """Write one epoch of a mixture to text files, and return settings with these files as source and target.

    Args:
        settings: settings of the preparation.
        mixture: the sources.
        directory: directory for the files.
        stream: destination of progress; None for none.
        on_resumable: called when the directory contains work that a later process can resume.

    Raises:
        DataError: a source cannot be read, or contains no pair.
    """
    copy = _Copy(mixture, directory, settings.source_factors)
    copy.write(stream, on_resumable)
    source, target = map(str, copy.files)
    return dataclasses.replace(settings, source=source, target=target)


def _open(settings: PrepareSettings, corpora: Corpora, stream: TextIO | None) -> Mixture:
    try:
        return corpora.mixture(settings.seed, lambda text: None if stream is None else print(text, file=stream))
    except SettingsError as error:
        if Path(settings.source).is_file() and not corpora.name:
            raise SettingsError(f"--target is missing: {settings.source} has one side of the pairs, as far as its name "
                                "tells; pass --target with its translation, line by line. If it has both sides: "
                                f"{error}") from error
        raise


def _tag_symbols(settings: PrepareSettings, corpora: Corpora, factors: int) -> list[str]:
    """Return the tags that become subwords of SentencePiece, without factors.

    Of a tag of several words, these are the words that are not only letters, since SentencePiece finds a symbol inside
    words, too.

    Raises:
        SettingsError: a tag lacks a factor, or has a comma, which separates the symbols.
    """
    symbols: set[str] = set()
    for tagged in (*corpora.sources, *corpora.validation):
        try:
            words = split_factors(clean(tagged.tag), factors)[0]
        except FactorError as error:
            raise SettingsError(f"{corpora.name}: the tag {error.reason}") from None
        symbols.update(word for word in words if len(words) == 1 or not word.isalpha())
    with_comma = next((symbol for symbol in sorted(symbols) if "," in symbol), None)
    if with_comma is not None and settings.vocab_kind in SENTENCEPIECE_KINDS:
        raise SettingsError(f"{corpora.name}: the tag {with_comma} cannot become a subword, since commas separate the "
                            "tokens of --vocab-symbols. Write it without a comma.")
    return sorted(symbols)


class _Copy:
    """Copies the text of a mixture to two files, and records the position so that a later process can resume.

    Args:
        mixture: the mixture.
        directory: directory of the files.
        factors: number of factors that each source word must have.
    """

    def __init__(self, mixture: Mixture, directory: Path, factors: int) -> None:
        self._mixture, self._factors = mixture, factors
        self.files = directory / "corpus.source", directory / "corpus.target"
        self._state_path = directory / "corpus.position"
        self._begin = mixture.begin()
        # Compared with a value that was read from JSON, in which tuples are lists.
        self._origin = json.loads(json.dumps({"mixture": mixture.position_settings, "seed": mixture.seed,
                                              "source_factors": factors, "begin": self._begin}))

    def write(self, stream: TextIO | None, on_resumable: Callable[[], None]) -> None:
        """Copy the mixture to its end, from the position of an earlier process if nothing has changed.

        Args:
            stream: destination of the progress; None for none.
            on_resumable: called when a later process can resume the copy.
        """
        done, cursor, sizes = self._recorded()
        reader, progress = self._mixture.reader(cursor), LineProgress("reading", stream=stream, done=done)
        recorded_pairs = done
        if not done:    # the record of another mixture must not outlive its text
            self._state_path.unlink(missing_ok=True)
        with naming(self.files[0]), open(self.files[0], "ab") as source, open(self.files[1], "ab") as target:
            for file, size in zip((source, target), sizes, strict=True):
                file.truncate(size)
            while pairs := reader.take(_READ_PAIRS):
                texts = [clean(pair.source) for pair in pairs]
                if self._factors:
                    _check_factors(texts, self._factors, done, self._mixture.name)
                source.write(_lines(texts, done, self._mixture.name))
                with naming(self.files[1]):
                    target.write(_lines([clean(pair.target) for pair in pairs], done, self._mixture.name))
                done += len(pairs)
                progress.update(done)
                if done - recorded_pairs >= _RECORD_PAIRS:
                    self._record(done, reader.cursor(), (source, target))
                    recorded_pairs = done
                    on_resumable()
            if done != recorded_pairs:
                self._record(done, reader.cursor(), (source, target))
        progress.done()
        if not done:
            raise DataError(f"{self._mixture.name}: it contains no pair, so there is nothing to prepare. Check the "
                            "source.")

    def _recorded(self) -> tuple[int, Cursor, list[int]]:
        """Return the number of pairs that were copied, the cursor after them, and the sizes of the files."""
        try:
            state = json.loads(self._state_path.read_text(encoding="utf-8"))
            sizes = [path.stat().st_size for path in self.files]
        except (OSError, ValueError):
            return 0, self._begin, [0, 0]
        if state.get("origin") != self._origin or any(
                size < recorded_size for size, recorded_size in zip(sizes, state["bytes"], strict=True)):
            return 0, self._begin, [0, 0]
        return state["pairs"], state["cursor"], state["bytes"]

    def _record(self, pairs: int, cursor: Cursor, files: tuple[BinaryIO, BinaryIO]) -> None:
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        state = {"origin": self._origin, "pairs": pairs, "cursor": cursor, "bytes": [file.tell() for file in files]}
        write_text(self._state_path, json.dumps(state))


def _lines(texts: list[str], before: int, name: str) -> bytes:
    """Return texts as lines; the length of each is checked here, where messages can name the source."""
    lines = [text.encode() + b"\n" for text in texts]
    for number, line in enumerate(lines):
        if len(line) > LONGEST_LINE:
            raise line_too_long(f"{name}, pair {before + number + 1}")
    return b"".join(lines)


def _check_factors(texts: list[str], factors: int, before: int, name: str) -> None:
    """Check the factors of each word here, where messages can name the source instead of the temporary file."""
    for number, text in enumerate(texts):
        try:
            split_factors(text, factors, number)
        except FactorError as error:
            raise DataError(f"{name}, pair {before + number + 1}: {error.reason}") from None


def _with_corpora(settings: PrepareSettings, corpora: Corpora, factors: int, symbols: Sequence[str]) -> PrepareSettings:
    changes: dict[str, object] = {}
    if corpora.validation and not settings.valid_source:
        changes["validation"] = corpora.validation
    if factors:
        changes["source_factors"] = factors
    if symbols:
        changes["vocab_symbols"] = ",".join(dict.fromkeys((*settings.symbols, *symbols)))
    pair_filter = corpora.pair_filter
    filters = {**dataclasses.asdict(pair_filter.texts), "max_length": pair_filter.max_length,
               "max_length_ratio": pair_filter.max_length_ratio}
    changes |= {name: value for name, value in filters.items()
                if getattr(settings, name) == getattr(PrepareSettings, name)}
    return dataclasses.replace(settings, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PairTexts:
    """The texts of sentence pairs, or a range of their lines.

    Attributes:
        source: source text.
        target: target text.
        factors: files of source factors, line by line.
        alignments: word alignments; None without alignments.
    """

    source: TextRange
    target: TextRange
    factors: tuple[TextRange, ...] = ()
    alignments: TextRange | None = None

    def chunks(self) -> Iterator[tuple[Chunk, Chunk, Chunk | None]]:
        """Yield chunks of the source (with factors as `word|factor1`), the target, and the alignments.

        Raises:
            DataError: a file cannot be read, or a line has different numbers of factors and words.
        """
        links: Iterable[Chunk | None] = repeat(None) if self.alignments is None else self.alignments.chunks()
        yield from zip(self.source_chunks(), self.target.chunks(), links, strict=False)

    def source_chunks(self) -> Iterator[Chunk]:
        """Yield chunks of the source text, whose words are followed by the factors of the parallel files.

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
    """Return the parallel files by their names in manifests, the source and the target first.

    The paths are absolute for a Ray cluster, whose workers have another working directory.
    """
    files = {"source": settings.source, "target": settings.target}
    files |= {f"source_factor_{number}": path for number, path in enumerate(settings.source_factor_files, 1)}
    files |= {"alignments": settings.alignment_file} if settings.alignment_file else {}
    return files if settings.ray is None else {name: os.path.abspath(path) for name, path in files.items()}


def pair_texts(indexes: Mapping[str, TextIndex], chunks: int) -> list[PairTexts]:
    """Divide the texts into parts.

    Args:
        indexes: index of each file of `text_files`.
        chunks: number of chunks of a part.
    """
    parts = {name: index.parts(chunks) for name, index in indexes.items()}
    factors = [name for name in indexes if name.startswith("source_factor_")]
    return [PairTexts(source, parts["target"][n], tuple(parts[name][n] for name in factors),
                      parts["alignments"][n] if "alignments" in parts else None)
            for n, source in enumerate(parts["source"])]


def check_factored_text(path: str, factors: int) -> None:
    """Check that each word of a file is followed by its factors.

    Raises:
        DataError: a word lacks a factor; the message names file and line.
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
                            "there: write one factor for each word, separated by white space.")
        invalid = next((value for value in values if SEPARATOR in value), None)
        if invalid is not None:
            raise DataError(f"{file.path} line {number}: the factor '{invalid[:40]}' contains '{SEPARATOR}', which "
                            "separates a word from its factors in text to translate: write it without.")
    return " ".join(map(SEPARATOR.join, zip(words, *factors, strict=True)))


class ValidationText:
    """The validation sets of a preparation, which are checked when the object is made.

    Args:
        sets: files of the sets.
        factors: number of source factors of each word.

    Raises:
        DataError: missing text, text without words, wrong encoding, sides of unequal length, or a word lacks a factor.
    """

    def __init__(self, sets: Sequence[ValidationFiles], factors: int) -> None:
        self._sets = sets
        self._texts: list[list[TextSummary]] = []       # the source and the references of each set
        for files in sets:
            pairs = [scan_pair(files.source, target) for target in files.targets]
            self._texts.append([pairs[0][0], *(target for _, target in pairs)])
            check_has_text([(name, read_lines(name)) for name in (files.source, *files.targets)], NO_VALIDATION_TEXT)
            if factors:
                check_factored_text(files.source, factors)

    def infos(self) -> list[ValidationInfo]:
        """Return name and size of each set, for the manifest."""
        return [ValidationInfo(files.name, texts[0].lines, len(texts) - 1)
                for files, texts in zip(self._sets, self._texts, strict=True)]

    def inputs(self) -> dict[str, TextSummary]:
        """Return the texts by their names in the `inputs` of the manifest."""
        texts = {}
        for number, (source, *targets) in enumerate(self._texts, 1):
            stem = "valid" if number == 1 else f"valid_{number}"
            texts[f"{stem}_source"] = source
            for target_number, target in enumerate(targets, 1):
                texts[f"{stem}_target" if target_number == 1 else f"{stem}_target_{target_number}"] = target
        return texts

    def write(self, directory: Path) -> list[str]:
        """Write the text, and return the names of the files. The source is cleaned and tagged like training text."""
        names = []
        for number, (files, texts) in enumerate(zip(self._sets, self._texts, strict=True), 1):
            source, targets = files_of_set(number, len(texts) - 1)
            for name, text in zip((source, *targets), texts, strict=True):
                lines = [files.source_sentence(line) if name == source else line for line in read_lines(text.path)]
                if len(lines) != text.lines:
                    raise DataError(f"{text.path} had {text.lines:,} lines at first, and {len(lines):,} when it was "
                                    "read again. Prepare again, while nothing writes to it.")
                write_text(directory / name, "".join(f"{line}\n" for line in lines))
                names.append(name)
        return names
