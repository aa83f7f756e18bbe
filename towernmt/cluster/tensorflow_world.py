"""A world of several processes: each a TensorFlow server, agreeing by collectives among them."""

from __future__ import annotations

import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import numpy as np

from towernmt.cluster.description import Cluster
from towernmt.cluster.listening import listen_narrowly
from towernmt.cluster.waits import WaitHook, Waits
from towernmt.cluster.watch import Watch, end_process, neighbours, wait_for_all
from towernmt.core.errors import SettingsError, WorkerLostError
from towernmt.core.session import session_config
from towernmt.core.tensors import Session, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World

T = TypeVar("T", bound=float)
JOB = "worker"
CPU = "/device:CPU:0"
CPU_GROUP, GPU_GROUP = 1, 2
"""TensorFlow's numbers of the groups: of the processor of each worker, and of one GPU of each."""
_LOSSES = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError,
           tf.errors.CancelledError)
"""What TensorFlow raises in a process whose partner is gone or does not answer."""
_RESET = 4.0
"""Seconds that TensorFlow gets to end what waits for a lost worker. Then the process ends without it and loses nothing:
a checkpoint that is being written does not count anyway."""
_TASK = re.compile(r"/job:worker/replica:0/task:(\d+)")
_BLOCK = 1 << 16
"""Bytes of a block; what is exchanged is cut into such."""
_LENGTH = struct.Struct("<q")


