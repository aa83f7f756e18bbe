"""Word vocabularies: words are separated by spaces, and the most frequent words have ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from towernmt.core.errors import DataError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, UNK, Vocabulary


def read_pieces(content: bytes, origin: str) -> list[str]:
    """Return the pieces of a vocabulary file, one a line. Missing special pieces are added at the beginning.

    Raises:
        DataError: the file is not UTF-8, or has an empty or repeated piece.
    """
    try:
        lines = content.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{origin}: byte {error.start + 1} is not UTF-8. A vocabulary must be a text file with one "
                        "piece a line.") from None
    first: dict[str, int] = {}
    for number, piece in enumerate(lines, 1):
        if not piece or piece in first:
            problem = "the line is empty" if not piece else f"'{piece}' is already in line {first[piece]}"
            raise DataError(f"{origin} line {number}: {problem}. A vocabulary must be a text file with one piece a "
                            "line, without repetitions.")
        first[piece] = number
    if tuple(lines[:len(SPECIAL_PIECES)]) == SPECIAL_PIECES:
        return lines
    return [*SPECIAL_PIECES, *(line for line in lines if line not in SPECIAL_PIECES)]


def write_pieces(pieces: Sequence[str]) -> bytes:
    """Return the content of a vocabulary file."""
    return ("\n".join(pieces) + "\n").encode("utf-8")


def most_frequent(counts: Counter[str], size: int) -> list[str]:
    """Return the special pieces and the most frequent others, `size` in total; equal counts in alphabetical order."""
    for piece in SPECIAL_PIECES:
        counts.pop(piece, None)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [*SPECIAL_PIECES, *(piece for piece, _ in ordered[:size - len(SPECIAL_PIECES)])]


class WordVocabulary(Vocabulary):
    """A vocabulary of words, which are separated by spaces.

    Args:
        words: the words in the order of their ids, the four special pieces first.
    """

    kind = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._ids = {word: id for id, word in enumerate(self._words) if id >= len(SPECIAL_PIECES)}
        self.size = len(self._words)

    @classmethod
    def parse(cls, content: bytes, origin: str = "word list") -> WordVocabulary:
        """Return the vocabulary with the content of a `.words` file; see `read_pieces`."""
        return cls(read_pieces(content, origin))

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        get = self._ids.get
        return [[get(word, UNK) for word in clean(text).split(" ") if word] for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self._words[id] for id in self._sentence_ids(ids))

    def id_to_piece(self, id: int) -> str:
        return self._words[id]

    def piece_to_id(self, piece: str) -> int:
        return SPECIAL_PIECES.index(piece) if piece in SPECIAL_PIECES else self._ids.get(piece, UNK)

    def files(self) -> Mapping[str, bytes]:
        return {".words": write_pieces(self._words)}


def learn_words(sentences: Iterable[str], size: int) -> WordVocabulary:
    """Return the vocabulary of the most frequent words, with `size` ids including the special pieces.

    Raises:
        DataError: the text is empty.
    """
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.split())
    if not counts:
        raise DataError("the text to learn a vocabulary from is empty: every line is blank. Check the text.")
    return WordVocabulary(most_frequent(counts, size))
