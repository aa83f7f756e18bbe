"""Workers that translate ranges of lines, as processes of this machine or on a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.machine import end_with_parent
from towernmt.core.standard_streams import without_noise
from towernmt.dataflow.preparation.ray_cluster import check_ray, connected
from towernmt.predict.ranges.plan import Part, PartLines


class PartWork(NamedTuple):
    """A part as it is handed out.

    Attributes:
        part: which lines.
        name: of its text, for messages.
        lines: what they are.
    """

    part: Part
    name: str
    lines: PartLines


@dataclass(frozen=True)
class PartResult:
    """What a part gave.

    Attributes:
        files: what goes to each file of its output.
        tokens: of the translations.
        faults: of its lines; see `FaultCounts.as_json`.
    """

    files: Sequence[bytes]
    tokens: int
    faults: Mapping[str, Any]


@dataclass(frozen=True)
class Ready:
    """A worker has made its translator.

    Attributes:
        task: what makes its translations what they are, as JSON has it.
    """

    task: Mapping[str, Any]


@dataclass(frozen=True)
class Failed:
    """A worker could not do what it was asked for, and goes on.

    Attributes:
        error: why; a `TowerNMTError`, or one that holds the trace of another.
    """

    error: Exception


@dataclass(frozen=True)
class Lost:
    """A worker is no more.

    Attributes:
        why: in words.
    """

    why: str


Event = Ready | PartResult | Failed | Lost


class PartTranslator(Protocol):
    """What a worker makes once.

    Attributes:
        task: see `Ready`.
    """

    task: Mapping[str, Any]

    def __call__(self, work: PartWork) -> PartResult:
        """Translate a part."""


MakeTranslator = Callable[[int], PartTranslator]
"""From the number of the worker, from 0. It is pickled."""


class Workers(Protocol):
    """Workers by number, wherever they are.

    Attributes:
        count: how many there can be.
    """

    count: int

    def start(self, number: int) -> None:
        """Start a worker, for the first time or after it was lost. It then says `Ready` or `Failed`."""

    def give(self, number: int, work: PartWork) -> None:
        """Hand out a part. A `PartResult` or `Failed` comes back, or the worker is `Lost`."""

    def wait(self, seconds: float) -> list[tuple[int, Event]]:
        """What has happened; waits up to so many seconds for anything."""

    def stop(self) -> None:
        """End all workers at once. May be called more than once, and from another thread."""


class WorkerError(Exception):
    """A worker came upon an error that is no user's mistake; holds its trace."""


def answer(call: Callable[[], Any]) -> Any:
    """What a call gives, or why it `Failed`."""
    try:
        return call()
    except TowerNMTError as error:
        return Failed(error)
    except OSError as error:
        return Failed(DataError(f"{error.filename or 'a worker'}: {error.strerror or error}."))
    except Exception:
        return Failed(WorkerError(traceback.format_exc()))


class LocalWorkers:
    """Processes of this machine, each with a pipe. They end with this process, however it ends.

    Args:
        make: makes what translates.
        count: see `Workers`.
    """

    def __init__(self, make: MakeTranslator, count: int) -> None:
        self.count, self._make = count, make
        self._context = multiprocessing.get_context("spawn")    # TensorFlow's threads would not be there after a fork
        self._processes: dict[int, tuple[Any, Connection]] = {}

    def start(self, number: int) -> None:
        """See `Workers.start`."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._make, number), daemon=True,
                                        name=f"translate {number}")
        process.start()
        theirs.close()
        self._processes[number] = process, ours

    def give(self, number: int, work: PartWork) -> None:
        """See `Workers.give`."""
        with suppress(OSError):     # it has died, which `wait` tells
            self._processes[number][1].send(work)

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
            return Lost(_ending(process.exitcode))


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"it ended with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"{name}, which the system sends where memory is short" if name == "SIGKILL" else name


def _serve(pipe: Connection, make: MakeTranslator, number: int) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)    # Ctrl-C reaches all; the parent ends the workers
    end_with_parent()
    with without_noise(), suppress(EOFError):
        made = answer(lambda: make(number))
        pipe.send(made if isinstance(made, Failed) else Ready(made.task))
        while not isinstance(made, Failed):
            work = pipe.recv()
            pipe.send(answer(lambda: made(work)))    # noqa: B023


log = logging.getLogger(__name__)


class RayWorkers:
    """Actors, each with a processor, and with a GPU where the cluster has some. They end with this process.

    Args:
        make: makes what translates.
        count: see `Workers`; None: as many as the cluster has processors, or GPUs.
        address: of the cluster; "": the one that there is, or a new one on this machine.
        gpus: whether a worker takes a GPU where there are some.
    Raises:
        SettingsError: Ray is not installed, or there is no cluster at this address.
    """

    def __init__(self, make: MakeTranslator, count: int | None, address: str, gpus: bool) -> None:
        check_ray()
        import ray

        self._ray: Any = ray
        self._make, self._connection = make, ExitStack()
        self._connection.enter_context(connected(address, count or 0, log.info))
        there = self._ray.cluster_resources()
        self._gpus = 1 if gpus and there.get("GPU", 0) >= 1 else 0
        self.count = count or max(1, int(there.get("GPU" if self._gpus else "CPU", 1)))
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, int] = {}

    def start(self, number: int) -> None:
        """See `Workers.start`."""
        # Not restarted by Ray: a part that was lost is counted here.
        actor = self._ray.remote(_Actor).options(num_cpus=1, num_gpus=self._gpus, max_restarts=0).remote()
        self._actors[number] = actor
        self._asked[actor.make.remote(self._make, number, os.getcwd())] = number

    def give(self, number: int, work: PartWork) -> None:
        """See `Workers.give`."""
        self._asked[self._actors[number].translate.remote(work)] = number

    def wait(self, seconds: float) -> list[tuple[int, Event]]:
        """See `Workers.wait`."""
        if not self._asked:
            return []
        ready, _ = self._ray.wait(list(self._asked), timeout=seconds)
        return [(self._asked.pop(reference), self._event(reference)) for reference in ready]

    def stop(self) -> None:
        """See `Workers.stop`."""
        actors, self._actors = self._actors, {}
        self._asked.clear()
        for actor in actors.values():
            self._ray.kill(actor)
        self._connection.close()

    def _event(self, reference: Any) -> Event:
        try:
            event: Event = self._ray.get(reference)
            return event
        except self._ray.exceptions.RayError as error:
            return Lost(" ".join(str(error).split("\n")[0].split()).rstrip(".") or type(error).__name__)


class _Actor:
    """A worker, in a process of its own."""

    def make(self, make: MakeTranslator, number: int, directory: str) -> Event:
        """Make the translator.

        Args:
            directory: where the command was started, from which its paths lead.
        """
        if not Path(directory).is_dir():
            return Failed(SettingsError(f"{socket.gethostname()} has no {directory}, where the command was started: "
                                        "start it in a directory that all machines of the cluster share."))
        os.chdir(directory)
        made = answer(lambda: make(number))
        if isinstance(made, Failed):
            return made
        self._translate = made
        return Ready(made.task)

    def translate(self, work: PartWork) -> Event:
        """Translate a part."""
        event: Event = answer(lambda: self._translate(work))
        return event