class TensorFlowWorld(World):
    """The processes of a cluster, of which this one runs a TensorFlow server; it lives until the process ends.

    TensorFlow's servers check nobody's identity: whoever reaches the port can run any operation in the process. Keep
    the ports within a network that you trust. `listen_narrowly` closes the machine's other addresses.

    Args:
        cluster: all processes.
        timeout: seconds that a process waits for the others to begin, and in a step or an agreement.
        cpu_towers: towers on the CPU in this process, which share its processors.
        tell: gets a sentence on who can reach this process and, now and then, on whom it waits for.
    Raises:
        SettingsError: the port is taken.
        WorkerLostError: others did not begin in time.
    """

    def __init__(self, cluster: Cluster, timeout: float, cpu_towers: int = 1,
                 tell: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(cluster.index, len(cluster.workers))
        self.cluster, self.timeout, self._keys = cluster, timeout, 0
        self._missing: tuple[int | None, str] | None = None
        self._waits = Waits()
        _refuse_taken_port(cluster.workers[cluster.index])
        config = session_config(cpu_towers)     # sessions have the threads of their server
        self._find_others(config)
        self._server = tf.distribute.Server({JOB: list(cluster.workers)}, JOB, cluster.index, config=config)
        tell(listen_narrowly(cluster))
        self._session = self._decisions()
        others = [index for index in range(self.processes) if index != self.process]
        if late := wait_for_all(cluster.workers, others, timeout, tell):
            raise self._lost(late[0], f"did not begin within {timeout:g} s, or cannot be reached")

    def _find_others(self, config: Any) -> None:
        config.experimental.collective_nccl = bool(tf.config.list_physical_devices("GPU"))
        config.experimental.collective_group_leader = f"/job:{JOB}/replica:0/task:0"
        del config.device_filters[:]
        config.device_filters.append(f"/job:{JOB}/task:{self.process}")     # a session waits for no other worker

    def session_target(self, config: Any) -> str:
        self._find_others(config)
        config.isolate_session_state = True
        return str(self._server.target)

    def run_hooks(self) -> list[Any]:
        return [WaitHook(self._waits)]

    def new_key(self) -> int:
        """A number for one more collective: the same in every process, as all make theirs in the same order."""
        self._keys += 1
        return self._keys

    def all_reduce(self, value: Tensor, operation: str = "Add", gpu: str = "") -> Tensor:
        """The sum (or "Max") of a tensor over all processes: of the shape and dtype of `value`, which is static.

        Args:
            gpu: the device on which NCCL makes it; "" for a ring over the memories of the processors.
        """
        with tf1.device(gpu or CPU):
            return tf.raw_ops.CollectiveReduceV2(
                input=value, group_size=self.processes, group_key=GPU_GROUP if gpu else CPU_GROUP,
                instance_key=self.new_key(), ordering_token=[], merge_op=operation, final_op="Id",
                communication_hint="nccl" if gpu else "ring")

    def all_gather(self, value: Tensor) -> Tensor:
        """The values of all processes behind each other, by their index.

        Args:
            value: `[n, ...]`, of a static shape that is the same in all.
        Returns:
            `[processes * n, ...]`, of the same dtype.
        """
        with tf1.device(CPU):
            return tf.raw_ops.CollectiveGatherV2(
                input=value, group_size=self.processes, group_key=CPU_GROUP, instance_key=self.new_key(),
                ordering_token=[], communication_hint="ring")

    def _decisions(self) -> Session:
        """A session for decisions and for what is exchanged; a collective keeps the shape of its first run."""
        with tf.Graph().as_default() as graph, tf1.device(CPU):
            self._wish = tf1.placeholder(tf.float64, [1])
            self._agreed = self.all_reduce(self._wish, "Max")
            self._given = tf1.placeholder(tf.int32, [1, _BLOCK // 4])
            self._gathered = self.all_gather(self._given)
        config = tf1.ConfigProto(allow_soft_placement=True)
        return tf1.Session(self.session_target(config), graph=graph, config=config)

    def agree(self, wish: T) -> T:
        with self.losses_named(), self._waits.one():
            (largest,) = self._session.run(self._agreed, {self._wish: [float(wish)]})
        return type(wish)(int(largest) if isinstance(wish, int) else largest)

    def part(self) -> None:
        """Wait for the others before this process ends by an error that all have; it does not matter if one is gone."""
        with suppress(WorkerLostError):
            self.agree(True)

    def exchange(self, data: bytes) -> list[bytes]:
        sent = _LENGTH.pack(len(data)) + data
        count = -(-self.agree(len(sent)) // _BLOCK)
        rows = np.frombuffer(sent.ljust(count * _BLOCK, b"\0"), np.int32).reshape(count, 1, -1)
        with self.losses_named(), self._waits.one():
            blocks = [self._session.run(self._gathered, {self._given: row}) for row in rows]
        received = [b"".join(block[process].tobytes() for block in blocks) for process in range(self.processes)]
        return [one[_LENGTH.size:_LENGTH.size + _LENGTH.unpack_from(one)[0]] for one in received]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, a worker that stands still or is cut off is found within seconds, and what waits for it ends.

        What waits longer than `timeout` for workers that answer ends, too.
        """
        asked = neighbours(self.process, self.processes)
        watch = Watch(self.cluster.workers, asked, self._end_waiting, self._waits, self.timeout)
        try:
            yield
        finally:
            watch.stop()

    def _end_waiting(self, index: int | None, seen: str) -> None:
        """Close all sessions of this process's server, so that the thread which waits in one gets an error."""
        self._missing = index, seen
        error = self._lost(index, seen)
        last_resort = threading.Timer(_RESET, end_process, (error.exit_status, str(error)))
        last_resort.daemon = True
        last_resort.start()
        tf1.Session.reset(self._server.target)
        last_resort.cancel()

    @contextmanager
    def losses_named(self) -> Iterator[None]:
        """Inside, what TensorFlow raises since a worker is lost becomes the sentence that says so.

        Raises:
            WorkerLostError: another process is gone.
        """
        try:
            yield
        except tf.errors.OpError as error:
            if self._missing is None and not isinstance(error, _LOSSES):
                raise
            _forget_callables()
            raise self._loss(error) from error

    def _loss(self, error: tf.errors.OpError) -> WorkerLostError:
        """What happened, in a sentence that names the worker that is gone, where the watch or TensorFlow tells it.

        A process that ends since another is gone is missed in turn: of several, the one that nobody reaches is named.
        """
        if self._missing is not None:
            return self._lost(*self._missing)
        named = sorted({int(number) for number in _TASK.findall(str(error))} - {self.process})
        if not named:
            return self._lost(None, "is gone, or does not answer")
        unreached = [index for index in named if not _listens(self.cluster.workers[index])]
        return self._lost((unreached or named)[0], "is gone")

    def _lost(self, index: int | None, seen: str) -> WorkerLostError:
        who = f"A worker that worker {self.process} waits for" if index is None else \
            f"Worker {index} ({self.cluster.workers[index]})"
        return WorkerLostError(f"{who} {seen}: nothing is saved any more; start all workers again, and they go on from "
                               "the last checkpoint.")


def _forget_callables() -> None:
    """Print no stack where TensorFlow cannot release what sessions had that are closed since a worker is lost."""
    usual = sys.unraisablehook

    def hook(raised: Any) -> None:
        if not isinstance(raised.exc_value, tf.errors.OpError):
            usual(raised)

    sys.unraisablehook = hook


def _listens(address: str) -> bool:
    """Whether anything takes a connection there, within a second."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def _refuse_taken_port(address: str) -> None:
    """TensorFlow's own message is a stack of its internals, or, with SO_REUSEPORT, there is none at all."""
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise SettingsError(f"Port {port} of this worker ({address}) is taken ({error.strerror}): another program "
                                "or training has it; give the worker another one.") from None
