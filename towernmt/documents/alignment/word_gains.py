"""Gains of beads by their words: how much more probable the words of a side are when the other side is known.

A word is explained by each word of the other side with its probability in a lexicon of IBM model 1, or by none (the
likelihood ratio of Moore 2002). The lexicon is learned from the beads of an earlier pass, and these may be wrong.
Therefore the contribution of a single occurrence is subtracted from each probability (absolute discounting, as in
language models): a pair of words that occurred once is no evidence, and a sentence is no evidence for its own bead. The
discounted probability goes to all words in proportion to their frequency, so words about which the lexicon knows
nothing gain and lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.alignment_model import NULL, ExpectedCounts, count_by_model_1
from towernmt.dataflow.preparation.shards import PairBlock, offsets_of_lengths, pair_range, select_pairs
from towernmt.dataflow.text.word_segmentation import word_classes
from towernmt.dataflow.vocabulary.sentencepiece_model import spans
from towernmt.documents.alignment.sentence_paths import Bead

_UNKNOWN = NULL + 1
_MAX_WORDS = 80
"""Maximum number of words on a side of a pair from which the lexicon is learned."""
_PAIRS_AT_ONCE = 2000
"""Number of pairs in a block: learning needs memory for all pairs of words in a block."""
_MIN_PROBABILITY = 0.01
"""Minimum probability of an entry of a lexicon."""
_MIN_RATIO = 8.0
"""Minimum of its quotient by the frequency of the word. Lower ones mean little, since model 1 gives the most frequent
words to all words."""
_SAME_PROBABILITY = 0.5
"""Minimum probability that a name, a number or a similar word is translated by itself."""


class WordIds:
    """The ids of the words of a language.

    Args:
        ids: ids of the first words; None for an empty vocabulary.

    Attributes:
        ids: the id of each word. Ids below 2 stand for no word.
    """

    def __init__(self, ids: Mapping[str, int] | None = None) -> None:
        self.ids = dict(ids or {})

    def of_texts(self, texts: Iterable[str]) -> Words:
        """Return the words of sentences, and give new words their ids."""
        ids, lengths = [], []
        for text in texts:
            word_ids = [self.ids.setdefault(word, len(self.ids) + 2) for word in word_classes(text.casefold())]
            ids.extend(word_ids or [_UNKNOWN])
            lengths.append(max(len(word_ids), 1))
        return Words(np.array(ids, np.int32), offsets_of_lengths(np.array(lengths, np.int64)))

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.ids) + 2


@dataclass(frozen=True)
class Words:
    """The words of the sentences of a text; each sentence has at least one.

    Attributes:
        ids: int32 `[words]`, all sentences one after the other.
        offsets: int64 `[sentences + 1]`.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def joined(self, firsts: NDArray[np.int64], afters: NDArray[np.int64]) -> Words:
        """Return the words of ranges of sentences, each as one sentence."""
        begins, lengths = self.offsets[firsts], self.offsets[afters] - self.offsets[firsts]
        return Words(self.ids[spans(begins, lengths)], offsets_of_lengths(lengths))

    def after_two_others(self) -> Words:
        """Return the sentences after two others, which consist of one unknown word each."""
        return Words(np.concatenate([np.full(2, _UNKNOWN, np.int32), self.ids]),
                     np.concatenate([np.arange(2), self.offsets + 2]))


def word_pairs(source: Words, target: Words, beads: Sequence[Bead]) -> list[PairBlock]:
    """Return the words of beads as blocks of sentence pairs, without gaps and very long ones."""
    ranges = np.array([bead for bead in beads if not bead.is_gap], np.int64).reshape(-1, 4)
    source_words, target_words = source.joined(ranges[:, 0], ranges[:, 1]), target.joined(ranges[:, 2], ranges[:, 3])
    pairs = PairBlock(source_words.ids, source_words.offsets, target_words.ids, target_words.offsets)
    pairs = select_pairs(pairs, np.flatnonzero(
        (pairs.source_lengths <= _MAX_WORDS) & (pairs.target_lengths <= _MAX_WORDS)))
    return [pair_range(pairs, first, min(first + _PAIRS_AT_ONCE, len(pairs)))
            for first in range(0, len(pairs), _PAIRS_AT_ONCE)]


