"""Vocabularies in Marian's order: `</s>` is 0, `<unk>` is 1, and nothing else is special.

Marian has neither PAD nor BOS. They go to the end, with other pieces that no text has, where these make the size a
multiple of 8, as 8-bit products ask for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES, UNK, Vocabulary

MULTIPLE = 8
NOBODY = -1
"""In `MarianVocabulary.ours`: none of our pieces."""
_UNKNOWN, _CONTROL = 2, 3       # SentencePiece.Type


@dataclass(frozen=True)
class MarianVocabulary:
    """A vocabulary in Marian's order.

    Attributes:
        pieces: by Marian's id.
        ours: int64 `[pieces]`, our id of each piece; NOBODY for those that no text has.
    """

    pieces: list[str]
    ours: NDArray[np.int64]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> MarianVocabulary:
        """A vocabulary of ours."""
        words = list(range(len(SPECIAL_PIECES), vocabulary.size))
        pieces = [SPECIAL_PIECES[EOS], SPECIAL_PIECES[UNK], *map(vocabulary.id_to_piece, words)]
        missing = -len(pieces) % MULTIPLE
        return cls([*pieces, *(f"<unused_{number}>" for number in range(missing))],
                   np.array([EOS, UNK, *words, *[NOBODY] * missing], np.int64))

    @property
    def theirs(self) -> NDArray[np.int64]:
        """Marian's id of each of ours, int64 `[our vocabulary]`; NOBODY for PAD and BOS."""
        there = np.flatnonzero(self.ours != NOBODY)
        found = np.full(int(self.ours.max()) + 1, NOBODY, np.int64)
        found[self.ours[there]] = there
        return found

    def rows(self, table: np.ndarray, filler: float = 0.0) -> np.ndarray:
        """The rows of a table or vector of ours in Marian's order; those of nobody are `filler`."""
        rows = table[np.maximum(self.ours, 0)].astype(np.float32)
        rows[self.ours == NOBODY] = filler
        return rows

    def yaml(self) -> str:
        """The text of `vocab.yml`: a piece and its id a line."""
        return "".join(f"{json.dumps(piece, ensure_ascii=False)}: {id}\n" for id, piece in enumerate(self.pieces))


def sentence_piece_model(vocabulary: Vocabulary) -> bytes:
    """The SentencePiece model of a vocabulary with its pieces in Marian's order: Marian takes the ids from it.

    Args:
        vocabulary: of kind "sentencepiece".
    """
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    content = vocabulary.files()[".model"]
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    processor = SentencePieceProcessor(model_proto=content)
    special = {processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()}
    words = [piece for id, piece in enumerate(model.pieces) if id not in special]
    ordered = MarianVocabulary.of(vocabulary)
    Piece = type(model).SentencePiece
    first = [Piece(piece=SPECIAL_PIECES[EOS], type=_CONTROL), Piece(piece=SPECIAL_PIECES[UNK], type=_UNKNOWN)]
    last = [Piece(piece=piece, type=_CONTROL) for piece in ordered.pieces[len(first) + len(words):]]
    kept = [*first, *words, *last]
    del model.pieces[:]
    model.pieces.extend(kept)
    trainer = model.trainer_spec
    trainer.eos_id, trainer.unk_id, trainer.bos_id, trainer.pad_id = 0, 1, -1, -1
    trainer.eos_piece, trainer.unk_piece, trainer.vocab_size = SPECIAL_PIECES[EOS], SPECIAL_PIECES[UNK], len(kept)
    written: bytes = model.SerializeToString()
    return written
