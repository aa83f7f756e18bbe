"""Alignment of documents sentence by sentence, in passes that learn a lexicon from the beads of the previous pass.

1. By the lengths of sentences alone, in a wide band around the diagonal. Short documents also use words that are the
   same in both languages, such as names and numbers.
2. By lengths and words, in a narrow band around the path of the previous pass. The lexicon is learned from all
   documents together. This pass runs twice.
3. With a model: pass 2 is repeated with the translation of the source in place of the source. Most words are then
   translated by themselves. A short excerpt of a book begins with pass 1 again.

The score of a bead is 1 - 1 / factor, where the factor says how much more probable a word becomes when the other side
is known, as a geometric mean over the words that the lexicon knows, and over the lengths as one more word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.core.line_progress import StageProgress
from towernmt.dataflow.preparation.shards import PairBlock, offsets_of_lengths, reversed_block
from towernmt.documents.alignment.length_gains import LengthGains, LengthModel, is_excerpt
from towernmt.documents.alignment.sentence_paths import Band, Bead, best_path
from towernmt.documents.alignment.word_gains import (
    KnownTranslations,
    WordGains,
    WordIds,
    WordLexicon,
    Words,
    same_words,
    word_frequency,
    word_pairs,
)

MIN_HALF_WIDTH, HALF_WIDTH_SHARE = 1500, 0.06
"""Half the width of the band of the first pass: a number of sentences, or a share of those of the longer text."""
MAX_CELLS = 1 << 30
"""Maximum number of cells of the first pass, each of which needs a byte of memory. Texts of about 96,000 sentences
reach it; the number grows with the square of their length."""
MAX_CELLS_OF_EXCERPTS = 1 << 28
"""Maximum number of cells of the first pass for which its band is widened until it has each position of an excerpt."""
MAX_CELLS_WITH_WORDS = 1 << 21
"""Maximum number of cells for which the first pass compares words, too."""
MAX_CELLS_OF_EXCERPTS_WITH_WORDS = 1 << 24
"""The same for an excerpt of a longer text, whose position the lengths show less reliably."""
HALF_WIDTH = 60
"""Half the width of the band of later passes, in sentences."""
PASSES_BY_WORDS = 2


class SentenceTexts(NamedTuple):
    """The sentences of a document and of its translation, in their order."""

    source: Sequence[str]
    target: Sequence[str]

    @property
    def has_excerpt(self) -> bool:
        """Whether one side seems to translate a part of the other, as a chapter next to a book."""
        return is_excerpt(*_Lengths.of_texts(self))


@dataclass(frozen=True)
class AlignedSentences:
    """The alignment of a document.

    Attributes:
        beads: beads and gaps, in order.
        scores: float32 `[beads]`, 0 to 1; 0 for gaps.
        scores_by_words: float32 `[beads]`, the same without the lengths of the sentences.
        translations: the translation of each source sentence by a model; empty without a model.
    """

    beads: list[Bead]
    scores: NDArray[np.float32]
    scores_by_words: NDArray[np.float32]
    translations: Sequence[str] = ()

    def share_in_good_beads(self, good: float) -> float:
        """Return the share of the sentences of the shorter side that are in beads with at least this score."""
        return self._share_in(self.scores >= good)

    def share_in_runs(self, good: float, min_run: int) -> float:
        """Return the share of the sentences of the shorter side that are in good beads of long runs.

        Args:
            good: the minimum score of a good bead by its words alone.
            min_run: minimum number of beads, good or not, that follow each other without a gap.
        """
        is_bead = np.array([not bead.is_gap for bead in self.beads], bool)
        runs = np.cumsum(~is_bead)
        lengths = np.bincount(runs[is_bead], minlength=len(is_bead) + 1)
        return self._share_in((self.scores_by_words >= good) & is_bead & (lengths[runs] >= min_run))

    def _share_in(self, chosen: NDArray[np.bool_]) -> float:
        sizes = np.array([bead.shape for bead in self.beads], np.int64).reshape(-1, 2)
        return float(max(sizes[chosen].sum(0) / np.maximum(sizes.sum(0), 1)))


TranslateTexts = Callable[[Sequence[str]], Iterable[str]]
"""Return or yield the translation of each sentence."""


class KnownPairs:
    """Known sentence pairs, which are divided into words and learned from once for several alignments.

    Args:
        pairs: sources and targets.

    Attributes:
        pairs: the argument.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]] = ()) -> None:
        self.pairs = pairs
        self._words: KnownPairWords | None = None
        self._translations: tuple[KnownTranslations, ...] | None = None

    def words(self, progress: StageProgress) -> KnownPairWords:
        """Return the words of the pairs.

        Args:
            progress: shows the progress of the first call.
        """
        if self._words is None:
            self._words = KnownPairWords.of_pairs(self.pairs, progress)
        return self._words

    def translations(self, progress: StageProgress) -> tuple[KnownTranslations, ...]:
        """Return the translations into source words and into target words; empty without pairs.

        Args:
            progress: shows the progress of the first call.
        """
        if self._translations is None:
            self._translations = self.words(progress).translations(progress)
        return self._translations


