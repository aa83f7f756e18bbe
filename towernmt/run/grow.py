"""Growing a vocabulary: a trained run with another one; the rows of common pieces are kept, new ones initialised."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from tensorpack.tfutils.tower import PredictTowerContext
from tensorpack.utils import logger

from towernmt.checkpoint.files import write_checkpoint
from towernmt.checkpoint.held import HeldCheckpoint, again_if_gone
from towernmt.checkpoint.provenance import MADE_FROM, check_vocabulary_of, provenance, vocabulary_fingerprint
from towernmt.checkpoint.weights import KEY as WEIGHTS
from towernmt.checkpoint.weights import refuse_unknown, weights_of_graph
from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.dataflow.vocabulary.base import UNK, Vocabulary
from towernmt.dataflow.vocabulary.factored import factors_of
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies, save_vocabularies
from towernmt.models.layers.randomness import set_seed
from towernmt.optim.ema import SUFFIX
from towernmt.run.directory import RunDirectory
from towernmt.run.output_place import check_run_output
from towernmt.run.run_model import model_from_settings
from towernmt.run.settings import Settings, model_with_sizes

TABLES = {"embedding": "source", "source_embedding": "source", "target_embedding": "target",
          "softmax_embedding": "target", "softmax_bias": "target"}
"""The last part of the name of each variable with a row a piece, and the side whose pieces they are. (Those of the
source factors are `source_factor_1_embedding` and so on, and their vocabularies `source_factor_1`.)"""


def grow_vocabulary(run: RunDirectory, vocabulary: str | Path, output: str | Path,
                    checkpoint: str | None = None) -> Path:
    """Write a run with another vocabulary and the weights of a trained one.

    The row of a piece that both vocabularies have is kept, wherever it stands; a new piece's is what it would be in
    an untrained model; other weights are kept. Weights with a moving average are written as that. Train it on data
    with the new vocabulary by `init.checkpoint=OUTPUT`.

    Args:
        run: the trained one.
        vocabulary: a directory with the new vocabularies: `vocabulary/` of a run, or of prepared data.
        output: the new run's directory: settings, vocabularies, and one checkpoint.
        checkpoint: which one, as `towernmt translate --checkpoint` takes it; None for the best.
    Returns:
        the new checkpoint.
    Raises:
        SettingsError: there is a run in `output`, or the vocabularies do not suit the model.
        CheckpointError: the checkpoint is not there or damaged.
    """
    grown = RunDirectory(output)
    check_run_output(grown.path)
    source, target, shared = load_vocabularies(vocabulary)
    settings = run.settings()
    if getattr(settings.model, "tie_embeddings", "none") == "all" and not shared:
        raise SettingsError(f"{vocabulary}: source and target have vocabularies of their own, but the run has "
                            "model.tie_embeddings=all: prepare the data with --shared-vocab.")
    old, new = _by_name(*run.vocabularies()), _by_name(source, target)
    if len(old) != len(new):
        raise SettingsError(f"{vocabulary} has {len(new) - 2} source factors and the run has {len(old) - 2}: prepare "
                            "the data with as many.")
    factors = [factor.size for factor in factors_of(source)]
    model = model_with_sizes(settings, source.size, target.size)
    if factors:
        model = dataclasses.replace(model, source_factor_vocab_sizes=factors)
    settings = dataclasses.replace(settings, model=model)
    rows = {name: common_rows(old[name], new[name]) for name in new}
    for side, places in rows.items():
        logger.info(f"{side}: {int((places >= 0).sum())} of {len(places)} rows are kept.")
    held = again_if_gone(lambda: HeldCheckpoint(run.checkpoint(checkpoint)))
    check_vocabulary_of(held, run.vocabulary)
    with grown.writing("towernmt grow"):
        check_run_output(grown.path)        # nobody came first meanwhile
        try:
            save_vocabularies(source, target, grown.vocabulary)
            made_from = {"vocabulary": vocabulary_fingerprint(grown.vocabulary)}
            written = _write(settings, held, rows, grown, made_from)
            grown.save_settings(settings, provenance(made_from))     # last: only now it is a run
        except BaseException:
            for place in (grown.checkpoints, grown.vocabulary):
                shutil.rmtree(place, ignore_errors=True)
            raise
    return written


def _by_name(source: Vocabulary, target: Vocabulary) -> dict[str, Vocabulary]:
    """Both vocabularies, and those of the source factors."""
    factors = {f"source_factor_{number}": factor for number, factor in enumerate(factors_of(source), 1)}
    return {"source": source, "target": target, **factors}


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


def _write(settings: Settings, held: HeldCheckpoint, rows: dict[str, np.ndarray], grown: RunDirectory,
           made_from: dict[str, str]) -> Path:
    """Write the grown model's checkpoint."""
    state: dict[str, Any] = {"format": 1, "step": 0, "position": None, "callbacks": {}, "grown_from": held.name}
    with tf.Graph().as_default(), tf1.Session() as session:
        set_seed(settings.data.seed)
        model = model_from_settings(settings)
        with PredictTowerContext(""):
            model.build_graph(*[tf1.placeholder(spec.dtype, spec.shape) for spec in model.inputs()])
        variables = tf1.global_variables()
        saved = held.shapes()
        refuse_unknown(held, {v.op.name for v in variables}, "grow a run of the model that it was trained with.")
        state |= {WEIGHTS: weights_of_graph(), MADE_FROM: made_from}
        for variable in variables:
            _load(variable, held, saved, rows, session)
        return write_checkpoint(tf1.train.Saver(variables), session, grown.checkpoints, 0, state)


def _load(variable: Any, held: HeldCheckpoint, saved: dict[str, list[int]], rows: dict[str, np.ndarray],
          session: Any) -> None:
    """Give a variable of the grown model its value."""
    name, shape = variable.op.name, variable.shape.as_list()
    value = held.value(name + SUFFIX if name + SUFFIX in saved else name)
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
