"""Growing a checkpoint's vocabulary: the rows of pieces that both vocabularies have are kept, new ones initialised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.checkpoint.files import write_checkpoint
from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.checkpoint.provenance import MADE_FROM
from towernmt.checkpoint.weights import KEY as WEIGHTS
from towernmt.checkpoint.weights import read_weight, refuse_unknown, weights_of_graph
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.tensors import Session, Variable
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import UNK, Vocabulary
from towernmt.models.interface import NMTModel
from towernmt.models.layers.randomness import set_seed

TABLES = {"embedding": "source", "source_embedding": "source", "target_embedding": "target",
          "softmax_embedding": "target", "softmax_bias": "target"}
"""The last part of the name of each variable with a row a piece, and the side whose pieces they are. (Those of the
source factors are `source_factor_1_embedding` and so on, and their vocabularies `source_factor_1`.)"""


def common_rows(old: Vocabulary, new: Vocabulary) -> np.ndarray:
    """For each id of `new` the id of the same piece in `old`, -1 where there is none: int64 `[new size]`.

    Raises:
        SettingsError: the vocabularies are of different kinds, which write their pieces in different ways.
    """
    if old.kind != new.kind:
        raise SettingsError(f"the run has a {old.kind} vocabulary and the new one is of kind {new.kind}: prepare the "
                            "data with the same --vocab-kind.")
    rows = np.array([old.piece_to_id(new.id_to_piece(id)) for id in range(new.size)])
    rows[rows == UNK] = -1
    rows[:UNK + 1] = range(UNK + 1)
    return rows


def grow_checkpoint(held: HeldCheckpoint, model: NMTModel, rows: Mapping[str, np.ndarray], output: Path, seed: int,
                    made_from: dict[str, str]) -> Path:
    """Write the weights of a checkpoint as `step-0` of a model with other vocabularies.

    Each row of a table is that of the same piece; the row of a new piece is as in an untrained model. If a weight has
    a moving average, that is written.

    Args:
        held: the checkpoint.
        model: with the sizes of the new vocabularies.
        rows: `common_rows` for "source", "target" and "source_factor_1" and so on.
        output: the directory in which `step-0` is written.
        seed: of the initial values.
        made_from: the fingerprints that the new checkpoint holds.
    Returns:
        the new checkpoint.
    Raises:
        CheckpointError: it is damaged or another model's, or the new one cannot be written.
    """
    state: dict[str, Any] = {"format": 1, "step": 0, "position": None, "callbacks": {}, "grown_from": held.name}
    with tf.Graph().as_default(), tf1.Session() as session:
        set_seed(seed)
        with PredictTowerContext(""):
            model.build_graph(*[tf1.placeholder(spec.dtype, spec.shape) for spec in model.inputs()])
        variables = tf1.global_variables()
        refuse_unknown(held, {v.op.name for v in variables}, "grow a run of the model that it was trained with.")
        state |= {WEIGHTS: weights_of_graph(), MADE_FROM: made_from}
        for variable in variables:
            _load(variable, held, rows, session)
        return write_checkpoint(tf1.train.Saver(variables), session, output, 0, state)


def _load(variable: Variable, held: HeldCheckpoint, rows: Mapping[str, np.ndarray], session: Session) -> None:
    """Give a variable of the grown model its value."""
    name, shape = variable.op.name, variable.shape.as_list()
    value = read_weight(held, name)
    last = name.split("/")[-1]
    side = TABLES.get(last, last.removesuffix("_embedding"))
    if list(value.shape[side in rows:]) != shape[side in rows:]:
        raise CheckpointError(f"{held.name}: variable '{name}' has shape {list(value.shape)} in this checkpoint and "
                              f"{shape} in the grown model: name another checkpoint of the run; or, in a model of "
                              f"one's own, call a table with a row a piece by one of {', '.join(TABLES)}.")
    if side in rows:
        session.run(variable.initializer)
        places, old = rows[side], value
        value = session.run(variable)
        value[places >= 0] = old[places[places >= 0]]
    variable.load(value, session)
