"""The text that all programs of `quality.py` train on: pieces of one vocabulary of towernmt, each peer's dictionary of
them, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.core.files.atomic_files import write_text
from towernmt.dataflow.prepared.prepared_data import PreparedData
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, Vocabulary

PARTS = ("train", "valid", "test")
SIDES = ("src", "tgt")
"""What the sides are called in the files of pieces."""


class Texts:
    """Train, valid and test text of two languages, `FOLDER/train.de` and so on.

    Args:
        folder: where they are.
        languages: source and target.
    Raises:
        DataError: one is missing.
    """

    def __init__(self, folder: Path, languages: Sequence[str]) -> None:
        self._files = {(part, side): folder / f"{part}.{language}"
                       for part in PARTS for side, language in zip(SIDES, languages, strict=True)}
        for path in self._files.values():
            if not path.is_file():
                raise DataError(f"{path} is not there: --text names a folder with the files "
                                f"{{{','.join(PARTS)}}}.{{{','.join(languages)}}}.")

    def path(self, part: str, side: str) -> Path:
        """The file of one of `PARTS`, one of `SIDES`."""
        return self._files[part, side]

    def lines(self, part: str, side: str) -> list[str]:
        """Its lines."""
        return read_lines(self.path(part, side))


def read_lines(path: Path) -> list[str]:
    """The lines of a file, whether the last one has an end or not."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return lines if lines[-1] else lines[:-1]


def shared_vocabulary(data: PreparedData) -> Vocabulary:
    """The vocabulary of both sides.

    Raises:
        DataError: each side has its own.
    """
    source, target = data.source_vocabulary, data.target_vocabulary
    if list(source.files().values()) != list(target.files().values()):
        raise DataError(f"{data.directory}: the sides have vocabularies of their own, but the peers share one: prepare "
                        "with --shared-vocab.")
    return source


def write_pieces(texts: Texts, vocabulary: Vocabulary, folder: Path, valid: int, threads: int) -> None:
    """The files `train.src` ... `test.tgt` of pieces, and the dictionaries `fairseq.txt` and `opennmt.txt`.

    Args:
        valid: so many of the validation sentences.
    """
    for part in PARTS:
        for side in SIDES:
            lines = texts.lines(part, side)[:valid if part == "valid" else None]
            write_text(folder / f"{part}.{side}", "".join(
                line + "\n" for line in pieced(lines, vocabulary, threads)))
    pieces = [vocabulary.id_to_piece(id) for id in range(len(SPECIAL_PIECES), len(vocabulary))]
    write_text(folder / "opennmt.txt", "".join(f"{piece}\n" for piece in ("<blank>", "<s>", "</s>", *pieces)))
    write_text(folder / "fairseq.txt", "".join(f"{piece} 1\n" for piece in pieces))


def pieced(lines: Sequence[str], vocabulary: Vocabulary, threads: int = 1) -> list[str]:
    """Lines as pieces with spaces between them."""
    return [" ".join(map(vocabulary.id_to_piece, ids)) for ids in vocabulary.encode_batch(lines, threads)]


def unpieced(lines: Sequence[str], vocabulary: Vocabulary) -> list[str]:
    """Detokenised text of lines of pieces."""
    return [vocabulary.decode(map(vocabulary.piece_to_id, line.split())) for line in lines]
