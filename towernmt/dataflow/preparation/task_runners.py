"""Run tasks in this process, in several processes of this machine, or on a Ray cluster. The result is the same.

A worker process that is killed is restarted, and its task is done again. Ray repeats a task whose process or machine
was lost.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import secrets
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO, cast

from towernmt.core.errors import UnfinishedError
from towernmt.core.machine import end_with_parent, processors
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.ray_cluster import connected
from towernmt.dataflow.preparation.tasks import Task
from towernmt.dataflow.text.text_lines import LineProgress
from towernmt.dataflow.vocabulary.sentencepiece_vocabulary import has_learned

_POOL_BYTES = 2_000_000     # of less text, processes do not pay


class Runner(Protocol):
    """Does tasks."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Do all tasks, begun in this order; each is yielded when it is done."""


class ThisProcess:
    """Does one task after another."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """See `Runner`."""
        for task in tasks:
            error = outcome(task)
            if error is not None:
                raise error
            yield task


def runner_of(settings: PrepareSettings, shared: Path, say: Callable[[str], None]) -> AbstractContextManager[Runner]:
    """Who does the tasks of a preparation, until the block ends.

    Args:
        settings: with the names of the text files.
        shared: a directory that all who do tasks must see.
        say: is called with what the user should know.
    """
    if settings.ray is not None:
        return _on_ray(settings.ray, settings.workers, shared, say)
    workers = settings.workers or processors()
    sizes = [os.path.getsize(path) for path in (settings.source, settings.target) if os.path.exists(path)]
    if workers == 1 or sum(sizes) < _POOL_BYTES:
        return nullcontext(ThisProcess())
    return WorkerProcesses(workers, say)


@contextmanager
def _on_ray(address: str, workers: int, shared: Path, say: Callable[[str], None]) -> Iterator[Runner]:
    with connected(address, workers, say), RayTasks(shared, workers) as tasks:
        yield tasks


def do_all(runner: Runner, label: str, tasks: Sequence[Task], stream: TextIO | None) -> None:
    """Do the tasks that are not done, with progress over all.

    Args:
        runner: who does them.
        label: what is being done, e.g. "encoding".
        tasks: in the order in which they are begun.
        stream: where progress is written; None: nowhere.
    """
    left = [task for task in tasks if not task.done]
    total = sum(task.lines for task in tasks)
    done = total - sum(task.lines for task in left)
    progress = LineProgress(label, total or None, stream, done=done)
    for task in runner.run(left):
        done += task.lines
        progress.update(done)
    progress.done()


ATTEMPTS = 3
"""How often a task is begun whose process is killed."""


class WorkerProcesses:
    """Does tasks in several processes, which are kept from one call to the next, and ended with the block.

        with WorkerProcesses(2, print) as workers:
            for task in workers.run(tasks):
                ...     # it is done

    The processes end, too, when this one is killed. Ctrl-C does nothing to them: this one ends them.

    Args:
        processes: how many.
        say: is called with what the user should know.
    """

    def __init__(self, processes: int, say: Callable[[str], None]) -> None:
        self._processes, self._say = processes, say
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        workers = [*self._idle, *self._busy.values()]
        for worker in workers:
            worker.process.kill()       # what a task had begun is not there: it comes into its place at its end
        for worker in workers:
            worker.process.join()
            worker.connection.close()
        self._idle, self._busy = [], {}

    def run(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Do all tasks, begun in this order; each is yielded when it is done.

        Raises:
            UnfinishedError: a process was killed several times with the same task, or ran out of memory.
            Exception: what a task raised; of several, the first in the order of the tasks.
        """
        waiting: deque[_Assignment] = deque(_Assignment(number, task) for number, task in enumerate(tasks))
        failed: dict[int, BaseException] = {}
        while self._busy or (waiting and not failed):
            while waiting and not failed and len(self._busy) < self._processes:
                self._give(waiting.popleft())
            for connection in wait(list(self._busy)):
                worker = self._busy.pop(cast(Connection, connection))
                given = worker.given
                try:
                    error = worker.answer()
                except _Killed as killed:
                    self._again(given, killed, waiting)
                    continue
                self._idle.append(worker)
                if error is None:
                    yield given.task
                else:
                    failed[given.number] = error
        if failed:
            raise failed[min(failed)]

    def _give(self, given: _Assignment) -> None:
        worker = self._idle.pop() if self._idle else _Worker.start()
        worker.given = given
        self._busy[worker.connection] = worker
        try:
            worker.connection.send(given.task)
        except OSError:
            pass    # it was killed while it was idle, which its answer will tell

    def _again(self, given: _Assignment, killed: _Killed, waiting: deque[_Assignment]) -> None:
        given.attempts += 1
        if not killed.signal:
            raise UnfinishedError(
                f"a worker process of the preparation died with status {killed.status} ({given.task.title}); in a "
                "script, prepare() has to stand under `if __name__ == '__main__':`. --workers 1 works without "
                "processes.")
        if given.attempts >= ATTEMPTS:
            why = ", probably for want of memory: use fewer --workers" if killed.signal == signal.SIGKILL else ""
            raise UnfinishedError(
                f"a worker process was killed {ATTEMPTS} times by signal {killed.signal} while it was "
                f"{given.task.title}{why}. The same command goes on with what is done.")
        self._say(f"a worker process was killed (signal {killed.signal}): {given.task.title} is done again")
        waiting.appendleft(given)


