"""Filters of sentence pairs: by length, script, language, digits, punctuation, and as duplicates.

`PairFilter` combines all of them. `TextFilters` judges the text of each pair alone; `language_probabilities` uses the
model that comes with py3langid (Lui and Baldwin, 2012).

Duplicates are found by hashes. Exact duplicates have the same text on both sides. Near duplicates share most of their
two-word sequences: their MinHash signatures (Broder, 1997) agree in one of several bands (Leskovec et al., Mining of
Massive Datasets, 3.4). The first of such pairs, in the order of the corpus, is kept.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np
import regex  # type: ignore[import-untyped]
from numpy.typing import NDArray

from towernmt.core.errors import SettingsError
from towernmt.core.settings import setting
from towernmt.dataflow.text.clean_text import split_tags
from towernmt.dataflow.text.language_codes import base_code, two_letter_code
from towernmt.dataflow.text.word_segmentation import LETTERS

TEXT_REASONS = {
    "identical sides": "both sides are the same text",
    "digits": "the digits of both sides disagree",
    "punctuation": "only one side is a question, or one side has far more punctuation",
    "source script": "too few letters of the source are of the expected script",
    "target script": "too few letters of the target are of the expected script",
    "source language": "the source is in another language",
    "target language": "the target is in another language",
}
"""Reasons for which `TextFilters` drops a pair. The first reason that applies is counted."""


@dataclass(frozen=True)
class TextFilters:
    """Settings of the filters of text, for `prepare` and `corpora.yaml`."""

    drop_identical: bool = setting(False, "Drop pairs whose source and target are the same text.")
    match_digits: bool = setting(
        False, "Drop pairs whose sides have different digits (in any order; zeros and separators are ignored).")
    match_punctuation: bool = setting(
        False, "Drop pairs of which only one side is a question, or one side has far more punctuation.")
    source_script: str | None = setting(
        None, "Drop pairs whose source is not written in these scripts (Unicode names, such as Latin or "
        "Han,Hiragana,Katakana).")
    target_script: str | None = setting(None, "Drop pairs whose target is not written in these scripts.")
    script_share: float = setting(
        0.5, "Minimum share of a side's letters that must belong to its scripts.", at_least=0, at_most=1)
    source_language: str | None = setting(
        None, "Drop pairs whose source is identified as another language than this one (de, en, ...; needs "
        "towernmt[filters]).")
    target_language: str | None = setting(
        None, "Drop pairs whose target is identified as another language than this one.")
    language_confidence: float = setting(
        0.5, "Minimum probability with which another language must be identified.", at_least=0, at_most=1)

    @property
    def active(self) -> bool:
        """Whether any filter is enabled."""
        return any((self.drop_identical, self.match_digits, self.match_punctuation, self.source_script,
                    self.target_script, self.source_language, self.target_language))

    def check(self) -> None:
        """Check that the filters can be applied.

        Raises:
            SettingsError: a script or a language is unknown, or a package is missing.
        """
        for script in (self.source_script, self.target_script):
            if script:
                share_in_scripts("", script)
        for language in (self.source_language, self.target_language):
            if language:
                check_language(language)

    def reason(self, source: str, target: str) -> str | None:
        """Return the first of `TEXT_REASONS` that holds, or None if the pair is kept.

        Tags at the beginning, such as `<2de>`, do not count.

        Args:
            source: cleaned source text, without factors.
            target: cleaned target text.
        """
        return next(self._reasons(split_tags(source)[1], split_tags(target)[1]), None)

    def _reasons(self, source: str, target: str) -> Iterator[str]:
        if self.drop_identical and source == target:
            yield "identical sides"
        if self.match_digits and not digits_agree(source, target):
            yield "digits"
        if self.match_punctuation and not punctuation_agrees(source, target):
            yield "punctuation"
        sides = (("source", source, self.source_script, self.source_language),
                 ("target", target, self.target_script, self.target_language))
        for side, text, script, _ in sides:
            if script and share_in_scripts(text, script) < self.script_share:
                yield f"{side} script"
        for side, text, _, language in sides:
            if language and is_other_language(text, language, self.language_confidence):
                yield f"{side} language"


_DIGITS = regex.compile(r"\p{Nd}")
_PUNCTUATION = regex.compile(r"\p{P}")
_CLOSING = regex.compile(r"(?<![\p{Pe}\p{Pf}\p{Pi}\"'\s])[\p{Pe}\p{Pf}\p{Pi}\"'\s]+$")
"""Quotes and brackets after the last mark; the part before them makes the time linear in a long row of them."""
_QUESTION = "?？؟⁇⁈⸮"
_ARMENIAN_QUESTION = "՞"
"""The mark is written after the stressed vowel of the question word, not at the end of the sentence."""
_GREEK = regex.compile(r"\p{Script=Greek}")
_EXTRA_MARKS = 3  # marks that a side may have in addition to 1.5 times those of the other side


def digits_agree(source: str, target: str) -> bool:
    """Return whether both sides have the same digits with the same counts, in any script and order.

    Zeros and separators do not count: "5:00" agrees with "5 Uhr", and "1,000" with "1.000".
    """
    return _digits(source) == _digits(target)


def punctuation_agrees(source: str, target: str) -> bool:
    """Return whether both sides or neither are questions, and neither side has far more punctuation marks.

    Far more means more than 1.5 times the marks of the other side, plus three.
    """
    if _is_question(source) != _is_question(target):
        return False
    few, many = sorted(len(_PUNCTUATION.findall(text)) for text in (source, target))
    return many <= 1.5 * few + _EXTRA_MARKS


def _digits(text: str) -> Counter[int | str]:
    counts = Counter(map(_value, _DIGITS.findall(text)))
    del counts[0]
    return counts


@cache
def _value(digit: str) -> int | str:
    """Return the value of a digit, or the digit itself if Python's Unicode is older than that of `regex`."""
    return unicodedata.digit(digit, digit)