class KnownPairWords(NamedTuple):
    """The words of known pairs.

    Attributes:
        ids: ids of the source words and of the target words.
        frequencies: int64 `[words]`, occurrences of the source words and of the target words.
        blocks: the words of the pairs.
    """

    ids: tuple[WordIds, WordIds]
    frequencies: tuple[NDArray[np.int64], NDArray[np.int64]]
    blocks: Sequence[PairBlock]

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[str, str]], progress: StageProgress) -> KnownPairWords:
        """Divide pairs into words."""
        ids = WordIds(), WordIds()
        if pairs:
            progress.begin("dividing into words", "sentences", 2 * len(pairs))
        source, target = (ids_of_side.of_texts(progress.counted(pair[side] for pair in pairs))
                          for side, ids_of_side in enumerate(ids))
        beads = [Bead(index, index + 1, index, index + 1) for index in range(len(pairs))]
        return cls(ids, (word_frequency([source], ids[0].size), word_frequency([target], ids[1].size)),
                   word_pairs(source, target, beads))

    def translations(self, progress: StageProgress) -> tuple[KnownTranslations, ...]:
        """Learn the translations into source words and into target words; empty without pairs."""
        if not self.blocks:
            return ()
        source_size, target_size = self.ids[0].size, self.ids[1].size
        progress.begin("learning word translations", "pairs", 2 * sum(map(len, self.blocks)))   # in two directions
        return (KnownTranslations.learn([reversed_block(block) for block in self.blocks], source_size, target_size,
                                        progress.add),
                KnownTranslations.learn(self.blocks, target_size, source_size, progress.add))


def align_sentences(documents: Sequence[SentenceTexts], known: Sequence[tuple[str, str]] | KnownPairs = (),
                    translate: TranslateTexts | None = None, progress: StageProgress | None = None
                    ) -> list[AlignedSentences]:
    """Return the alignment of the sentences of each document with those of its translation.

    Args:
        documents: documents of one pair of languages. Each side has at least one sentence.
        known: further sentence pairs, from which the lexicon is also learned. From `KnownPairs`, several calls learn
            only once.
        translate: translates sentences of the source by a model; None for no pass with a model.
        progress: shows the progress; None to show nothing.

    Returns:
        For each document its beads in their order, and the score of each. A bead has the sentences `source_first` to
        `source_after` and `target_first` to `target_after`, without the last ones.

    Raises:
        DataError: a document is too long; see `check_size`.
    """
    for texts in documents:
        check_size(texts)
    lengths = list(map(_Lengths.of_texts, documents))
    targets = [texts.target for texts in documents]
    progress = progress or StageProgress()
    passes = _Passes([texts.source for texts in documents], targets, lengths, progress, known)
    aligned = passes.aligned()
    if translate is not None:
        progress.begin("translating", "sentences", sum(len(texts.source) for texts in documents))
        sources = [[*progress.counted(translate(texts.source))] for texts in documents]
        # The position of an excerpt may be wrong without the model, so its path is searched from the beginning.
        paths = [None if texts.has_excerpt and passes.compares_words_first(number) else aligned[number].beads
                 for number, texts in enumerate(documents)]
        passes = _Passes(sources, targets, lengths, progress, is_one_language=True)
        aligned = [replace(each, translations=source)
                   for each, source in zip(passes.aligned(paths), sources, strict=True)]
    progress.end()
    return aligned


