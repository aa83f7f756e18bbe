"""Settings of search and translation. Nothing here needs TensorFlow, so that a command line parses fast."""

from __future__ import annotations

from dataclasses import dataclass

from towernmt.errors import SettingsError
from towernmt.settings import setting


@dataclass(frozen=True)
class SearchSettings:
    """How translations are searched for, for any model.

    Raises:
        SettingsError: a value that cannot work.
    """

    beam_size: int = setting(5, "Hypotheses kept for each sentence; 1 is greedy search.")
    n_best: int = setting(1, "Translations returned for each sentence, at most beam_size.")
    length_penalty: float = setting(
        0.6, "Alpha of the length normalisation ((5 + tokens) / 6) ** alpha (Wu et al. 2016); 0 is none.")
    max_length_factor: float = setting(
        2.0, "A translation has at most source tokens * factor + constant tokens (EOS counts on both sides).")
    max_length_constant: int = setting(10, "See max_length_factor (tokens).")
    min_length: int = setting(0, "Tokens a translation has at least, EOS not counted; 0 allows an empty one.")
    stop_early: bool = setting(
        True, "Stop as soon as no unfinished hypothesis can win. Off, the same result takes longer.")
    averaged: bool = setting(
        True, "Use the moving average of the weights, where the run keeps one (optimizer.ema_decay).")

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise SettingsError(f"beam_size={self.beam_size}: a beam holds at least 1 hypothesis.")
        if not 1 <= self.n_best <= self.beam_size:
            raise SettingsError(
                f"n_best={self.n_best}: choose 1 to beam_size ({self.beam_size}), or a larger beam.")
        if self.length_penalty < 0:
            raise SettingsError(f"length_penalty={self.length_penalty}: choose 0 (none) or more.")
        if self.max_length_factor < 0 or self.max_length_constant < 0 or self.min_length < 0:
            raise SettingsError("max_length_factor, max_length_constant and min_length are 0 or more.")


@dataclass(frozen=True)
class StreamSettings:
    """How lines become batches.

    Raises:
        SettingsError: a value that cannot work.
    """

    batch_tokens: int = setting(
        4096, "Source tokens in a batch, padding included, at most (one line at least).")
    batch_sentences: int = setting(64, "Sentences in a batch, at most; a GPU likes more.")
    window: int = setting(
        2000, "Lines read before the first is written: they are sorted by length. 1 answers line by line.")
    max_source_length: int = setting(
        256, "Longer lines (tokens) are cut at punctuation or spaces and translated in pieces.")

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "batch_sentences", "window", "max_source_length"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: choose 1 or more.")