def _is_question(text: str) -> bool:
    if _ARMENIAN_QUESTION in text:
        return True
    last = _CLOSING.sub("", text)[-1:]
    return bool(last) and (last in _QUESTION or last == ";" and _GREEK.search(text) is not None)


_LETTER = regex.compile(r"\p{L}")


def share_in_scripts(text: str, scripts: str) -> float:
    """Return the share of the letters of `text` that belong to one of the scripts; 1 if the text has no letters.

    Args:
        text: the text.
        scripts: names of Unicode, separated by commas: "Latin", "Han,Hiragana,Katakana".

    Raises:
        SettingsError: a script is unknown.
    """
    letters = _LETTER.findall(text)
    inside = _letters_of_scripts(scripts)
    return sum(inside.match(letter) is not None for letter in letters) / len(letters) if letters else 1.0


@cache
def _letters_of_scripts(scripts: str) -> regex.Pattern[str]:
    names = [name.strip() for name in scripts.split(",")]
    # Letters that all scripts share (the prolonged sound mark, modifiers) count as letters of the scripts.
    patterns = [rf"\p{{Script_Extensions={name}}}" for name in names] + [r"\p{Script=Common}", r"\p{Script=Inherited}"]
    for name, pattern in zip(names, patterns, strict=False):
        try:
            regex.compile(pattern)
        except regex.error:
            raise SettingsError(f"script '{name}': Unicode has no script of this name. Write a name such as Latin, "
                                "Cyrillic, Greek, Arabic, Devanagari, Han, Hiragana, Katakana or Hangul, or several, "
                                "separated by commas.") from None
    return regex.compile("|".join(patterns))


_IDENTIFIED_AS = {"nb": "no", "sh": "sr"}
"""The identifier's codes of languages that it identifies by another code."""


def is_other_language(text: str, language: str, confidence: float) -> bool:
    """Return whether the text is in another language than `language`, with a probability of at least `confidence`.

    Args:
        text: the text.
        language: a language code, such as `de` or `zh-CN`.
        confidence: minimum probability, 0 to 1.

    Raises:
        SettingsError: py3langid is not installed, or does not support the language.
    """
    identified, probability = _identifier().classify(text)
    return identified != identified_code(language) and probability >= confidence


def language_probabilities(text: str) -> dict[str, float]:
    """Return the probability of each language that can be identified, by ISO 639 codes.

    Raises:
        SettingsError: py3langid is not installed.
    """
    return {str(code): float(probability) for code, probability in _identifier().rank(text)}


def check_language(language: str) -> None:
    """Check that a language can be identified.

    Raises:
        SettingsError: py3langid is not installed, or does not support the language.
    """
    known = _identifier().labels
    if identified_code(language) not in known:
        raise SettingsError(f"language '{language}' cannot be identified. The languages that can be identified are: "
                            f"{', '.join(sorted(known))}.")


@cache
def identified_code(language: str) -> str:
    """Return the identifier's code of a language, which may be written as `nb`, `zh_Hans` or `deu`."""
    base, short = base_code(language), two_letter_code(language)
    if base in _identifier().labels and base not in _IDENTIFIED_AS:
        return base
    return _IDENTIFIED_AS.get(short, short)


