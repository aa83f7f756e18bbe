"""Filters on the text of a pair: which pairs are left out, and why. Each pair is judged alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from towernmt.core.settings import setting
from towernmt.dataflow.text.filters.language import check_language, is_other_language
from towernmt.dataflow.text.filters.marks import digits_agree, punctuation_agrees
from towernmt.dataflow.text.filters.script import share_in_scripts

TEXT_REASONS = {
    "identical sides": "both sides are the same text",
    "digits": "the digits of both sides disagree",
    "punctuation": "one side only is a question, or has far more punctuation",
    "source script": "too few letters of the source are of its script",
    "target script": "too few letters of the target are of its script",
    "source language": "the source is of another language",
    "target language": "the target is of another language",
}
"""Why `TextFilters` leaves a pair out; the first reason that holds is the one that counts."""


@dataclass(frozen=True)
class TextFilters:
    """The filters that are on, as `prepare` and a `corpora.yaml` set them."""

    drop_identical: bool = setting(False, "Drop pairs whose two sides are the same text.")
    match_digits: bool = setting(
        False, "Drop pairs whose sides do not have the same digits (in any order; zeros and separators do not count).")
    match_punctuation: bool = setting(
        False, "Drop pairs of which one side only is a question, or has far more punctuation than the other.")
    source_script: str | None = setting(
        None, "Drop pairs whose source is written in other scripts than this one, or these (Latin, or "
        "Han,Hiragana,Katakana: Unicode's names).")
    target_script: str | None = setting(None, "The same for the target.")
    script_share: float = setting(
        0.5, "The least share of a side's letters that are of its scripts.", at_least=0, at_most=1)
    source_language: str | None = setting(
        None, "Drop pairs whose source is identified as another language than this one (de, en, ...; needs "
        "towernmt[filters]).")
    target_language: str | None = setting(None, "The same for the target.")
    language_confidence: float = setting(
        0.5, "The least probability with which another language must be identified.", at_least=0, at_most=1)

    @property
    def active(self) -> bool:
        """Whether any is on."""
        return any((self.drop_identical, self.match_digits, self.match_punctuation, self.source_script,
                    self.target_script, self.source_language, self.target_language))

    def check(self) -> None:
        """Raises:
            SettingsError: a script or a language is not known, or a package is missing.
        """
        for script in (self.source_script, self.target_script):
            if script:
                share_in_scripts("", script)
        for language in (self.source_language, self.target_language):
            if language:
                check_language(language)

    def reason(self, source: str, target: str) -> str | None:
        """The first of `TEXT_REASONS` that holds, or None: the pair is kept.

        Args:
            source, target: cleaned, without factors.
        """
        return next(self._reasons(source, target), None)

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
