"""Checks of monolingual text: its size and language, and whether its translations are of any use."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.storage.stored_files import split_compression
from towernmt.dataflow.text.clean_text import clean, split_tags
from towernmt.dataflow.text.text_lines import check_rereadable, read_chunks, read_lines
from towernmt.dataflow.vocabulary.base import UNK, Vocabulary
from towernmt.predict.lines.faults import fault_of_text

SAMPLE_LINES = 2000
"""Maximum number of lines whose language is checked, and about that of judged translations."""
COUNTED_TOKENS = 1_000_000
"""Maximum number of tokens of the true pairs from which the frequencies of tokens are estimated."""
MAX_UNKNOWN_SHARE = 0.2
"""Largest share of unknown tokens in monolingual text."""
MIN_SEPARABLE_RATIO = 1.05
"""Least ratio, for the true pairs, of the measures of `check_side` at which two languages can be distinguished."""
MIN_SOUND_SHARE = 0.01
"""Least share of the translations that are neither empty nor repetitive."""
MIN_LIKENESS = 0.15
"""Least likeness of monolingual text to its side: 1 is that of the true pairs, 0 equally near to both sides."""


@dataclass(frozen=True)
class TextFacts:
    """Facts about a text file.

    Attributes:
        lines: number of lines.
        bytes: size of the file.
        sha256: SHA-256 of the file, hexadecimal.
        sample: the first `SAMPLE_LINES` lines that are not blank.
    """

    lines: int
    bytes: int
    sha256: str
    sample: Sequence[str]


def text_facts(file: Path) -> TextFacts:
    """Read a text file once, and return facts about it.

    Raises:
        DataError: the file cannot be read, is compressed, is not UTF-8, or has no text.
    """
    if split_compression(file.name)[1] is not None:
        raise DataError(f"{file} is compressed, but monolingual text must be a plain file: decompress it.")
    check_rereadable(file)
    checksum, lines, size, sample = hashlib.sha256(), 0, 0, list[str]()
    for chunk in read_chunks(file):
        checksum.update(chunk.data)
        lines, size = lines + chunk.lines, size + len(chunk.data)
        texts = (text for line in chunk.decode() if (text := clean(line)))
        sample += islice(texts, SAMPLE_LINES - len(sample))
    if not sample:
        raise DataError(f"{file} has no text: pass a file with one sentence per line.")
    return TextFacts(lines, size, checksum.hexdigest(), sample)


def check_side(data: PreparedData, side: str, text: Sequence[str], option: str) -> None:
    """Refuse text that is in the other language of the pairs, in a third language, or in another script.

    The measure is the mean negative log-probability of a character by the frequencies of the tokens of a side. Text in
    the right language is less probable by the other side. Of 5,000 pairs from German to English, the measure for German
    is 1.40 times that for English on English text like that of the pairs, 1.12 to 1.16 times on English technical text,
    and 0.97 to 1.04 times on technical text in French, Dutch, Swedish and Polish.

    Args:
        data: the true pairs.
        side: "source" or "target", the language that the text should have.
        text: lines of the text, not all of them blank.
        option: the option that names the text, with its value, for messages.

    Raises:
        DataError: the text seems to be in another language.
    """
    block = data.read_block(0)
    sides = {"source": _PairSide(data.source_vocabulary, block.source_ids, block.source_offsets),
             "target": _PairSide(data.target_vocabulary, block.target_ids, block.target_offsets)}
    other_name = "target" if side == "source" else "source"
    own, other = sides[side], sides[other_name]
    unknown = own.unknown_share(text)
    if unknown > MAX_UNKNOWN_SHARE:
        raise DataError(f"{option}: {unknown:.0%} of its tokens are unknown to the {side} vocabulary of "
                        f"{data.directory}: pass text in the {side} language, or --no-text-check if it is in that "
                        "language.")
    expected_ratio, ratio = (other.nats_per_character(lines) / own.nats_per_character(lines)
                             for lines in (own.lines, text))
    if expected_ratio < MIN_SEPARABLE_RATIO:
        return
    likeness = (ratio - 1) / (expected_ratio - 1)
    if likeness < MIN_LIKENESS:
        language = f"the {other_name} language" if likeness < -MIN_LIKENESS else "another language"
        raise DataError(f"{option}: by its words, the text is in {language}, not in the {side} language of "
                        f"{data.directory}: pass text in the {side} language, or --no-text-check if it is in that "
                        "language.")


def check_source_tags(data: PreparedData, text: Sequence[str], subject: str, advice: str) -> None:
    """Refuse source text without tags for pairs whose sources all begin with a tag, such as `<2de>`.

    A model of several languages would otherwise learn that a source without a tag can have any target language.

    Args:
        data: the true pairs.
        text: lines in the source language, not all of them blank.
        subject: the option that names the text, or the model that translated it, with its value, for messages.
        advice: the fix, for messages.

    Raises:
        DataError: fewer than half of the lines begin with a tag.
    """
    block = data.read_block(0)
    sources = _PairSide(data.source_vocabulary, block.source_ids, block.source_offsets).lines
    if not all(split_tags(line)[0] for line in sources):
        return
    lines = [line for line in text if line.strip()]
    if 2 * sum(bool(split_tags(line)[0]) for line in lines) < len(lines):
        raise DataError(f"{subject}: most lines do not begin with a tag, but each source of {data.directory} does, as "
                        f"with {split_tags(sources[0])[0].strip()}: {advice}, or pass --no-text-check if the lines are "
                        "right.")


def are_nearly_all_faulty(text: Path, translations: Path, lines: int) -> bool:
    """Return whether fewer than `MIN_SOUND_SHARE` of the translations are neither empty nor repetitive.

    About `SAMPLE_LINES` of the lines are judged, at equal distances. Blank lines of the text are left out.

    Args:
        text: the text.
        translations: translations of its first lines.
        lines: number of translations.

    Raises:
        DataError: a file cannot be read.
    """
    pairs = islice(zip(read_lines(text), read_lines(translations), strict=False), 0, None, lines // SAMPLE_LINES or 1)
    faults = [fault_of_text(translation, source) for source, translation in pairs if clean(source)]
    return faults.count(None) < MIN_SOUND_SHARE * len(faults)


class _PairSide:
    """One side of the true pairs, with the frequencies of its tokens.

    Args:
        vocabulary: its vocabulary.
        ids: its tokens.
        offsets: offsets of its sentences.

    Attributes:
        lines: its first `SAMPLE_LINES` sentences.
    """

    def __init__(self, vocabulary: Vocabulary, ids: NDArray[np.integer], offsets: NDArray[np.int64]) -> None:
        self._vocabulary = vocabulary
        counts = np.bincount(ids[:COUNTED_TOKENS], minlength=len(vocabulary)) + 1.0
        self._log_probabilities = np.log(counts / counts.sum())
        bounds = offsets[:SAMPLE_LINES + 1].tolist()
        self.lines = [vocabulary.decode(ids[start:end].tolist())
                      for start, end in zip(bounds[:-1], bounds[1:], strict=True)]

    def nats_per_character(self, text: Sequence[str]) -> float:
        """Return the mean negative log-probability of a character of the text."""
        return float(-self._log_probabilities[self._tokens(text)].sum() / sum(map(len, text)))

    def unknown_share(self, text: Sequence[str]) -> float:
        """Return the share of unknown tokens in the text."""
        return float(np.mean(self._tokens(text) == UNK))

    def _tokens(self, text: Sequence[str]) -> NDArray[np.int64]:
        return np.concatenate([np.asarray(line, np.int64) for line in self._vocabulary.encode_batch(text)])