def align_in_orders(texts: SentenceTexts, orders: Sequence[Sequence[int]],
                    known: Sequence[tuple[str, str]] | KnownPairs = (),
                    translations: Sequence[str] = (), progress: StageProgress | None = None) -> list[AlignedSentences]:
    """Align the sentences of a document once for each order of its target sentences.

    Without translations, this nearly has the results of `align_sentences` for each order, and takes much less time: the
    translations of known pairs are learned once, and do not depend on the document.

    Args:
        texts: the document. Each side has at least one sentence.
        orders: indices of all target sentences, in each order.
        known: see `align_sentences`.
        translations: the translation of each source sentence by a model, which is compared with the target instead of
            the source; empty without a model.
        progress: see `align_sentences`.

    Raises:
        DataError: the document is too long; see `check_size`.
    """
    check_size(texts)
    progress = progress or StageProgress()
    passes = _Passes([translations or texts.source], [texts.target], [_Lengths.of_texts(texts)], progress,
                     () if translations else known, is_one_language=bool(translations), keeps_known=True)
    aligned = [passes.with_target_order(order).aligned()[0] for order in orders]
    progress.end()
    return aligned


def check_size(texts: SentenceTexts) -> None:
    """Check that the alignment of a document fits into memory.

    Raises:
        DataError: the first pass would search more than `MAX_CELLS` cells.
    """
    sources, targets = map(len, texts)
    cells = int(_first_band(sources, targets).starts[-1])
    if cells > MAX_CELLS:
        raise DataError(f"The document and its translation have {sources:,} and {targets:,} sentences, whose alignment "
                        f"would need {cells / 1e9:.1f} GB of memory, and at most {MAX_CELLS / 1e9:.1f} GB are allowed: "
                        "divide both into parts, such as volumes.")


def _first_band(sources: int, targets: int) -> Band:
    """Return the cells of the first pass."""
    half_width = max(MIN_HALF_WIDTH, int(HALF_WIDTH_SHARE * max(sources, targets)))
    if (difference := abs(sources - targets)) > half_width:
        band = Band.around_diagonal(sources, targets, difference)
        if int(band.starts[-1]) <= MAX_CELLS_OF_EXCERPTS:
            return band
    return Band.around_diagonal(sources, targets, half_width)


class _Lengths(NamedTuple):
    """int64 `[sentences]`, the characters of the sentences of a document."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]

    @classmethod
    def of_texts(cls, texts: SentenceTexts) -> _Lengths:
        """Return the lengths of the sentences of a document."""
        return cls(*(np.array([len(text) for text in side], np.int64) for side in texts))

    def of_beads(self, beads: Sequence[Bead]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the characters of both sides of each bead."""
        ranges = np.array(beads, np.int64).reshape(-1, 4)
        source_offsets, target_offsets = map(offsets_of_lengths, self)
        return (source_offsets[ranges[:, 1]] - source_offsets[ranges[:, 0]],
                target_offsets[ranges[:, 3]] - target_offsets[ranges[:, 2]])


