"""The text that all programs of `quality.py` train on: subwords of one vocabulary, dictionaries and detokenisation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.core.files import write_text
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES, Vocabulary

PARTS = ("train", "valid", "test")
SIDES = ("src", "tgt")
"""Suffixes of the files of subwords."""


class Texts:
    """Files of train, valid and test text in two languages: `FOLDER/train.de` and so on.

    Args:
        folder: directory of the files.
        languages: suffixes of the source and the target files.

    Raises:
        DataError: a file is missing.
    """

    def __init__(self, folder: Path, languages: Sequence[str]) -> None:
        self._files = {(part, side): folder / f"{part}.{language}"
                       for part in PARTS for side, language in zip(SIDES, languages, strict=True)}
        for path in self._files.values():
            if not path.is_file():
                raise DataError(f"{path} is missing: --text must name a folder with the files "
                                f"{{{','.join(PARTS)}}}.{{{','.join(languages)}}}.")

    def path(self, part: str, side: str) -> Path:
        """Return the path for one of `PARTS` and one of `SIDES`."""
        return self._files[part, side]

    def lines(self, part: str, side: str) -> list[str]:
        """Return the lines of a part and side."""
        return read_lines(self.path(part, side))


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file; a final newline is optional."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return lines if lines[-1] else lines[:-1]


def shared_vocabulary(data: PreparedData) -> Vocabulary:
    """Return the vocabulary that source and target share.

    Raises:
        DataError: source and target have different vocabularies.
    """
    source, target = data.source_vocabulary, data.target_vocabulary
    if list(source.files().values()) != list(target.files().values()):
        raise DataError(f"{data.directory}: source and target have different vocabularies, but the peers share one: "
                        "prepare with --shared-vocab.")
    return source


def write_pieces(texts: Texts, vocabulary: Vocabulary, folder: Path, valid: int, threads: int) -> None:
    """Write the subword files `train.src` ... `test.tgt` and the dictionaries `fairseq.txt` and `opennmt.txt`.

    Args:
        texts: text to encode.
        vocabulary: encodes both sides.
        folder: output directory.
        valid: number of validation sentences to write.
        threads: number of encoding threads.
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
    """Return the subwords of each line, joined by spaces."""
    return [" ".join(map(vocabulary.id_to_piece, ids)) for ids in vocabulary.encode_batch(lines, threads)]


def unpieced(lines: Sequence[str], vocabulary: Vocabulary) -> list[str]:
    """Return the detokenised text of lines of subwords."""
    return [vocabulary.decode(map(vocabulary.piece_to_id, line.split())) for line in lines]
