"""SentencePiece vocabularies, unigram and BPE (Kudo and Richardson, 2018, arXiv:1808.06226).

The module also finds the word that each subword belongs to, in a text and in stored ids, and samples segmentations of
whole texts. SentencePiece can sample them itself, but it seeds its generator differently in each process; here a
sample depends on the seed alone. The library only normalises the text and, for a sample among the n best
segmentations, finds these.
"""

from __future__ import annotations

import io
import math
import os
import re
import string
import threading
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import clean
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK, Sampling, Vocabulary, WordSampler
from towernmt.dataflow.vocabulary.batch_sampling import BatchBpeDropout, BatchUnigramSampler
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE, PieceModel, is_unigram
from towernmt.dataflow.vocabulary.subword_sampling import BpeDropout, UnigramSampler, uniform_numbers

_TRAINER_THREADS = 16  # fixed, because the learned model depends on it
_learned: set[int] = set()      # processes whose SentencePiece has started the threads of its trainer


class SentencePieceVocabulary(Vocabulary):
    """The vocabulary of a SentencePiece model.

    A model of another program may have its special pieces at other ids (SentencePiece's default is UNK 0, BOS 1, EOS 2,
    no PAD): they are moved to 0 to 3, and the other pieces follow in the model's order.

    Args:
        model: the serialised model.
        origin: path of the model, for the error message.

    Raises:
        DataError: the bytes are not a SentencePiece model.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes, origin: str = "SentencePiece model") -> None:
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            if not model or not self._processor.LoadFromSerializedProto(model):
                raise RuntimeError("empty")
        except RuntimeError as error:
            raise DataError(f"{origin}: not a SentencePiece model, or damaged. Check the file.") from error
        self._samplers: dict[Sampling, PieceSampler] = {}
        processor = self._processor
        specials = {PAD: processor.pad_id(), BOS: processor.bos_id(),
                    EOS: processor.eos_id(), UNK: processor.unk_id()}
        pieces = processor.get_piece_size()
        ordinary_ids = [id for id in range(pieces) if id not in specials.values()]
        # id of the vocabulary -> id of the model
        self._model_ids = [specials[id] for id in range(len(specials))] + ordinary_ids
        self.size = len(self._model_ids)
        self._own_ids: list[int] | None = None  # id of the model -> of the vocabulary; None if all are equal
        if self._model_ids != list(range(pieces)):
            self._own_ids = [UNK] * pieces
            for own_id, model_id in enumerate(self._model_ids):
                if model_id >= 0:
                    self._own_ids[model_id] = own_id

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return self._renumbered(self._processor.encode([clean(text) for text in texts], out_type=int,
                                                       num_threads=threads))

    def sample_batch(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> list[list[int]]:
        """Sample by unigram sampling or BPE-dropout; see `Vocabulary.sample_batch`."""
        return self._renumbered(self._sampler(sampling).ids([clean(text) for text in texts], seed, first))

    def encode_with_words(self, texts: Sequence[str], threads: int = 1) -> tuple[list[list[int]], list[list[int]]]:
        cleaned = [clean(text) for text in texts]
        encoded = self._processor.encode(cleaned, out_type=int, num_threads=threads)
        words = self._words.word_indices(cleaned, encoded, lambda: self._processor.encode(cleaned, out_type=str))
        return self._renumbered(encoded), words

    def sample_with_words(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0
                          ) -> tuple[list[list[int]], list[list[int]]]:
        cleaned, sampler = [clean(text) for text in texts], self._sampler(sampling)
        encoded = sampler.ids(cleaned, seed, first)
        words = self._words.word_indices(cleaned, encoded, lambda: sampler.piece_names(cleaned, seed, first))
        return self._renumbered(encoded), words

    def stored_words(self, sampling: Sampling) -> StoredPieces:
        return StoredPieces(PieceModel(self._processor.serialized_model_proto()), sampling, self._model_ids)

    @property
    def has_probabilities(self) -> bool:
        """Whether the model is a unigram model."""
        return is_unigram(self._model)

    def normalized(self, text: str) -> str:
        """Return the text as the model divides it, with spaces instead of its marks."""
        return str(self._processor.normalize(clean(text))).replace(SPACE, " ").strip()

    def _sampler(self, sampling: Sampling) -> PieceSampler:
        sampler = self._samplers.get(sampling)
        if sampler is None:
            sampler = self._samplers[sampling] = PieceSampler(self._processor, sampling)
        return sampler

    @cached_property
    def _words(self) -> PieceWords:
        return PieceWords([self._processor.id_to_piece(id) for id in range(self._processor.get_piece_size())])

    def _renumbered(self, encoded: list[list[int]]) -> list[list[int]]:
        if self._own_ids is not None:
            own_ids = self._own_ids
            encoded = [[own_ids[id] for id in ids] for ids in encoded]
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        model_ids = [self._model_ids[id] for id in self._sentence_ids(ids)]
        text: str = self._processor.decode(model_ids) if model_ids else ""
        return " ".join(text.split())

    def id_to_piece(self, id: int) -> str:
        if id < len(SPECIAL_PIECES):
            return SPECIAL_PIECES[id]
        return str(self._processor.id_to_piece(self._model_ids[id]))

    def piece_to_id(self, piece: str) -> int:
        if piece in SPECIAL_PIECES:
            return SPECIAL_PIECES.index(piece)
        model_id = int(self._processor.piece_to_id(piece))
        return model_id if self._own_ids is None else self._own_ids[model_id]

    def files(self) -> Mapping[str, bytes]:
        return {".model": self._model}


LONGEST_SENTENCE = 4192
"""Maximum length in bytes of the sentences that SentencePiece learns from (its `max_sentence_length`)."""
_RESERVED = "\u2585"
"""A character that SentencePiece reserves (a block of bar charts). Its trainer silently ignores sentences with it."""

_OTHER_DIGIT = re.compile(r"(?![0-9])\d")


def learn_sentence_piece(sentences: Iterable[str], kind: str, size: int, character_coverage: float = 1.0,
                         byte_fallback: bool = False, symbols: Sequence[str] = (),
                         split_digits: bool = False) -> SentencePieceVocabulary:
    """Learn a SentencePiece model, which has fewer than `size` pieces if the text is too small.

    The result depends only on the sentences and their order.

    Args:
        sentences: cleaned sentences of any length, all of which SentencePiece keeps in memory.
        kind: "unigram" or "bpe".
        size: number of ids, including the four special ids.
        character_coverage: share of the text's characters that are covered by pieces, in (0, 1].
        byte_fallback: encode characters without a piece as bytes (256 of the pieces) rather than UNK.
        symbols: user-defined symbols, which are pieces in any case; empty ones are ignored.
        split_digits: make each digit a separate piece. The digits 0 to 9 are pieces even if the text has none.

    Raises:
        DataError: `size` is too small for the text's characters, or the text is empty.
    """
    model = io.BytesIO()
    # The model records each option that is passed, also with its default.
    options: dict[str, Any] = {"split_digits": True, "required_chars": string.digits} if split_digits else {}
    _learned.add(os.getpid())
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chain.from_iterable(map(_learnable, _apart(sentences) if split_digits else sentences)),
            model_writer=model, model_type=kind, vocab_size=size, max_sentence_length=LONGEST_SENTENCE,
            pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK, character_coverage=character_coverage,
            byte_fallback=byte_fallback, user_defined_symbols=[symbol for symbol in symbols if symbol],
            normalization_rule_name="identity", hard_vocab_limit=False, num_threads=_TRAINER_THREADS, minloglevel=2,
            **options)
    except RuntimeError as error:
        raise DataError(_training_message(str(error), kind, size)) from error
    return SentencePieceVocabulary(model.getvalue())


def _apart(sentences: Iterable[str]) -> Iterator[str]:
    """Yield sentences with spaces around the digits of other scripts, since SentencePiece splits only 0 to 9."""
    for sentence in sentences:
        yield sentence if sentence.isascii() else _OTHER_DIGIT.sub(r" \g<0> ", sentence)


def _learnable(sentence: str) -> Iterator[str]:
    """Yield a sentence in sections that SentencePiece learns from.

    It silently ignores sentences that are longer than `LONGEST_SENTENCE` or contain `_RESERVED`, which is replaced by a
    space. A section ends at the last space within the limit. In a longer word it ends between two characters, but not
    before a combining mark.
    """
    sentence = sentence.replace(_RESERVED, " ")
    if 4 * len(sentence) <= LONGEST_SENTENCE:
        yield sentence
        return
    text, start = sentence.encode("utf-8"), 0
    while len(text) - start > LONGEST_SENTENCE:
        section = text[start:start + LONGEST_SENTENCE].decode("utf-8", "ignore")
        end = section.rfind(" ")
        if end <= 0:
            end = len(section) - 1     # the last character begins the next section: it must not be a combining mark
            while end > 1 and unicodedata.combining(section[end]):
                end -= 1
            end = end if end > 1 else len(section)
        yield section[:end]
        start += len(section[:end].encode("utf-8"))
    yield text[start:].decode("utf-8")


def has_learned() -> bool:
    """Return whether this process has learned a model. If so, a forked process that learns a model would crash.

    SentencePiece keeps the threads of its trainer, which do not exist in the forked process.
    """
    return os.getpid() in _learned


def _training_message(message: str, kind: str, size: int) -> str:
    needed = re.search(r"smaller than required_chars[^0-9]*(\d+) vs (\d+)", message)
    if needed:
        return (f"a {kind} vocabulary of {size} is too small: the text needs {max(map(int, needed.groups()))} for its "
                "single characters and the special pieces. Increase --vocab-size, or decrease --character-coverage.")
    if any(sign in message for sign in ("!sentences_.empty()", "all_chars_count")) or "no sentences" in message.lower():
        return ("the text to learn a vocabulary from is empty: every line is blank, or has only characters that "
                "SentencePiece ignores (control characters, \u2581). Check the text, or choose another --vocab-kind.")
    return (f"SentencePiece cannot learn a {kind} vocabulary of {size} from this text: "
            f"{' '.join(message.split())}.")


_BYTE = re.compile("<0x([0-9A-F]{2})>")


class PieceWords:
    """A finder of the word that each piece belongs to, by the space marks in the pieces.

    The marks do not show all words if a piece is unknown, if the text itself contains the mark, or if pieces end with
    the mark or span several words. Then the characters of the pieces are counted.

    Args:
        pieces: the pieces of the model, by id of the model.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._starts = np.array([piece.startswith(SPACE) for piece in pieces], np.int64)
        self._plain = np.array([SPACE not in piece[1:] for piece in pieces])

    def word_indices(self, texts: Sequence[str], encoded: Sequence[Sequence[int]],
                     piece_names: Callable[[], list[list[str]]]) -> list[list[int]]:
        """Return the index of each piece's word, from 0. A piece that spans several words belongs to the first.

        Args:
            texts: cleaned texts.
            encoded: ids of the model for each text.
            piece_names: returns the pieces of each text; called only if the ids do not suffice.
        """
        words: list[list[int]] = []
        pieces: list[list[str]] | None = None
        for index, (text, ids) in enumerate(zip(texts, encoded, strict=True)):
            indices = None if SPACE in text else self._by_marks(np.array(ids, np.int64), text.count(" ") + 1)
            if indices is None:
                pieces = piece_names() if pieces is None else pieces
                indices = _by_characters(text, pieces[index])
            words.append(indices)
        return words

    def _by_marks(self, ids: NDArray[np.int64], count: int) -> list[int] | None:
        """Return the words by the space marks, or None if the marks do not show `count` words."""
        if not len(ids):
            return []
        words = np.cumsum(self._starts[ids]) - 1
        if words[0] != 0 or words[-1] != count - 1 or not self._plain[ids].all():
            return None
        indices: list[int] = words.tolist()
        return indices


