"""The TensorFlow session of a run, the GPUs that it sees, and tensorpack's loop of steps in it.

Sessions see only the GPUs that the process has chosen by `use_gpus`, because TensorFlow takes memory of every GPU that
a session sees. The loop aligns its epochs to the global step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import towernmt.core.tf_compat  # noqa: F401    # before tensorpack, which imports TensorFlow with all its noise

# isort: split

from tensorpack.train.base import TrainLoop
from tensorpack.utils import logger

from towernmt.core.gpus import choose_gpus, chosen_gpus, cuda_driver, needs_compilation, why_missing
from towernmt.core.graph_state import graph_state
from towernmt.core.machine import is_processor_limited, processors, refuse_second_process
from towernmt.core.tensors import Session
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import current_world

_WAITING = frozenset(("Unstage", "MapUnstage", "MapUnstageNoKey", "OrderedMapUnstage", "OrderedMapUnstageNoKey",
                      "PyFunc", "EagerPyFunc", "ZMQPull"))
"""Types of operations that may hold a thread of the pool until another operation of the session was run."""


def count_gpus() -> int:
    """Return the number of GPUs that TensorFlow sees; 0 if CUDA's driver fails."""
    with suppress(tf.errors.InternalError):
        return len(tf.config.list_physical_devices("GPU"))
    return 0


def gpu_capability(gpu: int) -> tuple[int, int] | None:
    """Return the compute capability of a GPU, such as (9, 0); None if TensorFlow does not know it or sees no such GPU.

    Args:
        gpu: CUDA's number of the GPU.
    """
    if not gpu < count_gpus():
        return None
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[gpu])
    return details.get("compute_capability")


def missing_gpu(gpus: Sequence[int]) -> str:
    """Return which of these GPUs TensorFlow does not see and why, or "" if it sees them all.

    Args:
        gpus: CUDA's numbers of the GPUs.
    """
    count = count_gpus()
    missing = [gpu for gpu in gpus if not 0 <= gpu < count]
    if not missing:
        return ""
    numbers = "GPU 0" if count == 1 else f"the GPUs 0 to {count - 1}"
    reason = f"TensorFlow sees {numbers}" if count else why_missing(tf.sysconfig.get_build_info())
    return f"GPU {missing[0]} was not found ({reason})"


def use_gpus(gpus: Sequence[int]) -> list[str]:
    """Let the sessions of this process see these GPUs, and return TensorFlow's names of them, such as "/gpu:0".

    TensorFlow numbers the GPUs that a session sees from 0: after `use_gpus([3])`, "/gpu:0" is GPU 3. Every later call
    adds GPUs, and the names of earlier ones stay.

    Args:
        gpus: CUDA's numbers of the GPUs, for which `missing_gpu` returns "".
    """
    chosen_before = chosen_gpus()
    numbers = choose_gpus(gpus)
    chosen = chosen_gpus()
    if chosen != chosen_before and chosen == sorted(chosen):
        _show_to_context(chosen)
    for gpu in sorted(set(chosen) - set(chosen_before)):
        driver = cuda_driver()
        if gpu < len(driver.gpus) and (warning := needs_compilation(driver.gpus[gpu], tf.sysconfig.get_build_info())):
            logger.warning(f"GPU {gpu}: {warning}")
    return [f"/gpu:{number}" for number in numbers]


def use_no_gpu() -> None:
    """Hide all GPUs from TensorFlow, unless this process has chosen some; `use_gpus` still shows them to sessions."""
    if not chosen_gpus():
        _show_to_context([])


def _show_to_context(gpus: Sequence[int]) -> None:
    """Let TensorFlow's eager context see these GPUs alone.

    TensorFlow creates this context, with all GPUs that it may see, when a graph gets its first loop. Memory that the
    context takes is not available to sessions.

    Args:
        gpus: CUDA's numbers of the GPUs, in ascending order.
    """
    devices = tf.config.list_physical_devices("GPU") if count_gpus() else []
    with suppress(RuntimeError, ValueError):    # the context exists, with the GPUs that were chosen then
        tf.config.set_visible_devices([devices[gpu] for gpu in gpus], "GPU")


