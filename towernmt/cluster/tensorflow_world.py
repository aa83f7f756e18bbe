"""A world of several processes: each is a TensorFlow server, and they agree by collectives.

A server accepts connections only at its address in the cluster. TensorFlow binds to all addresses and has no option to
change that. So a filter on the listening socket makes the kernel drop packets to other addresses. On Linux, a process
may set such a filter on its own sockets (socket(7), SO_ATTACH_FILTER). It is a classic BPF program (McCanne and
Jacobson, The BSD Packet Filter, 1993).
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from towernmt.cluster.cluster_description import Cluster
from towernmt.cluster.worker_watch import WaitHook, Waits, Watch, end_process, neighbours, wait_for_all
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
_LOSSES = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError,
           tf.errors.CancelledError)
"""TensorFlow's exceptions in a process whose partner is lost or does not answer."""
_RESET = 4.0
"""Seconds until the process exits if TensorFlow does not end operations that wait for a lost worker. Nothing is lost by
that, because incomplete checkpoints are not used."""
_TASK = re.compile(r"/job:worker/replica:0/task:(\d+)")
_BLOCK = 1 << 16
"""Size in bytes of a block; exchanged data is split into blocks."""
_LENGTH = struct.Struct("<q")


class TensorFlowWorld(World):
    """The processes of a cluster; this process runs a TensorFlow server until it ends.

    TensorFlow's servers have no authentication: anyone who reaches the port can run any operation in the process. Keep
    the ports within a trusted network. `listen_narrowly` closes the machine's other addresses.

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
        self._missing: tuple[int | None, str] | None = None
        self._waits = Waits()
        _refuse_used_port(cluster.workers[cluster.index])
        config = session_config(cpu_towers, on_cpu=cpu_towers > 0)      # sessions use the threads of their server
        # The graphs of the sessions are not known yet; each tower may have an operation that waits.
        add_threads(config, max(cpu_towers, len(chosen_gpus())), own_pool=False)
        self._find_others(config)
        self._server = tf.distribute.Server({JOB: list(cluster.workers)}, JOB, cluster.index, config=config)
        report(listen_narrowly(cluster))
        self._session = self._decisions()
        others = [index for index in range(self.processes) if index != self.process]
        if late := wait_for_all(cluster.workers, others, timeout, report):
            raise self._lost(late[0], f"did not start within {timeout:g} s, or cannot be reached")

    def _find_others(self, config: Any) -> None:
        config.experimental.collective_nccl = bool(chosen_gpus())
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

    def _decisions(self) -> Session:
        """Return a session for agreements and exchanges, whose collectives have fixed shapes."""
        with tf.Graph().as_default() as graph, tf1.device(CPU):
            self._request = tf1.placeholder(tf.float64, [1])
            self._agreed = self.all_reduce(self._request, "Max")
            self._block = tf1.placeholder(tf.int32, [1, _BLOCK // 4])
            self._gathered = self.all_gather(self._block)
        config = tf1.ConfigProto(allow_soft_placement=True)
        return tf1.Session(self.session_target(config), graph=graph, config=config)

    def agree(self, request: T) -> T:
        with self.losses_named(), self._waits.one():
            (largest,) = self._session.run(self._agreed, {self._request: [float(request)]})
        return type(request)(int(largest) if isinstance(request, int) else largest)

    def part(self) -> None:
        """Wait for the others before this process ends by an error of all processes; ignore lost workers."""
        with suppress(WorkerLostError):
            self.agree(True)

    def exchange(self, data: bytes) -> list[bytes]:
        sent = _LENGTH.pack(len(data)) + data
        count = -(-self.agree(len(sent)) // _BLOCK)
        rows = np.frombuffer(sent.ljust(count * _BLOCK, b"\0"), np.int32).reshape(count, 1, -1)
        with self.losses_named(), self._waits.one():
            blocks = [self._session.run(self._gathered, {self._block: row}) for row in rows]
        received = [b"".join(block[process].tobytes() for block in blocks) for process in range(self.processes)]
        return [one[_LENGTH.size:_LENGTH.size + _LENGTH.unpack_from(one)[0]] for one in received]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch other workers inside the context.

        A stalled or disconnected worker is detected within seconds, and operations that wait for it end. Operations
        that wait longer than `timeout` for workers that answer end, too.
        """
        watch = Watch(self.cluster.workers, neighbours(self.process, self.processes), self._end_waiting, self._waits,
                      self.timeout)
        try:
            yield
        finally:
            watch.stop()

    def _end_waiting(self, index: int | None, seen: str) -> None:
        """Close all sessions of this process's server, so that a thread that waits in one gets an error."""
        self._missing = index, seen
        error = self._lost(index, seen)
        last_resort = threading.Timer(_RESET, end_process, (error.exit_status, str(error)))
        last_resort.daemon = True
        last_resort.start()
        tf1.Session.reset(self._server.target)
        last_resort.cancel()

    @contextmanager
    def losses_named(self) -> Iterator[None]:
        """Turn TensorFlow's errors after the loss of a worker into `WorkerLostError`, inside the context.

        Raises:
            WorkerLostError: another process was lost.
        """
        try:
            yield
        except tf.errors.OpError as error:
            if self._missing is None and not isinstance(error, _LOSSES):
                raise
            _forget_callables()
            raise self._loss(error) from error

    def _loss(self, error: tf.errors.OpError) -> WorkerLostError:
        """Return an error that names the lost worker, if the watch or TensorFlow has named it.

        A process that ends because another was lost is missed by others in turn. So of several named workers, the error
        names one that cannot be reached.
        """
        if self._missing is not None:
            return self._lost(*self._missing)
        named = sorted({int(number) for number in _TASK.findall(str(error))} - {self.process})
        if not named:
            return self._lost(None, "was lost, or does not answer")
        unreached = [index for index in named if not _listens(self.cluster.workers[index])]
        return self._lost((unreached or named)[0], "was lost")

    def _lost(self, index: int | None, seen: str) -> WorkerLostError:
        who = f"A worker that worker {self.process} waits for" if index is None else \
            f"Worker {index} ({self.cluster.workers[index]})"
        return WorkerLostError(f"{who} {seen}: nothing more is saved. Start all workers again to resume from the last "
                               "checkpoint.")


