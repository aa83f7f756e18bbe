"""Byte-pair encoding by codes, as in subword-nmt (Sennrich et al., 2016, arXiv:1508.07909).

The text is split at spaces; a subword that does not end its word carries `@@`. The package `subword-nmt` learns the
codes and segments the text; the extra `towernmt[bpe]` installs it. `StoredCodes` finds the words of sentences that
are stored as ids.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import clean
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, UNK, Sampling, Vocabulary
from towernmt.dataflow.vocabulary.batch_sampling import MergeDraws
from towernmt.dataflow.vocabulary.word_vocabulary import most_frequent, read_pieces, write_pieces

SEPARATOR = "@@"
_CACHED_WORDS = 200_000


class BpeCodesVocabulary(Vocabulary):
    """subword-nmt codes and the list of the pieces that they make.

    Args:
        codes: content of the codes file.
        pieces: the pieces in the order of their ids, the four special ones first.
        origin: where the codes come from, for the error message.
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
        """From the contents of a `.codes` and a `.pieces` file."""
        return cls(codes, read_pieces(pieces, origin.removesuffix(".codes") + ".pieces"), origin)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [[id for word in clean(text).split(" ") if word for id in self._encode_word(word)]
                for text in texts]

    def sample_batch(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> list[list[int]]:
        """See `Vocabulary.sample_batch`: BPE-dropout; `sampling.nbest` has no meaning here."""
        return [list(chain.from_iterable(words)) for words in self._draw(texts, sampling, seed, first)]

    def sample_with_words(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0
                          ) -> tuple[list[list[int]], list[list[int]]]:
        drawn = self._draw(texts, sampling, seed, first)
        return ([list(chain.from_iterable(words)) for words in drawn],
                [[number for number, word in enumerate(words) for _ in word] for words in drawn])

    def _draw(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int) -> list[list[list[int]]]:
        """Drawn ids: for each text, for each of its words, the ids of the word."""
        drawn = []
        for number, text in enumerate(texts, first):
            chance = random.Random(seed << 64 | number)  # random() of an integer seed is the same in every Python
            drawn.append([self._draw_word(word, sampling.alpha, chance) for word in clean(text).split(" ") if word])
        return drawn

    def _draw_word(self, word: str, dropout: float, chance: random.Random) -> list[int]:
        ids = [self._ids.get(piece, UNK) for piece in self._sample_word(word, dropout, chance)]
        # The vocabulary holds the pieces of best segmentations only. A drawn piece must not make a word unknown.
        return self._encode_word(word) if UNK in ids else ids

    def _sample_word(self, word: str, dropout: float, chance: random.Random) -> list[str]:
        """The pieces of a word. At each step, each possible merge is left out with probability `dropout`."""
        ranks = self._bpe.bpe_codes  # (left, right) -> rank; a word's last symbol carries </w>
        symbols = [*word[:-1], word[-1] + "</w>"]
        while len(symbols) > 1:
            merges = [(ranks[pair], place) for place, pair in enumerate(zip(symbols, symbols[1:], strict=False))
                      if pair in ranks and chance.random() >= dropout]
            if not merges:
                break
            rank = min(merges)[0]
            places, merged, place = {place for found, place in merges if found == rank}, [], 0
            while place < len(symbols):
                width = 2 if place in places else 1
                merged.append("".join(symbols[place:place + width]))
                place += width
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


def learn_bpe_codes(sentences: Iterable[str], size: int, codes: bytes | None = None, origin: str = "BPE codes"
                    ) -> BpeCodesVocabulary:
    """Learn codes and the list of their pieces, at most `size` ids; the rarest pieces beyond that become UNK.

    Args:
        sentences: cleaned sentences.
        size: number of ids, the four special ones included.
        codes: codes that exist already: then only the list of pieces is made.
        origin: where `codes` come from, for the error message.
    Raises:
        DataError: subword-nmt is not installed, there is no text, or `codes` are malformed.
    """
    words: Counter[str] = Counter()
    for sentence in sentences:
        words.update(sentence.split())
    if not words:
        raise DataError("there is no text to learn a vocabulary from: every line is empty.")
    if codes is None:
        codes = _learn(words, size - len(SPECIAL_PIECES))
    segmenter = _segmenter(codes, origin)
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        for piece in segmenter.segment_tokens([word]):
            pieces[piece] += count
    return BpeCodesVocabulary(codes, most_frequent(pieces, size), origin)


def _learn(words: Counter[str], symbols: int) -> bytes:
    """Codes whose merges and characters together are about `symbols` pieces."""
    learn_bpe = _subword_nmt("learn_bpe")
    # subword-nmt counts a character twice, inside a word and at its end, and subtracts both from the merges.
    characters = len({(c, i == len(word) - 1) for word in words for i, c in enumerate(word)})
    if symbols < 2 or symbols <= characters:
        raise DataError(f"a bpe-codes vocabulary of {symbols + len(SPECIAL_PIECES)} is smaller than the "
                        f"{characters + len(SPECIAL_PIECES)} single characters (inside and at the end of "
                        "words) and special pieces of the text. Raise --vocab-size, or use --vocab-kind bpe.")
    table = io.StringIO("".join(f"{word} {count}\n" for word, count in sorted(words.items())))
    output = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe.learn_bpe(table, output, symbols - characters, min_frequency=2, is_dict=True)
    return output.getvalue().encode("utf-8")


def _segmenter(codes: bytes, origin: str) -> Any:
    apply_bpe = _subword_nmt("apply_bpe")
    try:
        text = io.StringIO(codes.decode("utf-8"))
        with contextlib.redirect_stderr(io.StringIO()):
            return apply_bpe.BPE(text, separator=SEPARATOR)
    except (SystemExit, ValueError, IndexError, AttributeError) as error:
        raise DataError(f"{origin}: not a file of subword-nmt codes (two symbols a line, after "
                        "'#version').") from error


def _subword_nmt(module: str) -> Any:
    try:
        import subword_nmt.apply_bpe
        import subword_nmt.learn_bpe
    except ImportError as error:
        raise DataError("the vocabulary kind bpe-codes needs the package subword-nmt: pip install "
                        "'towernmt[bpe]', or use --vocab-kind bpe (SentencePiece).") from error
    return {"learn_bpe": subword_nmt.learn_bpe, "apply_bpe": subword_nmt.apply_bpe}[module]


_GOES_ON, _END = "@@", "</w>"


class StoredCodes:
    """See `towernmt.dataflow.vocabulary.base.StoredWords`.

    Where several merges of one rank are possible, a step makes one of them, the next step perhaps the next.

    Args:
        pieces: of the vocabulary, by their ids.
        encode_word: the ids of a word.
        ranks: of merges of two symbols; the last symbol of a word carries `</w>`.
        sampling: how far from the best segmentation.
    """

    within_words = True

    def __init__(self, pieces: Sequence[str], encode_word: Callable[[str], list[int]],
                 ranks: Mapping[tuple[str, str], int], sampling: Sampling) -> None:
        self._pieces, self._encode_word, self._ranks, self._dropout = pieces, encode_word, ranks, sampling.alpha
        self.size = len(pieces)
        self._ids = {piece: id for id, piece in enumerate(pieces) if id >= len(SPECIAL_PIECES)}
        self._goes_on = np.array([piece.endswith(_GOES_ON) for piece in pieces])

    def begins(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """See `StoredWords.begins`."""
        begins = np.ones(len(ids), np.bool_)
        begins[1:] = ~self._goes_on[ids[:-1]]
        return begins

    def text(self, ids: Sequence[int]) -> str | None:
        """See `StoredWords.text`. None, too, where a word of the text ends in `@@` itself and so is not told apart."""
        if min(ids) < len(SPECIAL_PIECES):
            return None
        word = "".join(self._pieces[id].removesuffix(_GOES_ON) for id in ids)
        return word if word and self._encode_word(word) == list(ids) else None

    def draws(self) -> MergeDraws:
        """See `StoredWords.draws`."""
        return MergeDraws(lambda *pair: self._ranks.get(pair), lambda word: [*word[:-1], word[-1] + _END], self._id_of,
                          self._dropout)

    def _id_of(self, symbol: str) -> int | None:
        """None where it is no piece: the vocabulary has the pieces of best segmentations only."""
        return self._ids.get(symbol.removesuffix(_END) if symbol.endswith(_END) else symbol + _GOES_ON)
