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

    Attributes:
        scores: score of each piece, without the user-defined symbols.
        unknown_score: score of a character without a piece, in a unigram model.
        longest: length of the longest of these pieces in characters.
        normal: id of each of these pieces.
        is_bpe: whether scores are priorities of merges rather than log probabilities.
        marks_begin_words, marks_end_words: whether the space mark occurs only at the beginning, or only at the end,
            of pieces.

    Raises:
        SettingsError: the model has only one segmentation of a text, or does not support sampling.
    """

    def __init__(self, model: bytes) -> None:
        from sentencepiece import sentencepiece_model_pb2

        parsed = sentencepiece_model_pb2.ModelProto.FromString(model)
        kind = parsed.trainer_spec.model_type
        if kind not in (_UNIGRAM, _BPE):
            raise SettingsError("data.subword_sampling=true needs a unigram or BPE model, but this SentencePiece "
                                "model segments into words or characters. Set it to false.")
        self.is_bpe = kind == _BPE
        by_type: dict[int, list[tuple[str, int]]] = {}
        for id, piece in enumerate(parsed.pieces):
            by_type.setdefault(piece.type, []).append((piece.piece, id))
        if self.is_bpe and _UNUSED in by_type:
            raise SettingsError("data.subword_sampling=true does not support a BPE model with unused pieces. Set it to "
                                "false, or use a vocabulary without unused pieces.")
        self.scores = {piece: float(parsed.pieces[id].score) for piece, id in by_type.get(_NORMAL, [])}
        self.unknown_score = min(self.scores.values(), default=0.0) - _UNKNOWN_PENALTY
        self.longest = max(map(len, self.scores), default=1)
        symbols = [piece for piece, _ in by_type.get(_USER_DEFINED, [])]
        self.normal = dict(by_type.get(_NORMAL, []))
        self._ids = self.normal | dict(by_type.get(_USER_DEFINED, []))
        self._unknown = by_type[_UNKNOWN][0][1]
        self._bytes = ([id for _, id in by_type[_BYTE]]
                       if parsed.trainer_spec.byte_fallback and len(by_type.get(_BYTE, [])) == 256 else None)
        # A character that is encoded as bytes is scored once, with its first byte.
        self._byte_starts = {id for byte, id in enumerate(self._bytes or ()) if byte & 0xC0 != 0x80}
        longest_first = sorted(map(re.escape, symbols), key=len, reverse=True)
        self._symbol = re.compile(f"({'|'.join(longest_first)})") if symbols else None
        self.marks_begin_words = not any(SPACE in piece[1:] for piece in self.scores)
        self.marks_end_words = not self.marks_begin_words and not any(SPACE in piece[:-1] for piece in self.scores)
        self._span = re.compile(self._span_pattern(), re.DOTALL)

    @property
    def crosses_spaces(self) -> bool:
        """Return whether a piece may contain characters of two words."""
        return not (self.marks_begin_words or self.marks_end_words)

    def spans(self, normalized: str) -> list[tuple[str, bool]]:
        """Split a text into spans that are segmented independently.

        A span is a word with its space mark, at the beginning or at the end as in the pieces. If pieces have the mark
        in the middle, all text between two user-defined symbols is one span.

        Returns:
            (the text of the span, whether it is a user-defined symbol, which is a single piece).
        """
        if self._symbol is None:
            return [(span, False) for span in self._span.findall(normalized)]
        spans: list[tuple[str, bool]] = []
        for index, text in enumerate(self._symbol.split(normalized)):
            spans += [(text, True)] if index % 2 else [(span, False) for span in self._span.findall(text)]
        return spans

    def ids(self, pieces: list[str]) -> list[int]:
        """Return SentencePiece's ids of the pieces of a text. Adjacent unknown characters share one id."""
        ids = list(map(self._ids.get, pieces))
        if None not in ids:
            return ids  # type: ignore[return-value]
        return [id for _, piece_ids in self._resolve(pieces) for id in piece_ids]

    def piece_names(self, pieces: list[str]) -> list[str]:
        """Return SentencePiece's names of the pieces: bytes as `<0xE6>`, adjacent unknown characters as one piece."""
        return [name for names, _ in self._resolve(pieces) for name in names]

    def score(self, ids: list[int], pieces: list[str]) -> float:
        """Return the log probability of a segmentation by a unigram model, without user-defined symbols.

        All segmentations of a text have the same user-defined symbols.

        Args:
            ids: ids of the model.
            pieces: result of `piece_names`.
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

    def _span_pattern(self) -> str:
        if self.marks_begin_words:
            return f"{SPACE}[^{SPACE}]*|[^{SPACE}]+"
        if self.marks_end_words:
            return f"[^{SPACE}]*{SPACE}|[^{SPACE}]+"
        return ".+"

    def _resolve(self, pieces: list[str]) -> list[tuple[list[str], list[int]]]:
        """Return the names and the ids of each piece. Adjacent unknown pieces are joined."""
        resolved: list[tuple[list[str], list[int]]] = []
        after_unknown = False
        for piece in pieces:
            id = self._ids.get(piece)
            if id is not None:
                resolved.append(([piece], [id]))
            elif self._bytes is not None:
                content = piece.encode()
                resolved.append(([f"<0x{byte:02X}>" for byte in content], [self._bytes[byte] for byte in content]))
            elif after_unknown:
                resolved[-1][0][0] += piece
            else:
                resolved.append(([piece], [self._unknown]))
            after_unknown = id is None and self._bytes is None
        return resolved


def is_unigram(model: bytes) -> bool:
    """Return whether a serialised SentencePiece model is a unigram model."""
    from sentencepiece import sentencepiece_model_pb2

    return bool(sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec.model_type == _UNIGRAM)


def spans(begins: NDArray[np.integer], counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return int64 `[sum of counts]`: the concatenated ranges of `counts[i]` indices from `begins[i]` on."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(begins - ends + counts, counts)
