"""The subwords of a SentencePiece model with their scores, and the spans of a text that it segments independently."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from towernmt.core.errors import SettingsError

SPACE = "\u2581"  # SentencePiece's mark of a space
_UNIGRAM, _BPE = 1, 2  # TrainerSpec.ModelType
_NORMAL, _UNKNOWN, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 4, 5, 6  # SentencePiece.Type
_UNKNOWN_PENALTY = 10.0  # of an unknown character, below the worst piece


class PieceModel:
    """The pieces of a serialised SentencePiece model.

    Args:
        model: the serialised model.
    Attributes:
        scores: by piece, without the user-defined symbols.
        unknown_score: of a character without a piece, in a unigram model.
        longest: characters of the longest of these pieces.
        normal: the ids of these pieces.
        is_bpe: whether scores are priorities of merges rather than log probabilities.
        marks_begin_words, marks_end_words: whether the mark of a space stands at the beginning, or at the end, of
            pieces only.
    Raises:
        SettingsError: the model has only one segmentation of a text, or segmentations cannot be drawn from it.
    """

    def __init__(self, model: bytes) -> None:
        from sentencepiece import sentencepiece_model_pb2

        parsed = sentencepiece_model_pb2.ModelProto.FromString(model)
        kind = parsed.trainer_spec.model_type
        if kind not in (_UNIGRAM, _BPE):
            raise SettingsError("data.subword_sampling=true needs a unigram or BPE model, but this SentencePiece "
                                "model is one of words or characters, with one segmentation of a text: leave it false.")
        self.is_bpe = kind == _BPE
        by_type: dict[int, list[tuple[str, int]]] = {}
        for id, piece in enumerate(parsed.pieces):
            by_type.setdefault(piece.type, []).append((piece.piece, id))
        if self.is_bpe and _UNUSED in by_type:
            raise SettingsError("data.subword_sampling=true cannot draw from a BPE model with unused pieces: leave it "
                                "false, or use a vocabulary without them.")
        self.scores = {piece: float(parsed.pieces[id].score) for piece, id in by_type.get(_NORMAL, [])}
        self.unknown_score = min(self.scores.values(), default=0.0) - _UNKNOWN_PENALTY
        self.longest = max(map(len, self.scores), default=1)
        symbols = [piece for piece, _ in by_type.get(_USER_DEFINED, [])]
        self.normal = dict(by_type.get(_NORMAL, []))
        self._ids = self.normal | dict(by_type.get(_USER_DEFINED, []))
        self._unknown = by_type[_UNKNOWN][0][1]
        self._bytes = ([id for _, id in by_type[_BYTE]]
                       if parsed.trainer_spec.byte_fallback and len(by_type.get(_BYTE, [])) == 256 else None)
        # A character that is written in bytes counts once: by its first byte.
        self._byte_starts = {id for byte, id in enumerate(self._bytes or ()) if byte & 0xC0 != 0x80}
        longest_first = sorted(map(re.escape, symbols), key=len, reverse=True)
        self._symbol = re.compile(f"({'|'.join(longest_first)})") if symbols else None
        self.marks_begin_words = not any(SPACE in piece[1:] for piece in self.scores)
        self.marks_end_words = not self.marks_begin_words and not any(SPACE in piece[:-1] for piece in self.scores)
        self._part = re.compile(self._part_pattern(), re.DOTALL)

    @property
    def crosses_spaces(self) -> bool:
        """Return whether a piece may hold parts of two words."""
        return not (self.marks_begin_words or self.marks_end_words)

    def parts(self, normalized: str) -> list[tuple[str, bool]]:
        """The text in parts that no piece crosses, and for each whether it is a user-defined symbol (one piece).

        A part is a word with its mark of a space, which stands at the beginning or at the end, as in the pieces. If
        pieces have the mark in the middle, all text between two symbols is one part.
        """
        if self._symbol is None:
            return [(part, False) for part in self._part.findall(normalized)]
        found: list[tuple[str, bool]] = []
        for index, text in enumerate(self._symbol.split(normalized)):
            found += [(text, True)] if index % 2 else [(part, False) for part in self._part.findall(text)]
        return found

    def ids(self, pieces: list[str]) -> list[int]:
        """The ids that SentencePiece gives these pieces of one text; adjacent unknown characters share one id."""
        found = list(map(self._ids.get, pieces))
        if None not in found:
            return found  # type: ignore[return-value]
        return [id for _, some in self._resolved(pieces) for id in some]

    def written(self, pieces: list[str]) -> list[str]:
        """The pieces as SentencePiece writes them: bytes as `<0xE6>`, adjacent unknown characters as one piece."""
        return [name for names, _ in self._resolved(pieces) for name in names]

    def score(self, ids: list[int], pieces: list[str]) -> float:
        """The log probability of a segmentation by a unigram model, without symbols: all segmentations share them.

        Args:
            ids: the model's.
            pieces: as `written`.
        """
        total = 0.0
        for id, piece in zip(ids, pieces, strict=True):
            if id == self._unknown:
                total += self.unknown_score * len(piece)
            elif id in self._byte_starts:
                total += self.unknown_score
            else:
                total += self.scores.get(piece, 0.0)
        return total

    def _part_pattern(self) -> str:
        if self.marks_begin_words:
            return f"{SPACE}[^{SPACE}]*|[^{SPACE}]+"
        if self.marks_end_words:
            return f"[^{SPACE}]*{SPACE}|[^{SPACE}]+"
        return ".+"

    def _resolved(self, pieces: list[str]) -> list[tuple[list[str], list[int]]]:
        found: list[tuple[list[str], list[int]]] = []
        run = False  # whether the last one is unknown
        for piece in pieces:
            id = self._ids.get(piece)
            if id is not None:
                found.append(([piece], [id]))
            elif self._bytes is not None:
                content = piece.encode()
                found.append(([f"<0x{byte:02X}>" for byte in content], [self._bytes[byte] for byte in content]))
            elif run:
                found[-1][0][0] += piece
            else:
                found.append(([piece], [self._unknown]))
            run = id is None and self._bytes is None
        return found


def is_unigram(model: bytes) -> bool:
    """Return whether a serialised SentencePiece model is a unigram model.

    Args:
        model: one that SentencePiece reads.
    """
    from sentencepiece import sentencepiece_model_pb2

    return bool(sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec.model_type == _UNIGRAM)


def spans(begins: NDArray[np.integer], counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """int64 `[sum of counts]`: for each i the places from `begins[i]` on, `counts[i]` of them."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(begins - ends + counts, counts)
