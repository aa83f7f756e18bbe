"""Marian's vocabularies as ours: which piece each row of a table is, and what divides text into these pieces.

Marian numbers pieces by a list (`vocab.yml`: `</s>` 0, `<unk>` 1), and something else divides the text; a piece that is
not in the list is unknown. Or one SentencePiece model does both.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from towernmt.core.errors import DataError
from towernmt.dataflow.vocabulary.base import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from towernmt.importing.pieces import PieceTable

_EOS_ID, _UNK_ID = 0, 1


def read_table(file: Path, rows: int) -> PieceTable:
    """The pieces of a vocabulary.

    Args:
        file: `.yml`, `.json`, `.txt` (a piece a line), or `.spm`.
        rows: of the model's table: pieces behind them are unknown to it.
    Raises:
        DataError: the file cannot be read, or numbers pieces in another way than Marian.
    """
    pieces = _pieces_of_model(file) if file.suffix == ".spm" else _pieces_of_list(file)
    if pieces[_EOS_ID:_UNK_ID + 1] != [SPECIAL_PIECES[EOS], SPECIAL_PIECES[UNK]]:
        raise DataError(f"{file}: its first pieces are {pieces[:2]}, and Marian's are </s> and <unk>: it is another "
                        "program's, or not the vocabulary of this model.")
    special = {EOS: _EOS_ID, UNK: _UNK_ID, **{id: _row(pieces, SPECIAL_PIECES[id]) for id in (PAD, BOS)}}
    taken = {row for row in special.values() if row is not None}
    words = [(piece, row) for row, piece in enumerate(pieces[:rows]) if row not in taken]
    nameless = [(f"<row_{row}>", row) for row in range(len(pieces), rows)]
    return PieceTable.of({id: row for id, row in special.items() if row is not None and row < rows}, words + nameless)


def _row(pieces: list[str], piece: str) -> int | None:
    return pieces.index(piece) if piece in pieces else None


def _pieces_of_model(file: Path) -> list[str]:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor()
    try:
        if not processor.LoadFromSerializedProto(file.read_bytes()):
            raise RuntimeError("empty")
    except (OSError, RuntimeError) as error:
        raise DataError(f"{file}: it is not a SentencePiece model, or a damaged one.") from error
    return [str(processor.id_to_piece(id)) for id in range(processor.get_piece_size())]


def _pieces_of_list(file: Path) -> list[str]:
    try:
        text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        if file.suffix == ".txt":
            return text.removesuffix("\n").split("\n")
        ids = dict(json.loads(text)) if file.suffix == ".json" else _ids_of_yaml(text)
        by_id = {int(id): str(piece) for piece, id in ids.items()}
    except (OSError, UnicodeDecodeError, ValueError, TypeError, yaml.YAMLError) as error:
        raise DataError(f"{file}: it is no vocabulary of Marian's, or a damaged one (a piece, a colon and its number "
                        "on each line).") from error
    if len(by_id) != len(ids) or sorted(by_id) != list(range(len(by_id))) or len(by_id) < _UNK_ID + 1:
        raise DataError(f"{file}: its {len(ids)} pieces do not have the numbers from 0 on, each once: the file is "
                        "damaged.")
    return [by_id[id] for id in range(len(by_id))]


def _ids_of_yaml(text: str) -> dict[str, int]:
    """Pieces and their ids, line by line: a piece may hold what YAML takes for the end of a line, a number or null."""
    ids: dict[str, int] = {}
    long_key: str | None = None     # a long piece stands on a line of its own
    for line in text.split("\n"):
        if long_key is not None and line.startswith(":"):
            key, number, long_key = long_key, line[1:], None
        elif line.startswith("? "):
            long_key = line[2:]
            continue
        elif not line.strip() or line.startswith(("#", "---", "...")) and ": " not in line:
            continue
        else:
            key, _, number = line.rpartition(":")
        piece = _unquoted(key)
        if piece in ids:
            raise ValueError(f"{piece} is there twice")
        ids[piece] = int(number)
    return ids


def _unquoted(key: str) -> str:
    if key[:1] == "'" == key[-1:] and len(key) > 1:
        return key[1:-1].replace("''", "'")
    if not (key[:1] == '"' == key[-1:] and len(key) > 1):
        return key
    if "\\" not in key:
        return key[1:-1]
    try:
        return str(json.loads(key))
    except ValueError:
        return str(yaml.load(key, Loader=yaml.BaseLoader))  # escapes that JSON has not; a scalar, as text
