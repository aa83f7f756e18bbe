"""SentencePiece vocabularies, unigram and BPE (Kudo and Richardson, 2018, arXiv:1808.06226)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import sentencepiece

from towernmt.core.errors import DataError
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK, Sampling, Vocabulary
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE, PieceModel, is_unigram
from towernmt.dataflow.vocabulary.sentencepiece_words import PieceSampler, PieceWords, StoredPieces


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

    def is_unused(self, id: int) -> bool:
        return self._model_ids[id] >= 0 and bool(self._processor.is_unused(self._model_ids[id]))

    def files(self) -> Mapping[str, bytes]:
        return {".model": self._model}
