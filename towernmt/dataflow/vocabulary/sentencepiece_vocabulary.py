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
import threading
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.text.text_lines import clean
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK, Sampling, Vocabulary, WordDraws
from towernmt.dataflow.vocabulary.batch_sampling import MergeDraws, UnigramDraws
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE, PieceModel, is_unigram
from towernmt.dataflow.vocabulary.subword_sampling import BpeDropout, UnigramSampler, uniform_draws

_TRAINER_THREADS = 16  # fixed, because the learned model depends on it
_learned: set[int] = set()      # processes whose SentencePiece has started the threads of its trainer


class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model.

    A model made elsewhere may have its special pieces at other ids (SentencePiece's own default is UNK 0,
    BOS 1, EOS 2, no PAD): they are moved to 0 to 3, and the other pieces follow in the model's order.

    Args:
        model: the serialised model.
        origin: where it comes from, for the error message.
    Raises:
        DataError: not a SentencePiece model.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes, origin: str = "SentencePiece model") -> None:
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            if not model or not self._processor.LoadFromSerializedProto(model):
                raise RuntimeError("empty")
        except RuntimeError as error:
            raise DataError(f"{origin}: not a SentencePiece model, or a damaged one.") from error
        self._samplers: dict[Sampling, PieceSampler] = {}
        processor = self._processor
        specials = {PAD: processor.pad_id(), BOS: processor.bos_id(),
                    EOS: processor.eos_id(), UNK: processor.unk_id()}
        pieces = processor.get_piece_size()
        others = [id for id in range(pieces) if id not in specials.values()]
        self._theirs = [specials[id] for id in range(len(specials))] + others  # our id -> theirs
        self.size = len(self._theirs)
        self._ours: list[int] | None = None  # their id -> ours; None where both are the same
        if self._theirs != list(range(pieces)):
            self._ours = [UNK] * pieces
            for ours, theirs in enumerate(self._theirs):
                if theirs >= 0:
                    self._ours[theirs] = ours

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return self._renumbered(self._processor.encode([clean(text) for text in texts], out_type=int,
                                                       num_threads=threads))

    def sample_batch(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0) -> list[list[int]]:
        """See `Vocabulary.sample_batch`: unigram sampling, or BPE-dropout."""
        return self._renumbered(self._sampler(sampling).ids([clean(text) for text in texts], seed, first))

    def encode_with_words(self, texts: Sequence[str], threads: int = 1) -> tuple[list[list[int]], list[list[int]]]:
        cleaned = [clean(text) for text in texts]
        encoded = self._processor.encode(cleaned, out_type=int, num_threads=threads)
        words = self._words.of(cleaned, encoded, lambda: self._processor.encode(cleaned, out_type=str))
        return self._renumbered(encoded), words

    def sample_with_words(self, texts: Sequence[str], sampling: Sampling, seed: int, first: int = 0
                          ) -> tuple[list[list[int]], list[list[int]]]:
        cleaned, sampler = [clean(text) for text in texts], self._sampler(sampling)
        encoded = sampler.ids(cleaned, seed, first)
        words = self._words.of(cleaned, encoded, lambda: sampler.written(cleaned, seed, first))
        return self._renumbered(encoded), words

    def stored_words(self, sampling: Sampling) -> StoredPieces:
        return StoredPieces(PieceModel(self._processor.serialized_model_proto()), sampling, self._theirs)

    @property
    def has_probabilities(self) -> bool:
        """Return whether it is a unigram model."""
        return is_unigram(self._model)

    def _sampler(self, sampling: Sampling) -> PieceSampler:
        sampler = self._samplers.get(sampling)
        if sampler is None:
            sampler = self._samplers[sampling] = PieceSampler(self._processor, sampling)
        return sampler

    @cached_property
    def _words(self) -> PieceWords:
        return PieceWords([self._processor.id_to_piece(id) for id in range(self._processor.get_piece_size())])

    def _renumbered(self, encoded: list[list[int]]) -> list[list[int]]:
        if self._ours is not None:
            ours = self._ours
            encoded = [[ours[id] for id in ids] for ids in encoded]
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        theirs = [self._theirs[id] for id in self._sentence_ids(ids)]
        text: str = self._processor.decode(theirs) if theirs else ""
        return " ".join(text.split())

    def id_to_piece(self, id: int) -> str:
        if id < len(SPECIAL_PIECES):
            return SPECIAL_PIECES[id]
        return str(self._processor.id_to_piece(self._theirs[id]))

    def piece_to_id(self, piece: str) -> int:
        if piece in SPECIAL_PIECES:
            return SPECIAL_PIECES.index(piece)
        theirs = int(self._processor.piece_to_id(piece))
        return theirs if self._ours is None else self._ours[theirs]

    def files(self) -> Mapping[str, bytes]:
        return {".model": self._model}


