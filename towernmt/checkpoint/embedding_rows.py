"""Fill embedding tables by rows: grow a checkpoint to a new vocabulary, or load pretrained embeddings.

Growing copies the rows of subwords that both vocabularies have, and combines those of new subwords from old ones.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tensorpack.tfutils.sessinit import SessionInit
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext
from tensorpack.utils import logger

from towernmt.checkpoint.checkpoint_files import write_checkpoint
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.records import MADE_FROM
from towernmt.checkpoint.weights import KEY as WEIGHTS
from towernmt.checkpoint.weights import (
    read_weight,
    refuse_missing,
    refuse_unknown,
    weights_of_checkpoint,
    weights_of_graph,
    weights_of_model,
)
from towernmt.core.errors import CheckpointError, DataError, SettingsError, remedy
from towernmt.core.graph_state import BUILDING
from towernmt.core.session import session_config
from towernmt.core.tensors import Session, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.text.text_lines import bounded_lines
from towernmt.dataflow.vocabulary.base import UNK, Vocabulary
from towernmt.dataflow.vocabulary.sentencepiece_model import SPACE
from towernmt.models.interface import NMTModel
from towernmt.models.layers.randomness import set_seed
from towernmt.optim.optimizer import averages

TABLES = {"embedding": "source", "source_embedding": "source", "target_embedding": "target",
          "softmax_embedding": "target", "softmax_bias": "target"}
"""The last component of the name of each variable with one row per subword, and the side of its vocabulary. (Tables of
source factors are named `source_factor_1_embedding` and so on, and their vocabularies `source_factor_1`.)"""


_FACTOR_TABLE = re.compile(r"(source_factor_\d+)_embedding")


NEW_SUBWORD_PENALTY = 2.0
"""Reduction of the softmax bias of a new subword. Without it, a grown model writes new subwords where it wrote old
ones: a model of Tatoeba fell from 52.6 to 47.2 BLEU, and with this value only to 52.4 (docs/notes/measurements.md,
"A trained model in another domain")."""


LEAST_BIAS = -50.0
"""No trained softmax bias is lower. Imported models have lower ones for subwords that they never write, such as source
subwords that their shared table lacks."""


class RowOrigin(NamedTuple):
    """The old subwords that a subword of a new vocabulary corresponds to.

    Attributes:
        ids: their ids: one for a subword of both vocabularies; the segmentation of a new subword by the old vocabulary,
            or none if it has an unknown character.
        is_new: whether the old vocabulary does not have the subword.
        is_switched_on: whether the old vocabulary marks the subword as unused, and the new one does not.
    """

    ids: list[int]
    is_new: bool = False
    is_switched_on: bool = False


def row_origins(old_vocabulary: Vocabulary, new_vocabulary: Vocabulary) -> list[RowOrigin]:
    """Return the old subwords that each subword of the new vocabulary corresponds to.

    Raises:
        SettingsError: the vocabularies are of different kinds, which spell their subwords differently.
    """
    if old_vocabulary.kind != new_vocabulary.kind:
        raise SettingsError(f"The run has a {old_vocabulary.kind} vocabulary, but the new one is of kind "
                            f"{new_vocabulary.kind}: prepare the data with the --vocab-kind of the run's data.")
    return [RowOrigin([id]) if id <= UNK else _row_origin(id, old_vocabulary, new_vocabulary)
            for id in range(new_vocabulary.size)]


def _row_origin(id: int, old_vocabulary: Vocabulary, new_vocabulary: Vocabulary) -> RowOrigin:
    piece, text = new_vocabulary.id_to_piece(id), new_vocabulary.decode([id])
    same = old_vocabulary.piece_to_id(piece)
    if same != UNK:
        is_switched_on = old_vocabulary.is_unused(same) and not new_vocabulary.is_unused(id)
        return RowOrigin([same], is_switched_on=is_switched_on)
    ids = old_vocabulary.encode(text)
    if ids and piece.startswith(text):      # within a word, so without the space mark that the encoding has added
        first = old_vocabulary.id_to_piece(ids[0]).removeprefix(SPACE)
        within = old_vocabulary.piece_to_id(first) if first else UNK
        ids[:1] = [within] if within != UNK else ids[:1] if first else []
    return RowOrigin([] if UNK in ids else ids, is_new=True)


def origins_in_both(source: Sequence[RowOrigin], target: Sequence[RowOrigin]) -> list[RowOrigin]:
    """Return the origins of the rows of a table that both languages share: those with the fewest old subwords.

    A vocabulary of one language may lack characters of the other one, or mark its subwords as unused.

    Args:
        source: `row_origins` of the source vocabulary.
        target: `row_origins` of the target vocabulary, which has the same subwords.
    """
    return [min(origins, key=lambda origin: len(origin.ids) or math.inf)
            for origins in zip(source, target, strict=True)]


def grow_checkpoint(checkpoint: OpenCheckpoint, model: NMTModel, origins: Mapping[str, Sequence[RowOrigin]],
                    output: Path, seed: int, made_from: dict[str, str]) -> Path:
    """Write the weights of a checkpoint as `step-0` of a model with other vocabularies.

    Each row of a table is the mean of the rows of the old subwords, as in Gee et al. (2022), "Fast vocabulary transfer
    for language model compression". Without old subwords, it is as in an untrained model. The softmax bias of a new
    subword is lower by `NEW_SUBWORD_PENALTY`. A subword that the old model never writes
    (`LEAST_BIAS`) and that the new vocabulary has switched on gets the median of the other biases, reduced by the same
    value. If a weight has a moving average, the average is written. Weights that only training uses are kept.

    Args:
        checkpoint: the checkpoint.
        model: the model with the sizes of the new vocabularies.
        origins: `row_origins` for "source", "target", "source_factor_1" and so on.
        output: the directory in which `step-0` is written.
        seed: the seed of the initial values.
        made_from: the fingerprints of the new checkpoint.

    Returns:
        the new checkpoint.

    Raises:
        CheckpointError: the checkpoint is damaged or of another model, or the new one cannot be written.
    """
    state: dict[str, Any] = {"step": 0, "position": None, "callbacks": {}, "grown_from": checkpoint.name}
    fix = "grow a run of the model that the checkpoint was trained with."
    required_names, saved_shapes = weights_of_model(model), checkpoint.shapes()
    for name in required_names:
        if name not in saved_shapes:
            refuse_missing(checkpoint, name, fix, model)
    refuse_unknown(checkpoint, required_names, fix, model=model)
    with_training = not {*weights_of_checkpoint(checkpoint)} <= {*required_names}
    with BUILDING, tf.Graph().as_default(), tf1.Session(config=session_config(on_cpu=True)) as session:
        set_seed(seed)
        tf1.set_random_seed(seed)
        inputs = [tf1.placeholder(spec.dtype, spec.shape, spec.name) for spec in model.inputs()]
        with TrainTowerContext("") if with_training else PredictTowerContext(""):
            model.build_graph(*inputs)
        weights = {*required_names, *(name for name in weights_of_graph() if name in saved_shapes)}
        variables = [variable for variable in tf1.global_variables() if variable.op.name in weights]
        state |= {WEIGHTS: sorted(weights), MADE_FROM: made_from}
        for variable in variables:
            _load(variable, checkpoint, origins, session)
        return write_checkpoint(tf1.train.Saver(variables), session, output, 0, state)


def side_of_table(variable: str) -> str | None:
    """Return the name of the vocabulary that has a subword for each row of a variable: "source", "target" or a factor.

    Args:
        variable: the name of the variable.

    Returns:
        None if the variable is not a table of subwords.
    """
    last = variable.split("/")[-1]
    factor = _FACTOR_TABLE.fullmatch(last)
    return factor[1] if factor is not None else TABLES.get(last)


def _load(variable: Variable, checkpoint: OpenCheckpoint, origins: Mapping[str, Sequence[RowOrigin]], session: Session
          ) -> None:
    """Assign the value of a variable in the checkpoint; of a table, the means of the rows of the old subwords.

    Raises:
        CheckpointError: the shapes differ, or the rows of a table are not those of its vocabulary.
    """
    name, shape = variable.op.name, variable.shape.as_list()
    saved_value = read_weight(checkpoint, name)
    side = side_of_table(name)
    rows = None if side is None else origins.get(side)
    if rows is None:
        fits = list(saved_value.shape) == shape
    else:
        fits = (list(saved_value.shape[1:]) == shape[1:] and len(rows) == shape[0]
                and len(saved_value) > max(max(row.ids, default=0) for row in rows))
    if not fits:
        raise CheckpointError(f"{checkpoint.name}: variable '{name}' has shape {list(saved_value.shape)} in this "
                              f"checkpoint but {shape} in the grown model: choose another checkpoint of the run. In a "
                              f"custom model, use the names {', '.join(TABLES)} for tables with one row per subword, "
                              "and for these only.")
    if rows is None:
        variable.load(saved_value, session)
        return
    session.run(variable.initializer)
    value = session.run(variable)
    for id, row in enumerate(rows):
        if row.ids:
            value[id] = saved_value[row.ids[0]] if len(row.ids) == 1 else saved_value[row.ids].mean(axis=0)
    if name.split("/")[-1] == "softmax_bias":
        value[[row.is_new for row in rows]] -= NEW_SUBWORD_PENALTY
        never_written = value < LEAST_BIAS
        switched_on = never_written & [row.is_switched_on for row in rows]
        value[switched_on] = np.median(value[~never_written]) - NEW_SUBWORD_PENALTY
    variable.load(value, session)


_INPUT_TABLES = {"source": ("embedding", "source_embedding"), "target": ("embedding", "target_embedding")}


def read_embeddings(path: str | Path, vocabulary: Vocabulary, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the vectors of a file for the subwords of a vocabulary.

    Args:
        path: a matrix in NumPy's format (`.npy`), `[vocabulary size, depth]`, with the rows in the order of the ids; or
            text in word2vec's format: on each line a subword and its values, separated by single spaces, with an
            optional first line of the numbers of subwords and values. Subwords are spelled as in the vocabulary
            ("▁house" in SentencePiece). If a subword has several lines, the first counts.
        vocabulary: the vocabulary.
        depth: the depth of the model's embeddings.

    Returns:
        ids int64 `[vectors]` in ascending order, and vectors float32 `[vectors, depth]`.

    Raises:
        DataError: the file cannot be read, or a line is damaged.
        SettingsError: the sizes differ from those of the model.
    """
    try:
        if str(path).endswith(".npy"):
            return _read_numpy(path, vocabulary, depth)
        return _read_text(path, vocabulary, depth)
    except OSError as error:
        advice = remedy(error, "Set init.source_embeddings and init.target_embeddings to existing files.")
        raise DataError(f"{path}: cannot read the embeddings ({error.strerror or error}). {advice}") from error


