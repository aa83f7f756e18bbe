"""A farm: workers that are started, given tasks, restarted after a loss, and stopped.

`Farm` supervises the workers of a backend: processes of this machine (`LocalWorkers`) or actors of a Ray cluster
(`ray_workers`). Its caller decides which task comes next, and what a failed or lost task means.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

from towernmt.core.errors import TowerNMTError, UnfinishedError
from towernmt.core.machine import end_with_parent
from towernmt.core.standard_streams import without_noise

LOSSES_PER_WORKER = 3
"""The farm gives up after this number of losses in a row for each of its workers."""
_WAIT = 1.0     # seconds to wait for an event


@dataclass(frozen=True)
class Ready:
    """The worker has started, and waits for a task.

    Attributes:
        description: `TaskFunction.description` of its function.
    """

    description: Any


@dataclass(frozen=True)
class Result:
    """The worker has done its task, and waits for the next one.

    Attributes:
        value: return value of the function.
    """

    value: Any


@dataclass(frozen=True)
class Failed:
    """The function, or the call that makes it, raised an exception. The worker waits for the next task.

    Attributes:
        error: the exception, with the worker's stack trace as a note.
    """

    error: Exception


@dataclass(frozen=True)
class Lost:
    """The worker has ended without an answer.

    Attributes:
        reason: the reason, a phrase.
        status: exit status of its process, negative for a signal; None if it is unknown.
    """

    reason: str
    status: int | None = None


Event = Ready | Result | Failed | Lost


class TaskFunction(Protocol):
    """The function that a worker makes once and calls with each task.

    Attributes:
        description: value to send with `Ready`.
    """

    description: Any

    def __call__(self, task: Any, /) -> Any:
        """Do a task."""


MakeTaskFunction = Callable[[int], TaskFunction]
"""Makes the function of a worker from the number of the worker, from 0. It is pickled, unless processes are forked."""


class Workers(Protocol):
    """A backend: workers by number.

    Attributes:
        count: maximum number of workers.
    """

    count: int

    def start(self, number: int) -> None:
        """Start a worker, for the first time or after a loss. `Ready` or `Failed` follows, or `Lost`."""

    def submit(self, number: int, task: Any) -> None:
        """Give a task to a worker that waits for one. `Result` or `Failed` follows, or `Lost`."""

    def wait(self, seconds: float) -> list[tuple[int, Event]]:
        """Return the next events, each with the number of its worker.

        Args:
            seconds: maximum time to wait for the first event.
        """

    def stop(self) -> None:
        """End all workers at once. May be called more than once, and from another thread."""


class WorkerError(Exception):
    """A worker raised an exception that cannot be pickled; contains its stack trace."""


def call(function: Callable[[], Any]) -> Result | Failed:
    """Call a function in a worker; returns its result or its exception, which can be pickled."""
    try:
        return Result(function())
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        try:
            error.add_note(trace)
            pickle.loads(pickle.dumps(error))
        except Exception:
            return Failed(WorkerError(trace))
        return Failed(error)


def describe_status(status: int | None) -> str:
    """Return a phrase for the exit status of a process that has ended early; a signal is a negative status."""
    if status is None or status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"{name}, which the system sends when memory is short" if name == "SIGKILL" else name


class FarmEvent(NamedTuple):
    """An event of a farm.

    Attributes:
        worker: number of the worker.
        task: key of the task that it had; None if it had none.
        event: the event.
    """

    worker: int
    task: int | None
    event: Event


class Farm:
    """Workers under supervision.

        farm.start(farm.count)
        while ...:
            farm.assign(key, task, name)        # while a worker is idle
            for event in farm.events():
                ...
        farm.stop()                             # in any case

    Attributes:
        idle: numbers of the workers that wait for a task.
        tasks: key and name of the task that each busy worker has, by the number of the worker.

    Args:
        workers: the backend.
        advice: the last sentence of the message when the farm gives up; names the fix.
        report: called with a message when a worker is restarted.
    """

    def __init__(self, workers: Workers, advice: str, report: Callable[[str], None]) -> None:
        self._workers, self._advice, self._report = workers, advice, report
        self._started, self._losses, self._has_started = 0, 0, False
        self.idle: set[int] = set()
        self.tasks: dict[int, tuple[int, str]] = {}

    @property
    def count(self) -> int:
        """Maximum number of workers."""
        return self._workers.count

    def start(self, count: int) -> None:
        """Start workers until there are `count` of them, or as many as the backend can have."""
        while self._started < min(count, self.count):
            self._workers.start(self._started)
            self._started += 1

    def wait_for_first(self) -> Any:
        """Start worker 0, and wait until it is ready; returns the description of its function.

        Start the other workers afterwards: they find the files that worker 0 has cached (a graph, an export).

        Raises:
            TowerNMTError: it cannot make its function, or was lost several times.
        """
        self.start(1)
        while True:
            for _, _, event in self.events():
                if isinstance(event, Ready):
                    return event.description

    def assign(self, key: int, task: Any, name: str) -> None:
        """Give a task to an idle worker.

        Args:
            key: identifies the task in events.
            task: argument of the worker's function; it is pickled.
            name: name of the task in messages, such as "train.de lines 1 to 500".
        """
        number = min(self.idle)
        self.idle.discard(number)
        self.tasks[number] = key, name
        self._workers.submit(number, task)

    def events(self) -> Iterator[FarmEvent]:
        """Yield the events of at most a second. After the event of a loss, the worker is restarted.

        Raises:
            UnfinishedError: too many workers were lost without a result in between.
            Exception: a worker cannot make its function.
        """
        for number, event in self._workers.wait(_WAIT):
            was_idle = number in self.idle
            key, name = self.tasks.pop(number, (None, ""))
            if isinstance(event, Lost):
                self.idle.discard(number)
                yield FarmEvent(number, key, event)
                self._restart(number, self._when(name, was_idle), event.reason)
                continue
            if isinstance(event, Failed) and key is None:
                raise event.error
            if isinstance(event, Result):
                self._losses = 0
            self._has_started = True
            self.idle.add(number)
            yield FarmEvent(number, key, event)

    def stop(self) -> None:
        """Stop all workers at once. May be called more than once, and from another thread."""
        self._workers.stop()

    @staticmethod
    def _when(task: str, was_idle: bool) -> str:
        """Return a phrase for messages: what a lost worker was doing."""
        if task:
            return f"with {task}"
        return "while it waited for a task" if was_idle else "while it started"

    def _restart(self, number: int, when: str, reason: str) -> None:
        self._losses += 1
        if not self._has_started and self._losses >= LOSSES_PER_WORKER:
            raise TowerNMTError(f"{self._losses} workers were lost while they started (the last: {reason}). "
                                f"{self._advice}")
        if self._losses >= LOSSES_PER_WORKER * self.count:
            raise UnfinishedError(f"{self._losses} workers were lost in a row, the last one {when} ({reason}). "
                                  f"{self._advice}")
        self._report(f"worker {number} was lost {when} ({reason}), and is started again.")
        self._workers.start(number)


class LocalWorkers:
    """Processes, each with a pipe. They end with this process, even if it is killed.

    Ctrl-C, which the terminal sends to all processes, does not end them: this process does.

    Args:
        make: makes the function of a worker.
        count: maximum number of processes.
        start_method: returns "spawn", or "fork", which is faster, but not safe once a library such as TensorFlow has
            started threads.
    """

    def __init__(self, make: MakeTaskFunction, count: int, start_method: Callable[[], str] = lambda: "spawn"
                 ) -> None:
        self.count, self._make = count, make
        self._start_method = start_method
        self._processes: dict[int, tuple[Any, Connection]] = {}

    def start(self, number: int) -> None:
        """See `Workers.start`."""
        context = multiprocessing.get_context(self._start_method())
        connection, worker_end = context.Pipe()
        process = context.Process(    # type: ignore[attr-defined]
            target=_serve, args=(worker_end, self._make, number), daemon=True, name=f"worker {number}")
        process.start()
        worker_end.close()      # else the end of the process would not close the pipe
        self._processes[number] = process, connection

    def submit(self, number: int, task: Any) -> None:
        """See `Workers.submit`."""
        with suppress(OSError):     # the process has ended, which `wait` reports
            self._processes[number][1].send(task)

    def wait(self, seconds: float) -> list[tuple[int, Event]]:
        """See `Workers.wait`."""
        numbers = {pipe: number for number, (_, pipe) in self._processes.items()}
        return [(numbers[pipe], self._event(numbers[pipe])) for pipe in wait(list(numbers), seconds)]   # type: ignore

    def stop(self) -> None:
        """See `Workers.stop`."""
        processes, self._processes = self._processes, {}
        for process, _ in processes.values():
            process.kill()
        for process, pipe in processes.values():
            process.join()
            pipe.close()

    def _event(self, number: int) -> Event:
        process, pipe = self._processes[number]
        try:
            event: Event = pipe.recv()
            return event
        except (EOFError, OSError):
            del self._processes[number]
            pipe.close()
            process.join()
            return Lost(describe_status(process.exitcode), process.exitcode)


def _serve(pipe: Connection, make: MakeTaskFunction, number: int) -> None:
    """Run a worker in its process, until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    with without_noise(), suppress(EOFError):
        outcome = call(lambda: make(number))
        if isinstance(outcome, Failed):
            pipe.send(outcome)
            return
        function: TaskFunction = outcome.value
        pipe.send(Ready(function.description))
        while True:
            task = pipe.recv()
            pipe.send(call(lambda: function(task)))    # noqa: B023
