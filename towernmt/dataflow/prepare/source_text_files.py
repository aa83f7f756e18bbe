"""Sources as two text files: they are read once, and the files are prepared.

A preparation reads its text several times, and the content of a database may change in between.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.files.atomic_files import naming
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.sources.corpora import Corpora, read_corpora
from towernmt.dataflow.sources.mixture import Mixture
from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.text.line_progress import LineProgress
from towernmt.dataflow.vocabulary.factored import SEPARATOR, FactorError, split_factors

_PAIRS = 4096  # at a time


@contextmanager
def as_text_files(settings: PrepareSettings, directory: Path, stream: TextIO | None = None
            ) -> Iterator[tuple[PrepareSettings, str]]:
    """Settings whose source and target are text files, and the name of the corpus in messages.

    If `settings.target` is set, they are text files already. Else `settings.source` names sources: one epoch of their
    mixture is read to files, which go when the block ends. What the YAML file says of validation text and limits is
    taken where the settings say nothing.

    Args:
        settings: of the preparation.
        directory: where the files are made.
        stream: where progress and what the mixture reports are written; None: nowhere.
    Raises:
        SettingsError, DataError: a source is not there or cannot be read, or there is no pair.
    """
    if settings.target:
        yield settings, f"{settings.source} and {settings.target}"
        return
    corpora = read_corpora(settings.source)
    mixture = _open(settings, corpora, stream)
    factors = settings.source_factors or corpora.source_factors or 0
    _check_tags(corpora, factors)
    source, target = directory / "corpus.source", directory / "corpus.target"
    try:
        _write(mixture, source, target, factors, stream)
        yield _with_text(settings, corpora, source, target, factors), mixture.name
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)


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


def _write(mixture: Mixture, source: Path, target: Path, factors: int, stream: TextIO | None) -> None:
    reader, progress, done = mixture.reader(mixture.begin()), LineProgress("reading", stream=stream), 0
    with naming(source), open(source, "w", encoding="utf-8", newline="\n") as sources, \
            open(target, "w", encoding="utf-8", newline="\n") as targets:
        while pairs := reader.take(_PAIRS):
            texts = [clean(pair.source) for pair in pairs]
            if factors:
                _check_factors(texts, factors, done, mixture.name)
            sources.writelines(text + "\n" for text in texts)
            with naming(target):
                targets.writelines(clean(pair.target) + "\n" for pair in pairs)
            done += len(pairs)
            progress.update(done)
    progress.done()
    if not done:
        raise DataError(f"{mixture.name}: there is no pair in it, so there is nothing to prepare. Check the source.")


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