def _read_numpy(path: str | Path, vocabulary: Vocabulary, depth: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a matrix in NumPy's format ({error}). Write it with numpy.save.") from error
    if not isinstance(matrix, np.ndarray):
        raise DataError(f"{path}: holds several arrays (.npz), not one matrix. Write the matrix with numpy.save.")
    if matrix.shape != (vocabulary.size, depth) or not np.issubdtype(matrix.dtype, np.floating):
        raise SettingsError(f"{path}: got a {matrix.dtype} matrix of shape {list(matrix.shape)}; the vocabulary and "
                            f"the model need floating-point numbers of shape [{vocabulary.size}, {depth}].")
    with np.errstate(over="ignore"):        # float64 may hold numbers that float32 cannot
        vectors = np.asarray(matrix, np.float32)
    bad_rows = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad_rows):
        raise DataError(f"{path}: row {bad_rows[0]} (counted from 0) has a value that is not finite in float32. Fix "
                        "the matrix.")
    return np.arange(vocabulary.size), vectors


def _read_text(path: str | Path, vocabulary: Vocabulary, depth: int) -> tuple[np.ndarray, np.ndarray]:
    ids_by_piece = {vocabulary.id_to_piece(id): id for id in range(vocabulary.size)}
    vectors: dict[int, np.ndarray] = {}
    with open(path, "rb") as stream:
        for line_number, line in enumerate(bounded_lines(stream, str(path)), 1):
            subword, *values = line.decode("utf-8", errors="surrogateescape").rstrip("\r\n ").rsplit(" ", depth)
            if line_number == 1 and len(values) == 1 and subword.isdecimal() and values[0].isdecimal():
                if int(values[0]) != depth:
                    raise SettingsError(f"{path}: the vectors have {values[0]} values, but the model's embeddings have "
                                        f"{depth}: set that depth, or use other vectors.")
                continue
            if len(values) != depth:
                raise DataError(f"{path} line {line_number}: got {len(values)} values; the model's embeddings need "
                                f"{depth}. Write a subword and its values, separated by single spaces.")
            id = ids_by_piece.get(subword)
            if id is not None and id not in vectors:
                vectors[id] = _vector(values, f"{path} line {line_number}")
    ids = np.array(sorted(vectors), np.int64)
    return ids, np.array([vectors[id] for id in ids.tolist()], np.float32).reshape(-1, depth)