class _LexiconLearner:
    """Learns lexicons from known pairs and further pairs.

    Args:
        known: the known pairs.
        keeps_known: whether the further pairs leave the translations of the known pairs unchanged.
        texts: the words of the sources, and of the targets.
        frequencies: int64 `[words]`, occurrences of source words and of target words, in the texts and known pairs.
        same: see `same_words`.
        progress: shows the progress.
    """

    def __init__(self, known: KnownPairs, keeps_known: bool, texts: tuple[Sequence[Words], Sequence[Words]],
                 frequencies: tuple[NDArray[np.int64], NDArray[np.int64]], same: NDArray[np.int64],
                 progress: StageProgress) -> None:
        self._known, self._keeps_known, self._texts = known, keeps_known, texts
        self._frequencies, self._same, self._progress = frequencies, same, progress

    def learn(self, pairs: Sequence[PairBlock]) -> tuple[WordLexicon, WordLexicon]:
        """Return the lexicons of source words and of target words."""
        if self._keeps_known:
            return self._learn(pairs, self._translations)
        return self._learn([*self._known.words(self._progress).blocks, *pairs])

    @cached_property
    def of_known(self) -> tuple[WordLexicon, WordLexicon]:
        """The lexicons of the known pairs, which are learned once for all short documents."""
        return self._learn((), self._translations)

    @cached_property
    def _translations(self) -> Sequence[KnownTranslations]:
        return [translations.of_given(given, len(frequency)) for translations, given, frequency in zip(
            self._known.translations(self._progress), self._texts[::-1], self._frequencies[::-1], strict=False)]

    def _learn(self, pairs: Sequence[PairBlock], known: Sequence[KnownTranslations] = ()
               ) -> tuple[WordLexicon, WordLexicon]:
        (source_frequency, target_frequency), report = self._frequencies, self._progress.add
        of_source, of_target = known or (None, None)
        if pairs:
            self._progress.begin("learning word translations", "pairs", 2 * sum(map(len, pairs)))   # in two directions
        return (WordLexicon.learn([reversed_block(block) for block in pairs], source_frequency, self._same[::-1],
                                  len(target_frequency), report, of_source),
                WordLexicon.learn(pairs, target_frequency, self._same, len(source_frequency), report, of_target))


