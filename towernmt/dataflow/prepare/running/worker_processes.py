"""Tasks in processes of this machine. One that is killed is started again, and its task done again."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import cast

from towernmt.core.errors import UnfinishedError
from towernmt.core.machine.parent import end_with_parent
from towernmt.dataflow.prepare.running.task import Task
from towernmt.dataflow.vocabulary.subword.sentence_piece import has_learned

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
