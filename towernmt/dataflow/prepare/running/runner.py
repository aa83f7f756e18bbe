"""Who does the tasks: this process, several processes of this machine, or a cluster. The result is the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol, TextIO

from towernmt.core.machine.processor import processors
from towernmt.dataflow.prepare.prepare_settings import PrepareSettings
from towernmt.dataflow.prepare.running.ray_cluster import connected
from towernmt.dataflow.prepare.running.ray_tasks import RayTasks
from towernmt.dataflow.prepare.running.task import Task
from towernmt.dataflow.prepare.running.worker_processes import WorkerProcesses, outcome
from towernmt.dataflow.text.line_progress import LineProgress

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