def _by_characters(text: str, pieces: Sequence[str]) -> list[int]:
    """Return the word of the character at which each piece begins. Space marks and spaces are ignored.

    A model that normalises text may change the number of characters. Then the space marks are counted instead, and
    surplus pieces belong to the last word.
    """
    split = text.split()
    owners = [word for word, characters in enumerate(split) for c in characters if c != SPACE]
    sizes = [_characters(piece) for piece in pieces]
    if sum(sizes) == len(owners):
        begins = np.cumsum([0, *sizes])[:-1].tolist()
        # A single mark at the end of a text has no character after it.
        return [owners[min(begin, len(owners) - 1)] if owners else 0 for begin in begins]
    words, word, open_ = [], -1, False
    for piece in pieces:
        lead = piece[:1] == SPACE
        words.append(min(max(word + (lead or not open_), 0), len(split) - 1))
        for character in piece:
            word += character != SPACE and not open_
            open_ = character != SPACE
    return words


def _characters(piece: str) -> int:
    byte = _BYTE.fullmatch(piece)
    if byte is not None:
        return int(byte[1], 16) & 0xC0 != 0x80  # only the first byte of a character is counted
    return len(piece.replace(SPACE, ""))


class StoredPieces:
    """The words of sentences that are stored as SentencePiece ids; see `vocabulary.base.StoredWords`.

    User-defined symbols, bytes and unknown tokens are separate words, which keep their segmentation.

    Args:
        model: the model.
        sampling: strength of the sampling.
        ids: id of the model for each id of the vocabulary; -1 if the model lacks it.
    """

    def __init__(self, model: PieceModel, sampling: Sampling, ids: Sequence[int]) -> None:
        self._model, self._sampling, self.size = model, sampling, len(ids)
        names = {id: piece for piece, id in model.normal.items()}
        self._pieces = [names.get(id) for id in ids]
        self._ids = {piece: id for id, piece in enumerate(self._pieces) if piece is not None}
        self.within_words = not model.crosses_spaces
        marks_begin, marks_end = model.marks_begin_words, model.marks_end_words
        self._opens = np.array([piece is None or (marks_begin and piece[0] == SPACE) for piece in self._pieces])
        self._closes = np.array([piece is None or (marks_end and piece[-1] == SPACE) for piece in self._pieces])

    def begins(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return whether a word begins with each id; see `StoredWords.begins`."""
        begins = self._opens[ids]
        begins[1:] |= self._closes[ids[:-1]]
        return begins

    def text(self, ids: Sequence[int]) -> str | None:
        """Return the text of a word, or None; see `StoredWords.text`."""
        pieces = [self._pieces[id] for id in ids]
        return None if None in pieces else "".join(pieces)  # type: ignore[arg-type]

    def sampler(self) -> WordSampler:
        """Return a new sampler of segmentations; see `StoredWords.sampler`."""
        if not self._model.is_bpe:
            return BatchUnigramSampler(self._model, self._sampling.alpha, self._ids.__getitem__)
        return BatchBpeDropout(self._rank, self._symbols, self._ids.get, self._sampling.alpha)

    def _rank(self, left_piece: str, right_piece: str) -> float | None:
        score = self._model.scores.get(left_piece + right_piece)
        return None if score is None else -score

    def _symbols(self, word: str) -> str | None:
        return word if all(character in self._ids for character in word) else None


class PieceSampler:
    """A sampler of segmentations of texts. Thread-safe: a lock protects its cache.

    Args:
        processor: SentencePiece's processor of the model.
        sampling: strength of the sampling.

    Raises:
        SettingsError: the model has only one segmentation of a text.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, sampling: Sampling) -> None:
        self._processor, self._sampling = processor, sampling
        self._model = PieceModel(processor.serialized_model_proto())
        self._words = (BpeDropout if self._model.is_bpe else UnigramSampler)(self._model, sampling.alpha)
        self._lock = threading.Lock()  # protects the cache of words

    def ids(self, texts: Sequence[str], seed: int, first: int) -> list[list[int]]:
        """Sample each text by (seed, `first` + index of the text), and return the ids of the model."""
        if self._uses_nbest:
            return [ids for ids, _ in self._sample_nbest(texts, seed, first)]
        return [self._model.ids(pieces) for pieces in self._sample(texts, seed, first)]

    def piece_names(self, texts: Sequence[str], seed: int, first: int) -> list[list[str]]:
        """Return the pieces of the same samples as `ids`."""
        if self._uses_nbest:
            return [pieces for _, pieces in self._sample_nbest(texts, seed, first)]
        return [self._model.piece_names(pieces) for pieces in self._sample(texts, seed, first)]

    @property
    def _uses_nbest(self) -> bool:
        return self._sampling.nbest >= 0 and not self._model.is_bpe

    def _sample(self, texts: Sequence[str], seed: int, first: int) -> list[list[str]]:
        normalized = self._processor.normalize(list(texts))
        numbers = uniform_numbers(seed, first, [len(text) for text in normalized])
        draw, samples = self._words.draw, []
        with self._lock:
            for text, uniform in zip(normalized, map(iter, numbers), strict=True):
                pieces: list[str] = []
                for span, is_symbol in self._model.spans(text):
                    pieces += [span] if is_symbol else draw(span, uniform)
                samples.append(pieces)
        return samples

    def _sample_nbest(self, texts: Sequence[str], seed: int, first: int) -> list[tuple[list[int], list[str]]]:
        """Sample among the best segmentations by their probabilities to the power of alpha; return ids and pieces."""
        size, samples = max(1, self._sampling.nbest), []
        for text, (uniform,) in zip(texts, uniform_numbers(seed, first, [1] * len(texts)), strict=True):
            segmentations = list(zip(*(self._processor.nbest_encode(text, nbest_size=size, out_type=kind)
                                       for kind in (int, str)), strict=True))
            scores = [self._model.score(ids, pieces) for ids, pieces in segmentations]
            bounds = list(accumulate(math.exp(self._sampling.alpha * (score - max(scores))) for score in scores))
            samples.append(segmentations[bisect_right(bounds[:-1], uniform * bounds[-1])])
        return samples
