"""Settings of search, translation and ensembles. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.core.settings import check_ranges, setting

GRAPH = "graph"
"""Name of TensorFlow's graph as an engine."""


@dataclass(frozen=True)
class SearchSettings:
    """How to search for translations in validation, and in `towernmt translate` unless its options differ.

    Raises:
        SettingsError: a value is not valid.
    """

    selection: str = setting(
        "beam", "Selection of translations: beam keeps the most probable hypotheses, sampling draws n_best samples.",
        choices=("beam", "sampling"))
    beam_size: int = setting(5, "Hypotheses kept for each sentence; 1 is greedy search.", at_least=1, at_most=10000)
    n_best: int = setting(
        1, "Translations returned for each sentence, at most beam_size; with sampling, the number of samples.",
        at_least=1, at_most=10000)
    beam_groups: int = setting(
        1, "Number of groups of the beam, which differ from each other (diverse beam search: Vijayakumar et al. 2016); "
        "1 is plain beam search.", at_least=1)
    diversity: float = setting(
        0.5, "With beam_groups: penalty of a token for each hypothesis of an earlier group that chose it at the same "
        "step (nats).", at_least=0, at_most=1000)
    length_normalization: str = setting(
        "gnmt", "Divisor of log-probabilities: gnmt is ((5 + tokens) / 6) ** alpha (Wu et al. 2016), average is "
        "tokens ** alpha.", choices=("gnmt", "average"))
    length_penalty: float = setting(
        0.6, "Alpha of length_normalization; 0 for no normalisation.", at_least=0, at_most=10)
    word_reward: float = setting(
        0.0, "Addend of the log-probability for each token, before the normalisation (nats).", at_least=0,
        at_most=1000)
    coverage_penalty: float = setting(
        0.0, "Beta of the penalty for source tokens without attention (Wu et al. 2016); 0 for no penalty. The model "
        "must return the attention of a step.", at_least=0, at_most=1000)
    stopping: str = setting(
        "exact", "When a beam ends: exact when no unfinished hypothesis can win, first when patience * beam_size "
        "hypotheses have finished, none at the length limit, with the result of exact.",
        choices=("exact", "first", "none"))
    patience: float = setting(
        1.0, "With stopping=first: a higher value prolongs the search (Kasai et al. 2022).", above=0, at_most=1000)
    temperature: float = setting(
        1.0, "Divisor of the logits: below 1 it favours probable tokens, above 1 improbable ones.", at_least=0.001)
    top_k: int = setting(0, "Sampling: draw from this number of most probable tokens; 0 for all tokens.", at_least=0)
    top_p: float = setting(
        1.0, "Sampling: draw from the smallest set of tokens with this share of the probability (Holtzman et al. "
        "2020).", above=0, at_most=1)
    epsilon: float = setting(
        0.0, "Sampling: never draw a token with a lower probability (Hewitt et al. 2022).", at_least=0, below=1)
    seed: int = setting(1, "Sampling: a different seed gives different samples.", at_least=0)
    max_length_factor: float = setting(
        2.0, "A translation has at most source tokens * factor + constant tokens (EOS included on both sides).",
        at_least=0, at_most=1000)
    max_length_constant: int = setting(10, "See max_length_factor (tokens).", at_least=0, at_most=1_000_000)
    max_tokens: int = setting(
        0, "Maximum number of tokens of a translation, EOS included, for sources of any length; 0 for no such limit.",
        at_least=0, at_most=1_000_000)
    min_length: int = setting(
        0, "Minimum number of tokens of a translation, without EOS; 0 allows an empty translation.", at_least=0,
        at_most=1_000_000)
    min_length_factor: float = setting(
        0.0, "A translation has at least source tokens * factor tokens (without EOS on both sides).", at_least=0,
        at_most=1000)
    no_repeat_ngram: int = setting(
        0, "Length of token sequences that must not occur twice in a translation (Paulus et al. 2018); 0 allows "
        "repetitions.", at_least=0, at_most=100)
    repetition_penalty: float = setting(
        1.0, "Factor of the log-probability of tokens that the translation already contains (after Keskar et al. "
        "2019); 1 for no penalty.", at_least=1, at_most=1000)
    shortlist: str = setting(
        "", "A file of `towernmt lexicon`, or a package with a shortlist: allow only likely translations of the words "
        "of a sentence and frequent words.")
    shortlist_size: int = setting(
        100, "With shortlist: number of translations of each source token.", at_least=1)
    shortlist_frequent: int = setting(
        100, "With shortlist: number of most frequent target tokens that are allowed in every sentence.", at_least=0)
    averaged: bool = setting(
        True, "Use the moving average of the weights, if the run has one (optimizer.ema_decay).")

    def length_factor(self, tokens: int) -> float:
        """Return the divisor of the score of a hypothesis with this number of tokens, EOS included."""
        base = (5.0 + tokens) / 6.0 if self.length_normalization == "gnmt" else float(tokens)
        return float(base ** self.length_penalty)

    def log_prob(self, score: float, tokens: int) -> float:
        """Return the log-probability of a hypothesis in nats, from its score and its number of tokens, EOS included.

        A coverage penalty, which does not depend on the tokens, stays in it.
        """
        if self.selection == "sampling":        # the score of a sample is its log-probability
            return score
        tokens = max(tokens, 1)
        return score * self.length_factor(tokens) - self.word_reward * tokens

    def check_lexical_constraints(self) -> None:
        """Check that the search can require phrases of a translation.

        Raises:
            SettingsError: it is not a plain beam search.
        """
        if self.selection != "beam" or self.beam_groups > 1:
            raise SettingsError("Lexical constraints need a plain beam search: leave out selection=sampling and "
                                "beam_groups, or the constraints and the terminology.")

    def __post_init__(self) -> None:
        check_ranges(self)
        if problem := _sampling_conflict(self) if self.selection == "sampling" else _beam_conflict(self):
            raise SettingsError(problem)
        if self.min_length_factor > self.max_length_factor:
            raise SettingsError(f"min_length_factor={self.min_length_factor}: choose at most max_length_factor "
                                f"({self.max_length_factor}), or no long sentence comes to its end.")