class KnownTranslations(NamedTuple):
    """Translations into the words of one language, which IBM model 1 has learned from known sentence pairs.

    Attributes:
        counts: expected counts of the words, each given a word of the other language.
        occurrences: int64 `[words of the other language]`, their occurrences in the pairs.
    """

    counts: ExpectedCounts
    occurrences: NDArray[np.int64]

    @classmethod
    def learn(cls, pairs: Sequence[PairBlock], size: int, given_size: int, report: Callable[[int], None]
              ) -> KnownTranslations:
        """Learn from pairs with the given language as source.

        Args:
            pairs: the pairs.
            size: size of the vocabulary.
            given_size: size of the vocabulary of the given language.
            report: called with the number of pairs that were read since the previous call.

        Raises:
            DataError: `pairs` is empty.
        """
        counts = count_by_model_1(_reported(pairs, report), size, report=lambda iteration, perplexity: report(0))
        return cls(counts, _occurrences(pairs, given_size))

    def of_given(self, given: Iterable[Words], given_size: int) -> KnownTranslations:
        """Return the counts of the words that occur in texts, which determine all probabilities in these texts.

        Args:
            given: texts in the given language.
            given_size: size of its vocabulary, which may have grown.
        """
        occurs = word_frequency(given, given_size) > 0
        occurs[NULL] = True
        chosen = occurs[self.counts.source]
        counts = ExpectedCounts(self.counts.source[chosen], self.counts.target[chosen], self.counts.expected[chosen],
                                self.counts.frequency)
        return KnownTranslations(counts, np.pad(self.occurrences, (0, given_size - len(self.occurrences))))


@dataclass(frozen=True)
class WordLexicon:
    """Discounted probabilities of the words of one language, each given a word of the other language.

    Attributes:
        starts: int64 `[words + 1]`; the entries of word w are `starts[w]` to `starts[w + 1]`.
        given: int32 `[entries]`, words of the other language.
        ratio: float32 `[entries]`, the discounted probability of w given this word, divided by the frequency of w.
        rest: float32 `[words of the other language]`, probability that is left for all words, 0 to 1.
    """

    starts: NDArray[np.int64]
    given: NDArray[np.int32]
    ratio: NDArray[np.float32]
    rest: NDArray[np.float32]

    @classmethod
    def learn(cls, pairs: Sequence[PairBlock], frequency: NDArray[np.int64], same: NDArray[np.int64],
              given_size: int, report: Callable[[int], None] = lambda pairs: None,
              known: KnownTranslations | None = None) -> WordLexicon:
        """Learn a lexicon by IBM model 1.

        Args:
            pairs: pairs, with the given language as source.
            frequency: int64 `[words]`, occurrences of each word in the texts.
            same: int64 `[2, words of both]`, ids of a given word and of the word that is equal to it.
            given_size: size of the vocabulary of the given language.
            report: called with the number of pairs that were read since the previous call.
            known: translations from known pairs, which count, too; see `KnownTranslations.of_given`. None for none.
        """
        size = len(frequency)
        relative = np.maximum(frequency, 1) / max(int(frequency.sum()), 1)
        keys, probability = np.zeros(0, np.int64), np.zeros(0)
        try:
            entries = count_by_model_1(_reported(pairs, report), size, report=lambda iteration, perplexity: report(0),
                                       earlier=None if known is None else known.counts).entries()
        except DataError:           # the list of pairs is empty
            pass
        else:
            occurrences = _occurrences(pairs, given_size) + (0 if known is None else known.occurrences)
            discounted = entries.probability - 1.0 / np.maximum(occurrences, 1)[entries.source]
            smallest = np.maximum(_MIN_PROBABILITY, _MIN_RATIO * relative[entries.target])
            is_kept = (discounted > smallest) & (entries.source > _UNKNOWN) & (entries.target > _UNKNOWN)
            keys = entries.source[is_kept].astype(np.int64) * size + entries.target[is_kept]
            probability = discounted[is_kept]
        keys, probability = _with_same(keys, probability, same[0] * size + same[1])
        given, word = keys // size, keys % size
        rest = 1.0 - np.bincount(given, weights=probability, minlength=given_size)
        order = np.argsort(word, kind="stable")
        return cls(np.searchsorted(word[order], np.arange(size + 1)), given[order].astype(np.int32),
                   (probability[order] / relative[word[order]]).astype(np.float32),
                   np.clip(rest, 0.02, 1.0).astype(np.float32))


