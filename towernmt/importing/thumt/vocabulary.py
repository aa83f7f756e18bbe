"""THUMT's vocabularies: a word a line, with the names of special words in the hyper-parameters."""

from __future__ import annotations

from pathlib import Path

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from towernmt.importing.pieces import PieceTable
from towernmt.importing.thumt.hyper_parameters import HyperParameters

_SPECIAL = {PAD: ("pad", "<pad>"), EOS: ("eos", "<eos>"), UNK: ("unk", "<unk>"), BOS: ("bos", "<eos>")}
"""By our id: the hyper-parameter with its name, and the usual name. BOS is read by nothing, as decoders begin from
zeros; but the softmax may have a row for it."""


def read_table(file: Path, rows: int, values: HyperParameters) -> PieceTable:
    """The pieces of a vocabulary.

    Args:
        rows: of the model's table.
    Raises:
        DataError: it cannot be read, or is not the model's.
    """
    words = _words(file)
    if values.get("append_eos", False):
        words.append(str(values.get("eos", "<eos>")))
    if len(words) != rows:
        raise DataError(f"{file}: it has {len(words)} words, and the model {rows}: is it this model's vocabulary?")
    row_of = {word: row for row, word in enumerate(words)}
    if len(row_of) != len(words):
        twice = next(word for row, word in enumerate(words) if row_of[word] != row)
        raise DataError(f"{file}: the word {twice} is there twice, with which THUMT does not train: is it a "
                        "vocabulary of THUMT?")
    special: dict[int, int] = {}
    for ours, (name, usual) in _SPECIAL.items():
        word = str(values.get(name, usual))
        if word in row_of and row_of[word] not in special.values():
            special[ours] = row_of[word]
    for ours in (EOS, UNK):
        if ours not in special:
            raise DataError(f"{file}: it has no {values.get(*_SPECIAL[ours])}, which every vocabulary of THUMT has.")
    named = [(f"<word {row}>" if word in ("", *SPECIAL_PIECES) else word, row)
             for row, word in enumerate(words) if row not in special.values()]
    return PieceTable.of(special, named)


def _words(file: Path) -> list[str]:
    try:
        return [line.strip() for line in file.read_bytes().decode("utf-8").removesuffix("\n").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: the vocabulary cannot be read, or is not UTF-8.") from error
