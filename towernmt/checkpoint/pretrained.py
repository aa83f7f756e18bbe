"""Embeddings that were trained elsewhere, as the first values of a model's tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tensorpack.tfutils.sessinit import SessionInit
from tensorpack.utils import logger

from towernmt.core.errors import DataError, SettingsError
from towernmt.core.tensors import Session, Variable
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.vocabulary.base import Vocabulary

_TABLES = {"source": ("embedding", "source_embedding"), "target": ("embedding", "target_embedding")}


def read_embeddings(path: str | Path, vocabulary: Vocabulary, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of a file for the pieces of a vocabulary.

    Args:
        path: a matrix in NumPy's format (`.npy`), `[vocabulary size, depth]`, its rows in the order of the ids; or text
            as word2vec writes it: a line a piece, the piece and its values with one space between them, and perhaps
            a first line with the numbers of pieces and values. The pieces are written as the vocabulary has them
            ("▁house" in SentencePiece's); the first line of a piece counts.
        depth: of the model's embeddings.
    Returns:
        ids int64 `[found]`, ascending, and vectors float32 `[found, depth]`.
    Raises:
        DataError: the file cannot be read, or a line is damaged.
        SettingsError: its sizes are not the model's.
    """
    try:
        if str(path).endswith(".npy"):
            return _read_numpy(path, vocabulary, depth)
        return _read_text(path, vocabulary, depth)
    except OSError as error:
        raise DataError(f"{path}: cannot read the embeddings ({error.strerror or error}).") from error


def _read_numpy(path: str | Path, vocabulary: Vocabulary, depth: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: not a matrix in NumPy's format ({error}); write it with numpy.save.") from error
    if matrix.shape != (vocabulary.size, depth) or not np.issubdtype(matrix.dtype, np.floating):
        raise SettingsError(f"{path}: a {matrix.dtype} matrix of {list(matrix.shape)}, where the vocabulary and the "
                            f"model need floating-point numbers of [{vocabulary.size}, {depth}].")
    return np.arange(vocabulary.size), np.asarray(matrix, np.float32)


def _read_text(path: str | Path, vocabulary: Vocabulary, depth: int) -> tuple[np.ndarray, np.ndarray]:
    wanted = {vocabulary.id_to_piece(id): id for id in range(vocabulary.size)}
    found: dict[int, np.ndarray] = {}
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            piece, *values = line.rstrip("\n ").rsplit(" ", depth)
            if number == 1 and len(values) == 1 and piece.isdecimal() and values[0].isdecimal():
                if int(values[0]) != depth:
                    raise SettingsError(f"{path}: vectors of {values[0]} values, where the model's embeddings have "
                                        f"{depth}: set that depth, or take other vectors.")
                continue
            if len(values) != depth:
                raise DataError(f"{path} line {number}: {len(values)} values where {depth} were expected, the depth of "
                                "the model's embeddings: a piece, and its values with one space between them.")
            id = wanted.get(piece)
            if id is not None and id not in found:
                found[id] = _vector(values, f"{path} line {number}")
    ids = np.array(sorted(found), np.int64)
    return ids, np.array([found[id] for id in ids.tolist()], np.float32).reshape(-1, depth)


def _vector(values: list[str], where: str) -> np.ndarray:
    try:
        vector = np.array(values, np.float32)
    except ValueError as error:
        raise DataError(f"{where}: not a vector of numbers ({error}): mend or remove the line.") from error
    if not np.isfinite(vector).all():
        raise DataError(f"{where}: a value is not finite: mend or remove the line.")
    return vector


class PretrainedEmbeddings(SessionInit):
    """Put vectors from files into a model's embedding tables when training begins (a tensorpack `SessionInit`).

    Pieces that a file does not have keep their initial values. A table that serves source, target or softmax together
    is filled from both files, the target's last.

    Args:
        files: "source" and "target", or one of them, to a file for `read_embeddings`.
        vocabularies: "source" and "target" to the vocabularies of the data.
    Raises:
        SettingsError: the model has no such table, or the sizes differ.
        DataError: a file cannot be read, or has none of the vocabulary's pieces.
    """

    def __init__(self, files: Mapping[str, str | Path], vocabularies: Mapping[str, Vocabulary]) -> None:
        self._files, self._vocabularies = files, vocabularies
        self._vectors: list[tuple[Variable, np.ndarray, np.ndarray]] = []

    def _setup_graph(self) -> None:
        self._vectors = []
        for side, path in self._files.items():
            tables = [v for v in tf1.trainable_variables() if v.op.name.split("/")[-1] in _TABLES[side]]
            if len(tables) != 1:
                raise SettingsError(f"{path}: the model has {len(tables)} {side} embedding tables, not one to begin "
                                    "with these vectors.")
            vocabulary = self._vocabularies[side]
            ids, vectors = read_embeddings(path, vocabulary, int(tables[0].shape[1]))
            if not len(ids):
                raise DataError(f"{path}: none of its pieces is in the {side} vocabulary; write them as it does, such "
                                f"as '{vocabulary.id_to_piece(vocabulary.size - 1)}'.")
            logger.info(f"{path}: vectors for {len(ids)} of the {vocabulary.size} pieces of the {side} vocabulary.")
            self._vectors.append((tables[0], ids, vectors))

    def _run_init(self, sess: Session) -> None:
        for table, ids, vectors in self._vectors:
            values = sess.run(table)
            values[ids] = vectors
            table.load(values, sess)