def _occurrences(pairs: Iterable[PairBlock], size: int) -> NDArray[np.int64]:
    """Return the occurrences of each word on the source side of pairs, int64 `[size]`."""
    return sum((np.bincount(block.source_ids, minlength=size) for block in pairs), np.zeros(size, np.int64))


def _reported(pairs: Iterable[PairBlock], report: Callable[[int], None]) -> Iterator[PairBlock]:
    for block in pairs:
        yield block
        report(len(block))


def _with_same(keys: NDArray[np.int64], probability: NDArray[np.float64], same: NDArray[np.int64]
               ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return sorted entries in which equal words have at least the probability `_SAME_PROBABILITY`."""
    keys = np.concatenate([keys, same])
    probability = np.concatenate([probability, np.full(len(same), _SAME_PROBABILITY)])
    order = np.lexsort((probability, keys))
    keys, probability = keys[order], probability[order]
    is_last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.zeros(0, bool)
    return keys[is_last], probability[is_last]


def same_words(source: Mapping[str, int], target: Mapping[str, int], source_frequency: NDArray[np.int64],
               target_frequency: NDArray[np.int64], is_one_language: bool = False) -> NDArray[np.int64]:
    """Return the ids `[2, words]` of words in both languages that probably translate each other.

    Args:
        source: id of each source word.
        target: id of each target word.
        source_frequency: int64 `[source words]`, occurrences of the words.
        target_frequency: int64 `[target words]`.
        is_one_language: whether both texts are in the same language, as a translation and the target are.
    """
    pairs = []
    for word, source_id in source.items():
        target_id = target.get(word)
        if target_id is None or not (is_one_language or word[0].isalnum()):
            continue
        counts = sorted((int(source_frequency[source_id]), int(target_frequency[target_id])))
        if is_one_language or any(map(str.isdigit, word)) or (counts[0] and counts[1] <= 3 * counts[0]):
            pairs.append((source_id, target_id))
    return np.array(pairs, np.int64).reshape(-1, 2).T


class WordGains:
    """The gains of beads by their words, in nats: half the sum over the words of both sides.

    Args:
        source, target: the words of the texts.
        source_lexicon: probabilities of source words, given target words.
        target_lexicon: probabilities of target words, given source words.
    """

    def __init__(self, source: Words, target: Words, source_lexicon: WordLexicon, target_lexicon: WordLexicon) -> None:
        self._texts, self._lexicons = (source, target), (source_lexicon, target_lexicon)
        padded_source, padded_target = source.after_two_others(), target.after_two_others()
        self._source = _ExplainedWords(padded_source, padded_target, source_lexicon)
        self._target = _ExplainedWords(padded_target, padded_source, target_lexicon)

    def of_rectangle(self, boundaries: range, target_boundaries: range) -> NDArray[np.float32]:
        """Return the gains for `best_path`."""
        # The sentences before these boundaries, after one more; the first boundary follows the two other sentences.
        rows, columns = (range(side.start, side.stop + 1) for side in (boundaries, target_boundaries))
        source_1, source_2 = self._source.gains(rows, columns)
        target_1, target_2 = (gains.T for gains in self._target.gains(columns, rows))
        return np.stack([
            source_1[1:, 1:] + target_1[1:, 1:],
            source_2[1:, 1:] + target_1[1:, 1:] + target_1[1:, :-1],
            source_1[1:, 1:] + source_1[:-1, 1:] + target_2[1:, 1:],
            source_2[1:, 1:] + source_2[:-1, 1:] + target_2[1:, 1:] + target_2[1:, :-1]]) * np.float32(0.5)

    def of_beads(self, beads: Sequence[Bead]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the gain of each bead, and how many of its words the lexicons know, both float32 `[beads]`.

        A word of which the lexicon knows a share of the probability counts as this share.
        """
        ranges = np.array(beads, np.int64).reshape(-1, 4)
        source_words = self._texts[0].joined(ranges[:, 0], ranges[:, 1])
        target_words = self._texts[1].joined(ranges[:, 2], ranges[:, 3])
        sides = [(source_words, target_words, self._lexicons[0]), (target_words, source_words, self._lexicons[1])]
        gains = sum(_ExplainedWords(*side).gains_of_pairs() for side in sides)
        known = sum(_sums_of_sentences(1.0 - lexicon.rest[given.ids], given) for _, given, lexicon in sides)
        return np.asarray(gains, np.float32) * np.float32(0.5), np.asarray(known, np.float32)


class _ExplainedWords:
    """The words of a text, explained by the words of another one: by model 1 and by their frequency.

    Args:
        words: the explained text.
        given: the other text.
        lexicon: probabilities of the words of the first text, given those of the other one.
    """

    def __init__(self, words: Words, given: Words, lexicon: WordLexicon) -> None:
        self._words, self._lexicon, self._given = words, lexicon, given
        # Model 1 has one more given word, which explains all words by their frequency.
        self._rest = _sums_of_sentences(lexicon.rest[given.ids], given)
        self._lengths = np.diff(given.offsets).astype(np.float32)

    def gains(self, sentences: range, given: range) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the gains `[sentences, given]` of sentences by each given sentence, and by it and the one before it.

        The second array has no meaning for the first given sentence.
        """
        begins = self._words.offsets[sentences.start:sentences.stop + 1]
        ids = self._words.ids[begins[0]:begins[-1]]
        ratio = self._ratios(ids, given)        # [words, given]
        rest, length = self._rest[given.start:given.stop].copy(), self._lengths[given.start:given.stop].copy()
        gains = []
        for _ in range(2):
            logs = np.log((ratio + (rest + np.float32(1))) / (length + np.float32(1)))
            gains.append(np.add.reduceat(logs, begins[:-1] - begins[0]))
            for values in (ratio, rest, length):
                values[..., 1:] += values[..., :-1].copy()
        return gains[0], gains[1]

    def gains_of_pairs(self) -> NDArray[np.float32]:
        """Return the gain of each sentence by the given sentence with the same index, `[sentences]`."""
        size = len(self._words)
        sentence = np.repeat(np.arange(size), np.diff(self._words.offsets))
        given_sentence = np.repeat(np.arange(size), np.diff(self._given.offsets))
        keys = np.sort(self._given.ids.astype(np.int64) * size + given_sentence)
        word, entry = self._entries(self._words.ids)
        given_keys = self._lexicon.given[entry].astype(np.int64) * size + sentence[word]
        occurrences = np.searchsorted(keys, given_keys, "right") - np.searchsorted(keys, given_keys)
        ratio = np.bincount(word, self._lexicon.ratio[entry] * occurrences, minlength=len(sentence))
        logs = np.log((ratio + (self._rest[sentence] + 1.0)) / (self._lengths[sentence] + 1.0))
        return _sums_of_sentences(logs, self._words)

    def _ratios(self, ids: NDArray[np.int32], given: range) -> NDArray[np.float32]:
        """Return the sum of the ratios of each word over the words of each given sentence, `[words, given]`."""
        begins = self._given.offsets[given.start:given.stop + 1]
        given_ids = self._given.ids[begins[0]:begins[-1]]
        order = np.argsort(given_ids, kind="stable")
        given_ids, column = given_ids[order], np.repeat(np.arange(len(given)), np.diff(begins))[order]
        word, entry = self._entries(ids)
        given_words = self._lexicon.given[entry]
        first = np.searchsorted(given_ids, given_words)
        occurrences = np.searchsorted(given_ids, given_words, "right") - first
        cells = np.repeat(word * len(given), occurrences) + column[spans(first, occurrences)]
        ratios = np.bincount(cells, np.repeat(self._lexicon.ratio[entry], occurrences), minlength=len(ids) * len(given))
        return ratios.astype(np.float32).reshape(len(ids), len(given))

    def _entries(self, ids: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the entries of the lexicon for each word: the index of the word, and that of the entry."""
        starts = self._lexicon.starts
        counts = starts[ids + 1] - starts[ids]
        return np.repeat(np.arange(len(ids)), counts), spans(starts[ids], counts)


def _sums_of_sentences(values: NDArray[np.floating], words: Words) -> NDArray[np.float32]:
    """Return the sum over the words of each sentence."""
    return np.add.reduceat(values, words.offsets[:-1]).astype(np.float32) if len(words) else np.zeros(0, np.float32)


def word_frequency(texts: Iterable[Words], size: int) -> NDArray[np.int64]:
    """Return the occurrences of each word, int64 `[size]`."""
    frequency = np.zeros(size, np.int64)
    for words in texts:
        frequency += np.bincount(words.ids, minlength=size)
    return frequency