def session_config(cpu_towers: int = 1, runs_in_caller: bool = False, on_cpu: bool = False) -> Any:
    """Return a `ConfigProto` that uses all processors, sees the chosen GPUs, and allocates their memory on demand.

    Several CPU towers share the processors: each operation gets one tower's share of them as threads, so that the
    towers run concurrently. (Small operations gain little from a second thread.)

    Args:
        cpu_towers: number of towers on the CPU; 0 if all towers are on GPUs.
        runs_in_caller: execute each run in the calling thread if it has one device, so that sequences of small
            operations are not passed between threads.
        on_cpu: hide all GPUs from the session.
    """
    config = tf1.ConfigProto(allow_soft_placement=True)
    if runs_in_caller:
        config.inter_op_parallelism_threads = -1
    if cpu_towers > 1 or is_processor_limited():
        config.intra_op_parallelism_threads = max(1, processors() // max(1, cpu_towers))
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = ",".join(map(str, chosen_gpus()))
    if on_cpu:
        config.device_count["GPU"] = 0
    return config


def add_threads(config: Any, waiting: int, own_pool: bool = True) -> None:
    """Give a session enough threads that blocking operations never hold all of them.

    TensorFlow's pool has one thread per processor, and the first session of the process determines its size. On one
    processor, an operation of tensorpack's `StagingInput` would block for ever, since no thread is left for the
    operation that it waits for.

    Args:
        config: a `ConfigProto`; unchanged if the user has set the number of threads.
        waiting: number of operations that may block at the same time.
        own_pool: whether the session gets a separate thread pool, which the session of a server cannot have.
    """
    if waiting and config.inter_op_parallelism_threads == 0:
        config.inter_op_parallelism_threads = max(processors(), waiting + 1)
        config.use_per_session_threads = own_pool


def waiting_operations(graph: tf.Graph) -> int:
    """Return the number of operations of a graph that may hold a thread while they wait for another operation."""
    return sum(operation.type in _WAITING for operation in graph.get_operations())


class SessionCreator(tf1.train.SessionCreator):
    """Creator of a session with `session_config` and initialised variables.

    tensorpack's creator gives each operation one thread, or warns about a custom configuration.

    Attributes:
        cpu_towers: see `session_config`; a trainer sets it.
        runs_in_caller: see `session_config`.
        on_cpu: see `session_config`; a trainer sets it.
    """

    def __init__(self, cpu_towers: int = 1, runs_in_caller: bool = False, on_cpu: bool = False) -> None:
        self.cpu_towers, self.runs_in_caller, self.on_cpu = cpu_towers, runs_in_caller, on_cpu

    def create_session(self) -> Session:
        """Create the session.

        Raises:
            SettingsError: the process was forked from one that had a session.
        """
        refuse_second_process()
        config = session_config(self.cpu_towers, self.runs_in_caller, self.on_cpu)
        if graph_state().settings.xla:
            rewrites = config.graph_options.rewrite_options
            rewrites.remapping = rewrites.OFF       # puts fused operations into the towers, which XLA does not know
        target = current_world().session_target(config)
        add_threads(config, waiting_operations(tf1.get_default_graph()), own_pool=not target)
        session = tf1.Session(target, config=config)
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer(), tf1.tables_initializer()])
        return session


class ResumableLoop(TrainLoop):
    """tensorpack's loop, except that a run that resumes within an epoch finishes that epoch first.

    `local_step` counts the steps of this run in the epoch, from 0 to `steps_per_epoch - 1`.
    """

    _steps_per_epoch = 1
    _global_step = 0
    _epoch = 0
    _first_step: int | None = None
    """The global step at which the current epoch began, or this run within it; None before the first."""

    def config(self, steps_per_epoch: int, starting_epoch: int, max_epoch: int) -> None:
        """Set the epochs, as in tensorpack."""
        super().config(steps_per_epoch, starting_epoch, max_epoch)
        self._first_step = None

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that this run makes in the current epoch, which is constant within the epoch.

        Tensorpack's callbacks use it to find the last step of an epoch. Before the first epoch, it is the number of
        steps from the current one to the end of the epoch.
        """
        first_step = self._global_step if self._first_step is None else self._first_step
        return self._steps_per_epoch - first_step % self._steps_per_epoch

    @steps_per_epoch.setter
    def steps_per_epoch(self, steps: int) -> None:
        self._steps_per_epoch = max(1, steps)

    @property
    def _epoch_num(self) -> int:
        return self._epoch

    @_epoch_num.setter
    def _epoch_num(self, number: int) -> None:
        """Tensorpack's main loop sets it at the beginning of an epoch."""
        self._epoch, self._first_step = number, self._global_step
