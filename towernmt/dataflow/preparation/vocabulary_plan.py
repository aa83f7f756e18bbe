"""Plan the vocabularies of a preparation: which ones are learned, their sizes, and whether the languages share one.

If the settings do not specify the number of ids, or whether both languages share a vocabulary, these rules decide:

**Size.** Sentences should be short, and each subword should occur often enough to be learned. In few passes over a
text, short sentences matter more: two vocabularies of 16,000 ids learned more from as many tokens of the 2.1 million
words of Tatoeba than two of 8,000, and after seven passes they were as good. In 16 passes over the German text of Home
Assistant, one vocabulary of 8,000 was better. On Japanese, 4,000 were better than 16,000, whose subwords are phrases,
and on 5,000 pairs of Tatoeba, 4,000 were better than 2,000 or 1,000 (docs/notes/defaults.md, "Number of subwords").
Papers on long trainings report 2,000 for little text (Sennrich and Zhang 2019, "Revisiting low-resource neural machine
translation"), or at least fewer than the usual 32,000 (Ding et al. 2019, "A call for prudent choice of subword merge
operations in neural machine translation"; Gowda and May 2020, "Finding the optimal vocabulary size for neural machine
translation"). Vaswani et al. 2017 shared 37,000 for 4.5 million pairs. Values in between are a guess.

**Codes.** A vocabulary of existing BPE codes contains all subwords that the codes can make.

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

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.text_tasks import SideMeasure, TextMeasure, measure_sentences
from towernmt.dataflow.text.word_segmentation import begins_unspaced
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES

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
    sides = learned_sides(settings)
    if settings.vocab_size is not None or settings.vocab_kind == "word" or not sides:
        return VocabularyPlan(settings.vocab_size or FIXED_SIZE, bool(settings.shared_vocab))
    text, automatic = measure(), []
    characters = [text.sides[side].characters for side in sides]
    words = sum(estimate_words(text.sides[side]) for side in sides) / len(sides) / text.share
    subject = f"each language has about {_two_digits(words):,} words" if len(sides) == 2 else (
        f"the {sides[0]} has about {_two_digits(words):,} words")
    shared, paths = settings.shared_vocab, [path for path in (settings.source_vocab, settings.target_vocab) if path]
    if shared is None and not paths:
        shared, reason = propose_sharing(common_letters(*characters), words)
        automatic.append(f"--{'' if shared else 'no-'}shared-vocab, because {reason or subject}")
    if shared:
        characters = [sum(characters, Counter())]
    needed = max(_characters_needed(settings, counts) for counts in characters)
    size, reason = propose_size(words, needed, any(has_no_spaces(text.sides[side]) for side in sides))
    for path in filter(is_learned, paths):
        codes = _count_codes(Path(path))
        if (all_subwords := codes + 2 * max(map(len, characters)) + len(SPECIAL_PIECES)) > size:
            size, reason = all_subwords, f"{path} has {codes:,} codes, and rare subwords would otherwise be unknown"
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


def _count_codes(file: Path) -> int:
    """Return the number of codes in a file of BPE codes."""
    return sum(bool(line.strip()) and not line.startswith(b"#version") for line in file.read_bytes().split(b"\n"))


def files_by_side(settings: PrepareSettings, shared: bool) -> dict[str, str | None]:
    """Return the vocabulary file of each side, or None; a shared vocabulary may be the file of either side."""
    source, target = settings.source_vocab, settings.target_vocab
    return {"source": source or target, "target": source or target} if shared else {"source": source, "target": target}


def is_learned(path: str | None) -> bool:
    """Return whether a vocabulary is learned: it has no file, or BPE codes without the list of its subwords."""
    return not path or (path.endswith(".codes") and not Path(path).with_suffix(".pieces").is_file())


def learned_sides(settings: PrepareSettings) -> Sequence[str]:
    """Return the sides whose text a vocabulary is learned from."""
    files = files_by_side(settings, bool(settings.shared_vocab))
    return [side for side, file in files.items() if is_learned(file)]


def _two_digits(number: float) -> int:
    return int(float(f"{number:.1e}"))