LONGEST_SENTENCE = 4192
"""Bytes of the longest sentence that SentencePiece learns from (its `max_sentence_length`)."""
_RESERVED = "\u2585"
"""A character of SentencePiece's own (a block that bar charts use): its trainer silently ignores sentences with it."""


def learn_sentence_piece(sentences: Iterable[str], kind: str, size: int, character_coverage: float = 1.0,
                         byte_fallback: bool = False, symbols: Sequence[str] = ()) -> SentencePieceVocabulary:
    """Learn a SentencePiece model; where the text is too small for `size` pieces, it has fewer.

    The result depends on the sentences and their order alone.

    Args:
        sentences: cleaned sentences of any length; they are all held in memory by SentencePiece.
        kind: "unigram" or "bpe".
        size: number of ids, the four special ones included.
        character_coverage: the share of the text's characters that get a piece of their own, in (0, 1].
        byte_fallback: write characters without a piece as bytes (256 of the pieces) rather than UNK.
        symbols: tokens that are pieces of their own whatever the sentences; empty ones do not count.
    Raises:
        DataError: `size` is too small for the text's characters, or there is no text.
    """
    model = io.BytesIO()
    _learned.add(os.getpid())
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chain.from_iterable(map(_learnable, sentences)), model_writer=model,
            model_type=kind, vocab_size=size, max_sentence_length=LONGEST_SENTENCE,
            pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK, character_coverage=character_coverage,
            byte_fallback=byte_fallback, user_defined_symbols=[symbol for symbol in symbols if symbol],
            normalization_rule_name="identity", hard_vocab_limit=False, num_threads=_TRAINER_THREADS, minloglevel=2)
    except RuntimeError as error:
        raise DataError(_training_message(str(error), kind, size)) from error
    return SentencePieceVocabulary(model.getvalue())


def _learnable(sentence: str) -> Iterator[str]:
    """Yield a sentence in parts that SentencePiece learns from.

    It silently ignores sentences that are longer than `LONGEST_SENTENCE` or hold `_RESERVED`, for which a space is
    written here. A part ends at the last space within the limit. In a longer word it ends between two characters, not
    before a combining mark.
    """
    sentence = sentence.replace(_RESERVED, " ")
    if 4 * len(sentence) <= LONGEST_SENTENCE:
        yield sentence
        return
    text, start = sentence.encode("utf-8"), 0
    while len(text) - start > LONGEST_SENTENCE:
        part = text[start:start + LONGEST_SENTENCE].decode("utf-8", "ignore")
        end = part.rfind(" ")
        if end <= 0:
            end = len(part) - 1     # the last character begins the next part, so its kind is known
            while end > 1 and unicodedata.combining(part[end]):
                end -= 1
            end = end if end > 1 else len(part)
        yield part[:end]
        start += len(part[:end].encode("utf-8"))
    yield text[start:].decode("utf-8")


def has_learned() -> bool:
    """Return whether this process has learned a model: a fork of it that learns one, too, would crash.

    SentencePiece keeps the threads of its trainer, and takes them to be there in the fork.
    """
    return os.getpid() in _learned


