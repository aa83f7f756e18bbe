"""A trained model: a run's architecture, with the values of one of its checkpoints.

`Translator` and `Scorer` build their predictors with it; an export takes its weights, settings and vocabularies.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from tensorpack.predict import OfflinePredictor, PredictConfig
from tensorpack.tfutils.sessinit import SessionInit

from towernmt.checkpoint.held import HeldCheckpoint
from towernmt.checkpoint.packaged.packaged_run import open_run
from towernmt.checkpoint.provenance import check_vocabulary_of
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.checkpoint.saved_run import SavedRun, hold_checkpoint
from towernmt.checkpoint.weights import read_weight, weights_of_model
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import BUILDING
from towernmt.core.machine.forked import refuse_forked
from towernmt.core.machine.gpus import why_missing
from towernmt.core.session import SessionCreator
from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.terminal.stderr_noise import without_noise
from towernmt.core.terminal.terminal_log import mend_terminal
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.choices import PRECISIONS
from towernmt.models.interface import NMTModel
from towernmt.models.kernels.precision import set_precision


class TrainedModel:
    """A model and a checkpoint of it, whose files are held open until `close`.

    As a context manager it closes itself. Predictors that it made work on after that.

    Attributes:
        run: where the model comes from.
        model: untrained: a tower function.
        checkpoint: the checkpoint in use (TensorFlow's prefix).
        averaged: whether the moving averages of the weights take their place, where the checkpoint has them.
        device: TensorFlow's name of the device of predictors; None leaves it to TensorFlow.
        precision: of predictors' matrix products.
        source_vocabulary, target_vocabulary: the run's vocabularies.
    """

    def __init__(self, run: SavedRun | str | Path, checkpoint: str | HeldCheckpoint | None = None, *,
                 device: str | None = None, averaged: bool = True, model: NMTModel | type | None = None,
                 precision: str = PRECISIONS[0], trust_code: bool = False) -> None:
        """
        Args:
            run: the training run, its directory (its --logdir), or a package.
            checkpoint: "best", "last", "step-N" or the prefix of a checkpoint; by default the best by validation
                BLEU, or the last of a run without validation. One that is held already is closed with this.
            device: "cpu", "gpu" or "gpu:N", where predictors compute; by default a GPU if there is one.
            averaged: with the moving averages of the weights, where the run keeps them.
            model: the `NMTModel` of the run, or its class, where the run does not hold its code.
            precision: of predictors' matrix products: float32, bfloat16 or float16; see `models.kernels.precision`.
            trust_code: whether the code of a model in a package may be executed.
        Raises:
            CheckpointError: there is no such checkpoint.
            SettingsError: no run, a vocabulary that is not the run's, a GPU or a precision that is not there.
        """
        if precision not in PRECISIONS:
            raise SettingsError(f"precision={precision}: the graph here has {', '.join(PRECISIONS)}.")
        self.precision = precision
        self.run = open_run(run, trust_code)
        self.run.check_weights(averaged)
        self.averaged = averaged
        self.model = self.run.load_model(model)
        self._held = hold_checkpoint(self.run, checkpoint)
        self.checkpoint = self._held.original
        self.source_vocabulary, self.target_vocabulary = self.run.vocabularies()
        check_vocabulary_of(self._held, self.run.vocabulary)
        self.device = device_name(device)

    def predictor(self, tower: Callable[..., Any], signature: Sequence[TensorSpec],
                  outputs: Sequence[str], threads: int = 1) -> OfflinePredictor:
        """A function from arrays to arrays: a tower with the checkpoint's values, in a session of its own.

        Args:
            tower: builds its variables by `model`, from a tensor for each input.
            signature: the inputs.
            outputs: names of tensors that the tower makes.
            threads: how many threads call it at the same time: they share the processors.
        Raises:
            CheckpointError: the checkpoint is damaged, or does not fit the model.
            SettingsError: the process was forked from one that has used TensorFlow; also when the predictor is called.
        """
        return placed_predictor(tower, signature, outputs, self.initial_values(), self.device, threads, self.precision)

    def initial_values(self, scope: str = "") -> SessionInit:
        """Gives the variables of the graph the checkpoint's values.

        Args:
            scope: the variable scope under which the model was built; other variables are let alone. "" for none.
        """
        return RestoreCheckpoint(self._held, averaged=self.averaged, scope=scope)

    def weights(self) -> dict[str, np.ndarray]:
        """The value of every variable that predicting needs, by name; its moving average, where `averaged` says so.

        Raises:
            CheckpointError: the checkpoint is damaged, or lacks one of them.
        """
        return {name: read_weight(self._held, name, self.averaged) for name in weights_of_model(self.model)}

    def close(self) -> None:
        """Let the checkpoint's files go."""
        self._held.close()

    def __enter__(self) -> TrainedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def placed_predictor(tower: Callable[..., Any], signature: Sequence[TensorSpec], outputs: Sequence[str],
                     values: SessionInit, device: str | None, threads: int = 1,
                     precision: str = PRECISIONS[0]) -> OfflinePredictor:
    """See `TrainedModel.predictor`.

    Args:
        values: gives the tower's variables their values.
        device: TensorFlow's name; None leaves it to TensorFlow.
        threads: see there.
        precision: of matrix products.
    """
    def placed(*inputs: Tensor) -> Any:
        set_precision(precision)
        with tf1.device(device) if device else nullcontext():
            return tower(*inputs)

    return make_predictor(PredictConfig(
        tower_func=placed, input_signature=list(signature), input_names=[spec.name for spec in signature],
        output_names=list(outputs), session_creator=SessionCreator(threads, runs_in_caller=True), session_init=values))


class _Predictor(OfflinePredictor):
    """tensorpack's, which refuses to be called in a process that was forked from its own."""

    def __init__(self, config: PredictConfig) -> None:
        super().__init__(config)
        self._process = os.getpid()

    def _do_call(self, dp: Sequence[np.ndarray]) -> list[np.ndarray]:
        refuse_forked(self._process)
        outputs: list[np.ndarray] = super()._do_call(dp)
        return outputs


def make_predictor(config: PredictConfig) -> OfflinePredictor:
    """tensorpack's predictor, without TensorFlow's noise and tensorpack's own steps on the terminal.

    One thread at a time builds one, since tensorpack has one tower context a process.
    """
    mend_terminal()
    with BUILDING, without_noise(), _uncollected():
        return _Predictor(config)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python does not look for garbage inside: the many objects of a graph that is built are none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def device_name(device: str | None) -> str | None:
    """TensorFlow's name of a device.

    Raises:
        SettingsError: not a device's name, or there is no such GPU.
    """
    if device is None:
        return None
    match = re.fullmatch(r"/?(cpu|gpu)(?::(\d+))?", device.lower())
    if match is None:
        raise SettingsError(f"device '{device}': choose cpu, gpu or gpu:N.")
    kind, index = match[1], int(match[2] or 0)
    found = len(tf.config.list_physical_devices("GPU"))
    if kind == "gpu" and index >= found:
        why = "" if found else f": {why_missing()}"
        raise SettingsError(f"device '{device}': TensorFlow sees {found} GPUs on this machine{why}. "
                            "Leave the device out to translate on the CPU.")
    return f"/{kind}:{index}"
