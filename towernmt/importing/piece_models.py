"""SentencePiece models whose pieces stand in the order of a foreign table: one file divides text and numbers pieces.

The pieces of the table that the model does not have are marked as unused: text is divided as before. (In a BPE model
they are merged last, and taken apart again.)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from towernmt.dataflow.vocabulary.subword.sentence_piece import SentencePieceVocabulary

LANGUAGE = re.compile(r">>[^<>\s]+<<")
"""A word in front of a source that says which language to write, as models of several have it."""
_SPACE = "\u2581"  # SentencePiece's mark of a space
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5      # SentencePiece.Type
_LAST = -1e9


class PieceModel:
    """A SentencePiece model as another system has it.

    Args:
        file: the serialised model.
    Raises:
        DataError: it is not one.
    """

    def __init__(self, file: Path) -> None:
        from sentencepiece import sentencepiece_model_pb2

        self._file = file
        try:
            self.content = file.read_bytes()
        except OSError as error:
            raise DataError(f"{file}: it cannot be read ({error.strerror}).") from error
        SentencePieceVocabulary(self.content, str(file))    # refuses what is no model
        self._model = sentencepiece_model_pb2.ModelProto.FromString(self.content)
        self._by_piece = {piece.piece: piece for piece in self._model.pieces if piece.type not in (_UNKNOWN, _CONTROL)}

    @property
    def pieces(self) -> list[str]:
        """Those that text is divided into."""
        return [piece for piece, found in self._by_piece.items() if found.type != _UNUSED]

    def in_order(self, pieces: Sequence[str], languages: Collection[str] = (), left_out: Collection[str] = ()
                 ) -> SentencePieceVocabulary:
        """The model with the pieces of a table.

        Args:
            pieces: by our id, the four special ones first.
            languages: those of `pieces` that are words of their own in front of a text, with the mark of a space.
            left_out: pieces of which text shall not be made.
        Raises:
            DataError: a piece is there twice or is empty.
        """
        from sentencepiece import sentencepiece_model_pb2

        if len(set(pieces)) < len(pieces) or "" in pieces:
            raise DataError(f"{self._file}: a piece of the vocabulary is there twice, or is empty: the vocabulary is "
                            "damaged.")
        model = sentencepiece_model_pb2.ModelProto()
        model.CopyFrom(self._model)
        del model.pieces[:]
        model.DiscardUnknownFields()    # among them tests of the ids, which are others now
        for id, piece in enumerate(pieces):
            model.pieces.append(self._piece(type(model).SentencePiece, id, piece, languages, left_out))
        trainer = model.trainer_spec
        trainer.pad_id, trainer.bos_id, trainer.eos_id, trainer.unk_id = PAD, BOS, EOS, UNK
        trainer.pad_piece, trainer.bos_piece, trainer.eos_piece, trainer.unk_piece = SPECIAL_PIECES
        trainer.vocab_size = len(pieces)
        return SentencePieceVocabulary(model.SerializeToString(), str(self._file))

    def _piece(self, kind: Any, id: int, piece: str, languages: Collection[str], left_out: Collection[str]) -> Any:
        if id < len(SPECIAL_PIECES):
            return kind(piece=piece, type=_UNKNOWN if id == UNK else _CONTROL)
        if piece in languages:
            return kind(piece=piece, type=_USER_DEFINED)
        found = self._by_piece.get(piece)
        if found is None or piece in left_out:
            return kind(piece=piece, score=_LAST, type=_UNUSED)
        return found


def language_names(pieces: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """By the words for languages among the pieces of a table that no model has, how they are written in ours."""
    return {piece: f"{_SPACE}{piece}" for piece in pieces if LANGUAGE.fullmatch(piece) and piece not in known}