def _training_message(message: str, kind: str, size: int) -> str:
    needed = re.search(r"smaller than required_chars[^0-9]*(\d+) vs (\d+)", message)
    if needed:
        return (f"a {kind} vocabulary of {size} is smaller than the {max(map(int, needed.groups()))} single "
                f"characters and special pieces that the text needs. Raise --vocab-size, or lower "
                f"--character-coverage.")
    if any(sign in message for sign in ("!sentences_.empty()", "all_chars_count")) or "no sentences" in message.lower():
        return ("there is no text to learn a vocabulary from: every line is empty, or has only characters that "
                "SentencePiece leaves out (control characters, \u2581). Check the text, or take another --vocab-kind.")
    return (f"SentencePiece cannot learn a {kind} vocabulary of {size} from this text: "
            f"{' '.join(message.split())}.")


_SPACE = "\u2581"  # SentencePiece's mark of a space
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class PieceWords:
    """Finds the words of pieces by the marks of spaces in them.

    The marks may not show all words: a piece is unknown, the text itself holds the mark, or pieces end with the mark
    or span several words. Then the characters of the written pieces are counted.

    Args:
        pieces: the pieces of the model by their ids there.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._starts = np.array([piece.startswith(_SPACE) for piece in pieces], np.int64)
        self._plain = np.array([_SPACE not in piece[1:] for piece in pieces])

    def of(self, texts: Sequence[str], encoded: Sequence[Sequence[int]], written: Callable[[], list[list[str]]]
           ) -> list[list[int]]:
        """The number of each piece's word, from 0; a piece of several words belongs to the first.

        Args:
            texts: cleaned.
            encoded: their pieces, as the model's ids.
            written: gives the pieces as text; called if the ids are not enough.
        """
        words: list[list[int]] = []
        pieces: list[list[str]] | None = None
        for index, (text, ids) in enumerate(zip(texts, encoded, strict=True)):
            found = None if _SPACE in text else self._by_marks(np.array(ids, np.int64), text.count(" ") + 1)
            if found is None:
                pieces = written() if pieces is None else pieces
                found = _by_characters(text, pieces[index])
            words.append(found)
        return words

    def _by_marks(self, ids: NDArray[np.int64], count: int) -> list[int] | None:
        """The words by the marks of spaces; None if the marks do not show `count` words."""
        if not len(ids):
            return []
        words = np.cumsum(self._starts[ids]) - 1
        if words[0] != 0 or words[-1] != count - 1 or not self._plain[ids].all():
            return None
        found: list[int] = words.tolist()
        return found


def _by_characters(text: str, pieces: Sequence[str]) -> list[int]:
    """The word of the character at which each piece begins; marks and spaces do not count.

    A model that normalises text may change the number of characters. Then the marks are counted, and what is left over
    belongs to the last word.
    """
    split = text.split()
    owners = [word for word, characters in enumerate(split) for c in characters if c != _SPACE]
    sizes = [_characters(piece) for piece in pieces]
    if sum(sizes) == len(owners):
        begins = np.cumsum([0, *sizes])[:-1].tolist()
        # A mark alone at the end of a text has no character after it.
        return [owners[min(begin, len(owners) - 1)] if owners else 0 for begin in begins]
    words, word, open_ = [], -1, False
    for piece in pieces:
        lead = piece[:1] == _SPACE
        words.append(min(max(word + (lead or not open_), 0), len(split) - 1))
        for character in piece:
            word += character != _SPACE and not open_
            open_ = character != _SPACE
    return words


def _characters(piece: str) -> int:
    byte = _BYTE.fullmatch(piece)
    if byte is not None:
        return int(byte[1], 16) & 0xC0 != 0x80  # the first byte of a character stands for it
    return len(piece.replace(_SPACE, ""))


class StoredPieces:
    """See `towernmt.dataflow.vocabulary.base.StoredWords`.

    User-defined symbols, bytes and what is unknown are words of their own, which stay as they are.

    Args:
        model: the model.
        sampling: how far from the best segmentation.
        ids: of each id of the vocabulary, that of the model; -1 where it has none.
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
        """See `StoredWords.begins`."""
        begins = self._opens[ids]
        begins[1:] |= self._closes[ids[:-1]]
        return begins

    def text(self, ids: Sequence[int]) -> str | None:
        """See `StoredWords.text`."""
        pieces = [self._pieces[id] for id in ids]
        return None if None in pieces else "".join(pieces)  # type: ignore[arg-type]

    def draws(self) -> WordDraws:
        """See `StoredWords.draws`."""
        if not self._model.is_bpe:
            return UnigramDraws(self._model, self._sampling.alpha, self._ids.__getitem__)
        return MergeDraws(self._rank, self._symbols, self._ids.get, self._sampling.alpha)

    def _rank(self, left: str, right: str) -> float | None:
        score = self._model.scores.get(left + right)
        return None if score is None else -score

    def _symbols(self, word: str) -> str | None:
        return word if all(character in self._ids for character in word) else None


