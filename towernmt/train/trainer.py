"""`SyncMultiGPUTrainer`: one update from the gradients of all towers, in one process or in several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from tensorpack.callbacks.steps import MaintainStepCounter
from tensorpack.input_source import StagingInput
from tensorpack.tfutils.common import get_global_step_var
from tensorpack.tfutils.sesscreate import NewSessionCreator
from tensorpack.tfutils.sessinit import JustCurrentSession
from tensorpack.train.base import StopTraining
from tensorpack.train.tower import SingleCostTrainer
from tensorpack.utils import logger
from tensorpack.utils.argtools import memoized

from towernmt.callbacks.hooks import refuse_unusable_callbacks
from towernmt.callbacks.run_hooks import session_for
from towernmt.callbacks.stateful import find_callbacks
from towernmt.check.tower_check import TowerWatch
from towernmt.core.errors import SettingsError, TowerRuleError
from towernmt.core.graph_state import TOKENS, graph_state, shares_batch, total_of_step
from towernmt.core.runs import Run, belong_to
from towernmt.core.session import ResumableLoop, SessionCreator, add_threads, waiting_operations
from towernmt.core.standard_streams import without_noise
from towernmt.core.tensors import Operation, Optimizer, Session, Tensor, TensorSpec
from towernmt.core.terminal_log import configure_terminal_log, install_record_filter
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import Decision, current_world
from towernmt.input_source import GeneralQueueInput
from towernmt.input_source.queue_input import innermost
from towernmt.optim.gradients import (
    Accumulator,
    GradientReducer,
    GradsAndVars,
    SumOverTowers,
    dense_gradients,
    sum_over_towers,
)
from towernmt.optim.optimizer import TrainedVariables, updates_all_rows
from towernmt.train.callback_group import COMMON_ENDINGS, CallbackGroup, agree_on, end_by
from towernmt.train.collectives import Collectives, chosen_transport
from towernmt.train.replicas import Replicas, uncached
from towernmt.train.training_towers import (
    CPU,
    add_means_of_towers,
    build_training_towers,
    count_after_reading,
    device_if_gpu,
    outside_towers,
    share_of_cost,
    tower_devices,
)
from towernmt.train.update_cycle import OutOfMemorySkipping, UpdateCycle


class SyncMultiGPUTrainer(SingleCostTrainer):
    """A trainer with one tower per GPU (or several on the CPU), which makes one update from their mean gradient.

    It takes the arguments of tensorpack's `SyncMultiGPUTrainer`. Unlike there, the towers share one batch, and it also
    trains on the CPU, in update cycles and in several processes.

    Every tower reads the same variables, under reuse, so names in a checkpoint do not depend on the number of towers.
    The model's cost is scaled so that the mean over towers is the mean over all target tokens of the global batch
    (see `NMTModel.build_graph`). Any other tensorpack `ModelDesc` works as with tensorpack's trainers.

    With an update cycle of K (THUMT's term for gradient accumulation), one step reads K batches and makes one
    update, from the gradient averaged over all target tokens of the K batches.

    A custom trainer overrides `train_batch`, the work on one batch, and keeps update cycles and the skipping of batches
    that run out of memory. It may override `run_step`, as in tensorpack, to act before or after the update, which
    `super().run_step()` makes. Without that call it loses both, and a warning reports it at set-up.

    The trainer belongs to the world in which it is created (`towernmt.core.world`). A world of several processes needs
    a `reducer` that adds over them.

    Args:
        gpus: GPU numbers, one tower each; or the number of GPUs, as in tensorpack: 4 for the GPUs 0 to 3.
        towers: number of towers on the CPU, instead of `gpus`.
        update_cycle: batches per update.
        trained: the variables that an update changes; None for all trainable variables.
        skip_out_of_memory: maximum number of batches to skip because they run out of memory; 0 stops at the first, as
            do several processes. Variables that the failed update has changed keep their new values.
        staging: copy each batch of a `GeneralQueueInput` to the towers' devices during the step before. It changes
            nothing but the speed. None: on GPUs only.
        reducer: turns the gradients of all towers into those of one update; None: adds them, within one process.
        collectives: how the towers of one process on several GPUs add their gradients: "nccl", "ring", "sum" or "auto"
            (see the setting `train.collectives`).

    Attributes:
        model: the model whose tower function is trained, set by `towernmt.train.train`.
        world: the processes that make each update.
        diverged: set by a callback that found values which are not finite; from then on nothing is saved.
        in_update: whether an update is in progress or was interrupted (see `UpdateMark`).
        watch: refuses towers that break the rules of tower functions.

    Raises:
        SettingsError: `gpus` and `towers` are both set or both missing, a GPU is missing, or a number is below 1.
        TowerRuleError: at set-up, if the tower function breaks a rule.
    """

    def __init__(self, gpus: Sequence[int] | int | None = None, towers: int | None = None, update_cycle: int = 1,
                 trained: TrainedVariables | None = None, skip_out_of_memory: int = 0,
                 staging: bool | None = None, reducer: GradientReducer | None = None,
                 collectives: str = "auto") -> None:
        super().__init__()
        install_record_filter()
        configure_terminal_log()
        if isinstance(gpus, int):
            gpus = range(gpus)
        self.tower_devices = tower_devices(gpus, towers)
        self.devices = list(range(len(self.tower_devices)))     # tensorpack's name for the list of towers
        if update_cycle < 1:
            raise SettingsError(f"train.update_cycle={update_cycle} must be at least 1.")
        self.update_cycle = update_cycle
        self.trained = trained or TrainedVariables()
        self.staging = gpus is not None if staging is None else staging
        self.world, self.reducer = current_world(), reducer or SumOverTowers()
        self.model: Any = None
        self.diverged = self.in_update = False
        self.loop = ResumableLoop()
        self.watch = TowerWatch()
        self.collectives = collectives
        self._sync: Operation | None = None     # makes the copies of the weights equal
        self._out_of_sync = False
        self._skipping = OutOfMemorySkipping(skip_out_of_memory)
        self._cycle: UpdateCycle | None = None
        self._collected = 0     # batches of the current update
        self._sessions: dict[Run, Session] = {}

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and runs the callbacks for the chief only (tensorpack's name)."""
        return self.world.is_chief

    @property
    def data(self) -> Any:
        """The `InputSource` of the towers, without tensorpack's wrappers; for callbacks."""
        return innermost(self._input)

    @property
    def skipped_batches(self) -> int:
        """Number of batches that were skipped because they ran out of memory."""
        return self._skipping.skipped

    def _setup_input(self, input_signature: list[TensorSpec], input: Any) -> list[Any]:
        if input.setup_done():
            raise SettingsError(f"The {type(input).__name__} was already used by another trainer: make a new one for "
                                "each training.")
        callbacks: list[Any] = super()._setup_input(input_signature, input)
        return callbacks

    def _setup_graph(self, input: Any, get_cost_fn: Callable[..., Any], get_opt_fn: Callable[[], Optimizer]
                     ) -> list[Any]:
        self._input = input
        if self.staging and isinstance(input, GeneralQueueInput):
            input.stage()
        count_step = graph_state().count_step = get_global_step_var().assign_add(1, read_value=False)
        count_flush = get_global_step_var().assign_add(1, read_value=False)
        self.watch.attach(self.tower_func)
        replicas = self._make_replicas(get_opt_fn, count_flush)
        make_optimizer: Callable[[], Optimizer] = (
            memoized(outside_towers(get_opt_fn, count_flush)) if replicas is None else replicas.optimizer)
        cost_fn = share_of_cost(get_cost_fn, towers=self.world.tower(0, len(self.devices)).total)
        tower_fn = self._make_get_grad_fn(input, cost_fn, make_optimizer)
        before = len(tf1.get_default_graph().get_operations())
        towers = self._trained(build_training_towers(tower_fn, self.tower_devices, self.world,
                                                     getter=None if replicas is None else replicas.getter))
        count_after_reading(count_step, before)
        add_means_of_towers(list(self.tower_func.towers.training()))
        if replicas is not None:
            self._make_updates_of_replicas(replicas, towers, count_flush)
            return []
        optimizer = make_optimizer()
        with tf1.device(device_if_gpu(self.tower_devices[0])):
            self._make_updates(towers, optimizer, count_flush)
        return []

    def _make_replicas(self, get_opt_fn: Callable[[], Optimizer], count_flush: Operation) -> Replicas | None:
        """Return copies of the weights for the towers after the first; None if the towers share the weights."""
        transport = chosen_transport(self.collectives, self.tower_devices, self.reducer, self.world)
        if transport is None:
            return None
        if self._makes_own_steps():     # they would never make the copies equal
            logger.warning(f"{type(self).__name__}.run_step does not call super().run_step(), so the first GPU sends "
                           "all weights to the others in each step, as with train.collectives=sum. To sum gradients by "
                           "collectives, call super().run_step() for the update, or override train_batch instead.")
            return None
        return Replicas(self.tower_devices, Collectives(self.tower_devices, transport),
                        make_optimizer=outside_towers(get_opt_fn, count_flush),
                        make_another=outside_towers(uncached(get_opt_fn), count_flush))

    def _make_updates(self, towers: list[GradsAndVars], optimizer: Optimizer, count_flush: Operation) -> None:
        """Build the operations that reduce the gradients and update the variables, on the first tower's device."""
        def update(towers: list[GradsAndVars], name: str) -> Operation:
            return optimizer.apply_gradients(self.reducer.reduce(towers, self.world), name=name)

        if device_if_gpu(self.tower_devices[0]) and updates_all_rows(optimizer):
            towers = [dense_gradients(tower) for tower in towers]
        if self.update_cycle == 1:
            self.train_op = update(towers, "train_op")
            return
        accumulator = Accumulator(sum_over_towers(towers), self.batch_weight())
        self._cycle = UpdateCycle(self.update_cycle, [accumulator], update, count_flush)
        self.train_op = self._cycle.train_op

    def _make_updates_of_replicas(self, replicas: Replicas, towers: list[GradsAndVars], count_flush: Operation) -> None:
        """Build the operations that update the weights and their copies, each on its device."""
        replicas.collectives.order_by_backward_pass(towers[0])
        if self.update_cycle == 1:
            self.train_op = replicas.update(towers, "train_op")
        else:
            accumulators = replicas.accumulators(towers, self.batch_weight())
            self._cycle = UpdateCycle(self.update_cycle, accumulators, replicas.update, count_flush)
            self.train_op = self._cycle.train_op
        self._sync = replicas.sync()
        self.weights_changed()

    def _trained(self, towers: list[GradsAndVars]) -> list[GradsAndVars]:
        if not towers[0]:
            raise TowerRuleError("The cost has no gradient for any trainable variable: compute it from the variables "
                                 "by differentiable operations. tf.stop_gradient, tf.argmax, casts to integers and "
                                 "functions in Python (tf.numpy_function) have no gradient.")
        names = {variable.name for _, variable in self.trained.choose(towers[0])}
        return [[(gradient, variable) for gradient, variable in tower if variable.name in names] for tower in towers]

    def batch_weight(self) -> Tensor:
        """Return the weight of a batch within an update cycle; called when the towers have been built.

        Override it for a cost that is not a mean over target tokens; `weight_by(name)` gives the total of another
        input.

        Returns:
            float32 `[]`: the target tokens of the batch if the tower function has that input, else 1.
        """
        has_tokens = any(spec.name == TOKENS for spec in self.tower_func.input_signature)
        return self.weight_by(TOKENS) if has_tokens else tf.constant(1.0)

    def weight_by(self, name: str) -> Tensor:
        """Return the total of a scalar input of the tower function over the batch of one step, float32 `[]`."""
        towers = list(self.tower_func.towers.training())
        total = total_of_step(towers, name)
        return total if shares_batch(towers[0]) else self.reducer.total(total, self.world)

    def initialize(self, session_creator: Any, session_init: Any) -> None:
        """Create the session, with enough threads for the towers, and initialise the variables of every process."""
        if isinstance(session_creator, SessionCreator):
            session_creator.cpu_towers = sum(device == CPU for device in self.tower_devices)
            session_creator.on_cpu = session_creator.cpu_towers == len(self.tower_devices)
        elif isinstance(session_creator, NewSessionCreator):        # tensorpack's
            add_threads(session_creator.config, waiting_operations(tf1.get_default_graph()))
        with without_noise():
            if self.is_chief:
                super().initialize(session_creator, session_init)
                return
            session_init._setup_graph()
            super().initialize(session_creator, JustCurrentSession())   # tensorpack restores only in the chief
            session_init._run_init(self.sess)

    def initialize_hooks(self) -> None:
        """Create the hooked session, which does not repeat a step after the error of a lost process."""
        super().initialize_hooks()
        if self.world.processes > 1:
            self.hooked_sess._sess = self.hooked_sess._sess._sess   # as with TensorFlow's should_recover=False

    def setup_callbacks(self, callbacks: list[Any], monitors: list[Any]) -> None:
        """Set up the callbacks, in a `CallbackGroup`."""
        if self.update_cycle > 1:
            self._stage_in_cycles()
        self._warn_of_custom_step()
        refuse_unusable_callbacks(callbacks)
        super().setup_callbacks(callbacks, monitors)
        for counter in find_callbacks(self, MaintainStepCounter):
            counter._fetches = tf1.train.SessionRunArgs(graph_state().count_step)   # the update may depend on it
        self._group = CallbackGroup(self._callbacks, self.world)
        self._callbacks: Any = self._group

    def _stage_in_cycles(self) -> None:
        """Let tensorpack's `StagingInput` see the batches of an update cycle, which would otherwise wait for ever."""
        for callback in self._callbacks:
            if isinstance(callback, StagingInput.StagingCallback):
                if isinstance(callback._input._input, GeneralQueueInput):
                    raise SettingsError(
                        f"train.update_cycle={self.update_cycle} cannot count the batches in tensorpack's "
                        "StagingInput. Pass the GeneralQueueInput itself, and staging=True to the trainer.")
                belong_to(callback, Run.TRAIN_STEP, Run.ACCUMULATION)

    def _makes_own_steps(self) -> bool:
        """Return whether a subclass makes its steps without `super().run_step()`."""
        custom = type(self).__mro__[:type(self).__mro__.index(SyncMultiGPUTrainer)]
        methods = [value for cls in custom for value in vars(cls).values() if isinstance(value, FunctionType)]
        calls_parent = any("run_step" in method.__code__.co_names for method in methods)
        return type(self).run_step is not SyncMultiGPUTrainer.run_step and not calls_parent

    def _warn_of_custom_step(self) -> None:
        """Warn if a subclass makes its steps without `super().run_step()`, and name what it loses by that."""
        if not self._makes_own_steps():
            return
        losses = []
        if self.update_cycle > 1:
            losses.append(f"one call of train_op trains on one batch, not on train.update_cycle={self.update_cycle}")
        if self._skipping.limit:
            losses.append("the first batch that runs out of memory ends training, despite "
                          f"recovery.skip_out_of_memory={self._skipping.limit}")
        if self.world.processes > 1:
            losses.append("the processes do not end at the same step")
        if losses:
            logger.warning(f"{type(self).__name__}.run_step does not call super().run_step(): {'; '.join(losses)}. "
                           "To keep these, call super().run_step() for the update, or override train_batch instead.")

    def main_loop(self, steps_per_epoch: int, starting_epoch: int, max_epoch: int) -> None:
        """Train, and raise the error of a callback's `after_train`, if there is one."""
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
        """Return the session for runs of one kind, with the callbacks that belong to that kind.

        `hooked_sess` is the session of the train step. No callback sees the runs of `sess`.
        """
        if kind not in self._sessions:
            self._sessions[kind] = self.hooked_sess if kind is Run.TRAIN_STEP else session_for(self, kind)
        return self._sessions[kind]

    def train_batch(self, run: Callable[..., None]) -> None:
        """Train on one batch. Override it to work on the batch before its gradients are computed.

        An update cycle of K calls it K times for one update. If a batch runs out of memory, the update starts again
        with the next batch. `batch_number` identifies the batch, also within one update.

            def train_batch(self, run):
                source, source_length, *_ = self._input.take(self.hooked_sess)      # of a `FedInput`
                run(self._input.feed(source, ...))

        Args:
            run: computes the gradients of the batch, and makes the update if it is the last batch of a cycle. Call it
                once, with a `feed_dict` or without.
        """
        run()

    @property
    def batch_number(self) -> int:
        """Number of the current batch since the start of training, from 0; a resumed run continues the count."""
        return self.loop.global_step * self.update_cycle + self._collected

    def weights_changed(self) -> None:
        """Copy the weights of the first GPU to the other GPUs before the next update.

        Call it after an operation outside the update has assigned weights or the state of the optimizer, for example in
        a custom `run_step` or in a callback: such an operation changes only the first GPU's variables. If the towers
        share the weights, nothing is copied.
        """
        self._out_of_sync = self._sync is not None

    def run_step(self) -> None:
        """Make one update, from the next batches that fit into memory."""
        while True:
            error: Exception | None = None
            try:
                self._update()
            except tf.errors.ResourceExhaustedError as out_of_memory:
                self._skipping.skip(self, out_of_memory)
                self.weights_changed()      # the failed update may have changed some of them
                continue
            except COMMON_ENDINGS as raised:
                error = raised
            decision = agree_on(error, self.world)
            if decision is Decision.CONTINUE:
                return
            end_by(decision, error, self)

    def _update(self) -> None:
        """Make one update; if it fails, reset the clock."""
        step, self._collected = self.loop.global_step, 0
        if self._out_of_sync:
            self.sess.run(self._sync)
            self._out_of_sync = False
        if self._cycle is not None:
            self._cycle.begin(self.sess)
        try:
            self._collect_and_update()
        except BaseException:
            if self._cycle is not None and self.loop.global_step == step and not self.in_update:
                self._cycle.give_up(self.sess)
            raise

    def _collect_and_update(self) -> None:
        """Collect K - 1 batches outside the hooks, then make the update with the last batch within them."""
        position, step = "", self.loop.global_step
        try:
            while self._cycle is not None and self._collected < self.update_cycle - 1:
                position = self._collect(self._cycle.collect_op(self._collected))
                self._collected += 1
            self._train_batch(self._make_update)
        except (tf.errors.OutOfRangeError, StopTraining, StopIteration) as end:     # the normal ends of the data
            exhausted = True
            if isinstance(self._input, GeneralQueueInput):
                self._input.raise_feeder_error()
                exhausted = self._input.exhausted
            # Otherwise a callback has ended training after the update.
            if self._cycle is not None and self._collected and self.loop.global_step == step and exhausted:
                self.in_update = True
                self._cycle.flush(self.sess, self._collected)
                self.loop._global_step += 1
                self._input.last_position = position
                self.in_update = False
            reason = "the data has ended" if isinstance(end, tf.errors.OutOfRangeError) else str(end)
            raise StopTraining(reason or "a callback ended training") from None

    def _train_batch(self, run: Callable[..., None]) -> None:
        """Call `train_batch`, which must call `run` once in an update cycle.

        Raises:
            SettingsError: it did not, so the sums of the cycle would have a batch twice, or one of an earlier update.
        """
        calls = 0

        def run_and_count(feed_dict: Any = None) -> None:
            nonlocal calls
            calls += 1
            if calls == 1 or self._cycle is None:
                run(feed_dict)

        self.train_batch(run_and_count)
        if self._cycle is not None and calls != 1:
            raise SettingsError(f"{type(self).__name__}.train_batch called run {calls} times for a batch, but each "
                                f"batch of train.update_cycle={self.update_cycle} needs one call: call run once. To "
                                "leave out a batch, take the next one instead.")

    def _make_update(self, feed_dict: Any = None) -> None:
        try:
            self.hooked_sess.run(self.train_op, feed_dict)
        except (tf.errors.OutOfRangeError, tf.errors.ResourceExhaustedError):   # no batch, or out of memory
            self.in_update = False
            raise

    def _collect(self, op: Operation) -> str:
        """Add a batch's gradients to the sums, and return the position after that batch."""
        session, position = self.session(Run.ACCUMULATION), ""

        def collect(feed_dict: Any = None) -> None:
            nonlocal position
            if isinstance(self._input, GeneralQueueInput):
                position = self._input.run_with_batch(session, op, feed_dict)
            else:
                session.run(op, feed_dict)

        self._train_batch(collect)
        return position
