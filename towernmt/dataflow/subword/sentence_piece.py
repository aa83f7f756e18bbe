"""SentencePiece vocabularies, unigram and BPE (Kudo and Richardson, 2018, arXiv:1808.06226)."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import sentencepiece

from towernmt.dataflow.subword.piece_words import PieceWords
from towernmt.dataflow.text import clean
from towernmt.dataflow.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES, UNK, Sampling, Vocabulary
from towernmt.errors import DataError

_ONE_SAMPLER = threading.Lock()  # the seed of SentencePiece's generator belongs to the whole process
_TRAINER_THREADS = 16  # fixed: the sums of the training depend on it


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

    def sample_batch(self, texts: Sequence[str], sampling: Sampling, seed: int) -> list[list[int]]:
        """See `Vocabulary.sample_batch`: unigram sampling, or BPE-dropout, by SentencePiece itself.

        Its generator belongs to a thread, which seeds it at its first draw from one number of the whole process:
        so each call draws in a thread of its own, one call at a time.
        """
        return self._renumbered(self._sample([clean(text) for text in texts], sampling, seed, int))

    def encode_with_words(self, texts: Sequence[str], threads: int = 1) -> tuple[list[list[int]], list[list[int]]]:
        cleaned = [clean(text) for text in texts]
        encoded = self._processor.encode(cleaned, out_type=int, num_threads=threads)
        words = self._words.of(cleaned, encoded, lambda: self._processor.encode(cleaned, out_type=str))
        return self._renumbered(encoded), words

    def sample_with_words(self, texts: Sequence[str], sampling: Sampling, seed: int
                          ) -> tuple[list[list[int]], list[list[int]]]:
        cleaned = [clean(text) for text in texts]
        encoded = self._sample(cleaned, sampling, seed, int)
        words = self._words.of(cleaned, encoded, lambda: self._sample(cleaned, sampling, seed, str))
        return self._renumbered(encoded), words

    def _sample(self, cleaned: list[str], sampling: Sampling, seed: int, kind: type) -> list[list[Any]]:
        """Ids of the model, or pieces: of one seed, the same segmentation."""
        with _ONE_SAMPLER, ThreadPoolExecutor(1, "subword sampling") as fresh:
            sentencepiece.set_random_generator_seed(seed)
            drawing = fresh.submit(self._processor.encode, cleaned, out_type=kind, enable_sampling=True,
                                   alpha=sampling.alpha, nbest_size=sampling.nbest, num_threads=1)
            drawn: list[list[Any]] = drawing.result()
        return drawn

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
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=model, model_type=kind, vocab_size=size,
            pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK, character_coverage=character_coverage,
            byte_fallback=byte_fallback, user_defined_symbols=[symbol for symbol in symbols if symbol],
            normalization_rule_name="identity", hard_vocab_limit=False, num_threads=_TRAINER_THREADS, minloglevel=2)
    except RuntimeError as error:
        raise DataError(_training_message(str(error), kind, size)) from error
    return SentencePieceVocabulary(model.getvalue())


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
