"""Vocabularies of imported models, with the pieces in towernmt's order."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK, Vocabulary
from towernmt.dataflow.vocabulary.bpe_codes import BpeCodesVocabulary
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import SentencePieceVocabulary
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.interop.foreign_model import IMPOSSIBLE_LOGIT

LANGUAGE = re.compile(r">>[^<>\s]+<<")
"""A word at the beginning of a source text that names the target language, as in multilingual models."""
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5      # SentencePiece.Type
_LOWEST_SCORE = -1e9


class ForeignPieceModel:
    """The SentencePiece model of another system.

    Raises:
        DataError: the file is not a SentencePiece model.
    """

    def __init__(self, file: Path) -> None:
        from sentencepiece import sentencepiece_model_pb2

        self._file = file
        self.content = read_vocabulary_file(file)
        SentencePieceVocabulary(self.content, str(file))    # raises DataError if the content is not a model
        self._model = sentencepiece_model_pb2.ModelProto.FromString(self.content)
        if not all(isinstance(piece.piece, str) for piece in self._model.pieces):   # bytes if they are not UTF-8
            raise DataError(f"{file}: a piece of this SentencePiece model is not UTF-8: the file is damaged.")
        self._by_piece = {piece.piece: piece for piece in self._model.pieces if piece.type not in (_UNKNOWN, _CONTROL)}

    @property
    def all_pieces(self) -> list[str]:
        """All pieces in the order of the model's ids."""
        return [piece.piece for piece in self._model.pieces]

    @property
    def pieces(self) -> list[str]:
        """The pieces that the model divides text into."""
        return [piece for piece, entry in self._by_piece.items() if entry.type != _UNUSED]

    def reordered(self, pieces: Sequence[str], languages: Collection[str] = (), unused: Collection[str] = ()
                  ) -> SentencePieceVocabulary:
        """Return the model with the pieces of a table.

        Args:
            pieces: pieces by towernmt's ids, the four special ones first.
            languages: pieces that are complete words for target languages, with the SentencePiece sign for a space.
            unused: pieces that text is not divided into.

        Raises:
            DataError: a piece occurs twice or is empty.
        """
        from sentencepiece import sentencepiece_model_pb2

        if len(set(pieces)) < len(pieces) or "" in pieces:
            raise DataError(f"{self._file}: a piece of the vocabulary occurs twice or is empty: the vocabulary is "
                            "damaged.")
        model = sentencepiece_model_pb2.ModelProto()
        model.CopyFrom(self._model)
        del model.pieces[:]
        model.DiscardUnknownFields()    # some of them contain tests of the old ids
        for id, piece in enumerate(pieces):
            model.pieces.append(self._piece(type(model).SentencePiece, id, piece, languages, unused))
        trainer = model.trainer_spec
        trainer.pad_id, trainer.bos_id, trainer.eos_id, trainer.unk_id = PAD, BOS, EOS, UNK
        trainer.pad_piece, trainer.bos_piece, trainer.eos_piece, trainer.unk_piece = SPECIAL_PIECES
        trainer.vocab_size = len(pieces)
        return SentencePieceVocabulary(model.SerializeToString(), str(self._file))

    def _piece(self, piece_type: Any, id: int, piece: str, languages: Collection[str], unused: Collection[str]) -> Any:
        if id < len(SPECIAL_PIECES):
            return piece_type(piece=piece, type=_UNKNOWN if id == UNK else _CONTROL)
        if piece in languages:
            return piece_type(piece=piece, type=_USER_DEFINED)
        entry = self._by_piece.get(piece)
        if entry is None or piece in unused:
            return piece_type(piece=piece, score=_LOWEST_SCORE, type=_UNUSED)
        return entry


