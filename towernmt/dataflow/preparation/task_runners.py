"""Run the tasks of a preparation in this process, or on a farm. The result does not depend on it."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

from towernmt.core.errors import UnfinishedError
from towernmt.core.line_progress import LineProgress
from towernmt.core.machine import processors
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.tasks import Task
from towernmt.dataflow.vocabulary.sentencepiece_learning import has_learned
from towernmt.farm.farm import Failed, Farm, LocalWorkers, Lost, Result, Workers
from towernmt.farm.ray_workers import RayWorkers, cluster_resources, ray_connection

_POOL_BYTES = 2_000_000     # smaller texts are prepared faster by one process
_RESUME = "The same command continues with the tasks that are left."


class TaskRunner(Protocol):
    """Interface of the runners of a preparation's tasks."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Run all tasks, begun in this order; yield each task when it is done."""


class InProcessRunner:
    """Runs one task after the other in this process."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """See `TaskRunner`."""
        for task in tasks:
            perform(task)
            yield task


@contextmanager
def task_runner(settings: PrepareSettings, shared: Path, report: Callable[[str], None]) -> Iterator[TaskRunner]:
    """Provide the runner of a preparation while the block runs.

    Args:
        settings: settings with the names of the text files.
        shared: a directory that all workers must see.
        report: called with messages for the user.
    """
    workers = settings.workers or processors()
    sizes = [os.path.getsize(path) for path in (settings.source, settings.target) if os.path.exists(path)]
    if settings.ray is not None:
        with ray_connection(settings.ray, settings.workers, report), _mark(shared) as mark:
            make = partial(make_remote_worker, mark, mark.read_text())
            actors = settings.workers or _ACTORS_PER_PROCESSOR * cluster_resources().processors or 1
            with FarmRunner(RayWorkers(make, actors, report=report), report) as runner:
                yield runner
    elif workers == 1 or sum(sizes) < _POOL_BYTES:
        yield InProcessRunner()
    else:
        with FarmRunner(LocalWorkers(make_local_worker, workers, _start_method), report) as runner:
            yield runner


def run_with_progress(runner: TaskRunner, label: str, tasks: Sequence[Task], stream: TextIO | None) -> None:
    """Run the tasks that are not done, and show the progress over all tasks.

    Args:
        runner: runs the tasks.
        label: present participle of the work, such as "encoding".
        tasks: all tasks, in the order in which they begin.
        stream: destination of the progress; None to show nothing.
    """
    unfinished = [task for task in tasks if not task.done]
    total = sum(task.lines for task in tasks)
    done = total - sum(task.lines for task in unfinished)
    progress = LineProgress(label, total or None, stream, done=done)
    for task in runner.run(unfinished):
        done += task.lines
        progress.update(done)
    progress.done()


ATTEMPTS = 3
"""Maximum number of workers that may be lost with the same task."""


class FarmRunner:
    """Runs tasks on a farm, whose workers live until the end of the block.

    Args:
        workers: backend of the farm; its workers make a `TaskWorker`.
        report: called with messages for the user.
    """

    def __init__(self, workers: Workers, report: Callable[[str], None]) -> None:
        self._farm = Farm(workers, _RESUME, report)
        self._tasks: list[Task] = []

    def __enter__(self) -> FarmRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._farm.stop()       # a task moves its output to its path at its end, so nothing incomplete stays there

    def run(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """See `TaskRunner`. After an exception, no task begins, and running tasks end.

        Raises:
            UnfinishedError: several workers were lost with the same task, or a worker ran out of memory.
            Exception: the exception of a task; the first one in the order of the tasks.
        """
        self._tasks, lost = list(tasks), Counter[int]()
        waiting, failed = deque(range(len(self._tasks))), dict[int, Exception]()
        while self._farm.tasks or (waiting and not failed):
            if not failed:
                self._farm.start(len(self._farm.tasks) + len(waiting))
                while waiting and self._farm.idle:
                    number = waiting.popleft()
                    self._farm.assign(number, self._tasks[number], self._tasks[number].title)
            for event in self._farm.events():
                if isinstance(event.event, Lost):
                    self._check_exit(event.event, event.task)
                if event.task is None:
                    continue
                if isinstance(event.event, Result):
                    yield self._tasks[event.task]
                elif isinstance(event.event, Failed):
                    failed[event.task] = event.event.error
                elif isinstance(event.event, Lost):
                    lost[event.task] += 1
                    self._check_losses(lost[event.task], event.event, event.task)
                    waiting.appendleft(event.task)
        if failed:
            raise failed[min(failed)]

    def _check_exit(self, event: Lost, number: int | None) -> None:
        """Refuse to restart a worker that ended by itself.

        Raises:
            UnfinishedError: the worker ended by itself.
        """
        if event.status is not None and event.status >= 0:
            title = "" if number is None else f" ({self._tasks[number].title})"
            raise UnfinishedError(
                f"a worker process of the preparation died with status {event.status}{title}; in a script, prepare() "
                "must be called under `if __name__ == '__main__':`. --workers 1 works without processes.")

    def _check_losses(self, losses: int, event: Lost, number: int) -> None:
        """Give up a task with which several workers were lost.

        Raises:
            UnfinishedError: too many workers were lost.
        """
        if losses >= ATTEMPTS:
            raise UnfinishedError(
                f"{losses} workers were lost while they were {self._tasks[number].title} (the last: {event.reason}). "
                f"If memory is short, use fewer --workers or larger machines. {_RESUME}")


def _start_method() -> str:
    """Return "fork", which is faster, unless TensorFlow or SentencePiece has started threads, which a fork breaks."""
    threads = "tensorflow" in sys.modules or has_learned()
    forkable = "fork" in multiprocessing.get_all_start_methods() and not threads
    return "fork" if forkable else "spawn"


def perform(task: Task) -> None:
    """Run a task in this process, unless another process has done it.

    Raises:
        UnfinishedError: there was not enough memory.
    """
    try:
        if not task.done:
            task.run()
    except MemoryError as error:
        raise UnfinishedError(f"there was not enough memory for {task.title}: use fewer --workers, or a machine with "
                              f"more memory. {_RESUME}") from error


VISIBILITY_MARK = ".seen-"
"""Beginning of the name of the file by which a machine recognises the shared directory."""
_ACTORS_PER_PROCESSOR = 2      # actors for each processor: those that wait show an autoscaler the demand


@contextmanager
def _mark(shared: Path) -> Iterator[Path]:
    """Write the file by which workers recognise the shared directory, and remove it afterwards."""
    token = secrets.token_hex(8)
    path = shared / f"{VISIBILITY_MARK}{token}"
    path.write_text(token)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


class TaskWorker:
    """The function of a worker: run a task."""

    description = None

    def __call__(self, task: Task) -> None:
        """Run a task."""
        perform(task)


def make_local_worker(number: int) -> TaskWorker:
    """Make the function of a worker on this machine."""
    return TaskWorker()


def make_remote_worker(mark: Path, token: str, number: int) -> TaskWorker:
    """Make the function of a worker on a Ray cluster.

    Raises:
        UnfinishedError: the machine does not see the directory of the mark.
    """
    try:
        shared = mark.read_text() == token
    except OSError:
        shared = False
    if not shared:
        raise UnfinishedError(
            f"{socket.gethostname()} does not see {mark.parent}: the machines of a Ray cluster need --output (for "
            "s3://, TMPDIR) and the texts in a directory that all share under the same path, such as one of NFS.")
    return TaskWorker()
