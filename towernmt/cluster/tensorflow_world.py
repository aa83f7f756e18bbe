"""A world of several processes: each is a TensorFlow server, and they agree by collectives."""

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

from towernmt.cluster.cluster_description import Cluster
from towernmt.cluster.port_filter import restrict_listening
from towernmt.cluster.worker_watch import WaitHook, Waits, Watch, end_process, polled_workers, wait_for_all
from towernmt.core.errors import SettingsError, WorkerLostError
from towernmt.core.gpus import chosen_gpus
from towernmt.core.session import add_threads, session_config
from towernmt.core.tensors import Session, Tensor
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World

T = TypeVar("T", bound=float)
JOB = "worker"
CPU = "/device:CPU:0"
CPU_GROUP, GPU_GROUP = 1, 2
"""Group keys of collectives: over the CPU of each worker, and over one GPU of each worker."""
_LOSS_ERRORS = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError,
                tf.errors.CancelledError)
"""TensorFlow's exceptions in a process whose partner is lost or does not answer."""
_RESET_SECONDS = 4.0
"""Seconds until the process exits if TensorFlow does not end operations that wait for a lost worker. Nothing is lost by
that, because incomplete checkpoints are not used."""
_TASK_NUMBER = re.compile(r"/job:worker/replica:0/task:(\d+)")
_BLOCK_BYTES = 1 << 16
"""Size in bytes of a block; exchanged data is split into blocks."""
_LENGTH = struct.Struct("<q")


