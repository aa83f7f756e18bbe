"""Byte-pair encoding by codes, as in subword-nmt (Sennrich et al., 2016, arXiv:1508.07909).

The text is split at spaces; a subword that does not end its word carries `@@`. The package `subword-nmt` learns the
codes and segments the text; the extra `towernmt[bpe]` installs it. `StoredCodes` finds the words of sentences that
are stored as ids.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, UNK, Sampling, Vocabulary
from towernmt.dataflow.vocabulary.batch_sampling import BatchBpeDropout
from towernmt.dataflow.vocabulary.word_vocabulary import most_frequent, read_pieces, write_pieces

SEPARATOR = "@@"
_CACHED_WORDS = 200_000
_DIGIT = re.compile(r"\d")
_HEADER = re.compile(r"#version:[^\n]*\n*")


class BpeCodesVocabulary(Vocabulary):
    """Codes of subword-nmt and the list of their subwords.

    Args:
        codes: content of the codes file.
        pieces: the subwords in the order of their ids, the four special pieces first.
        origin: path of the codes, for the error message.

    Raises:
        DataError: subword-nmt is not installed, or the codes are malformed.
    """

    kind = "bpe-codes"

    def __init__(self, codes: bytes, pieces: Sequence[str], origin: str = "BPE codes") -> None:
        self._codes = codes
        self._pieces = list(pieces)
        self._ids = {piece: id for id, piece in enumerate(self._pieces) if id >= len(SPECIAL_PIECES)}
        self.size = len(self._pieces)
        self._bpe = _segmenter(codes, origin)
        self._cache: dict[str, list[int]] = {}

    @classmethod
    def parse(cls, codes: bytes, pieces: bytes, origin: str = "BPE codes") -> BpeCodesVocabulary:
        """Return the vocabulary with the contents of a `.codes` and a `.pieces` file."""
        return cls(codes, read_pieces(pieces, origin.removesuffix(".codes") + ".pieces"), origin)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [[id for word in clean(text).split(" ") if word for id in self._encode_word(word)]
                for text in texts]

    def sample_batch(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> list[list[int]]:
        """Sample by BPE-dropout, without `sampling.nbest`; see `Vocabulary.sample_batch`."""
        return [list(chain.from_iterable(words)) for words in self._sample_words(texts, sampling, seed, first)]

    def sample_with_words(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0
                          ) -> tuple[list[list[int]], list[list[int]]]:
        sampled = self._sample_words(texts, sampling, seed, first)
        return ([list(chain.from_iterable(words)) for words in sampled],
                [[index for index, ids in enumerate(words) for _ in ids] for words in sampled])

    def _sample_words(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int) -> list[list[list[int]]]:
        """Return the sampled ids of each word of each text."""
        sampled = []
        for number, text in enumerate(texts, first):
            generator = random.Random(seed << 64 | number)  # random() of an integer seed is the same in every Python
            sampled.append([self._sample_ids(word, sampling.alpha, generator)
                            for word in clean(text).split(" ") if word])
        return sampled

    def _sample_ids(self, word: str, dropout: float, generator: random.Random) -> list[int]:
        ids = [self._ids.get(piece, UNK) for piece in self._sample_pieces(word, dropout, generator)]
        # The vocabulary has only the subwords of best segmentations. Sampling must not make a word unknown.
        return self._encode_word(word) if UNK in ids else ids

    def _sample_pieces(self, word: str, dropout: float, generator: random.Random) -> list[str]:
        """Return the subwords of a word. Each step drops each possible merge with probability `dropout`."""
        ranks = self._bpe.bpe_codes  # (left, right) -> rank; a word's last symbol ends in </w>
        symbols = [*word[:-1], word[-1] + "</w>"]
        while len(symbols) > 1:
            merges = [(ranks[pair], position) for position, pair in enumerate(zip(symbols, symbols[1:], strict=False))
                      if pair in ranks and generator.random() >= dropout]
            if not merges:
                break
            best_rank = min(merges)[0]
            positions, merged, position = {position for rank, position in merges if rank == best_rank}, [], 0
            while position < len(symbols):
                width = 2 if position in positions else 1
                merged.append("".join(symbols[position:position + width]))
                position += width
            symbols = merged
        return [symbol + SEPARATOR for symbol in symbols[:-1]] + [symbols[-1].removesuffix("</w>")]

    def _encode_word(self, word: str) -> list[int]:
        ids = self._cache.get(word)
        if ids is None:
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
                self._bpe.cache.clear()
            ids = [self._ids.get(piece, UNK) for piece in self._bpe.segment_tokens([word])]
            self._cache[word] = ids
        return ids

    def stored_words(self, sampling: Sampling) -> StoredCodes:
        return StoredCodes(self._pieces, self._encode_word, self._bpe.bpe_codes, sampling)

    def decode(self, ids: Iterable[int]) -> str:
        text = " ".join(self._pieces[id] for id in self._sentence_ids(ids))
        return text.replace(SEPARATOR + " ", "").removesuffix(SEPARATOR)

    def id_to_piece(self, id: int) -> str:
        return self._pieces[id]

    def piece_to_id(self, piece: str) -> int:
        return SPECIAL_PIECES.index(piece) if piece in SPECIAL_PIECES else self._ids.get(piece, UNK)

    def files(self) -> Mapping[str, bytes]:
        return {".codes": self._codes, ".pieces": write_pieces(self._pieces)}


def learn_bpe_codes(sentences: Iterable[str], size: int, codes: bytes | None = None, split_digits: bool = False
                    ) -> BpeCodesVocabulary:
    """Learn codes and the list of their subwords, with at most `size` ids. The rarest other subwords become UNK.

    Args:
        sentences: cleaned sentences.
        size: maximum number of ids, including the four special ids.
        codes: existing codes, for which only the list of subwords is learned; None to learn codes, too.
        split_digits: learn no code with a digit, so that each digit is a separate subword. The digits 0 to 9 are
            subwords even if the text has none.

    Raises:
        DataError: subword-nmt is not installed, the text is empty, or `codes` are malformed.
    """
    words: Counter[str] = Counter()
    for sentence in sentences:
        words.update(sentence.split())
    if not words:
        raise DataError("the text to learn a vocabulary from is empty: every line is blank. Check the text.")
    if codes is None:
        codes = _learn(words, size - len(SPECIAL_PIECES), split_digits)
    segmenter = _segmenter(codes)
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        for piece in segmenter.segment_tokens([word]):
            pieces[piece] += count
    if split_digits:
        for digit in string.digits:     # inside a word and at its end, the most frequent subwords of all
            pieces[digit] += words.total()
            pieces[digit + SEPARATOR] += words.total()
    return BpeCodesVocabulary(codes, most_frequent(pieces, size))


def _learn(words: Counter[str], symbols: int, split_digits: bool) -> bytes:
    """Learn codes whose merges and characters make about `symbols` subwords in total."""
    learn_bpe = _subword_nmt("learn_bpe")
    # subword-nmt counts a character twice, inside a word and at its end, and subtracts both from the merges.
    ends = {(c, i == len(word) - 1) for word in words for i, c in enumerate(word)}
    if split_digits:
        ends |= {(digit, is_end) for digit in string.digits for is_end in (False, True)}
        words = _between_digits(words)
    characters = len(ends)
    if symbols < 2 or symbols <= characters:
        raise DataError(f"a bpe-codes vocabulary of {symbols + len(SPECIAL_PIECES)} is too small: the text needs "
                        f"{characters + len(SPECIAL_PIECES)} for its single characters (inside and at the end of "
                        "words) and the special pieces. Increase --vocab-size, or use --vocab-kind bpe.")
    if all(len(word) == 1 for word in words):   # subword-nmt fails if there is nothing to merge
        return b"#version: 0.2\n"
    table = io.StringIO("".join(f"{word} {count}\n" for word, count in sorted(words.items())))
    output = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe.learn_bpe(table, output, symbols - characters, min_frequency=2, is_dict=True)
    return output.getvalue().encode("utf-8")


def _between_digits(words: Counter[str]) -> Counter[str]:
    """Return how often each sequence of characters without a digit occurs in the words."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for sequence in filter(None, _DIGIT.split(word)):
            counts[sequence] += count
    return counts


