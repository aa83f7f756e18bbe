"""SentencePiece vocabularies, unigram and BPE (Kudo and Richardson, 2018, arXiv:1808.06226)."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import sentencepiece

from towernmt.core.errors import DataError
from towernmt.dataflow.text.cleaning import clean
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK, Sampling, Vocabulary
from towernmt.dataflow.vocabulary.subword.piece_model import PieceModel, is_unigram
from towernmt.dataflow.vocabulary.subword.piece_sampler import PieceSampler
from towernmt.dataflow.vocabulary.subword.piece_words import PieceWords
from towernmt.dataflow.vocabulary.subword.stored_pieces import StoredPieces

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
        """Whether it is a unigram model."""
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


def learn_sentence_piece(sentences: Iterable[str], kind: str, size: int, character_coverage: float = 1.0,
                         byte_fallback: bool = False, symbols: Sequence[str] = ()) -> SentencePieceVocabulary:
    """Learn a SentencePiece model; where the text is too small for `size` pieces, it has fewer.

    The result depends on the sentences and their order alone.

    Args:
        sentences: cleaned sentences; they are all held in memory by SentencePiece.
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
            sentence_iterator=iter(sentences), model_writer=model, model_type=kind, vocab_size=size,
            pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK, character_coverage=character_coverage,
            byte_fallback=byte_fallback, user_defined_symbols=[symbol for symbol in symbols if symbol],
            normalization_rule_name="identity", hard_vocab_limit=False, num_threads=_TRAINER_THREADS, minloglevel=2)
    except RuntimeError as error:
        raise DataError(_training_message(str(error), kind, size)) from error
    return SentencePieceVocabulary(model.getvalue())


def has_learned() -> bool:
    """Whether this process has learned a model: a fork of it that learns one, too, would crash.

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