_BEAM_ONLY = {"beam_groups": 1, "word_reward": 0.0, "coverage_penalty": 0.0, "stopping": "exact"}
SAMPLING_ONLY = {"top_k": 0, "top_p": 1.0, "epsilon": 0.0}
"""Settings that apply only to sampling, and their values without effect."""


def _sampling_conflict(settings: SearchSettings) -> str:
    """Return why the settings cannot be combined with sampling, or ""."""
    for name, off in _BEAM_ONLY.items():
        value = getattr(settings, name)
        if value != off:
            return (f"{name}={value} is for a beam, and selection=sampling has none: set {name}={off}, or "
                    "selection=beam.")
    return ""


def _beam_conflict(settings: SearchSettings) -> str:
    """Return why the settings cannot be combined with a beam, or ""."""
    for name, off in SAMPLING_ONLY.items():
        value = getattr(settings, name)
        if value != off:
            return f"{name}={value} is for sampling: set selection=sampling, too, or {name}={off}."
    if settings.n_best > settings.beam_size:
        return f"n_best={settings.n_best}: choose 1 to beam_size ({settings.beam_size}), or a larger beam."
    if settings.beam_size % settings.beam_groups:
        return (f"beam_groups={settings.beam_groups}: the groups share the beam evenly, so choose a divisor of "
                f"beam_size ({settings.beam_size}).")
    return ""


@dataclass(frozen=True)
class StreamSettings:
    """Settings of the batches of lines.

    `batch_tokens`, `batch_sentences`, `window`, `max_source_length` and `threads` are the options of `towernmt
    translate` with these names.

    Raises:
        SettingsError: a value is not valid.
    """

    batch_tokens: int = setting(
        4096, "Maximum number of source tokens in a batch, padding included (at least one line).", at_least=1)
    batch_sentences: int = setting(
        64, "Maximum number of sentences in a batch.", at_least=1)
    window: int = setting(
        2000, "Lines that are read before the first one is written, and sorted by length. 1 translates line by line.",
        at_least=1)
    max_source_length: int = setting(
        256, "Longer lines (tokens) are cut at punctuation or spaces, and their parts translated separately.",
        at_least=1)
    threads: int = setting(
        0, "Batches that are translated at the same time, each in one thread. 0 means one for each processor, or one "
           "with a GPU.", at_least=0, at_most=8192)
    shares: int = setting(
        0, "Number of batches of a few sentences. 0 means one for each thread; with another number, the batches do not "
           "depend on the number of threads.", at_least=0)

    def __post_init__(self) -> None:
        check_ranges(self)


