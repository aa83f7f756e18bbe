"""Parallel texts of two made-up languages, with lines that were joined and dropped."""

from __future__ import annotations

import random

from towernmt.documents.alignment.document_aligner import SentenceTexts

VOWELS, CONSONANTS = "aeiou", "bdfgklmnprstvz"
Links = set[tuple[int, int]]


def words_of_language(seed: int, count: int) -> list[str]:
    chosen = random.Random(seed)
    made: dict[str, None] = {}
    while len(made) < count:
        made["".join(chosen.choice(CONSONANTS) + chosen.choice(VOWELS) for _ in range(chosen.randint(2, 4)))] = None
    return list(made)


def parallel_sentences(count: int, seed: int = 1, words: int = 400) -> list[tuple[str, str]]:
    """Return translations: words are translated one by one, and the first one goes to the end."""
    chosen = random.Random(seed)
    source, target = words_of_language(100, words), words_of_language(200, words)
    frequency = [1 / (rank + 2) for rank in range(words)]
    pairs = []
    for _ in range(count):
        picked = chosen.choices(range(words), frequency, k=chosen.randint(3, 18))
        one, other = ([language[word] for word in picked] for language in (source, target))
        pairs.append((f"{' '.join(one).capitalize()}.", f"{' '.join([*other[1:], other[0]]).capitalize()}."))
    return pairs


def with_changes(pairs: list[tuple[str, str]], seed: int = 1, joined: float = 0.06, dropped: float = 0.03
                 ) -> tuple[SentenceTexts, Links]:
    """Return both texts with joined and dropped sentences on either side, and the links of sentences that remain."""
    chosen = random.Random(seed)
    sides: tuple[list[str], list[str]] = ([], [])
    links: Links = set()
    index = 0
    while index < len(pairs):
        kind, side = chosen.random(), chosen.randint(0, 1)
        if kind < dropped:
            sides[side].append(pairs[index][side])
            index += 1
            continue
        taken = pairs[index:index + (2 if kind < dropped + joined else 1)]
        begin = len(sides[0]), len(sides[1])
        sides[side].append(" ".join(pair[side] for pair in taken))
        sides[1 - side].extend(pair[1 - side] for pair in taken)
        links |= {(i, j) for i in range(begin[0], len(sides[0])) for j in range(begin[1], len(sides[1]))}
        index += len(taken)
    return SentenceTexts(*sides), links