class _Passes:
    """The texts of all documents as words, and the passes over them."""

    def __init__(self, sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], lengths: Sequence[_Lengths],
                 progress: StageProgress, known: Sequence[tuple[str, str]] | KnownPairs = (),
                 is_one_language: bool = False, keeps_known: bool = False) -> None:
        self._progress = progress
        known = known if isinstance(known, KnownPairs) else KnownPairs(known)
        known_words = known.words(progress)
        progress.begin("dividing into words", "sentences", sum(map(len, [*sources, *targets])))
        source_ids, target_ids = (WordIds(known_ids.ids) for known_ids in known_words.ids)
        self._sources = [source_ids.of_texts(progress.counted(texts)) for texts in sources]
        self._targets = [target_ids.of_texts(progress.counted(texts)) for texts in targets]
        self._lengths = lengths
        self._model = LengthModel.of_texts(np.concatenate([each.source for each in lengths]),
                                           np.concatenate([each.target for each in lengths]))
        source_frequency, target_frequency = (
            word_frequency(texts, ids.size) + np.pad(known_frequency, (0, ids.size - len(known_frequency)))
            for texts, ids, known_frequency in zip(
                (self._sources, self._targets), (source_ids, target_ids), known_words.frequencies, strict=True))
        same = same_words(source_ids.ids, target_ids.ids, source_frequency, target_frequency, is_one_language)
        self._lexicons = _LexiconLearner(known, keeps_known, (self._sources, self._targets),
                                         (source_frequency, target_frequency), same, progress)

    def with_target_order(self, order: Sequence[int]) -> _Passes:
        """Return the passes for a single document whose target sentences have another order."""
        firsts = np.array(order, np.int64)
        passes = copy(self)
        passes._targets = [self._targets[0].joined(firsts, firsts + 1)]
        passes._lengths = [self._lengths[0]._replace(target=self._lengths[0].target[firsts])]
        return passes

    def compares_words_first(self, number: int) -> bool:
        """Return whether a document is so short that the first pass compares words, too."""
        lengths = self._lengths[number]
        maximum = MAX_CELLS_OF_EXCERPTS_WITH_WORDS if is_excerpt(*lengths) else MAX_CELLS_WITH_WORDS
        return int(_first_band(*map(len, lengths)).starts[-1]) <= maximum

    def aligned(self, paths: Sequence[Sequence[Bead] | None] = ()) -> list[AlignedSentences]:
        """Align all documents by all passes.

        Args:
            paths: for each document the path of an earlier alignment, which replaces the first pass, or None; empty for
                no paths.
        """
        aligned: list[AlignedSentences] = []
        beads: list[Sequence[Bead]] = self._first_paths(paths or [None] * len(self._lengths))
        for _ in range(PASSES_BY_WORDS):
            aligned = self._by_words(beads)
            beads = [alignment.beads for alignment in aligned]
        return aligned

    def _first_paths(self, paths: Sequence[Sequence[Bead] | None]) -> list[Sequence[Bead]]:
        with_words = {number for number, path in enumerate(paths) if path is None and self.compares_words_first(number)}
        lexicons = self._lexicons.of_known if with_words else None
        self._begin("aligning by lengths")
        return [self._first_path(number, lexicons if number in with_words else None) if path is None else path
                for number, path in enumerate(paths)]

    def _begin(self, stage: str) -> None:
        self._progress.begin(stage, "sentences", sum(map(len, self._sources)))

    def _first_path(self, number: int, lexicons: tuple[WordLexicon, WordLexicon] | None) -> list[Bead]:
        """Return the path of a document by its lengths, and by words if there are lexicons."""
        lengths = self._lengths[number]
        band = _first_band(*map(len, lengths))
        gains = LengthGains(LengthModel.of_texts(*lengths), *lengths)
        if lexicons is not None:
            return self._aligned(number, band, gains, lexicons).beads
        return best_path(band, gains.of_rectangle, self._progress.add)

    def _by_words(self, paths: Sequence[Sequence[Bead]]) -> list[AlignedSentences]:
        """Align all documents by lengths and words, near the paths of an earlier pass."""
        pairs = [block for source, target, path in zip(self._sources, self._targets, paths, strict=True)
                 for block in word_pairs(source, target, path)]
        lexicons = self._lexicons.learn(pairs)
        singles = [[bead for bead in path if bead.shape == (1, 1)] for path in paths]
        lengths_of_beads = [lengths.of_beads(beads) for lengths, beads in zip(self._lengths, singles, strict=True)]
        model = LengthModel.of_beads(np.concatenate([source for source, _ in lengths_of_beads]),
                                     np.concatenate([target for _, target in lengths_of_beads]), self._model)
        self._begin("aligning by words")
        results = []
        for index, (path, lengths) in enumerate(zip(paths, self._lengths, strict=True)):
            band = Band.around_path(path, len(lengths.source), len(lengths.target), HALF_WIDTH)
            results.append(self._aligned(index, band, LengthGains(model, *lengths), lexicons))
        return results

    def _aligned(self, number: int, band: Band, lengths: LengthGains, lexicons: tuple[WordLexicon, WordLexicon]
                 ) -> AlignedSentences:
        words = WordGains(self._sources[number], self._targets[number], *lexicons)
        path = best_path(band, lambda *rectangle: lengths.of_rectangle(*rectangle) + words.of_rectangle(*rectangle),
                         self._progress.add)
        is_bead = np.array([not bead.is_gap for bead in path])
        beads = [bead for bead in path if not bead.is_gap]
        gains, known = words.of_beads(beads)
        scores, scores_by_words = np.zeros(len(path), np.float32), np.zeros(len(path), np.float32)
        scores[is_bead] = _scores(2.0 * gains + lengths.of_beads(beads), known)
        scores_by_words[is_bead] = _scores(2.0 * gains, known)
        return AlignedSentences(path, scores, scores_by_words)


def _scores(gains: NDArray[np.floating], known: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the scores of beads for their gains, in nats, and the numbers of their words that the lexicons know."""
    return np.asarray(1.0 - np.exp(-np.maximum(gains, 0.0) / (known + 1.0)))
