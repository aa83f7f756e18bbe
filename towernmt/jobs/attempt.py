"""An attempt to train by several workers on Ray: its actors, their training processes, and requests to stop."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from towernmt.cluster.cluster_description import TF_CONFIG
from towernmt.farm.farm import Event, Failed, Lost, Ready, Result
from towernmt.farm.ray_workers import RayWorkers, Resources, enter_shared_directory
from towernmt.jobs.training_process import ProcessOutput, TrainingProcess, WorkerOutput


class StopRequestedError(Exception):
    """The user requested a stop before the training had begun."""


class StopRequest:
    """A request of the user to stop.

    Attributes:
        signal_number: number of the first signal; None before it.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def check(self) -> None:
        """Check that no stop was requested.

        Raises:
            StopRequestedError: a signal was received.
        """
        if self.signal_number is not None:
            raise StopRequestedError

    def receive(self, signal_number: int, _: Any = None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed again.
        """
        if self.signal_number is not None and signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = self.signal_number or signal_number


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn signals into a request to stop while the block runs, if this is the main thread."""
    request, old = StopRequest(), {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        old = {number: signal.signal(number, request.receive) for number in numbers
               if number != getattr(signal, "SIGHUP", None) or signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class WorkerExit(NamedTuple):
    """The end of a worker's process.

    Attributes:
        worker: number of the worker.
        address: its `host:port`; "" if it was lost before it had one.
        status: exit status of its process, negative for a signal; None if it was lost with its machine.
        message: its final error message; of a lost worker, the reason that Ray reports.
        killed: whether the attempt killed it after another worker had ended.
    """

    worker: int
    address: str
    status: int | None
    message: str = ""
    killed: bool = False

    @property
    def name(self) -> str:
        """Name of the worker in messages."""
        return f"Worker {self.worker} ({self.address})" if self.address else "A worker that had not begun"


PORTS = range(20_000, 32_768)
"""Ports for workers: above those of Ray's own processes, below those that systems assign to connections."""


class TrainingWorker:
    """The function of a worker: starts a training process on its machine, and calls its methods as tasks.

    Attributes:
        description: address of the machine.
    """

    def __init__(self, host: str) -> None:
        self.description = f"[{host}]" if ":" in host else host
        self._process: TrainingProcess | None = None

    def __call__(self, task: WorkerTask) -> Any:
        """Do a task: call a method of this object."""
        return getattr(self, task.method)(*task.arguments)

    def find_port(self) -> int:
        """Return a free port of this machine."""
        while True:
            port = random.choice(PORTS)
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("", port))
                return port

    def start(self, arguments: Sequence[str], addresses: Sequence[str], number: int, processors: int, run: str) -> None:
        """Start the training process."""
        config = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": number}}
        self._process = TrainingProcess(
            arguments, subprocess.PIPE, subprocess.PIPE, waits_for=run if number == 0 else "", processors=processors,
            environment={TF_CONFIG: json.dumps(config), "PYTHONUNBUFFERED": "1"})

    def read(self) -> ProcessOutput:
        """Return the latest output; see `TrainingProcess.read`."""
        if self._process is None:
            raise RuntimeError("the worker was not started")
        return self._process.read()

    def send(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            self._process.send(number)

    def kill(self) -> None:
        """Kill the process and all processes that it has started, if it runs."""
        if self._process is not None:
            self._process.kill()


class WorkerTask(NamedTuple):
    """A task of a `TrainingWorker`.

    Attributes:
        method: name of the method.
        arguments: its arguments.
    """

    method: str
    arguments: tuple[Any, ...] = ()


def make_training_worker(directory: str, number: int) -> TrainingWorker:
    """Make the function of a worker.

    Args:
        directory: directory in which the command was started.
        number: number of the actor.

    Raises:
        SettingsError: this machine does not have the directory.
    """
    from ray.util import get_node_ip_address

    enter_shared_directory(directory)
    return TrainingWorker(get_node_ip_address())


_START_TIMEOUT = 300.0  # seconds for the actors to start
_GRACE = 30.0           # seconds for the other workers to end by themselves after one has ended,
_SHORT_GRACE = 2.0      # and after the user has stopped one before it could handle the signal
_CONCURRENCY = 4        # tasks of an actor at the same time: a signal does not wait for the end of `read`


class Attempt:
    """An attempt: one worker for each bundle of a placement group.

    Attributes:
        addresses: addresses of the workers, by number, once they are known.
    """

    def __init__(self, group: Any, count: int, resources: Resources, request: StopRequest) -> None:
        self._group, self._resources, self._request = group, resources, request
        self.addresses = [""] * count
        self._workers = RayWorkers(partial(make_training_worker, os.getcwd()), count, resources, group, _CONCURRENCY)
        self._actors = list(range(count))       # the actor of each worker
        self._running: set[int] = set()         # actors whose process runs

    def begin(self, arguments: Sequence[str], run: Path) -> list[WorkerExit]:
        """Start the training processes; returns the workers that are lost already.

        Raises:
            SettingsError: a machine does not have the directory of the command.
            StopRequestedError: the user requested a stop.
        """
        try:
            self._find_addresses()
            processors = self._resources.processors
            starts = [WorkerTask("start", (list(arguments), self.addresses, number, processors, str(run)))
                      for number in range(len(self._actors))]
            self._run_all(dict(zip(self._actors, starts, strict=True)))
        except _LostAtStartError as lost:
            number = self._actors.index(lost.actor)
            return [WorkerExit(number, self.addresses[number], None, str(lost))]
        return []

    def follow(self, outputs: Sequence[WorkerOutput]) -> list[WorkerExit]:
        """Write the output of the workers, and forward the request to stop, until all have ended."""
        self._running = set(self._actors)
        for actor in self._actors:
            self._workers.submit(actor, WorkerTask("read"))
        exits: list[WorkerExit] = []
        sent_signal, deadline = None, float("inf")     # when the other workers are killed
        while self._running:
            for actor, event in self._workers.wait(0.2):
                exits += self._handle(actor, event, outputs, time.monotonic() > deadline)
            if self._request.signal_number != sent_signal:
                sent_signal = self._request.signal_number
                self._workers.notify([self._actors[0]], WorkerTask("send", (sent_signal,)))
            if any(exit.status != 0 or sent_signal for exit in exits):
                unhandled = sent_signal is not None and any(exit.status == -sent_signal for exit in exits)
                deadline = min(deadline, time.monotonic() + (_SHORT_GRACE if unhandled else _GRACE))
            self._kill_late(deadline)
        for output in outputs:
            output.close()
        return [exit._replace(message=exit.message or outputs[exit.worker].error) for exit in exits]

    def close(self) -> None:
        """Kill the processes that still run, and release the resources."""
        from ray.util import remove_placement_group

        self._workers.notify(self._actors, WorkerTask("kill"), seconds=5)   # a lost actor does not answer
        self._workers.stop()
        remove_placement_group(self._group)

    def _find_addresses(self) -> None:
        """Number the workers machine by machine, and find a port for each."""
        for actor in self._actors:
            self._workers.start(actor)
        hosts = {actor: event.description for actor, event in self._wait_for_all(self._actors).items()
                 if isinstance(event, Ready)}
        self._actors = sorted(hosts, key=lambda actor: hosts[actor])
        for number, actor in enumerate(self._actors):
            while not self.addresses[number]:
                address = f"{hosts[actor]}:{self._run_all({actor: WorkerTask('find_port')})[actor]}"
                self.addresses[number] = "" if address in self.addresses else address

    def _run_all(self, tasks: dict[int, WorkerTask]) -> dict[int, Any]:
        """Do a task in each actor; returns the results by actor."""
        for actor, task in tasks.items():
            self._workers.submit(actor, task)
        return {actor: event.value for actor, event in self._wait_for_all(list(tasks)).items()
                if isinstance(event, Result)}

    def _wait_for_all(self, actors: Sequence[int]) -> dict[int, Event]:
        """Wait for one event of each actor.

        Raises:
            _LostAtStartError: an actor was lost, or the time limit is over.
            StopRequestedError: the user requested a stop.
            Exception: an actor failed.
        """
        deadline, events = time.monotonic() + _START_TIMEOUT, dict[int, Event]()
        while len(events) < len(actors):
            self._request.check()
            for actor, event in self._workers.wait(1):
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Lost):
                    raise _LostAtStartError(actor, event.reason)
                events[actor] = event
            if len(events) < len(actors) and time.monotonic() > deadline:
                silent = next(actor for actor in actors if actor not in events)
                raise _LostAtStartError(silent, f"no answer within {_START_TIMEOUT:g} s")
        return events

    def _handle(self, actor: int, event: Event, outputs: Sequence[WorkerOutput], killed: bool) -> list[WorkerExit]:
        """Act on an event of an actor; returns its end, or an empty list.

        Raises:
            Exception: the actor failed.
        """
        if isinstance(event, Failed):
            raise event.error
        number = self._actors.index(actor)
        if isinstance(event, Result):
            output: ProcessOutput = event.value
            outputs[number].write(output.chunks)
            if output.status is None:
                self._workers.submit(actor, WorkerTask("read"))
                return []
            exit = WorkerExit(number, self.addresses[number], output.status, killed=killed)
        else:
            reason = event.reason if isinstance(event, Lost) else ""
            exit = WorkerExit(number, self.addresses[number], None, reason, killed)
        self._running.discard(actor)
        return [exit]

    def _kill_late(self, deadline: float) -> None:
        """Kill the workers that run after the deadline: they may block, or wait for a lost worker."""
        late = time.monotonic() - deadline
        for actor in self._running:
            if late > _GRACE:
                self._workers.kill(actor)
            elif late > 0:
                self._workers.notify([actor], WorkerTask("kill"))


class _LostAtStartError(Exception):
    """A worker was lost before its process started.

    Attributes:
        actor: its actor.
    """

    def __init__(self, actor: int, reason: str) -> None:
        super().__init__(reason)
        self.actor = actor