def _segmenter(codes: bytes, origin: str = "BPE codes") -> Any:
    apply_bpe = _subword_nmt("apply_bpe")
    try:
        text = codes.decode("utf-8")
        merges = 0 if _HEADER.fullmatch(text) else -1   # subword-nmt fails at a header alone, and -1 stands for all
        with contextlib.redirect_stderr(io.StringIO()):
            return apply_bpe.BPE(io.StringIO(text), merges, SEPARATOR)
    except (SystemExit, ValueError, IndexError, AttributeError) as error:
        raise DataError(f"{origin}: not a file of subword-nmt codes (a line '#version', then two symbols a line). "
                        "Check the path.") from error


def check_subword_nmt() -> None:
    """Check that codes can be learned.

    Raises:
        DataError: subword-nmt is not installed.
    """
    _subword_nmt("learn_bpe")


def _subword_nmt(module: str) -> Any:
    try:
        import subword_nmt.apply_bpe
        import subword_nmt.learn_bpe
    except ImportError as error:
        raise DataError("the package subword-nmt, which the vocabulary kind bpe-codes needs, is missing. Install it: "
                        "pip install 'towernmt[bpe]', or use --vocab-kind bpe (SentencePiece).") from error
    return {"learn_bpe": subword_nmt.learn_bpe, "apply_bpe": subword_nmt.apply_bpe}[module]