@cache
def _identifier() -> Any:
    try:
        langid = import_module("py3langid.langid")
    except ImportError:
        raise SettingsError("The package py3langid, which identifies languages, is missing. Install it: "
                            "pip install 'towernmt[filters]'.") from None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


DUPLICATES = ("keep", "exact", "near")
"""Treatment of duplicates: keep all, drop exact duplicates, or drop exact and near duplicates."""
DUPLICATE_REASONS = {
    "duplicate": "the same pair precedes it",
    "near duplicate": "nearly the same pair precedes it",
}
_BANDS, _ROWS = 6, 10  # finds half of the pairs of Jaccard similarity 0.8, 92 % of 0.9, 0.6 % of 0.5
KEYS_PER_PAIR = {"keep": 0, "exact": 1, "near": 1 + _BANDS}
"""Keys of a pair for each of DUPLICATES."""
_MINHASH_SEED = 1


def duplicate_keys(pairs: Sequence[tuple[str, str]], kind: str) -> NDArray[np.uint64]:
    """Return uint64 `[pairs, keys]`: the key of the complete pair, then the keys of its bands.

    Tags belong to the text, because they may name the target language (`<2de>`).

    Args:
        pairs: cleaned text.
        kind: "exact" (one key a pair) or "near".

    Raises:
        SettingsError: the package for near duplicates is missing.
    """
    rows = [[_hash(f"{source}\n{target}".encode()), *(_band_keys(source, target) if kind == "near" else ())]
            for source, target in pairs]
    return np.array(rows, np.uint64).reshape(len(rows), KEYS_PER_PAIR[kind])


def check_near() -> None:
    """Check that near duplicates can be found.

    Raises:
        SettingsError: the package for near duplicates is missing.
    """
    _permutations()


def _hash(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def _band_keys(source: str, target: str) -> list[int]:
    shingles = [shingle for side, text in ((b"s", source), (b"t", target)) for shingle in _shingles(side, text)]
    signature = _permutations().copy()
    signature.update_batch(shingles)
    values = signature.hashvalues
    return [_hash(b"%d" % band + values[band * _ROWS:(band + 1) * _ROWS].tobytes()) for band in range(_BANDS)]


def _shingles(side: bytes, text: str) -> list[bytes]:
    words = ["", *LETTERS.findall(text.casefold()), ""]
    return [side + f"{first} {second}".encode() for first, second in zip(words, words[1:], strict=False)]


@cache
def _permutations() -> Any:
    try:
        minhash = import_module("datasketch").MinHash
    except ImportError:
        raise SettingsError("The package datasketch, which finds near duplicates, is missing. Install it: "
                            "pip install 'towernmt[filters]'.") from None
    return minhash(num_perm=_BANDS * _ROWS, seed=_MINHASH_SEED, scheme="affine32")


def came_before(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return bool `[keys]`: whether the same key occurs earlier in the array."""
    _, first = np.unique(keys, return_index=True)   # the first index of each key, since the sort is stable
    seen = np.ones(len(keys), bool)
    seen[first] = False
    return seen


LENGTH_REASONS = {
    "empty source": "the source has only white space",
    "empty target": "the target has only white space",
    "long source": "more source tokens than the limit",
    "long target": "more target tokens than the limit",
    "length ratio": "the ratio of the lengths exceeds the limit",
}
DROP_REASONS = {**LENGTH_REASONS, **TEXT_REASONS, **DUPLICATE_REASONS}
"""Reasons for which a pair is dropped. The first reason that applies is counted."""
REASON_CODES = {reason: code for code, reason in enumerate(DROP_REASONS)}


@dataclass(frozen=True)
class PairFilter:
    """The filter of a corpus.

    Attributes:
        max_length: maximum number of tokens of either side, without BOS and EOS.
        max_length_ratio: maximum ratio of the longer side to the shorter side, in tokens.
        texts: filters of the text of a pair.
        duplicates: one of `DUPLICATES`, which determines the keys of pairs that are computed.
            `preparation.encode_tasks` compares the keys and drops the pairs.
    """

    max_length: int
    max_length_ratio: float
    texts: TextFilters = field(default_factory=TextFilters)
    duplicates: str = "keep"

    def reasons(self, source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64]
                ) -> NDArray[np.int8]:
        """Return int8 `[pairs]`: index into DROP_REASONS, or -1 for a pair that is kept."""
        longer = np.maximum(source_lengths, target_lengths)
        shorter = np.minimum(source_lengths, target_lengths)
        conditions = [source_lengths == 0, target_lengths == 0, source_lengths > self.max_length,
                      target_lengths > self.max_length, longer > self.max_length_ratio * shorter]
        return np.select(conditions, range(len(conditions)), default=-1).astype(np.int8)
