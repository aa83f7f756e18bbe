"""Facts about the source text of a model, by which its translators recognise lines that it is not trained for.

`towernmt prepare` counts them and writes them next to the vocabularies, and runs and packages contain a copy. A
vocabulary does not depend on them, so they are not part of its fingerprint, and models without them only lack the
corrections of typos and final marks.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from towernmt.core.errors import DataError, remedy
from towernmt.core.files import write_text
from towernmt.core.structured_files import parse_json
from towernmt.dataflow.text.clean_text import split_tags

SOURCE_TEXT = "source_text.json"
"""File next to the vocabularies."""
MOST_WORDS = 100_000
"""Maximum number of words in the file."""
LONGEST_WORD = 40
"""Maximum number of letters of a word, which excludes noise."""
_FINAL_MARKS = frozenset(".!?…:;。！？؟।")
"""The marks that end a sentence."""

_RESTORE = "Restore the file, or remove it; translators then correct neither typos nor final marks."
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_OTHER_SCRIPTS = re.compile("[\u0900-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""Scripts in which a word is not a run of letters between spaces: of India, Thai, Lao, Burmese, Khmer, kana, Han."""


class SourceText(NamedTuple):
    """Facts about a source text.

    Attributes:
        words: its words, the most frequent first.
        marked: share of the lines that end with a final mark, 0 to 1.
    """

    words: Sequence[str] = ()
    marked: float = 0.0

    def merged(self, other_text: SourceText) -> SourceText:
        """Return the facts about both texts: words by the better of their two ranks, and the smaller share."""
        if not (self.words and other_text.words):
            return self if self.words else other_text
        ranks: dict[str, int] = {}
        for words in (self.words, other_text.words):
            for rank, word in enumerate(words):
                ranks[word] = min(rank, ranks.get(word, rank))
        return SourceText(sorted(ranks, key=lambda word: (ranks[word], word))[:MOST_WORDS],
                          min(self.marked, other_text.marked))

    def save(self, directory: str | Path) -> None:
        """Write the facts next to the vocabularies in a directory."""
        content = {"marked": round(self.marked, 4), "words": list(self.words)}
        write_text(Path(directory) / SOURCE_TEXT, json.dumps(content, ensure_ascii=False) + "\n")

    @classmethod
    def parse(cls, content: bytes, name: str) -> SourceText:
        """Return the facts of the content of the file.

        Args:
            content: content of the file.
            name: name of the file, for messages.

        Raises:
            DataError: the content is damaged.
        """
        facts = parse_json(content, dict[str, Any], name, _RESTORE)
        words, marked = facts.get("words"), facts.get("marked")
        # `typed_value` would take half a second for 100,000 words.
        if not isinstance(words, list) or not set(map(type, words)) <= {str} or not isinstance(marked, (int, float)):
            raise DataError(f"{name}: not the facts about a source text. {_RESTORE}")
        return cls(words, marked)

    @classmethod
    def load(cls, location: str | Path) -> SourceText:
        """Return the facts next to vocabularies; empty ones if the file is missing.

        Args:
            location: directory of vocabularies, of prepared data or of a run; or the file of a vocabulary.

        Raises:
            DataError: the file cannot be read, or is damaged.
        """
        path = Path(location)
        directory = next((candidate for candidate in (path / "vocabulary", path) if candidate.is_dir()), path.parent)
        file = directory / SOURCE_TEXT
        try:
            return cls.parse(file.read_bytes(), str(file))
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror}). {remedy(error, _RESTORE)}") from error


def words_of(text: str) -> Iterator[re.Match[str]]:
    """Yield the words of a text: runs of letters, with single apostrophes inside.

    Texts in the scripts of `_OTHER_SCRIPTS` have none.
    """
    return (match for match in _WORD.finditer(text)
            if match.end() - match.start() <= LONGEST_WORD and not _OTHER_SCRIPTS.search(match[0]))


def signs_at_end(text: str) -> str:
    r"""Return the signs and spaces at the end of a text, after its last letter, digit or underscore.

    The time is linear. That of a regular expression such as `[.]\W*$` is the square of the length of a row of signs.
    """
    start = len(text)
    while start and not (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    return text[start:]


def has_final_mark(text: str) -> bool:
    """Return whether a mark that ends a sentence is at the end of a text, with any signs around it, such as quotes."""
    return not _FINAL_MARKS.isdisjoint(signs_at_end(text))


@dataclass
class SourceCounts:
    """The counts of some lines of a source text.

    Attributes:
        words: frequency of each word.
        first: frequency of each word at the beginning of a line, after tags, where it may have a capital.
        lines: number of lines.
        marked: number of lines that end with a final mark.
    """

    words: Counter[str] = field(default_factory=Counter)
    first: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    marked: int = 0

    @classmethod
    def of(cls, texts: Iterable[str]) -> SourceCounts:
        """Return the counts of lines."""
        counts = cls()
        for text in texts:
            tags, sentence = split_tags(text)
            words = [match[0] for match in words_of(sentence)]
            counts.words.update(match[0] for match in words_of(tags))
            counts.words.update(words)
            counts.first.update(words[:1])
            counts.lines += 1
            counts.marked += has_final_mark(text)
        return counts

    def add(self, counts: SourceCounts) -> None:
        """Add the counts of other lines."""
        self.words.update(counts.words)
        self.first.update(counts.first)
        self.lines += counts.lines
        self.marked += counts.marked

    def text(self) -> SourceText:
        """Return the facts, with words of the same frequency in their order.

        A word with a capital at the beginning of a line counts as the word in lower case, if that is more frequent
        inside lines: `Ich` as `ich`, but not `Haus`.
        """
        counts = self.words.copy()
        for word, count in self.first.items():
            lower = word[0].lower() + word[1:]
            if lower != word and self._inside(lower) > self._inside(word):
                counts[word] -= count
                counts[lower] += count
        words = sorted((word for word in counts if counts[word]), key=lambda word: (-counts[word], word))
        return SourceText(words[:MOST_WORDS], self.marked / max(self.lines, 1))

    def _inside(self, word: str) -> int:
        """Return the frequency of a word after the first one of a line."""
        return self.words[word] - self.first[word]
