"""Towers to one update: the synchronous trainer, with update cycles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorpack.input_source import StagingInput
from tensorpack.tfutils.common import get_global_step_var
from tensorpack.tfutils.tower import TrainTowerContext
from tensorpack.train.base import StopTraining
from tensorpack.train.tower import SingleCostTrainer
from tensorpack.utils import logger

from towernmt.callbacks.hooks.run_hooks import session_for
from towernmt.check.watch import TowerWatch
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.loop import ResumableLoop
from towernmt.core.machine.gpus import why_missing
from towernmt.core.runs import Run, belong_to
from towernmt.core.session import SessionCreator, processors
from towernmt.core.shared_batch import TOKENS, target_tokens_of_step
from towernmt.core.terminal.stderr_noise import without_noise
from towernmt.core.terminal.terminal_log import DETAIL, mend_terminal
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.optim.freeze import TrainedVariables
from towernmt.optim.gradients import Accumulator, sum_over_towers
from towernmt.train.callback_group import CallbackGroup
from towernmt.train.log_filter import mend_logger

GradsAndVars = list[tuple[Any, Any]]
CPU = "/cpu:0"


class SyncMultiGPUTrainer(SingleCostTrainer):
    """One tower a GPU (or several on the CPU), one update from their mean gradient.

    Every tower reads the same variables, under reuse: names in a checkpoint do not depend on the number
    of towers. The model's cost is scaled so that the mean over towers is the mean over all target tokens
    of the global batch (see `NMTModel.build_graph`); any other tensorpack `ModelDesc` works as with
    tensorpack's own trainers.

    With an update cycle of K (THUMT's term; gradient accumulation), one step reads K batches and makes one
    update, from the gradient averaged over all target tokens of the K batches.

    Args:
        gpus: GPU numbers, one tower each; or how many, 4 for the GPUs 0 to 3, as in tensorpack.
        towers: towers on the CPU, instead of `gpus`.
        update_cycle: batches an update.
        trained: which variables an update changes; None for all that are trainable.
        skip_out_of_memory: skip so many batches at most that run out of memory; what an update had changed by then
            stays. 0 stops at the first.
        staging: copy each batch of a `GeneralQueueInput` to the towers' devices while the one before is trained on;
            None: on GPUs, not on the CPU. Nothing but the time depends on it.
    Attributes:
        model: whose tower function is trained, where `towernmt.train.train` made it; for a `run_step` of your own.
        skipped_batches: how many ran out of memory.
    Raises:
        SettingsError: both or neither of `gpus` and `towers`, a GPU that is not there, a number below 1.
        TowerRuleError: when the graph is set up, of a tower function that breaks a rule.
    """

    def __init__(self, gpus: Sequence[int] | int | None = None, towers: int | None = None, update_cycle: int = 1,
                 trained: TrainedVariables | None = None, skip_out_of_memory: int = 0,
                 staging: bool | None = None) -> None:
        super().__init__()
        mend_logger()
        mend_terminal()
        if isinstance(gpus, int):
            gpus = range(gpus)
        self.tower_devices = tower_devices(gpus, towers)
        self.devices = list(range(len(self.tower_devices)))     # tensorpack's name for the list of towers
        if update_cycle < 1:
            raise SettingsError(f"train.update_cycle={update_cycle} must be at least 1.")
        self.update_cycle = update_cycle
        self.trained = trained or TrainedVariables()
        self.staging = gpus is not None if staging is None else staging
        self.model: Any = None
        self.skip_out_of_memory, self.skipped_batches = skip_out_of_memory, 0
        self._lost = ("", 0)
        self.diverged = False
        """Set by a callback that found values which are not finite: nothing is saved from then on."""
        self.loop = ResumableLoop()
        self._sessions: dict[Run, Any] = {}
        self.watch = TowerWatch()
        """Refuses towers that break the rules of tower functions (see docs/extend/tower-rules.md)."""

    def _setup_graph(self, input: Any, get_cost_fn: Callable[..., Any], get_opt_fn: Callable[[], Any]) -> list[Any]:
        self._input = input
        if self.staging and isinstance(input, GeneralQueueInput):
            input.stage()
        get_global_step_var()
        self.watch.attach(self.tower_func)
        tower_fn = self._make_get_grad_fn(input, self._share_of(get_cost_fn), get_opt_fn)
        towers = [self._build_tower(i, tower_fn) for i in range(len(self.devices))]
        gradients = self.trained.choose(sum_over_towers(towers))
        optimizer = get_opt_fn()
        if self.update_cycle == 1:
            self.train_op = optimizer.apply_gradients(gradients, name="train_op")
            return []
        accumulator = Accumulator(gradients, _weight(self.tower_func))
        clock = graph_state().clock
        advance = [] if clock is None else [clock.advance]
        self._collect_first = tf.group(accumulator.assign, *advance)
        self._collect_next = tf.group(accumulator.add, *advance)
        self.train_op = optimizer.apply_gradients(accumulator.with_current(), name="train_op")
        self._flush_op = tf.group(
            optimizer.apply_gradients(accumulator.without_current(), name="flush_op"),
            get_global_step_var().assign_add(1, read_value=False))
        return []

    def _share_of(self, get_cost_fn: Callable[..., Any]) -> Callable[..., Any]:
        """The cost divided by the number of towers, so that the sum of their gradients is the gradient of the mean.

        To divide the sum instead would be one more pass over all gradients.
        """
        def share_of_cost(*inputs: Any) -> Any:
            cost = get_cost_fn(*inputs)
            return cost / len(self.devices) if isinstance(cost, tf.Tensor) and len(self.devices) > 1 else cost

        return share_of_cost

    def _build_tower(self, index: int, tower_fn: Callable[[], GradsAndVars]) -> GradsAndVars:
        count = len(self.devices)
        name = f"tower{index}" if count > 1 else ""
        device = self.tower_devices[index]
        logger.info(f"Building training tower {index + 1} of {count} on {device} ...", extra=DETAIL)
        scope = tf1.variable_scope(tf1.get_variable_scope(), reuse=index > 0 or None)
        with tf1.device(_place(device, self.tower_devices[0])), scope, TrainTowerContext(
                name, index=index, total=count):
            return tower_fn()

    def initialize(self, session_creator: Any, session_init: Any) -> None:
        """tensorpack's, in a session whose threads suit the number of towers."""
        if isinstance(session_creator, SessionCreator):
            session_creator.cpu_towers = sum(device == CPU for device in self.tower_devices)
        with without_noise():
            super().initialize(session_creator, session_init)

    def setup_callbacks(self, callbacks: list[Any], monitors: list[Any]) -> None:
        """tensorpack's, with a group that keeps what fails at the end of training."""
        if self.update_cycle > 1:
            self._stage_in_cycles()
        super().setup_callbacks(callbacks, monitors)
        self._group = CallbackGroup(self._callbacks)
        self._callbacks: Any = self._group

    def _stage_in_cycles(self) -> None:
        """Let tensorpack's `StagingInput` see the batches of an update cycle, which would wait for it for ever."""
        for callback in self._callbacks:
            if isinstance(callback, StagingInput.StagingCallback):
                if isinstance(callback._input._input, GeneralQueueInput):
                    raise SettingsError(
                        f"train.update_cycle={self.update_cycle} cannot count the batches that tensorpack's "
                        "StagingInput holds: pass the GeneralQueueInput itself, and staging=True to the trainer.")
                belong_to(callback, Run.TRAIN_STEP, Run.ACCUMULATION)

    def main_loop(self, steps_per_epoch: int, starting_epoch: int, max_epoch: int) -> None:
        """tensorpack's, and what a callback raised at the end of training."""
        try:
            with without_noise():
                super().main_loop(steps_per_epoch, starting_epoch, max_epoch)
        except BaseException:
            if self._group.error is not None:
                self._group.log(self._group.error)
            raise
        if self._group.error is not None:
            raise self._group.error

    def session(self, kind: Run) -> Any:
        """Where to make the runs of one kind, as a `run_step` of your own does: with the callbacks that belong to it.

        `hooked_sess` is that of the train step, `sess` that of runs which no callback sees.
        """
        if kind not in self._sessions:
            self._sessions[kind] = self.hooked_sess if kind is Run.TRAIN_STEP else session_for(self, kind)
        return self._sessions[kind]

    def run_step(self) -> None:
        """One update, of the next batches that fit into memory."""
        while True:
            try:
                return self._update()
            except tf.errors.ResourceExhaustedError as error:
                self._skip_batch(error)

    def _update(self) -> None:
        """One update: K - 1 batches collected outside the hooks, then one within them."""
        collected, position, step = 0, "", self.loop.global_step
        try:
            while collected < self.update_cycle - 1:
                position = self._collect(self._collect_next if collected else self._collect_first)
                collected += 1
            self.hooked_sess.run(self.train_op)
        except (tf.errors.OutOfRangeError, StopTraining, StopIteration) as end:     # TensorFlow's normal ends, and ours
            if isinstance(self._input, GeneralQueueInput):
                self._input.raise_feeder_error()
            if collected and self.loop.global_step == step:     # else a callback asked for the end after the update
                self._flush(collected, position)
            reason = "the data has ended" if isinstance(end, tf.errors.OutOfRangeError) else str(end)
            raise StopTraining(reason or "a callback asked for the end") from None

    def _skip_batch(self, error: Any) -> None:
        """Go on behind a batch that ran out of memory (within an update cycle, behind those collected before it).

        Raises:
            SettingsError: there were too many.
        """
        self.skipped_batches += 1
        position = getattr(self._input, "last_position", None) or "the beginning"
        self._lost = (position, self._lost[1] + 1 if self._lost[0] == position else 1)
        what = (f"step {self.loop.global_step + 1}: batch {self._lost[1]} behind {position} ran out of memory "
                f"({_telling_line(str(error.message))})")
        if self.skipped_batches > self.skip_out_of_memory:
            raise SettingsError(f"{what}, and recovery.skip_out_of_memory={self.skip_out_of_memory} allows no more: "
                                "make data.batch_tokens smaller (and train.update_cycle larger).") from error
        logger.warning(f"{what}; it is skipped, number {self.skipped_batches} of {self.skip_out_of_memory} at most.")
        self.monitors.put_scalar("skipped_batches", self.skipped_batches)
        if isinstance(self._input, GeneralQueueInput):
            self._input.count_lost_batch()
        get_global_step_var().load(self.loop.global_step, self.sess)    # the failed run may have counted itself

    def _collect(self, op: Any) -> str:
        session = self.session(Run.ACCUMULATION)
        if isinstance(self._input, GeneralQueueInput):
            return self._input.run_with_batch(session, op)
        session.run(op)
        return ""

    def _flush(self, collected: int, position: str) -> None:
        """The data ended inside an update cycle: update from the batches that were there."""
        logger.info(f"The data ended after {collected} of {self.update_cycle} batches of an update cycle: "
                    "the last update is made from these.")
        self.sess.run(self._flush_op)
        self.loop._global_step += 1
        self._input.last_position = position


LEAST_MOST_TOWERS = 64
"""So many towers may be built on any machine's CPU."""


def tower_devices(gpus: Sequence[int] | None, towers: int | None) -> list[str]:
    """The device of each tower.

    Raises:
        SettingsError: both or neither are given, a GPU is not there, or there are no towers, or very many.
    """
    if gpus is not None and towers is not None:
        raise SettingsError("--gpu and --towers exclude each other: --gpu runs a tower a GPU, "
                            "--towers N runs N towers on the CPU.")
    if gpus is None:
        if towers is None or towers < 1:
            raise SettingsError("a trainer needs at least one tower: pass gpus=[0, 1, ...] or towers=N.")
        most = max(LEAST_MOST_TOWERS, 4 * processors())
        if towers > most:
            raise SettingsError(f"--towers {towers}: {most} towers are the most on this machine's {processors()} "
                                "processors; as many towers as processors use them all.")
        return [CPU] * towers
    if not gpus:
        raise SettingsError("--gpu needs at least one GPU number, for example --gpu 0,1.")
    present = len(tf.config.list_physical_devices("GPU"))
    missing = [gpu for gpu in gpus if gpu < 0 or gpu >= present]
    if missing:
        found = f"TensorFlow sees {present}, numbered from 0" if present else why_missing()
        raise SettingsError(f"--gpu {','.join(map(str, gpus))}: GPU {missing[0]} was not found ({found}); use --towers "
                            f"{len(gpus)} to run the same towers on the CPU.")
    return [f"/gpu:{gpu}" for gpu in gpus]


def _telling_line(message: str) -> str:
    """Of TensorFlow's many lines, the one that says what did not fit."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["?"]
    return next((line for line in lines if "OOM" in line), lines[0])[:200]


_VARIABLE_OPS = ("VarHandleOp", "VariableV2")


def _place(device: str, variable_device: str) -> Callable[[Any], str]:
    """Operations on the tower's device; variables, which all towers share, on the first tower's.

    What has a device by a `tf.device` inside the tower (the input's shares, the clock: the CPU) keeps it.
    """
    return lambda operation: operation.device or (variable_device if operation.type in _VARIABLE_OPS else device)


def _weight(tower_func: Any) -> Any:
    """float32 `[]`: what a batch counts in an update cycle, its target tokens if the model has that input."""
    names = [spec.name for spec in tower_func.input_signature]
    return target_tokens_of_step(list(tower_func.towers.training())) if TOKENS in names else tf.constant(1.0)
