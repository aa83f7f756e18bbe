"""The TensorFlow session of a run, tensorpack's loop of steps in it, and the reason why TensorFlow sees no GPU.

The loop aligns its epochs to the global step. If TensorFlow sees no GPU, the card, its driver or CUDA's libraries may
be missing; `why_missing` says which.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import towernmt.core.tf_compat  # noqa: F401    # before tensorpack, which imports TensorFlow with all its noise

# isort: split

from tensorpack.train.base import TrainLoop

from towernmt.core.machine import has_share, processors, refuse_second_process
from towernmt.core.tensors import Session
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import present_world

_WAITING = frozenset(("Unstage", "MapUnstage", "MapUnstageNoKey", "OrderedMapUnstage", "OrderedMapUnstageNoKey",
                      "PyFunc", "EagerPyFunc", "ZMQPull"))
"""Types of operations that may hold a thread of the pool until another operation of the session was run."""


def session_config(cpu_towers: int = 1, runs_in_caller: bool = False) -> Any:
    """Return a `ConfigProto` that uses all processors and allocates GPU memory on demand.

    Several CPU towers share the processors: each operation gets one tower's share of them as threads, so that the
        towers run concurrently. (Small operations gain little from a second thread.)

    Args:
        cpu_towers: number of towers on the CPU.
        runs_in_caller: execute each run in the calling thread if it has one device, so that sequences of small
            operations are not passed between threads.
    """
    config = tf1.ConfigProto(allow_soft_placement=True)
    if runs_in_caller:
        config.inter_op_parallelism_threads = -1
    if cpu_towers > 1 or has_share():
        config.intra_op_parallelism_threads = max(1, processors() // cpu_towers)
    config.gpu_options.allow_growth = True
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
        cpu_towers: see `session_config`; a trainer of several towers sets it.
        runs_in_caller: see `session_config`.
    """

    def __init__(self, cpu_towers: int = 1, runs_in_caller: bool = False) -> None:
        self.cpu_towers, self.runs_in_caller = cpu_towers, runs_in_caller

    def create_session(self) -> Session:
        """Create the session.

        Raises:
            SettingsError: the process was forked from one that had a session.
        """
        refuse_second_process()
        config = session_config(self.cpu_towers, self.runs_in_caller)
        target = present_world().session_target(config)
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
    _began: int | None = None
    """The global step at which the present epoch began, or this run within it; None before the first."""

    def config(self, steps_per_epoch: int, starting_epoch: int, max_epoch: int) -> None:
        """Set the epochs, as in tensorpack."""
        super().config(steps_per_epoch, starting_epoch, max_epoch)
        self._began = None

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that this run makes in the current epoch, which is constant within the epoch.

        Tensorpack's callbacks use it to find the last step of an epoch. Before the first epoch, it is the number of
        steps from the current one to the end of the epoch.
        """
        began = self._global_step if self._began is None else self._began
        return self._steps_per_epoch - began % self._steps_per_epoch

    @steps_per_epoch.setter
    def steps_per_epoch(self, steps: int) -> None:
        self._steps_per_epoch = max(1, steps)

    @property
    def _epoch_num(self) -> int:
        return self._epoch

    @_epoch_num.setter
    def _epoch_num(self, number: int) -> None:
        """Tensorpack's main loop sets it at the beginning of an epoch."""
        self._epoch, self._began = number, self._global_step


NVIDIA = "0x10de"
"""The vendor's number on the PCI bus."""
LIBRARIES = {"12": ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11",
                    "libcusparse.so.12")}
"""By CUDA's main version, what TensorFlow loads of it at its start."""


def why_missing(build: Any = None, root: Path = Path("/"), loads: Callable[[str], bool] | None = None) -> str:
    """Return why TensorFlow cannot use a GPU, as the end of a sentence.

    Args:
        build: `tf.sysconfig.get_build_info()`.
        root: directory that contains `/dev`, `/proc` and `/sys`.
        loads: returns whether a shared library can be loaded.
    """
    build = tf.sysconfig.get_build_info() if build is None else build
    loads = _loads if loads is None else loads
    if not build.get("is_cuda_build"):
        return "this TensorFlow was built without CUDA"
    if not _has_driver(root):
        if _has_card(root):
            return "there is an NVIDIA card, but its driver is not running: `nvidia-smi` must show the card"
        return "the card is missing: this machine shows no NVIDIA card"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.split(",")[0].strip() in ("", "-1"):
        return f"the card is there, but CUDA_VISIBLE_DEVICES={hidden or chr(39) * 2} hides it"
    if not loads("libcuda.so.1"):
        return "the card is there, but not its driver's library libcuda.so.1"
    missing = [name for name in _libraries(build) if not loads(name)]
    if missing:
        return ("the card is there, but not CUDA's libraries (" + ", ".join(missing) + "): "
                "pip install 'towernmt[gpu]' brings them")
    return "card and libraries are there, but TensorFlow cannot use them: TOWERNMT_DEBUG=1 shows what it says"


def _libraries(build: Any) -> Iterable[str]:
    yield from LIBRARIES.get(str(build.get("cuda_version", "")).split(".")[0], ())
    cudnn = str(build.get("cudnn_version", "")).split(".")[0]
    if cudnn:
        yield f"libcudnn.so.{cudnn}"


def _has_driver(root: Path) -> bool:
    """A device of NVIDIA's driver, or of the one that Windows lends to Linux (WSL 2)."""
    devices = root / "dev"
    return (devices / "dxg").exists() or any(path.name[6:].isdecimal() for path in devices.glob("nvidia*"))


def _has_card(root: Path) -> bool:
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == NVIDIA and kind.startswith("0x03"):      # a display controller, not a bridge or a sound card
            return True
    return False


def _loads(name: str) -> bool:
    """Whether a library is where the system looks, or where pip puts NVIDIA's packages."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for file in [name, *(str(path) for place in places for path in place.glob(f"*/lib/{name}"))]:
        try:
            ctypes.CDLL(file)
            return True
        except OSError:
            continue
    return False