def _forget_callables() -> None:
    """Print no stack trace if TensorFlow cannot release callables of sessions closed after the loss of a worker."""
    usual = sys.unraisablehook

    def hook(raised: Any) -> None:
        if not isinstance(raised.exc_value, tf.errors.OpError):
            usual(raised)

    sys.unraisablehook = hook


def _listens(address: str) -> bool:
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


_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER in <asm-generic/socket.h>, which Python does not define."""
_NETWORK_HEADER = 0x100000000 - 0x100000
"""SKF_NET_OFF in <linux/filter.h>: the offset of the IP header."""
_LOAD_BYTE, _LOAD_WORD, _SHIFT_RIGHT, _IF_EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
_DROP, _ACCEPT = 0, 0xFFFFFFFF
_DESTINATION = {4: 16, 6: 24}
"""Offset of the destination address in the header of IPv4 and of IPv6, in bytes."""
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def listen_narrowly(cluster: Cluster) -> str:
    """Restrict the port of this process's running server to the addresses of its own host name.

    Returns:
        a message for the log: the open addresses, or the reason why the port is open at all addresses.
    """
    host, port = cluster.workers[cluster.index].rpartition(":")[::2]
    try:
        addresses = _own_addresses(host.strip("[]"))
        reason = _obstacle(addresses, cluster)
        addresses = [address for address in addresses if _is_here(address)]
        if not reason:
            attach_filter(int(port), addresses)
    except OSError as error:
        reason = str(error)
    if not reason:
        return f"Port {port} accepts connections at {' and '.join(map(str, addresses))}, and at no other address."
    return (f"Port {port} is open at all addresses of this machine ({reason}). Anyone who reaches it can run anything "
            "in this process, so restrict it to the workers by a firewall or a separate network.")


def attach_filter(port: int, addresses: Sequence[IPAddress]) -> None:
    """Restrict the sockets of this process that listen on a port to connections to some addresses.

    Args:
        port: the port of the server.
        addresses: the addresses of this machine that stay open.

    Raises:
        OSError: no socket listens on the port, or the system does not support filters.
    """
    code = b"".join(struct.pack("=HBBI", *step) for step in _program(addresses))
    steps = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(steps))
    restricted = 0
    for listener in _listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        restricted += 1
    if not restricted:
        raise OSError(f"no socket of this process listens on port {port}")


def _own_addresses(host: str) -> list[IPAddress]:
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in infos}, key=str)


def _obstacle(addresses: Sequence[IPAddress], cluster: Cluster) -> str:
    """Return why other workers may connect to another address than those of the own host name here, or ""."""
    if not sys.platform.startswith("linux"):
        return "only Linux can restrict it"
    hosts = [worker.rpartition(":")[0] for worker in cluster.workers]
    host = hosts[cluster.index]
    named = host.strip("[]") not in map(str, addresses)
    if named and len(set(hosts)) > 1 and any(address.is_loopback for address in addresses):
        return f"{host} is a loopback address here, as in Debian's /etc/hosts, but not on the other machines"
    if not any(map(_is_here, addresses)):
        return f"{addresses[0]} in the cluster is an address of another machine that forwards here"
    return ""


def _is_here(address: IPAddress) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _listeners(port: int) -> Iterator[socket.socket]:
    """Yield the sockets of this process that listen on a port, each as a copy that is closed afterwards."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):     # the descriptor was closed, or is not a socket
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if listens and copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == port:
                    yield copy


def _program(addresses: Sequence[IPAddress]) -> list[tuple[int, int, int, int]]:
    """Return a BPF program of (code, skip if true, skip if false, value) that accepts packets to the addresses."""
    steps = []
    for address in addresses:
        at = _NETWORK_HEADER + _DESTINATION[address.version]
        words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
        left = 2 * len(words) + 1       # steps of this address after the first comparison
        steps += [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_SHIFT_RIGHT, 0, 0, 4), (_IF_EQUAL, 0, left, address.version)]
        for number, word in enumerate(words):
            left -= 2
            steps += [(_LOAD_WORD, 0, 0, at + 4 * number), (_IF_EQUAL, 0, left, word)]
        steps.append((_RETURN, 0, 0, _ACCEPT))
    return [*steps, (_RETURN, 0, 0, _DROP)]
