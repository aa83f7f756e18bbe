"""Settings of search and translation. Nothing here needs TensorFlow, so that a command line parses fast."""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.core.errors import SettingsError
from towernmt.core.settings import check_ranges, setting


@dataclass(frozen=True)
class SearchSettings:
    """How translations are searched for, for any model.

    Raises:
        SettingsError: a value that cannot work.
    """

    beam_size: int = setting(5, "Hypotheses kept for each sentence; 1 is greedy search.", at_least=1, at_most=10000)
    n_best: int = setting(1, "Translations returned for each sentence, at most beam_size.", at_least=1)
    length_penalty: float = setting(
        0.6, "Alpha of the length normalisation ((5 + tokens) / 6) ** alpha (Wu et al. 2016); 0 is none.", at_least=0)
    max_length_factor: float = setting(
        2.0, "A translation has at most source tokens * factor + constant tokens (EOS counts on both sides).",
        at_least=0)
    max_length_constant: int = setting(10, "See max_length_factor (tokens).", at_least=0)
    min_length: int = setting(
        0, "Tokens a translation has at least, EOS not counted; 0 allows an empty one.", at_least=0)
    stop_early: bool = setting(
        True, "Stop as soon as no unfinished hypothesis can win. Off, the same result takes longer.")
    shortlist: str = setting(
        "", "A file of `towernmt lexicon`: only likely translations of a sentence's words and frequent words may come.")
    shortlist_size: int = setting(
        100, "With shortlist: so many translations of each source token may come.", at_least=1)
    shortlist_frequent: int = setting(
        100, "With shortlist: so many of the most frequent target tokens may come in every sentence.", at_least=0)
    averaged: bool = setting(
        True, "Use the moving average of the weights, where the run keeps one (optimizer.ema_decay).")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not 1 <= self.n_best <= self.beam_size:
            raise SettingsError(
                f"n_best={self.n_best}: choose 1 to beam_size ({self.beam_size}), or a larger beam.")


@dataclass(frozen=True)
class StreamSettings:
    """How lines become batches.

    Raises:
        SettingsError: a value that cannot work.
    """

    batch_tokens: int = setting(
        4096, "Source tokens in a batch, padding included, at most (one line at least).", at_least=1)
    batch_sentences: int = setting(64, "Sentences in a batch, at most; a GPU likes more.", at_least=1)
    window: int = setting(
        2000, "Lines read before the first is written: they are sorted by length. 1 answers line by line.", at_least=1)
    max_source_length: int = setting(
        256, "Longer lines (tokens) are cut at punctuation or spaces and translated in pieces.", at_least=1)

    def __post_init__(self) -> None:
        check_ranges(self)
