"""A trained model: the architecture of a run with the weights of a checkpoint, and predictors for it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from tensorpack.predict import OfflinePredictor, PredictConfig
from tensorpack.tfutils.sessinit import SessionInit

from towernmt.checkpoint.checkpoint_files import CheckpointState
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.packaged_run import PackagedRun, open_run
from towernmt.checkpoint.records import check_vocabulary_of
from towernmt.checkpoint.restore import RestoreCheckpoint
from towernmt.checkpoint.saved_run import SavedRun, open_run_checkpoint
from towernmt.checkpoint.weights import read_weight, weights_of_model
from towernmt.core.errors import SettingsError
from towernmt.core.gpus import chosen_gpus
from towernmt.core.graph_state import BUILDING
from towernmt.core.machine import parse_device, refuse_forked
from towernmt.core.session import SessionCreator, count_gpus, missing_gpu, use_gpus, use_no_gpu
from towernmt.core.standard_streams import without_noise
from towernmt.core.tensors import Tensor, TensorSpec
from towernmt.core.terminal_log import configure_terminal_log
from towernmt.core.tf_compat import tf1
from towernmt.models.interface import NMTModel
from towernmt.models.kernels import set_precision
from towernmt.models.model_settings import PRECISIONS
from towernmt.optim.optimizer import AVERAGE_SUFFIX


class TrainedModel:
    """A model and a checkpoint of it, whose files are held open until `close`.

    As a context manager it closes itself. Its predictors still work after that.

    Args:
        run: a run, its directory (its --logdir) or a package.
        checkpoint: "best", "last", "step-N" or the prefix of a checkpoint; by default the average that the run kept
            at its end, else the best by validation, else the last. An open checkpoint is closed with this object.
        device: "cpu", "gpu" or "gpu:N", the device of predictors; by default a GPU if available.
        averaged: whether to use the moving averages of the weights, if the run has them.
        model: the `NMTModel` of the run, or its class, if the run does not contain its code.
        precision: dtype of matrix products: float32, bfloat16 or float16; see `models.kernels.set_precision`.
        trust_code: whether the code of a model in a package may be executed.

    Attributes:
        run: the run of the model.
        model: the untrained model, a tower function.
        checkpoint: the checkpoint in use (TensorFlow's prefix).
        averaged: whether the moving averages of the weights are used, if the checkpoint has them; see `uses_averages`.
        device: TensorFlow's name of the device of predictors; None on a machine without a GPU.
        precision: dtype of matrix products of predictors.
        source_vocabulary, target_vocabulary: the run's vocabularies.

    Raises:
        CheckpointError: the checkpoint does not exist.
        SettingsError: not a run, a different vocabulary, or a missing GPU or precision.
    """

    def __init__(self, run: SavedRun | str | Path, checkpoint: str | OpenCheckpoint | None = None, *,
                 device: str | None = None, averaged: bool = True, model: NMTModel | type | None = None,
                 precision: str = PRECISIONS[0], trust_code: bool = False) -> None:
        if precision not in PRECISIONS:
            raise SettingsError(f"precision={precision}: choose one of {', '.join(PRECISIONS)}.")
        self.precision = precision
        self.run = open_run(run, trust_code)
        self.run.check_weights(averaged)
        self.averaged = averaged
        self.model = self.run.load_model(model)
        self._held = open_run_checkpoint(self.run, checkpoint)
        self.checkpoint = self._held.original
        self.source_vocabulary, self.target_vocabulary = self.run.vocabularies()
        check_vocabulary_of(self._held, self.run.vocabulary)
        self.device = device_name(device)

    def predictor(self, tower: Callable[..., Any], signature: Sequence[TensorSpec],
                  outputs: Sequence[str], threads: int = 1) -> OfflinePredictor:
        """Return a function from arrays to arrays: a tower with the checkpoint's weights in a separate session.

        Args:
            tower: tower function, called with one tensor per input; builds its variables by `model`.
            signature: specifications of the inputs.
            outputs: names of output tensors of the tower.
            threads: number of threads that call it concurrently and share the processors.

        Raises:
            CheckpointError: the checkpoint is damaged, or does not match the model.
            SettingsError: the process was forked from one that has used TensorFlow; also when the predictor is called.
        """
        return predictor_on_device(tower, signature, outputs, self.initial_values(), self.device, threads,
                                   self.precision)

    def predict_config(self, tower: Callable[..., Any], signature: Sequence[TensorSpec],
                       outputs: Sequence[str]) -> PredictConfig:
        """Return the configuration of a tensorpack `OfflinePredictor`; see `predictor` for the arguments."""
        return config_on_device(tower, signature, outputs, self.initial_values(), self.device, precision=self.precision)

    def initial_values(self, scope: str = "") -> SessionInit:
        """Return an initialiser that gives the variables of the graph the values of the checkpoint.

        Args:
            scope: variable scope of the model; other variables are unchanged. "" for no scope.
        """
        return RestoreCheckpoint(self._held, averaged=self.averaged, scope=scope, model=self.model)

    @property
    def state(self) -> CheckpointState | None:
        """State of the checkpoint; None if another program wrote it."""
        return self._held.state()

    @property
    def step(self) -> int:
        """Number of updates of the checkpoint; 0 if another program wrote it."""
        state = self.state
        return 0 if state is None else state.step

    @property
    def has_averages(self) -> bool:
        """Whether the checkpoint has moving averages of the weights."""
        return self.run.manifest.averaged if isinstance(self.run, PackagedRun) else any(
            name.endswith(AVERAGE_SUFFIX) for name in self._held.shapes())

    @property
    def uses_averages(self) -> bool:
        """Whether the weights are moving averages: they were requested, and the checkpoint has them."""
        return self.averaged and self.has_averages

    def weights(self) -> dict[str, np.ndarray]:
        """Return the value of every variable that predicting uses, by name; its moving average if `averaged` is true.

        Raises:
            CheckpointError: the checkpoint is damaged, or lacks a variable.
        """
        names = weights_of_model(self.model, self._held.shapes())
        return {name: self.weight(name) for name in names}

    def weight(self, name: str) -> np.ndarray:
        """Return the value of one variable; its moving average if `averaged` is true.

        Unlike `weights`, it builds no graph: tensorpack has one tower context per process, which a thread must not
        enter while another thread builds a graph.

        Raises:
            CheckpointError: the checkpoint is damaged, or lacks the variable.
        """
        return read_weight(self._held, name, self.averaged)

    def close(self) -> None:
        """Close the files of the checkpoint."""
        self._held.close()

    def __enter__(self) -> TrainedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def predictor_on_device(tower: Callable[..., Any], signature: Sequence[TensorSpec], outputs: Sequence[str],
                     values: SessionInit, device: str | None, threads: int = 1,
                     precision: str = PRECISIONS[0]) -> OfflinePredictor:
    """Return the predictor of `config_on_device`, which has the same arguments."""
    return make_predictor(config_on_device(tower, signature, outputs, values, device, threads, precision))


def config_on_device(tower: Callable[..., Any], signature: Sequence[TensorSpec], outputs: Sequence[str],
                  values: SessionInit, device: str | None, threads: int = 1,
                  precision: str = PRECISIONS[0]) -> PredictConfig:
    """Return the configuration of a predictor on a device.

    Args:
        tower: tower function, called with one tensor per input.
        signature: specifications of the inputs.
        outputs: names of output tensors of the tower.
        values: initialises the tower's variables.
        device: TensorFlow's device name; None lets TensorFlow choose.
        threads: number of concurrent callers.
        precision: dtype of matrix products.
    """
    def tower_on_device(*inputs: Tensor) -> Any:
        set_precision(precision)
        with tf1.device(device) if device else nullcontext():
            return tower(*inputs)

    return PredictConfig(
        tower_func=tower_on_device, input_signature=list(signature), input_names=[spec.name for spec in signature],
        output_names=list(outputs), session_init=values,
        session_creator=SessionCreator(threads, runs_in_caller=True, on_cpu=device is None or "cpu" in device))


class _Predictor(OfflinePredictor):
    """tensorpack's predictor, which raises an error in a process that was forked from its own."""

    def __init__(self, config: PredictConfig) -> None:
        super().__init__(config)
        self._process = os.getpid()

    def _do_call(self, dp: Sequence[np.ndarray]) -> list[np.ndarray]:
        refuse_forked(self._process)
        outputs: list[np.ndarray] = super()._do_call(dp)
        return outputs


def make_predictor(config: PredictConfig) -> OfflinePredictor:
    """Return tensorpack's predictor, built without log messages of TensorFlow and tensorpack on the terminal.

    Only one thread at a time builds a predictor, since tensorpack has one tower context per process.
    """
    configure_terminal_log()
    with BUILDING, without_noise(), _without_garbage_collection():
        return _Predictor(config)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in the block, since the many objects of a new graph are all in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def device_name(device: str | None) -> str | None:
    """Return TensorFlow's name of a device; the sessions of this process then see it, if it is a GPU.

    Args:
        device: "cpu", "gpu" or "gpu:N"; None for the first GPU that this process uses, or the first one of the machine.

    Returns:
        None for the CPU of a machine without a GPU, unless "cpu" is specified.

    Raises:
        SettingsError: not a device name, or a missing GPU.
    """
    if device is None:
        return use_gpus(chosen_gpus()[:1] or [0])[0] if count_gpus() else None
    kind, index = parse_device(device)
    if kind == "cpu":
        use_no_gpu()
        return f"/cpu:{index}"
    if missing := missing_gpu([index]):
        raise SettingsError(f"device '{device}': {missing}. Leave the device out to translate on the CPU.")
    return use_gpus([index])[0]