def _vector(values: list[str], location: str) -> np.ndarray:
    try:
        vector = np.array(values, np.float32)
    except ValueError as error:
        raise DataError(f"{location}: not a vector of numbers ({error}): fix or remove the line.") from error
    if not np.isfinite(vector).all():
        raise DataError(f"{location}: a value is not finite: fix or remove the line.")
    return vector


class PretrainedEmbeddings(SessionInit):
    """A tensorpack `SessionInit` that loads vectors from files into a model's embedding tables.

    Subwords that are missing in a file keep their initial values. A table that source and target share is filled from
    both files, the target's last. The moving average of a table, if the run has one, begins with the same values.

    Args:
        files: "source", "target" or both, mapped to files for `read_embeddings`.
        vocabularies: "source" and "target", mapped to the vocabularies of the data.

    Raises:
        SettingsError: the model does not have exactly one such table, or the sizes differ.
        DataError: a file cannot be read, or has no subword of the vocabulary.
    """

    def __init__(self, files: Mapping[str, str | Path], vocabularies: Mapping[str, Vocabulary]) -> None:
        self._files, self._vocabularies = files, vocabularies
        self._vectors: list[tuple[Variable, np.ndarray, np.ndarray]] = []

    def _setup_graph(self) -> None:
        self._vectors, averaged = [], averages()
        for side, path in self._files.items():
            tables = [v for v in tf1.trainable_variables() if v.op.name.split("/")[-1] in _INPUT_TABLES[side]]
            if len(tables) != 1:
                raise SettingsError(f"{path}: the model has {len(tables)} {side} embedding tables; these vectors need "
                                    "exactly one.")
            vocabulary = self._vocabularies[side]
            ids, vectors = read_embeddings(path, vocabulary, int(tables[0].shape[1]))
            if not len(ids):
                raise DataError(f"{path}: none of its subwords is in the {side} vocabulary, which spells them such as "
                                f"'{vocabulary.id_to_piece(vocabulary.size - 1)}'.")
            logger.info(f"{path}: vectors for {len(ids)} of the {vocabulary.size} subwords of the {side} vocabulary.")
            name = tables[0].op.name
            self._vectors += [(table, ids, vectors) for table in (
                tables[0], *([averaged[name]] if name in averaged else []))]

    def _run_init(self, sess: Session) -> None:
        for table, ids, vectors in self._vectors:
            values = sess.run(table)
            values[ids] = vectors
            table.load(values, sess)
