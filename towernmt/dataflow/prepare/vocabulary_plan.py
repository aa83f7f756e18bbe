"""How many ids a vocabulary has, and whether both languages share it, where nobody says: the rules and their evidence.

**Size.** Each piece should come often enough to be learned, and sentences should be short. Of 5,000 pairs of Tatoeba
4,000 and 6,857 ids learned more in the same tokens than 2,000 or 1,000, and of 30,000 pairs 8,000 more than 4,000
(docs/notes/defaults.md, "Pieces"): short sentences weigh more than frequent pieces. The papers say the opposite of long
trainings: 2,000 (Sennrich and Zhang 2019, "Revisiting low-resource neural machine translation"), or at least fewer than
the usual 32,000 (Ding et al. 2019, "A call for prudent choice of subword merge operations in neural machine
translation"; Gowda and May 2020, "Finding the optimal vocabulary size for neural machine translation"). 8,000 were
taken for the 2.1 million words of Tatoeba (docs/notes/measurements.md, "The four architectures"), and Vaswani et al.
2017 shared 37,000 for 4.5 million pairs. What lies between is a guess.

**Characters.** Those that a text needs are pieces of their own, so that a text with thousands of them, as Chinese, has
a vocabulary of which they fill half at most.

**Sharing.** One vocabulary for both languages spells names alike on both sides (Sennrich et al. 2016, "Neural machine
translation of rare words with subword units"), and lets both have one table of embeddings (Vaswani et al. 2017). It is
of use where the scripts are the same. Of the letters of Home Assistant's translations, languages of one script have
0.48 (Vietnamese and Turkish) to 0.88 (English and French) in common, those of different ones 0.07 (English and Serbian)
to 0.35 (Chinese and Japanese); Tatoeba's German and English have 0.81.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.prepare.tasks.measure_text import SideMeasure, TextMeasure

SIZES = ((20_000, 2_000), (200_000, 4_000), (10_000_000, 8_000), (100_000_000, 16_000), (float("inf"), 32_000))
"""Words of the text that the vocabulary is learned from, below which it has so many ids."""
FIXED_SIZE = 8_000
"""Where nothing is measured: of words, which no size suits, and where no vocabulary is learned."""
COVERAGE = 0.9995
"""Share of the text whose characters fill half of the vocabulary at most."""
COMMON = 0.4
"""Share of the letters from which both languages share a vocabulary."""
CHARACTERS_OF_A_WORD = 2
"""Where words have no spaces between them."""
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
                       "\U00020000-\U0003ffff]")    # Thai, Lao, Burmese, Khmer, kana, Han


@dataclass(frozen=True)
class VocabularyPlan:
    """What vocabularies a preparation has.

    Attributes:
        size: ids of each that is learned, the special ones included.
        shared: whether it is one for both languages.
        chosen: what nobody asked for, each with its reason: "--vocab-size 4000, as ...".
    """

    size: int
    shared: bool
    chosen: tuple[str, ...] = ()


def planned(settings: PrepareSettings, measure: Callable[[], TextMeasure]) -> VocabularyPlan:
    """The vocabularies that the settings ask for; what they leave open is chosen by the text.

    A size that is asked for leaves nothing open.

    Args:
        measure: measures the text; it is called if something is to be chosen.
    """
    sides = _learned_sides(settings)
    if settings.vocab_size is not None or settings.vocab_kind == "word" or not sides:
        return VocabularyPlan(settings.vocab_size or FIXED_SIZE, bool(settings.shared_vocab))
    text, chosen = measure(), []
    shared = settings.shared_vocab
    if shared is None and len(sides) == 2:
        shared, reason = proposed_sharing(common_letters(*(text.sides[side].characters for side in sides)))
        chosen.append(f"--{'' if shared else 'no-'}shared-vocab, as {reason}")
    words = sum(words_of(text.sides[side]) for side in sides) / text.share
    characters = [text.sides[side].characters for side in sides]
    if shared:
        characters, whose = [sum(characters, Counter())], "the text has"
    else:
        words, whose = words / len(sides), "each language has" if len(sides) == 2 else f"the {sides[0]} has"
    needed = max(_characters_needed(settings, counts) for counts in characters)
    size, reason = proposed_size(words, needed, whose)
    return VocabularyPlan(size, bool(shared), (*chosen, f"--vocab-size {size}, as {reason}"))


def proposed_size(words: float, characters: int, whose: str = "the text has") -> tuple[int, str]:
    """How many ids, and why.

    Args:
        words: of the text that a vocabulary is learned from.
        characters: that must have a piece.
        whose: begins the reason.
    """
    by_words = next(size for limit, size in SIZES if words < limit)
    size = next((size for _, size in SIZES if size >= max(by_words, 2 * characters)), -(-2 * characters // 1000) * 1000)
    if size > by_words:
        return size, f"{whose} {characters:,} characters that must have a piece, and they may fill half of it"
    return size, f"{whose} about {_two_digits(words):,} words"


def proposed_sharing(common: float) -> tuple[bool, str]:
    """Whether both languages share a vocabulary, and why.

    Args:
        common: see `common_letters`.
    """
    same = common >= COMMON
    return same, f"the languages have {100 * common:.0f} % of their letters in common"


def common_letters(first: Counter[str], second: Counter[str]) -> float:
    """How much the frequencies of the letters overlap, 0 to 1; a few foreign names weigh little."""
    shares = []
    for characters in (first, second):
        letters = {letter: count for letter, count in characters.items() if letter.isalpha()}
        total = sum(letters.values())
        shares.append({letter: count / total for letter, count in letters.items()})
    return sum(min(share, shares[1].get(letter, 0.0)) for letter, share in shares[0].items())


def words_of(side: SideMeasure) -> float:
    """Words of the lines that were measured, with or without spaces between them."""
    unspaced = sum(count for character, count in side.characters.items() if _UNSPACED.match(character))
    return max(side.words, unspaced / CHARACTERS_OF_A_WORD)


def _characters_needed(settings: PrepareSettings, characters: Counter[str]) -> int:
    if settings.vocab_kind == "bpe-codes":      # each inside a word and at its end, however rare
        return 2 * len(characters)
    left = (settings.character_coverage or COVERAGE) * characters.total()
    needed = 0
    for _, count in characters.most_common():
        if left <= 0:
            break
        left, needed = left - count, needed + 1
    return needed


def _learned_sides(settings: PrepareSettings) -> Sequence[str]:
    """The sides whose text a vocabulary is learned from."""
    files = {"source": settings.source_vocab, "target": settings.target_vocab}
    if settings.shared_vocab and any(files.values()):
        return ()
    return [side for side, file in files.items() if not file]


def _two_digits(number: float) -> int:
    return int(float(f"{number:.1e}"))