MAX_HYPOTHESES = 1 << 14
"""Maximum number of hypotheses in a batch."""


def sentences_of_hypotheses(hypotheses: int) -> int:
    """Return the maximum number of sentences in a batch with this number of hypotheses of each sentence."""
    return max(1, MAX_HYPOTHESES // hypotheses)


def limit_hypotheses(stream: StreamSettings, search: SearchSettings) -> StreamSettings:
    """Return the settings of the batches with fewer sentences for wide beams and many samples, to save memory."""
    sentences = sentences_of_hypotheses(max(search.beam_size, search.n_best))
    return dataclasses.replace(stream, batch_sentences=min(stream.batch_sentences, sentences))


BATCH_ON_GPU = {"batch_tokens": 16_384, "batch_sentences": 512}
"""Fields of `StreamSettings` on a GPU. On an H100, a step of the search with 512 sentences takes only 1.6 times as long
as one with 64 (docs/notes/gpus.md)."""
MEANS = ("probabilities", "log-probabilities")


@dataclass(frozen=True)
class EnsembleSettings:
    """Settings of the mean of the members' distributions over the next token.

    `mean` is "probabilities" or "log-probabilities". `weights` has a number above 0 for each member; if it is empty,
    all weights are equal. Both means are distributions; that of log-probabilities is normalised at each step. Sockeye
    (Hieber et al. 2017) calls them linear and log-linear interpolation.

    Raises:
        SettingsError: a value is not valid.
    """

    mean: str = setting(
        "probabilities", "Values of the mean: probabilities favour tokens of which one member is sure, "
        "log-probabilities favour tokens that no member considers unlikely.", choices=MEANS)
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)
        if any(not 0.0 < weight < float("inf") for weight in self.weights):
            raise SettingsError(f"The weights {self.shown_weights()} of an ensemble: each must be a number above 0.")

    def normalised_weights(self, members: int) -> list[float]:
        """Return the weights of the members, with the sum 1.

        Raises:
            SettingsError: the number of weights is not the number of members.
        """
        weights = self.weights or (1.0,) * members
        if len(weights) != members:
            raise SettingsError(f"The ensemble has {members} members and the {len(weights)} weights "
                                f"{self.shown_weights()}: give one to each, or none at all.")
        return [weight / sum(weights) for weight in weights]

    def shown_weights(self) -> str:
        """Return the weights as the command line writes them."""
        return ",".join(f"{weight:g}" for weight in self.weights)


def as_list(value: Any) -> list[Any]:
    """Return the values for the members as a list; a single value becomes a list of one.

    Raises:
        SettingsError: the list is empty.
    """
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise SettingsError("A list of runs, checkpoints or models is empty: pass one for each member of the ensemble.")
    return values


SWITCH = ("auto", "off")
"""Values of the settings of special lines."""


@dataclass(frozen=True)
class SpecialLineSettings:
    """Settings of the translation of special lines."""

    copy_lines: str = setting(
        "auto", "Lines without words, such as emoji, numbers and addresses, are their own translations, unless the "
        "vocabulary has no letters; so are lines with unknown letters, or only unknown words, that the model cannot "
        "translate.", SWITCH)
    protection: str = setting(
        "auto", "A line whose addresses, paths, placeholders, emoji, marks of Markdown or numbers change in its "
        "translation is translated again with placeholders for them.", SWITCH)
    casing: str = setting(
        "auto", "A line in capitals, title case or lower case is translated in the usual letter case, too, and the "
        "model's scores decide.", SWITCH)
    spelling: str = setting(
        "auto", "A line with words that the training text lacks is translated with their typos corrected, too, and the "
        "model's scores decide.", SWITCH)
    final_marks: str = setting(
        "auto", "A line without a final mark is translated with a full stop and with a question mark, too, if nearly "
        "all lines of the training text have final marks, and the model's scores decide; so is a fragment with a "
        "translation that is too long, with a full stop.", SWITCH)
    sentences: str = setting(
        "auto", "A line whose translation has fewer sentences is translated again, sentence by sentence.", SWITCH)

    def __post_init__(self) -> None:
        for name in ("copy_lines", "protection", "casing", "spelling", "final_marks", "sentences"):
            if getattr(self, name) not in SWITCH:
                raise SettingsError(f"{name}={getattr(self, name)}: choose one of {', '.join(SWITCH)}.")