@dataclass
class _Assignment:
    number: int
    task: Task
    attempts: int = 0


class _Killed(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        self.signal = -status if status < 0 else 0


class _Worker:
    """A process and the way to it."""

    given: _Assignment

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process, self.connection = process, connection

    @classmethod
    def start(cls) -> _Worker:
        context = multiprocessing.get_context(_start_method())
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), name="towernmt prepare", daemon=True)   # type: ignore[attr-defined]
        process.start()
        theirs.close()      # so that its end is seen when the process ends
        return cls(process, ours)

    def answer(self) -> BaseException | None:
        """What the task raised.

        Raises:
            _Killed: the process has ended without an answer.
        """
        try:
            error: BaseException | None = self.connection.recv()
        except (EOFError, OSError):
            self.connection.close()
            self.process.join()
            raise _Killed(self.process.exitcode or 0) from None
        return error


def _start_method() -> str:
    """A fork is quickest, but not safe once TensorFlow or SentencePiece has started its threads."""
    threads = "tensorflow" in sys.modules or has_learned()
    forkable = "fork" in multiprocessing.get_all_start_methods() and not threads
    return "fork" if forkable else "spawn"


def _work(connection: Connection) -> None:
    """What a worker process does: tasks, until there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)    # Ctrl-C reaches all; the parent ends the workers
    end_with_parent()
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:
            return
        connection.send(outcome(task))


def outcome(task: Task) -> BaseException | None:
    """Do a task in this process; what it raised, as other processes can take it."""
    try:
        if not task.done:       # by another process, meanwhile
            task.run()
    except MemoryError:
        return UnfinishedError(f"there was not enough memory for {task.title}: use fewer --workers, or a machine with "
                               "more. The same command goes on with what is done.")
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return RuntimeError(f"{task.title}: {type(error).__name__}: {error}")
        return error
    return None


MARK = ".seen-"
"""Name of the file by which a machine knows the directory; its beginning."""
_AHEAD = 2      # tasks for each processor that are handed to Ray, so that none waits for this process


class RayTasks:
    """Does tasks on the cluster that Ray is connected to, until the block ends.

    All machines must see the directories of the texts and of the preparation under the same paths, which is checked.

    Args:
        shared: a directory that all machines must see.
        most: tasks at a time; 0: as many as the cluster has processors.
    """

    def __init__(self, shared: Path, most: int) -> None:
        self._most = most
        self._token = secrets.token_hex(8)
        self._mark = shared / f"{MARK}{self._token}"
        self._running: dict[Any, tuple[int, Task]] = {}

    def __enter__(self) -> RayTasks:
        self._mark.write_text(self._token)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        import ray

        for reference in self._running:
            ray.cancel(reference, force=True)
        self._running = {}
        self._mark.unlink(missing_ok=True)

    def run(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """See `Runner`.

        Raises:
            UnfinishedError: a task was lost several times, or a machine does not see the directory.
        """
        import ray

        on_a_node = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_do_on_node)
        waiting, failed = iter(list(enumerate(tasks))), dict[int, BaseException]()
        while True:
            room = 0 if failed else self._window() - len(self._running)
            for number, task in islice(waiting, max(room, 0)):
                self._running[on_a_node.remote(task, self._mark, self._token)] = number, task
            if not self._running:
                break
            for reference in ray.wait(list(self._running))[0]:
                number, task = self._running.pop(reference)
                error = _answer(reference, task)
                if error is None:
                    yield task
                else:
                    failed[number] = error
        if failed:
            raise failed[min(failed)]

    def _window(self) -> int:
        import ray

        return self._most or _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))


def _do_on_node(task: Task, mark: Path, token: str) -> BaseException | None:
    try:
        seen = mark.read_text() == token
    except OSError:
        seen = False
    if not seen:
        return UnfinishedError(
            f"{socket.gethostname()} does not see {mark.parent}: the machines of a Ray cluster need --output (for "
            "s3://, TMPDIR) and the texts in a directory that all share under the same path, such as one of NFS.")
    return outcome(task)


def _answer(reference: Any, task: Task) -> BaseException | None:
    import ray

    try:
        error: BaseException | None = ray.get(reference)
    except ray.exceptions.OutOfMemoryError:
        return UnfinishedError(f"there was not enough memory for {task.title} on a machine of the Ray cluster: give "
                               "fewer --workers, or larger machines. The same command goes on with what is done.")
    except ray.exceptions.RayError as lost:
        reason = " ".join(str(lost).split())
        if "failed to import" in reason or "No module named" in reason:
            return UnfinishedError("a machine of the Ray cluster cannot import towernmt: install this version of it, "
                                   "with its extras, on all of them.")
        return UnfinishedError(f"Ray could not do {task.title} in {ATTEMPTS} attempts ({type(lost).__name__}: "
                               f"{reason[:300]}). The same command goes on with what is done.")
    return error
