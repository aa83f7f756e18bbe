"""Sources as two text files: they are read once, and the files are prepared.

A preparation reads its text several times, and the content of a database may change in between.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files.atomic_files import naming, write_text
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.sources.corpora import Corpora, read_corpora
from towernmt.dataflow.sources.mixture import Mixture
from towernmt.dataflow.sources.source import Cursor
from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.text.line_progress import LineProgress
from towernmt.dataflow.vocabulary.factored import SEPARATOR, FactorError, split_factors

_PAIRS = 4096  # at a time
_NOTED = 1 << 18    # pairs, after which it is written down how far the reading has come


def as_text_files(settings: PrepareSettings, directory: Path, stream: TextIO | None, kept: Callable[[], None]
                  ) -> tuple[PrepareSettings, str]:
    """Settings whose source and target are text files, and the name of the corpus in messages.

    If `settings.target` is set, they are text files already. Else `settings.source` names sources: one epoch of their
    mixture is read to files. What the YAML file says of validation text and limits is
    taken where the settings say nothing.

    Args:
        settings: of the preparation.
        directory: where the files are made.
        stream: where progress and what the mixture reports are written; None: nowhere.
        kept: is called when there is something in the directory that a later process can go on with.
    Raises:
        SettingsError, DataError: a source is not there or cannot be read, or there is no pair.
    """
    if settings.target:
        return settings, f"{settings.source} and {settings.target}"
    corpora = read_corpora(settings.source)
    mixture = _open(settings, corpora, stream)
    factors = settings.source_factors or corpora.source_factors or 0
    _check_tags(corpora, factors)
    copy = _Copy(mixture, directory, factors)
    copy.write(stream, kept)
    return _with_text(settings, corpora, *copy.files, factors), mixture.name


def _open(settings: PrepareSettings, corpora: Corpora, stream: TextIO | None) -> Mixture:
    try:
        return corpora.mixture(settings.seed, lambda text: None if stream is None else print(text, file=stream))
    except SettingsError as error:
        if "://" not in settings.source and not corpora.name and not os.path.lexists(settings.source.partition("?")[0]):
            raise SettingsError(f"{settings.source}: there is no such file. Check the path.") from error
        if Path(settings.source).is_file() and not corpora.name:
            raise SettingsError(f"--target is missing: {settings.source} has one side of the pairs, as far as its name "
                                "tells; pass --target with its translation, line by line. If it has both sides: "
                                f"{error}") from error
        raise


def _check_tags(corpora: Corpora, factors: int) -> None:
    for entry in corpora.sources:
        try:
            split_factors(clean(entry.tag), factors)
        except FactorError as error:
            raise SettingsError(f"{corpora.name}: the tag {error.reason}") from None


class _Copy:
    """The text of a mixture in two files. How far it has come is written down now and then, so that it can go on there.

    Args:
        mixture: what is read.
        directory: of the files.
        factors: that each word of the source must have.
    """

    def __init__(self, mixture: Mixture, directory: Path, factors: int) -> None:
        self._mixture, self._factors = mixture, factors
        self.files = directory / "corpus.source", directory / "corpus.target"
        self._place = directory / "corpus.place"
        self._begin = mixture.begin()

    def write(self, stream: TextIO | None, kept: Callable[[], None]) -> None:
        """Read the mixture to its end, on from where an earlier process came, if nothing has changed.

        Args:
            stream: where progress is written.
            kept: is called when there is something that a later process can go on with.
        """
        done, cursor, sizes = self._former()
        reader, progress = self._mixture.reader(cursor), LineProgress("reading", stream=stream, done=done)
        noted = done
        with naming(self.files[0]), open(self.files[0], "ab") as source, open(self.files[1], "ab") as target:
            for file, size in zip((source, target), sizes, strict=True):
                file.truncate(size)
            while pairs := reader.take(_PAIRS):
                texts = [clean(pair.source) for pair in pairs]
                if self._factors:
                    _check_factors(texts, self._factors, done, self._mixture.name)
                source.write("".join(text + "\n" for text in texts).encode())
                with naming(self.files[1]):
                    target.write("".join(clean(pair.target) + "\n" for pair in pairs).encode())
                done += len(pairs)
                progress.update(done)
                if done - noted >= _NOTED:
                    self._note(done, reader.cursor(), (source, target))
                    noted = done
                    kept()
            if done != noted:
                self._note(done, reader.cursor(), (source, target))
        progress.done()
        if not done:
            raise DataError(f"{self._mixture.name}: there is no pair in it, so there is nothing to prepare. Check the "
                            "source.")

    def _former(self) -> tuple[int, Cursor, list[int]]:
        """Pairs that an earlier process read, the cursor after them, and the sizes of the files."""
        try:
            place = json.loads(self._place.read_text(encoding="utf-8"))
            sizes = [path.stat().st_size for path in self.files]
        except (OSError, ValueError):
            return 0, self._begin, [0, 0]
        same = place["mixture"] == [self._mixture.name, self._factors, json.loads(json.dumps(self._begin))]
        if not same or any(size < wanted for size, wanted in zip(sizes, place["bytes"], strict=True)):
            return 0, self._begin, [0, 0]
        return place["pairs"], place["cursor"], place["bytes"]

    def _note(self, pairs: int, cursor: Cursor, files: tuple[BinaryIO, BinaryIO]) -> None:
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        place = {"mixture": [self._mixture.name, self._factors, self._begin], "pairs": pairs, "cursor": cursor,
                 "bytes": [file.tell() for file in files]}
        write_text(self._place, json.dumps(place))


def _check_factors(texts: list[str], factors: int, before: int, name: str) -> None:
    """Checked here so that messages have the source's name, and not that of the temporary file."""
    for number, text in enumerate(texts):
        try:
            split_factors(text, factors, number)
        except FactorError as error:
            raise DataError(f"{name}, pair {before + number + 1}: {error.reason}") from None


def _with_text(settings: PrepareSettings, corpora: Corpora, source: Path, target: Path, factors: int
               ) -> PrepareSettings:
    changes: dict[str, object] = {"source": str(source), "target": str(target)}
    if corpora.validation and not settings.valid_source:
        changes["validation"] = corpora.validation
    if factors:
        changes["source_factors"] = factors
    tags = sorted({entry.tag.rsplit(SEPARATOR, factors)[0] for entry in corpora.sources if entry.tag})
    if tags and not settings.vocab_symbols:
        changes["vocab_symbols"] = ",".join(tags)
    for name in ("max_length", "max_length_ratio"):
        if getattr(settings, name) == getattr(PrepareSettings, name):
            changes[name] = getattr(corpora.pair_filter, name)
    return dataclasses.replace(settings, **changes)  # type: ignore[arg-type]
