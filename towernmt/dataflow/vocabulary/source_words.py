"""The words of the source text, the most frequent first: what the corrections of typos know of a language.

`towernmt prepare` writes them next to the vocabularies, and runs and packages contain a copy. A vocabulary does not
depend on them, so they are not part of its fingerprint, and models without them only lack the corrections.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from towernmt.core.files import write_text

SOURCE_WORDS = "source_words.txt"
"""File with one word a line, next to the vocabularies."""
MOST_WORDS = 100_000
"""Maximum number of words in the file."""
LONGEST_WORD = 40
"""Maximum number of letters of a word, which excludes noise."""

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_OTHER_SCRIPTS = re.compile("[\u0900-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""Scripts in which a word is not a run of letters between spaces: of India, Thai, Lao, Burmese, Khmer, kana, Han."""


def words_of(text: str) -> Iterator[re.Match[str]]:
    """Yield the words of a text: runs of letters, with single apostrophes inside.

    Texts in the scripts of `_OTHER_SCRIPTS` have none.
    """
    return (match for match in _WORD.finditer(text)
            if match.end() - match.start() <= LONGEST_WORD and not _OTHER_SCRIPTS.search(match[0]))


def count_source_words(texts: Iterable[str]) -> Counter[str]:
    """Return the frequency of each word of texts."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(match[0] for match in words_of(text))
    return counts


def most_frequent_words(counts: Counter[str]) -> list[str]:
    """Return the words of the file: the most frequent first, and words of the same frequency in their order."""
    return sorted(counts, key=lambda word: (-counts[word], word))[:MOST_WORDS]


def merged(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return the words of two texts by the better of their two ranks."""
    ranks: dict[str, int] = {}
    for words in (first, second):
        for rank, word in enumerate(words):
            ranks[word] = min(rank, ranks.get(word, rank))
    return sorted(ranks, key=lambda word: (ranks[word], word))[:MOST_WORDS]


def save_source_words(words: Sequence[str], directory: Path) -> None:
    """Write words next to the vocabularies in a directory."""
    write_text(directory / SOURCE_WORDS, "".join(f"{word}\n" for word in words))


def load_source_words(location: str | Path) -> list[str]:
    """Return the words next to vocabularies; none if there is no file.

    Args:
        location: directory of vocabularies, of prepared data or of a run; or the file of a vocabulary.
    """
    place = Path(location)
    directory = next((one for one in (place / "vocabulary", place) if one.is_dir()), place.parent)
    try:
        return parse_source_words((directory / SOURCE_WORDS).read_bytes())
    except FileNotFoundError:
        return []


def parse_source_words(content: bytes) -> list[str]:
    """Return the words of the content of the file."""
    return content.decode("utf-8").split()