class PieceSampler:
    """Draws segmentations of texts. Several threads may use it: they draw one after another.

    Args:
        processor: of the model.
        sampling: how far from the best segmentation.
    Raises:
        SettingsError: the model has only one segmentation of a text.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, sampling: Sampling) -> None:
        self._processor, self._sampling = processor, sampling
        self._model = PieceModel(processor.serialized_model_proto())
        self._words = (BpeDropout if self._model.is_bpe else UnigramSampler)(self._model, sampling.alpha)
        self._lock = threading.Lock()  # of the cache of words

    def ids(self, texts: Sequence[str], seed: int, first: int) -> list[list[int]]:
        """The model's ids of a segmentation of each text, drawn by (seed, `first` + its index)."""
        if self._among_best:
            return [ids for ids, _ in self._draw_among_best(texts, seed, first)]
        return [self._model.ids(pieces) for pieces in self._draw(texts, seed, first)]

    def written(self, texts: Sequence[str], seed: int, first: int) -> list[list[str]]:
        """The same segmentations, as pieces."""
        if self._among_best:
            return [pieces for _, pieces in self._draw_among_best(texts, seed, first)]
        return [self._model.written(pieces) for pieces in self._draw(texts, seed, first)]

    @property
    def _among_best(self) -> bool:
        return self._sampling.nbest >= 0 and not self._model.is_bpe

    def _draw(self, texts: Sequence[str], seed: int, first: int) -> list[list[str]]:
        normalized = self._processor.normalize(list(texts))
        numbers = uniform_draws(seed, first, [len(text) for text in normalized])
        draw, drawn = self._words.draw, []
        with self._lock:
            for text, uniform in zip(normalized, map(iter, numbers), strict=True):
                pieces: list[str] = []
                for part, whole in self._model.parts(text):
                    pieces += [part] if whole else draw(part, uniform)
                drawn.append(pieces)
        return drawn

    def _draw_among_best(self, texts: Sequence[str], seed: int, first: int) -> list[tuple[list[int], list[str]]]:
        """Ids and pieces as SentencePiece finds them, drawn by their probabilities to the power of alpha."""
        size, drawn = max(1, self._sampling.nbest), []
        for text, (uniform,) in zip(texts, uniform_draws(seed, first, [1] * len(texts)), strict=True):
            best = list(zip(*(self._processor.nbest_encode(text, nbest_size=size, out_type=kind)
                              for kind in (int, str)), strict=True))
            scores = [self._model.score(ids, pieces) for ids, pieces in best]
            bounds = list(accumulate(math.exp(self._sampling.alpha * (score - max(scores))) for score in scores))
            drawn.append(best[bisect_right(bounds[:-1], uniform * bounds[-1])])
        return drawn
