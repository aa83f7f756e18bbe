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

    selection: str = setting(
        "beam", "How translations are found: beam keeps the most probable hypotheses, sampling draws n_best.",
        choices=("beam", "sampling"))
    beam_size: int = setting(5, "Hypotheses kept for each sentence; 1 is greedy search.", at_least=1, at_most=10000)
    n_best: int = setting(
        1, "Translations returned for each sentence, at most beam_size; with sampling, the samples.", at_least=1)
    beam_groups: int = setting(
        1, "Groups that the beam is divided into, which differ from each other (diverse beam search: Vijayakumar et "
        "al. 2016); 1 is plain beam search.", at_least=1)
    diversity: float = setting(
        0.5, "Of beam_groups: what a token loses for each hypothesis of an earlier group that takes it at the same "
        "step (nats).", at_least=0)
    length_normalization: str = setting(
        "gnmt", "What a log-probability is divided by: gnmt is ((5 + tokens) / 6) ** alpha (Wu et al. 2016), average "
        "is tokens ** alpha.", choices=("gnmt", "average"))
    length_penalty: float = setting(0.6, "Alpha of length_normalization; 0 is none.", at_least=0)
    word_reward: float = setting(
        0.0, "What each token adds to the log-probability before it is normalised (nats).", at_least=0)
    coverage_penalty: float = setting(
        0.0, "Beta of the penalty for source tokens that a translation does not look at (Wu et al. 2016); 0 is none. "
        "The model must give the attention of a step.", at_least=0)
    stopping: str = setting(
        "exact", "When a beam ends: exact when no unfinished hypothesis can win, first when patience * beam_size "
        "hypotheses have finished, none at the length limit, with the result of exact.",
        choices=("exact", "first", "none"))
    patience: float = setting(
        1.0, "Of stopping=first: the more, the longer the search goes on (Kasai et al. 2022).", above=0)
    temperature: float = setting(
        1.0, "Divides the logits: below 1 the probable tokens gain, above 1 the others.", above=0)
    top_k: int = setting(0, "Sampling: draw among so many most probable tokens; 0 for among all.", at_least=0)
    top_p: float = setting(
        1.0, "Sampling: draw among the fewest tokens that have so much of the probability (Holtzman et al. 2020).",
        above=0, at_most=1)
    epsilon: float = setting(
        0.0, "Sampling: draw no token that is less probable (Hewitt et al. 2022).", at_least=0, below=1)
    seed: int = setting(1, "Sampling: another seed, other samples.", at_least=0)
    max_length_factor: float = setting(
        2.0, "A translation has at most source tokens * factor + constant tokens (EOS counts on both sides).",
        at_least=0)
    max_length_constant: int = setting(10, "See max_length_factor (tokens).", at_least=0)
    max_tokens: int = setting(
        0, "Tokens a translation has at most, EOS counted, however long the source is; 0 is no such limit.", at_least=0)
    min_length: int = setting(
        0, "Tokens a translation has at least, EOS not counted; 0 allows an empty one.", at_least=0)
    min_length_factor: float = setting(
        0.0, "A translation has at least source tokens * factor tokens (EOS counts on neither side).", at_least=0)
    no_repeat_ngram: int = setting(
        0, "So many tokens in a row never come twice in a translation (Paulus et al. 2018); 0 allows it.", at_least=0)
    repetition_penalty: float = setting(
        1.0, "Multiplies the log-probability of a token that the translation has already (after Keskar et al. 2019); 1 "
        "is none.", at_least=1)
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
        if problem := _of_sampling(self) if self.selection == "sampling" else _of_beam(self):
            raise SettingsError(problem)
        if self.min_length_factor > self.max_length_factor:
            raise SettingsError(f"min_length_factor={self.min_length_factor}: choose at most max_length_factor "
                                f"({self.max_length_factor}), or no long sentence comes to its end.")


_BEAM_ALONE = {"beam_groups": 1, "word_reward": 0.0, "coverage_penalty": 0.0, "stopping": "exact"}
SAMPLING_ALONE = {"top_k": 0, "top_p": 1.0, "epsilon": 0.0}
"""Settings that act on samples alone, and their values that do nothing."""


def _of_sampling(settings: SearchSettings) -> str:
    """What does not go with sampling: a sentence, or ""."""
    for name, off in _BEAM_ALONE.items():
        value = getattr(settings, name)
        if value != off:
            return (f"{name}={value} is for a beam, and selection=sampling has none: set {name}={off}, or "
                    "selection=beam.")
    return ""


def _of_beam(settings: SearchSettings) -> str:
    """What does not go with a beam: a sentence, or ""."""
    for name, off in SAMPLING_ALONE.items():
        value = getattr(settings, name)
        if value != off:
            return f"{name}={value} is for sampling: set selection=sampling (--sample), too, or {name}={off}."
    if settings.n_best > settings.beam_size:
        return f"n_best={settings.n_best}: choose 1 to beam_size ({settings.beam_size}), or a larger beam."
    if settings.beam_size % settings.beam_groups:
        return (f"beam_groups={settings.beam_groups}: the groups share the beam evenly, so choose a divisor of "
                f"beam_size ({settings.beam_size}).")
    return ""


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
    threads: int = setting(
        0, "Batches that are translated side by side, each in its own thread. 0 is one for each processor, but one "
           "with a GPU.", at_least=0)
    shares: int = setting(
        0, "Batches that few sentences are divided into. 0 is one for each thread; a number gives the same batches "
           "with any number of threads.", at_least=0)

    def __post_init__(self) -> None:
        check_ranges(self)