class TensorFlowWorld(World):
    """The processes of a cluster; this process runs a TensorFlow server until it ends.

    TensorFlow's servers have no authentication: anyone who reaches the port can run any operation in the process. Keep
    the ports within a trusted network. `restrict_listening` closes the machine's other addresses.

    Args:
        cluster: all processes.
        timeout: seconds that a process waits for the others at the start, in a step, or in an agreement.
        cpu_towers: number of towers on the CPU in this process; 0 if its towers are on the chosen GPUs.
        report: called with messages on the open addresses, and on the workers that this process waits for.

    Raises:
        SettingsError: the port is in use.
        WorkerLostError: other workers did not start in time.
    """

    def __init__(self, cluster: Cluster, timeout: float, cpu_towers: int = 1,
                 report: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(cluster.index, len(cluster.workers))
        self.cluster, self.timeout, self._keys = cluster, timeout, 0
        self._lost_worker: tuple[int | None, str] | None = None
        self._waits = Waits()
        _refuse_used_port(cluster.workers[cluster.index])
        config = session_config(cpu_towers, on_cpu=cpu_towers > 0)      # sessions use the threads of their server
        # The graphs of the sessions are not known yet; each tower may have an operation that waits.
        add_threads(config, max(cpu_towers, len(chosen_gpus())), own_pool=False)
        self._set_cluster_options(config)
        self._server = tf.distribute.Server({JOB: list(cluster.workers)}, JOB, cluster.index, config=config)
        report(restrict_listening(cluster))
        self._session = self._agreement_session()
        others = [index for index in range(self.processes) if index != self.process]
        if missing := wait_for_all(cluster.workers, others, timeout, report):
            raise self._lost_error(missing[0], f"did not start within {timeout:g} s, or cannot be reached")

    def _set_cluster_options(self, config: Any) -> None:
        """Set the options of a session or server that runs collectives with the other workers."""
        config.experimental.collective_nccl = bool(chosen_gpus())
        config.experimental.collective_group_leader = f"/job:{JOB}/replica:0/task:0"
        del config.device_filters[:]
        config.device_filters.append(f"/job:{JOB}/task:{self.process}")     # a session waits for no other worker

    def session_target(self, config: Any) -> str:
        self._set_cluster_options(config)
        config.isolate_session_state = True
        return str(self._server.target)

    def run_hooks(self) -> list[Any]:
        return [WaitHook(self._waits)]

    def new_key(self) -> int:
        """Return the key of a new collective, the same in every process because all create them in the same order."""
        self._keys += 1
        return self._keys

    def all_reduce(self, value: Tensor, operation: str = "Add", gpu: str = "") -> Tensor:
        """Return the sum (or "Max") of a tensor over all processes, with the same dtype and static shape.

        Args:
            value: the tensor, of a static shape.
            operation: "Add" or "Max".
            gpu: the device on which NCCL sums; "": a ring between the memories of the hosts.
        """
        with tf1.device(gpu or CPU):
            return tf.raw_ops.CollectiveReduceV2(
                input=value, group_size=self.processes, group_key=GPU_GROUP if gpu else CPU_GROUP,
                instance_key=self.new_key(), ordering_token=[], merge_op=operation, final_op="Id",
                communication_hint="nccl" if gpu else "ring")

    def all_gather(self, value: Tensor) -> Tensor:
        """Return the concatenated values of all processes, in the order of their indices.

        Args:
            value: `[n, ...]`, of a static shape that is the same in all processes.

        Returns:
            `[processes * n, ...]`, of the same dtype.
        """
        with tf1.device(CPU):
            return tf.raw_ops.CollectiveGatherV2(
                input=value, group_size=self.processes, group_key=CPU_GROUP, instance_key=self.new_key(),
                ordering_token=[], communication_hint="ring")

    def _agreement_session(self) -> Session:
        """Return a session for agreements and exchanges, whose collectives have fixed shapes."""
        with tf.Graph().as_default() as graph, tf1.device(CPU):
            self._request = tf1.placeholder(tf.float64, [1])
            self._agreed = self.all_reduce(self._request, "Max")
            self._block = tf1.placeholder(tf.int32, [1, _BLOCK_BYTES // 4])
            self._gathered = self.all_gather(self._block)
        config = tf1.ConfigProto(allow_soft_placement=True)
        return tf1.Session(self.session_target(config), graph=graph, config=config)

    def agree(self, request: T) -> T:
        with self.naming_lost_workers(), self._waits.measured():
            (largest,) = self._session.run(self._agreed, {self._request: [float(request)]})
        return type(request)(int(largest) if isinstance(request, int) else largest)

    def leave(self) -> None:
        """Wait for the others before this process ends by an error of all processes; ignore lost workers."""
        with suppress(WorkerLostError):
            self.agree(True)

    def exchange(self, data: bytes) -> list[bytes]:
        sent = _LENGTH.pack(len(data)) + data
        count = -(-self.agree(len(sent)) // _BLOCK_BYTES)
        blocks = np.frombuffer(sent.ljust(count * _BLOCK_BYTES, b"\0"), np.int32).reshape(count, 1, -1)
        with self.naming_lost_workers(), self._waits.measured():
            received = [self._session.run(self._gathered, {self._block: block}) for block in blocks]
        messages = [b"".join(block[process].tobytes() for block in received) for process in range(self.processes)]
        lengths = [_LENGTH.unpack_from(message)[0] for message in messages]
        return [message[_LENGTH.size:_LENGTH.size + length] for message, length in zip(messages, lengths, strict=True)]

    @contextmanager
    def watching_workers(self) -> Iterator[None]:
        """Watch other workers inside the context.

        A stalled or disconnected worker is detected within seconds, and operations that wait for it end. Operations
        that wait longer than `timeout` for workers that answer end, too.
        """
        polled = polled_workers(self.process, self.processes)
        watch = Watch(self.cluster.workers, polled, self._end_waiting, self._waits, self.timeout)
        try:
            yield
        finally:
            watch.stop()

    def _end_waiting(self, index: int | None, description: str) -> None:
        """Close all sessions of this process's server, so that a thread that waits in one gets an error."""
        self._lost_worker = index, description
        error = self._lost_error(index, description)
        last_resort = threading.Timer(_RESET_SECONDS, end_process, (error.exit_status, str(error)))
        last_resort.daemon = True
        last_resort.start()
        tf1.Session.reset(self._server.target)
        last_resort.cancel()

    @contextmanager
    def naming_lost_workers(self) -> Iterator[None]:
        """Turn TensorFlow's errors after the loss of a worker into `WorkerLostError`, inside the context.

        Raises:
            WorkerLostError: another process was lost.
        """
        try:
            yield
        except tf.errors.OpError as error:
            if self._lost_worker is None and not isinstance(error, _LOSS_ERRORS):
                raise
            _ignore_release_errors()
            raise self._error_of_loss(error) from error

    def _error_of_loss(self, error: tf.errors.OpError) -> WorkerLostError:
        """Return an error that names the lost worker, if the watch or TensorFlow has named it.

        A process that ends because another was lost is missed by others in turn. So of several named workers, the error
        names one that cannot be reached.
        """
        if self._lost_worker is not None:
            return self._lost_error(*self._lost_worker)
        numbers = sorted({int(number) for number in _TASK_NUMBER.findall(str(error))} - {self.process})
        if not numbers:
            return self._lost_error(None, "was lost, or does not answer")
        unreachable = [index for index in numbers if not _accepts_connections(self.cluster.workers[index])]
        return self._lost_error((unreachable or numbers)[0], "was lost")

    def _lost_error(self, index: int | None, description: str) -> WorkerLostError:
        who = f"A worker that worker {self.process} waits for" if index is None else \
            f"Worker {index} ({self.cluster.workers[index]})"
        return WorkerLostError(f"{who} {description}: nothing more is saved. Start all workers again to resume from "
                               "the last checkpoint.")


def _ignore_release_errors() -> None:
    """Print no stack trace if TensorFlow cannot release callables of sessions closed after the loss of a worker."""
    usual = sys.unraisablehook

    def hook(raised: Any) -> None:
        if not isinstance(raised.exc_value, tf.errors.OpError):
            usual(raised)

    sys.unraisablehook = hook


def _accepts_connections(address: str) -> bool:
    """Return whether the address accepts a connection within a second."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def _refuse_used_port(address: str) -> None:
    """Refuse a port in use, at which TensorFlow prints a stack trace or, with SO_REUSEPORT, nothing."""
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise SettingsError(f"Port {port} of this worker ({address}) is in use ({error.strerror}) by another "
                                "program or training: give the worker another port.") from None
