"""Tasks on a Ray cluster. Ray starts a task again whose process or machine was lost."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from towernmt.core.errors import UnfinishedError
from towernmt.dataflow.prepare.running.task import Task
from towernmt.dataflow.prepare.running.worker_processes import ATTEMPTS, outcome

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