_CONTINUES, _END = "@@", "</w>"


class StoredCodes:
    """The words of sentences that are stored as ids of BPE codes; see `vocabulary.base.StoredWords`.

    If several merges of the same rank are possible, a step applies only the first that is not dropped.

    Args:
        pieces: subwords of the vocabulary, by id.
        encode_word: returns the ids of a word.
        ranks: ranks of merges of two symbols; the last symbol of a word ends in `</w>`.
        sampling: strength of the sampling.
    """

    within_words = True

    def __init__(self, pieces: Sequence[str], encode_word: Callable[[str], list[int]],
                 ranks: Mapping[tuple[str, str], int], sampling: Sampling) -> None:
        self._pieces, self._encode_word, self._ranks, self._dropout = pieces, encode_word, ranks, sampling.alpha
        self.size = len(pieces)
        self._ids = {piece: id for id, piece in enumerate(pieces) if id >= len(SPECIAL_PIECES)}
        self._continues = np.array([piece.endswith(_CONTINUES) for piece in pieces])

    def begins(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return whether a word begins with each id; see `StoredWords.begins`."""
        begins = np.ones(len(ids), np.bool_)
        begins[1:] = ~self._continues[ids[:-1]]
        return begins

    def text(self, ids: Sequence[int]) -> str | None:
        """Return the text of a word, or None; see `StoredWords.text`. Also None if the word itself contains `@@`."""
        if min(ids) < len(SPECIAL_PIECES):
            return None
        word = "".join(self._pieces[id].removesuffix(_CONTINUES) for id in ids)
        return word if word and self._encode_word(word) == list(ids) else None

    def sampler(self) -> BatchBpeDropout:
        """Return a new sampler of segmentations; see `StoredWords.sampler`."""
        return BatchBpeDropout(lambda *pair: self._ranks.get(pair), lambda word: [*word[:-1], word[-1] + _END],
                          self._symbol_id, self._dropout)

    def _symbol_id(self, symbol: str) -> int | None:
        """Return the id of a symbol, or None, since the vocabulary has only the subwords of best segmentations."""
        return self._ids.get(symbol.removesuffix(_END) if symbol.endswith(_END) else symbol + _CONTINUES)
