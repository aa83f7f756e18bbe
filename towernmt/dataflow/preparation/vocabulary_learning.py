"""Make the vocabularies of a preparation: plan their sizes and learn them from a sample, or load them from files.

The vocabularies of the two languages are learned at the same time. If the settings do not specify the number of ids,
or whether both languages share a vocabulary, these rules decide:

**Size.** Sentences should be short, and each subword should occur often enough to be learned. In few passes over a
text, short sentences matter more: two vocabularies of 16,000 ids learned more from as many tokens of the 2.1 million
words of Tatoeba than two of 8,000, and after seven passes they were as good. In 16 passes over the German text of Home
Assistant, one vocabulary of 8,000 was better. On Japanese, 4,000 were better than 16,000, whose subwords are phrases,
and on 5,000 pairs of Tatoeba, 4,000 were better than 2,000 or 1,000 (docs/notes/defaults.md, "Number of subwords").
Papers on long trainings report 2,000 for little text (Sennrich and Zhang 2019, "Revisiting low-resource neural machine
translation"), or at least fewer than the usual 32,000 (Ding et al. 2019, "A call for prudent choice of subword merge
operations in neural machine translation"; Gowda and May 2020, "Finding the optimal vocabulary size for neural machine
translation"). Vaswani et al. 2017 shared 37,000 for 4.5 million pairs. Values in between are a guess.

**Characters.** Each character that a text needs is a subword. So a text with thousands of characters, such as
Chinese, gets a vocabulary of which characters fill at most half.

**Sharing.** One vocabulary for both languages spells names alike on both sides (Sennrich et al. 2016, "Neural machine
translation of rare words with subword units"), and lets both have one table of embeddings (Vaswani et al. 2017), which
saves memory. It helps if the scripts are the same. In Home Assistant's translations, languages with the same script
share 0.48 (Vietnamese and Turkish) to 0.88 (English and French) of their letters, and languages with different scripts
0.07 (English and Serbian) to 0.35 (Chinese and Japanese). Tatoeba's German and English share 0.81. On a text of medium
size, two vocabularies were better: two of 8,000 ids on Tatoeba than one of 8,000, and as good as one of 16,000, in less
time (docs/notes/defaults.md, "Number of subwords"). Larger texts, for which models are larger, were not measured.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from towernmt.core.errors import DataError, SettingsError, remedy
from towernmt.dataflow.preparation.prepare_settings import LEAST_COVERAGE, PrepareSettings
from towernmt.dataflow.preparation.tasks import Task, atomic_output
from towernmt.dataflow.preparation.text_tasks import (
    SampleSpec,
    SideMeasure,
    TextMeasure,
    measure_sentences,
    sampled_sentences,
)
from towernmt.dataflow.text.word_segmentation import begins_unspaced
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import learn_bpe_codes
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import learn_sentence_piece
from towernmt.dataflow.vocabulary.source_factors import add_factors
from towernmt.dataflow.vocabulary.source_text import SourceText
from towernmt.dataflow.vocabulary.vocabulary_files import load_factors, load_vocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary, learn_words

_LEARNING_SETTINGS = ("vocab_size", "character_coverage", "byte_fallback", "split_digits", "vocab_symbols")
"""Settings of `prepare` that have an effect only if a vocabulary is learned."""


def check_vocabulary_files(settings: PrepareSettings) -> None:
    """Check that the vocabulary files of the settings can be read, and that no other setting contradicts them.

    Raises:
        DataError: a file is missing or cannot be read.
        SettingsError: no vocabulary is learned, but a setting is for learning one.
    """
    for path in filter(None, (settings.source_vocab, settings.target_vocab)):
        try:
            open(path, "rb").close()
        except OSError as error:
            raise DataError(f"{path}: cannot read the vocabulary ({error.strerror}). "
                            f"{remedy(error, 'Check the path.')}") from error
    if not _learned_sides(settings) and not settings.factors:
        for name in _LEARNING_SETTINGS:
            if getattr(settings, name):
                option = f"--{name.replace('_', '-')}"
                raise SettingsError(f"{option} has no effect, because all vocabularies are files: leave out {option}, "
                                    "or --source-vocab and --target-vocab.")


class VocabularyMaker:
    """Makes the two vocabularies of a preparation.

    Raises:
        DataError: a vocabulary file of the settings cannot be read.
    """

    def __init__(self, settings: PrepareSettings, plan: VocabularyPlan) -> None:
        self._settings, self._plan = settings, plan
        self._files = _files_by_side(settings, plan.shared)
        self._factors = self._factors_from_files()

    def file_checksums(self) -> dict[str, str]:
        """Return the SHA-256 of the vocabulary files of the settings."""
        checksums = {}
        for side, path in self._files.items():
            if path:
                checksum = hashlib.sha256(Path(path).read_bytes())
                subwords = Path(path).with_suffix(".pieces")
                if subwords.is_file():
                    checksum.update(subwords.read_bytes())
                checksums[f"{side}_vocab"] = checksum.hexdigest()
        for number, vocabulary in enumerate(self._factors or (), 1):
            content = b"".join(vocabulary.files().values())
            checksums[f"source_factor_{number}_vocab"] = hashlib.sha256(content).hexdigest()
        return checksums

    def _factors_from_files(self) -> list[WordVocabulary] | None:
        """Return the word lists next to the file of the source vocabulary, or None if they must be learned."""
        path, factors_of_text = self._files["source"], self._settings.factors
        word_lists = load_factors(Path(path).parent) if path and factors_of_text else []
        if word_lists and len(word_lists) != factors_of_text:
            raise DataError(f"{path}: {len(word_lists)} source factors have their word lists next to it, but the text "
                            f"has {factors_of_text}: pass a vocabulary with that number of factors.")
        return word_lists or None

    def draw(self, lines: int) -> SampleSpec | None:
        """Return the sample of sentences for a text with `lines` lines; None if no sentences are needed."""
        settings = self._settings
        sides = tuple(side for side in self._texts() if _is_learned(self._files[side]))
        factors = 0 if self._factors else settings.factors
        if not sides and not factors:
            return None
        if self._plan.shared and sides:
            sides = ("source", "target")
        texts = 2 if self._plan.shared else 1
        return SampleSpec(sides, settings.vocab_sentences / (lines * texts), settings.vocab_sentences / lines,
                    settings.source_factors, factors, settings.seed)

    def learning(self, lines: int, samples: Sequence[Path], work: Path) -> dict[str, LearnVocabulary]:
        """Return the tasks that learn vocabularies, by side.

        Args:
            lines: number of lines of each text.
            samples: files of the sentences of the sample of `draw`.
            work: directory for the output of the tasks.
        """
        settings = self._settings
        tasks = {}
        for side in self._texts():
            if not _is_learned(self._files[side]):
                continue
            names = ("source", "target") if self._plan.shared else (side,)
            recipe = VocabularyRecipe(
                settings.vocab_kind, self._plan.size, settings.character_coverage, settings.byte_fallback,
                settings.symbols, settings.split_digits, self._files[side],
                settings.vocab_sentences, lines * len(names))
            tasks[side] = LearnVocabulary(work / f"{side}-vocabulary", lines, names, recipe, tuple(samples))
        return tasks

    def make(self, learned: Mapping[str, LearnVocabulary], samples: Sequence[Path]
             ) -> tuple[Vocabulary, Vocabulary, list[str]]:
        """Return the source vocabulary with its factors, the target vocabulary, and notes for the user.

        Args:
            learned: the tasks of `learning`, after they are done.
            samples: files of the sampled sentences.

        Raises:
            DataError: the files are not vocabularies.
        """
        settings, plan, notes = self._settings, self._plan, []
        vocabularies = {
            side: learned[side].vocabulary() if side in learned else load_vocabulary(self._files[side] or "")
            for side in self._texts()}
        for side, vocabulary in vocabularies.items():
            if not self._files[side] and vocabulary.size != plan.size:
                name, adjective = "shared" if plan.shared else side, "chosen" if plan.automatic else "requested"
                notes.append(f"the {name} vocabulary has {vocabulary.size} ids rather than the {plan.size} "
                             f"{adjective}: the text does not have more entries")
        file = self._files["source"]
        if file and not settings.factors and (word_lists := len([*Path(file).parent.glob("source_factor_*.words")])):
            notes.append(f"{word_lists} source factors have their word lists next to {file}, but the text was read "
                         f"without factors: if its words are followed by factors, pass --source-factors {word_lists}")
        factors = self._factors or [
            learn_words(sampled_sentences(samples, f"factor_{number}"), plan.size)
            for number in range(1, settings.factors + 1)]
        return add_factors(vocabularies["source"], factors), vocabularies.get("target", vocabularies["source"]), notes

    def source_text(self) -> SourceText:
        """Return the facts next to the given source vocabulary about the text of its model; may be empty."""
        path = self._settings.source_vocab
        return SourceText.load(path) if path else SourceText()

    def _texts(self) -> tuple[str, ...]:
        """Return the sides that have a separate vocabulary."""
        return ("source",) if self._plan.shared else ("source", "target")


def _files_by_side(settings: PrepareSettings, shared: bool) -> dict[str, str | None]:
    """Return the vocabulary file of each side, or None; a shared vocabulary may be the file of either side."""
    source, target = settings.source_vocab, settings.target_vocab
    return {"source": source or target, "target": source or target} if shared else {"source": source, "target": target}


def _is_learned(path: str | None) -> bool:
    """Return whether a vocabulary is learned: it has no file, or BPE codes without the list of its subwords."""
    return not path or (path.endswith(".codes") and not Path(path).with_suffix(".pieces").is_file())


SIZES = ((10_000, 2_000), (100_000, 4_000), (500_000, 8_000), (50_000_000, 16_000), (float("inf"), 32_000))
"""Pairs of an upper limit for the number of words of a language, and the number of ids of a vocabulary."""
SIZES_WITHOUT_SPACES = (
    (20_000, 2_000), (200_000, 4_000), (10_000_000, 8_000), (100_000_000, 16_000), (float("inf"), 32_000))
"""The same if the words of a language are not separated by spaces, so that a subword may contain several words."""
SEPARATE = (500_000, 5_000_000)
"""Numbers of words of a language from which and below which each language has its own vocabulary."""
FIXED_SIZE = 8_000
"""Number of ids if the text is not measured: for plain words, and if no vocabulary is learned."""
COVERAGE = 0.9995
"""Share of the text whose characters may fill at most half of the vocabulary."""
LEAST_COMMON_LETTERS = 0.4
"""Minimum share of common letters with which both languages share a vocabulary."""
CHARACTERS_OF_A_WORD = 2
"""Estimated number of characters of a word in scripts without spaces."""


@dataclass(frozen=True)
class VocabularyPlan:
    """The plan of the vocabularies of a preparation.

    Attributes:
        size: number of ids of each learned vocabulary, including the special ones.
        shared: whether both languages share a vocabulary.
        automatic: automatic settings, each with its reason: "--vocab-size 4000, because ...".
    """

    size: int
    shared: bool
    automatic: tuple[str, ...] = ()


def plan_vocabularies(settings: PrepareSettings, measure: Callable[[], TextMeasure]) -> VocabularyPlan:
    """Plan the vocabularies by the settings, and by the text for automatic settings.

    If the settings specify a size, nothing is automatic.

    Args:
        settings: settings of the preparation.
        measure: measures the text; called only for automatic settings.
    """
    sides = _learned_sides(settings)
    if settings.vocab_size is not None or settings.vocab_kind == "word" or not sides:
        return VocabularyPlan(settings.vocab_size or FIXED_SIZE, bool(settings.shared_vocab))
    text, automatic = measure(), []
    characters = [text.sides[side].characters for side in sides]
    words = sum(estimate_words(text.sides[side]) for side in sides) / len(sides) / text.share
    subject = f"each language has about {_two_digits(words):,} words" if len(sides) == 2 else (
        f"the {sides[0]} has about {_two_digits(words):,} words")
    shared = settings.shared_vocab
    if shared is None and len(sides) == 2:
        shared, reason = propose_sharing(common_letters(*characters), words)
        automatic.append(f"--{'' if shared else 'no-'}shared-vocab, because {reason or subject}")
    if shared:
        characters = [sum(characters, Counter())]
    needed = max(_characters_needed(settings, counts) for counts in characters)
    size, reason = propose_size(words, needed, any(has_no_spaces(text.sides[side]) for side in sides))
    return VocabularyPlan(size, bool(shared), (*automatic, f"--vocab-size {size}, because {reason or subject}"))


def propose_size(words: float, characters: int, without_spaces: bool = False) -> tuple[int, str]:
    """Return the number of ids, and the reason if it is not the number of words.

    Args:
        words: number of words of a language.
        characters: number of characters that must be subwords.
        without_spaces: whether the words of a language are not separated by spaces.
    """
    sizes = SIZES_WITHOUT_SPACES if without_spaces else SIZES
    by_words, by_characters = next(size for limit, size in sizes if words < limit), -(-2 * characters // 1000) * 1000
    if by_characters <= by_words:
        return by_words, ""
    return by_characters, f"{characters:,} characters must have a subword, and may fill half of it"


def automatic_size(sentences: Iterable[str]) -> int:
    """Return the number of ids for a SentencePiece vocabulary of these sentences, by the rule for `--vocab-size`."""
    side = measure_sentences(sentences)
    needed = _characters_needed(PrepareSettings(), side.characters)
    return propose_size(estimate_words(side), needed, has_no_spaces(side))[0]


def propose_sharing(common: float, words: float) -> tuple[bool, str]:
    """Return whether both languages share a vocabulary, and the reason if it is not the number of words.

    Args:
        common: share of common letters; see `common_letters`.
        words: number of words of a language.
    """
    first, end = SEPARATE
    if common >= LEAST_COMMON_LETTERS and first <= words < end:
        return False, ""
    return common >= LEAST_COMMON_LETTERS, f"the languages have {100 * common:.0f} % of their letters in common"


def common_letters(first: Counter[str], second: Counter[str]) -> float:
    """Return the overlap of the frequencies of letters, 0 to 1; a few foreign names hardly change it."""
    shares = []
    for characters in (first, second):
        letters = {letter: count for letter, count in characters.items() if letter.isalpha()}
        total = sum(letters.values())
        shares.append({letter: count / total for letter, count in letters.items()})
    return sum(min(share, shares[1].get(letter, 0.0)) for letter, share in shares[0].items())


def estimate_words(side: SideMeasure) -> float:
    """Return the number of words of the measured lines; it is estimated for scripts without spaces."""
    return max(side.words, _words_without_spaces(side))


def has_no_spaces(side: SideMeasure) -> bool:
    """Return whether most words of the measured lines are not separated by spaces, as in Chinese."""
    return _words_without_spaces(side) > side.words


def _words_without_spaces(side: SideMeasure) -> float:
    unspaced = sum(count for character, count in side.characters.items() if begins_unspaced(character))
    return unspaced / CHARACTERS_OF_A_WORD


def _characters_needed(settings: PrepareSettings, characters: Counter[str]) -> int:
    if settings.vocab_kind == "bpe-codes":      # every character has a subword inside a word and one at its end
        return 2 * len(characters)
    remaining = (settings.character_coverage or COVERAGE) * characters.total()
    needed = 0
    for _, count in characters.most_common():
        if remaining <= 0:
            break
        remaining, needed = remaining - count, needed + 1
    return needed


def _learned_sides(settings: PrepareSettings) -> Sequence[str]:
    """Return the sides whose text a vocabulary is learned from."""
    files = _files_by_side(settings, bool(settings.shared_vocab))
    return [side for side, file in files.items() if _is_learned(file)]


def _two_digits(number: float) -> int:
    return int(float(f"{number:.1e}"))


@dataclass(frozen=True)
class VocabularyRecipe:
    """The options for learning a vocabulary; see the settings of a preparation.

    Attributes:
        kind: kind of vocabulary.
        size: number of ids.
        coverage: share of the characters that become subwords; None for the automatic share.
        byte_fallback: whether other characters are encoded as bytes.
        symbols: tokens that are always subwords.
        split_digits: whether each digit is a separate subword.
        codes: file of existing BPE codes, whose subwords are taken from the text; None to learn the codes, too.
        sentences: number of sentences of the sample.
        lines: number of lines from which they are sampled.
    """

    kind: str
    size: int
    coverage: float | None
    byte_fallback: bool
    symbols: tuple[str, ...]
    split_digits: bool
    codes: str | None
    sentences: int
    lines: int


@dataclass(frozen=True)
class LearnVocabulary(Task):
    """Learns a vocabulary from sampled sentences.

    Attributes:
        names: sides of the sentences (see `sampled_sentences`); for a shared vocabulary, the source first.
        recipe: options.
        samples: files of the sentences, in the order of the text.
    """

    names: tuple[str, ...]
    recipe: VocabularyRecipe
    samples: tuple[Path, ...]

    @property
    def title(self) -> str:
        return f"learning the vocabulary of the {' and the '.join(self.names)}"

    def run(self) -> None:
        vocabulary = self._learn()
        with atomic_output(self.output) as unfinished:
            unfinished.mkdir()
            vocabulary.save(unfinished / "vocabulary")

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, after the task is done."""
        return load_vocabulary(self.output / "vocabulary")

    def _learn(self) -> Vocabulary:
        recipe, sentences = self.recipe, self._checked_sentences()
        if recipe.codes:
            return learn_bpe_codes(sentences, recipe.size, Path(recipe.codes).read_bytes(), origin=recipe.codes)
        if recipe.kind == "word":
            return learn_words(sentences, recipe.size)
        if recipe.kind == "bpe-codes":
            return learn_bpe_codes(sentences, recipe.size, split_digits=recipe.split_digits)
        coverage = recipe.coverage or self._coverage()
        return learn_sentence_piece(sentences, recipe.kind, recipe.size, coverage, recipe.byte_fallback, recipe.symbols,
                                    recipe.split_digits)

    def _sentences(self) -> Iterator[str]:
        return chain.from_iterable(sampled_sentences(self.samples, name) for name in self.names)

    def _checked_sentences(self) -> Iterator[str]:
        """Return the sentences, of which there is at least one.

        Raises:
            DataError: the sample or the text contains no sentence.
        """
        sentences, recipe = self._sentences(), self.recipe
        first = list(islice(sentences, 1))
        if not first and recipe.sentences < recipe.lines:
            raise DataError(f"--vocab-sentences {recipe.sentences}: of {recipe.lines:,} lines, none with text "
                            "was drawn to learn a vocabulary from. Raise it.")
        if not first:
            raise DataError(f"The {' and the '.join(self.names)} text has no words to learn a vocabulary from: "
                            "every line is empty or has only control characters. Pass text as "
                            f"{' and '.join(f'--{name}' for name in self.names)}.")
        return chain(first, sentences)

    def _coverage(self) -> float:
        """Return the share of the text that is covered by as many characters as fill half of the vocabulary."""
        characters: Counter[str] = Counter()
        for sentence in self._sentences():
            characters.update(sentence)
        frequent = characters.most_common(self.recipe.size // 2)
        if len(frequent) == len(characters):
            return 1.0
        return max(sum(count for _, count in frequent) / characters.total(), LEAST_COVERAGE)
