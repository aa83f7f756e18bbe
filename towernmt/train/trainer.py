"""Towers to one update: the synchronous trainer, of one process or of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorpack.callbacks.steps import MaintainStepCounter
from tensorpack.input_source import StagingInput
from tensorpack.tfutils.common import get_global_step_var
from tensorpack.tfutils.sessinit import JustCurrentSession
from tensorpack.train.base import StopTraining
from tensorpack.train.tower import SingleCostTrainer

from towernmt.callbacks.hooks.run_hooks import session_for
from towernmt.callbacks.lookup import find_callbacks
from towernmt.check.watch import TowerWatch
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import graph_state
from towernmt.core.loop import ResumableLoop
from towernmt.core.runs import Run, belong_to
from towernmt.core.session import SessionCreator
from towernmt.core.shared_batch import TOKENS, shares_batch, total_of_step
from towernmt.core.tensors import Operation, Optimizer, Session, Tensor
from towernmt.core.terminal.stderr_noise import without_noise
from towernmt.core.terminal.terminal_log import mend_terminal
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import Decision, present_world
from towernmt.input_source import GeneralQueueInput
from towernmt.optim.freeze import TrainedVariables
from towernmt.optim.gradients import GradientReducer, GradsAndVars, SumOverTowers, sum_over_towers
from towernmt.train.agreement import ENDINGS, agree_on, end_by
from towernmt.train.callback_group import CallbackGroup
from towernmt.train.devices import CPU, tower_devices
from towernmt.train.log_filter import mend_logger
from towernmt.train.out_of_memory import OutOfMemorySkipping
from towernmt.train.towers import build_towers, share_of_cost
from towernmt.train.update_cycle import UpdateCycle


class SyncMultiGPUTrainer(SingleCostTrainer):
    """One tower a GPU (or several on the CPU), one update from their mean gradient.

    It is called as tensorpack's `SyncMultiGPUTrainer`, a function that makes a `SyncMultiGPUTrainerParameterServer`; it
    differs in that towers share a batch, and that it also trains on the CPU, in cycles and in several processes.

    Every tower reads the same variables, under reuse: names in a checkpoint do not depend on the number
    of towers. The model's cost is scaled so that the mean over towers is the mean over all target tokens
    of the global batch (see `NMTModel.build_graph`); any other tensorpack `ModelDesc` works as with
    tensorpack's own trainers.

    With an update cycle of K (THUMT's term; gradient accumulation), one step reads K batches and makes one
    update, from the gradient averaged over all target tokens of the K batches.

    A trainer of your own overrides `train_batch`, what is done with one batch: update cycles, and going on behind
    batches that run out of memory, stay. One that overrides `run_step`, as in tensorpack, makes whole steps itself.

    It trains in the world that it is made in (`towernmt.core.world`). In a world of several processes it needs a
    reducer that adds over them, and nothing else of it changes.

    Args:
        gpus: GPU numbers, one tower each; or how many, 4 for the GPUs 0 to 3, as in tensorpack.
        towers: towers on the CPU, instead of `gpus`.
        update_cycle: batches an update.
        trained: which variables an update changes; None for all that are trainable.
        skip_out_of_memory: skip so many batches at most that run out of memory; what an update had changed by then
            stays. 0 stops at the first.
        staging: copy each batch of a `GeneralQueueInput` to the towers' devices while the one before is trained on;
            None: on GPUs, not on the CPU. Nothing but the time depends on it.
        reducer: how the gradients of all towers become those of one update; None: their sum, within one process.
    Attributes:
        model: whose tower function is trained, where `towernmt.train.train` made it; for a `train_batch` of your own.
        world: the processes that make each update.
        diverged: set by a callback that found values which are not finite: nothing is saved from then on.
        in_update: whether an update is being made, or was broken off (see `UpdateMark`).
        watch: refuses towers that break the rules of tower functions (see the manual's page of them).
    Raises:
        SettingsError: both or neither of `gpus` and `towers`, a GPU that is not there, a number below 1.
        TowerRuleError: when the graph is set up, of a tower function that breaks a rule.
    """

    def __init__(self, gpus: Sequence[int] | int | None = None, towers: int | None = None, update_cycle: int = 1,
                 trained: TrainedVariables | None = None, skip_out_of_memory: int = 0,
                 staging: bool | None = None, reducer: GradientReducer | None = None) -> None:
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
        self.world, self.reducer = present_world(), reducer or SumOverTowers()
        self.model: Any = None
        self.diverged = self.in_update = False
        self.loop = ResumableLoop()
        self.watch = TowerWatch()
        self._skipping = OutOfMemorySkipping(skip_out_of_memory)
        self._cycle: UpdateCycle | None = None
        self._collected = 0     # batches of the present update
        self._sessions: dict[Run, Session] = {}

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files, and runs the callbacks that are for the chief only (tensorpack's name)."""
        return self.world.is_chief

    @property
    def skipped_batches(self) -> int:
        """How many batches ran out of memory and were left out."""
        return self._skipping.skipped

    def _setup_graph(self, input: Any, get_cost_fn: Callable[..., Any], get_opt_fn: Callable[[], Optimizer]
                     ) -> list[Any]:
        self._input = input
        if self.staging and isinstance(input, GeneralQueueInput):
            input.stage()
        count_step = graph_state().count_step = get_global_step_var().assign_add(1, read_value=False)
        self.watch.attach(self.tower_func)
        count = self.world.tower(0, len(self.devices)).total
        tower_fn = self._make_get_grad_fn(input, share_of_cost(get_cost_fn, count), get_opt_fn)
        towers = self._trained(build_towers(tower_fn, self.tower_devices, self.world))
        optimizer = get_opt_fn()
        if self.update_cycle == 1:
            self.train_op = optimizer.apply_gradients(self.reducer.reduce(towers, self.world), name="train_op")
            return []
        self._cycle = UpdateCycle(
            self.update_cycle, sum_over_towers(towers), self.batch_weight(),
            reduce=lambda gradients: self.reducer.reduce([gradients], self.world),
            apply=lambda gradients, name: optimizer.apply_gradients(gradients, name=name), count_step=count_step)
        self.train_op = self._cycle.train_op
        return []

    def _trained(self, towers: list[GradsAndVars]) -> list[GradsAndVars]:
        """Of each tower the gradients of the variables that are trained."""
        names = {variable.name for _, variable in self.trained.choose(towers[0])}
        return [[(gradient, variable) for gradient, variable in tower if variable.name in names] for tower in towers]

    def batch_weight(self) -> Tensor:
        """What a batch counts among those of an update cycle; override it for a cost that is a mean of something else.

        Returns:
            float32 `[]`: the batch's target tokens, if the tower function has that input, else 1. It is called when the
            towers are built; `weight_by(name)` gives the total of another input.
        """
        has_tokens = any(spec.name == TOKENS for spec in self.tower_func.input_signature)
        return self.weight_by(TOKENS) if has_tokens else tf.constant(1.0)

    def weight_by(self, name: str) -> Tensor:
        """float32 `[]`: the total of a scalar input of the tower function, over the batch of one step."""
        towers = list(self.tower_func.towers.training())
        total = total_of_step(towers, name)
        return total if shares_batch(towers[0]) else self.reducer.total(total, self.world)

    def initialize(self, session_creator: Any, session_init: Any) -> None:
        """tensorpack's, in a session whose threads suit the number of towers; every process gets the initial values."""
        if isinstance(session_creator, SessionCreator):
            session_creator.cpu_towers = sum(device == CPU for device in self.tower_devices)
        with without_noise():
            if self.is_chief:
                super().initialize(session_creator, session_init)
                return
            session_init._setup_graph()
            super().initialize(session_creator, JustCurrentSession())   # tensorpack gives them to the chief alone
            session_init._run_init(self.sess)

    def initialize_hooks(self) -> None:
        """tensorpack's; but a step is not made once more behind an error that tells of a lost process."""
        super().initialize_hooks()
        if self.world.processes > 1:
            self.hooked_sess._sess = self.hooked_sess._sess._sess   # as with TensorFlow's should_recover=False

    def setup_callbacks(self, callbacks: list[Any], monitors: list[Any]) -> None:
        """tensorpack's, with a group that keeps what fails at the end of training."""
        if self.update_cycle > 1:
            self._stage_in_cycles()
        super().setup_callbacks(callbacks, monitors)
        for counter in find_callbacks(self, MaintainStepCounter):
            counter._fetches = tf1.train.SessionRunArgs(graph_state().count_step)   # the update may depend on it
        self._group = CallbackGroup(self._callbacks, self.world)
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

    def session(self, kind: Run) -> Session:
        """Where to make the runs of one kind, as a `run_step` of your own does: with the callbacks that belong to it.

        `hooked_sess` is that of the train step, `sess` that of runs which no callback sees.
        """
        if kind not in self._sessions:
            self._sessions[kind] = self.hooked_sess if kind is Run.TRAIN_STEP else session_for(self, kind)
        return self._sessions[kind]

    def train_batch(self, run: Callable[..., None]) -> None:
        """What is done with one batch: here, its gradients. Override it to make something of the batch first.

        An update cycle of K calls it K times for one update. With a batch that runs out of memory, the update begins
        anew with the next batch. `batch_number` tells the batches apart, also those of one update.

            def train_batch(self, run):
                source, source_length, *_ = self._input.take(self.hooked_sess)      # of a `FedInput`
                run(self._input.feed(source, ...))

        Args:
            run: computes the gradients of the batch, and after the last one of a cycle makes the update. To be called
                once, with a `feed_dict` or without.
        """
        run()

    @property
    def batch_number(self) -> int:
        """The number of the present batch in the whole training, from 0; the same in a run that was resumed."""
        return self.loop.global_step * self.update_cycle + self._collected

    def run_step(self) -> None:
        """One update, of the next batches that fit into memory."""
        while True:
            error: Exception | None = None
            try:
                self._update()
            except (*ENDINGS, tf.errors.ResourceExhaustedError) as raised:
                error = raised
            decision = agree_on(error, self.world)
            if decision is Decision.GO_ON:
                return
            if decision is not Decision.SKIP_BATCH:
                end_by(decision, error, self)
            self._skipping.skip(self, error)

    def _update(self) -> None:
        """One update, or none: then the clock is as it was."""
        step, self._collected = self.loop.global_step, 0
        if self._cycle is not None:
            self._cycle.begin(self.sess)
        try:
            self._collect_and_update()
        except BaseException:
            if self._cycle is not None and self.loop.global_step == step and not self.in_update:
                self._cycle.give_up(self.sess)
            raise

    def _collect_and_update(self) -> None:
        """One update: K - 1 batches collected outside the hooks, then one within them."""
        position, step = "", self.loop.global_step
        try:
            while self._cycle is not None and self._collected < self.update_cycle - 1:
                position = self._collect(self._cycle.collect_op(self._collected))
                self._collected += 1
            self.train_batch(self._make_update)
        except (tf.errors.OutOfRangeError, StopTraining, StopIteration) as end:     # TensorFlow's normal ends, and ours
            exhausted = True
            if isinstance(self._input, GeneralQueueInput):
                self._input.raise_feeder_error()
                exhausted = self._input.exhausted
            if self._cycle is not None and self._collected and self.loop.global_step == step and exhausted:
                self.in_update = True
                self._cycle.flush(self.sess, self._collected)   # else a callback asked for the end after the update
                self.loop._global_step += 1
                self._input.last_position = position
                self.in_update = False
            reason = "the data has ended" if isinstance(end, tf.errors.OutOfRangeError) else str(end)
            raise StopTraining(reason or "a callback asked for the end") from None

    def _make_update(self, feed_dict: Any = None) -> None:
        try:
            self.hooked_sess.run(self.train_op, feed_dict)
        except (tf.errors.OutOfRangeError, tf.errors.ResourceExhaustedError):   # no batch, or no room for it
            self.in_update = False
            raise

    def _collect(self, op: Operation) -> str:
        """Add a batch's gradients to the sums; returns the position after that batch."""
        session, position = self.session(Run.ACCUMULATION), ""

        def collect(feed_dict: Any = None) -> None:
            nonlocal position
            if isinstance(self._input, GeneralQueueInput):
                position = self._input.run_with_batch(session, op, feed_dict)
            else:
                session.run(op, feed_dict)

        self.train_batch(collect)
        return position