def language_names(pieces: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Map the words for target languages that no SentencePiece model contains to their pieces in towernmt."""
    return {piece: f"{SPACE}{piece}" for piece in pieces if LANGUAGE.fullmatch(piece) and piece not in known}


NO_ROW = -1
"""In `PieceTable.rows`: the foreign table has no row for the piece."""


@dataclass(frozen=True)
class PieceTable:
    """The pieces of a foreign model in towernmt's order.

    Attributes:
        pieces: pieces by towernmt's ids, the four special ones first.
        rows: int64 `[pieces]`, the row of each piece in the foreign table; NO_ROW if the table does not have it.
        known: number of pieces that the model knows. Text may contain the pieces after these; the model reads them as
            UNK.
    """

    pieces: list[str]
    rows: NDArray[np.int64]
    known: int

    @classmethod
    def of(cls, special: Mapping[int, int], words: Sequence[tuple[str, int]]) -> PieceTable:
        """Make a table from the rows of special pieces, by towernmt's ids, and the other pieces with their rows."""
        rows = [special.get(id, NO_ROW) for id in range(len(SPECIAL_PIECES))]
        pieces = [*SPECIAL_PIECES, *(piece for piece, _ in words)]
        return cls(pieces, np.array([*rows, *(row for _, row in words)], np.int64), len(pieces))

    def with_unknown(self, pieces: Sequence[str]) -> PieceTable:
        """Return the table with further pieces that the model reads as UNK."""
        known_pieces = set(self.pieces)
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known_pieces]
        rows = np.concatenate([self.rows, np.full(len(new), self.rows[UNK])])
        return PieceTable([*self.pieces, *new], rows, self.known)

    def renamed(self, names: Mapping[str, str]) -> PieceTable:
        """Return the table with some pieces renamed."""
        return PieceTable([names.get(piece, piece) for piece in self.pieces], self.rows, self.known)

    def reorder_rows(self, table: np.ndarray) -> np.ndarray:
        """Return an embedding, float32 `[foreign pieces, depth]`, in towernmt's order; missing rows are 0."""
        reordered = table[np.maximum(self.rows, 0)].astype(np.float32)
        reordered[self.rows == NO_ROW] = 0.0
        return reordered

    def reorder_bias(self, bias: np.ndarray) -> np.ndarray:
        """Return the bias of logits, float32 `[foreign pieces]`, in towernmt's order.

        Unknown pieces are impossible, and no value is below `IMPOSSIBLE_LOGIT`: exports to Marian have -1e9 for unused
        pieces.
        """
        reordered = np.maximum(bias[np.maximum(self.rows, 0)].astype(np.float32), IMPOSSIBLE_LOGIT)
        reordered[self.rows == NO_ROW] = IMPOSSIBLE_LOGIT
        reordered[self.known:] += IMPOSSIBLE_LOGIT
        return reordered


CODES = (".bpe", ".codes")
"""Suffixes of files with subword-nmt codes; other files are SentencePiece models."""
WORDS_NOTE = ("The model comes without a SentencePiece model or BPE codes: pass text that is already divided into "
              "pieces like the training data, with spaces between the pieces.")


def vocabularies_of(files: tuple[Path, Path] | None, tables: Sequence[PieceTable], is_shared: bool
                    ) -> tuple[Vocabulary, Vocabulary, list[PieceTable]]:
    """Return the source and target vocabulary, and their tables, which may have more pieces.

    Args:
        files: SentencePiece models or BPE codes of source and target; None for text that is already divided.
        tables: the pieces of source and target.
        is_shared: whether both languages share one table.

    Raises:
        DataError: a file cannot be read or has the wrong format.
    """
    if files is None:
        return WordVocabulary(tables[0].pieces), WordVocabulary(tables[1].pieces), list(tables)
    if files[0].suffix in CODES:
        vocabularies = [BpeCodesVocabulary(read_vocabulary_file(codes), table.pieces, str(codes))
                        for codes, table in zip(files, tables, strict=True)]
        return vocabularies[0], vocabularies[1], list(tables)
    models = [ForeignPieceModel(file) for file in files]
    known = {piece for model in models for piece in model.pieces}
    languages = language_names(tables[0].pieces, known)
    source_table = tables[0].renamed(languages).with_unknown(models[0].pieces)
    target_table = source_table if is_shared else tables[1]
    source = models[0].reordered(source_table.pieces, list(languages.values()))
    unknown = source_table.pieces[source_table.known:]
    if is_shared and models[0].content == models[1].content and not unknown:
        return source, source, [source_table, source_table]
    return source, models[1].reordered(target_table.pieces, unused=unknown), [source_table, target_table]


def read_vocabulary_file(file: Path) -> bytes:
    """Return the content of a file.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot read the file ({error.strerror}).") from error


def vocabulary_lines(file: Path) -> list[str]:
    """Return the lines of a vocabulary in UTF-8, without line ends and byte order mark.

    Raises:
        DataError: the file cannot be read, or is not UTF-8.
    """
    try:
        text = read_vocabulary_file(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}): pass the vocabulary of the "
                        "model.") from error
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")
