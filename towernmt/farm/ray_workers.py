"""Workers on a Ray cluster: the connection, reservations of resources, and the actors."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError, UnfinishedError
from towernmt.farm.farm import Event, Failed, Lost, MakeTaskFunction, Ready, Result, TaskFunction, call


def check_ray(option: str = "--ray") -> None:
    """Check that Ray is installed.

    Raises:
        SettingsError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise SettingsError(f"{option} needs the package ray: pip install 'towernmt[ray]'.")


@contextmanager
def ray_connection(address: str, processors: int, report: Callable[[str], None]) -> Iterator[None]:
    """Connect this process to Ray while the block runs. An existing connection stays open afterwards.

    Args:
        address: address of the cluster. "" for that of `RAY_ADDRESS`, or of `ray start` on this machine. "local", or
            "" without such a cluster, starts a cluster on this machine, which ends with the block.
        processors: number of processors of a cluster that is started here; 0 for those of the machine.
        report: called with the number of machines and processors.

    Raises:
        SettingsError: no cluster has this address, or it has other versions of Ray and Python.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with redirect_stdout(sys.stderr):   # Ray prints to stdout, which may be the output of the command
        _connect(address or os.environ.get("RAY_ADDRESS", ""), processors)
    try:
        cpus, nodes = int(ray.cluster_resources().get("CPU", 0)), len(ray.nodes())
        report(f"Ray: {nodes} {'machine' if nodes == 1 else 'machines'}, "
               f"{cpus} {'processor' if cpus == 1 else 'processors'}")
        yield
    finally:
        ray.shutdown()


def _connect(address: str, processors: int) -> None:
    import ray

    # The workers import the same towernmt, even from a directory that is not installed.
    variables = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False,
                               "runtime_env": {"env_vars": variables}}
    if address != "local":
        try:
            _check_listening(address)
            ray.init(address=address or "auto", **options)
            return
        except (OSError, ValueError, OverflowError) as error:   # a ConnectionError is an OSError
            if address:
                raise SettingsError(f"--ray {address}: no Ray cluster responds ({' '.join(str(error).split())[:200]}). "
                                    "Start it, or pass --ray local to start one on this machine; if it asks for a "
                                    "token, export RAY_AUTH_MODE=token.") from error
        except RuntimeError as error:
            message = " ".join(str(error).split())
            if not message.startswith("Version mismatch"):
                raise
            cluster = f"--ray {address}" if address else "The Ray cluster of this machine"
            raise SettingsError(f"{cluster}: {message}. Install the same versions of Ray and Python on all machines, "
                                "or pass --ray local to start a cluster on this machine.") from error
    ray.init(address="local", num_cpus=processors or None, include_dashboard=False, **options)


def _check_listening(address: str) -> None:
    """Check that the address accepts connections; Ray itself would try for minutes.

    Raises:
        OSError: the address does not accept connections.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class Resources(NamedTuple):
    """Processors and GPUs of a machine or of a worker.

    Attributes:
        processors: number of processors, as Ray counts them.
        gpus: number of GPUs.
    """

    processors: int
    gpus: int

    def __str__(self) -> str:
        gpus = f", {self.gpus} {'GPU' if self.gpus == 1 else 'GPUs'}" if self.gpus else ""
        return f"{self.processors} {'processor' if self.processors == 1 else 'processors'}{gpus}"


ONE_PROCESSOR = Resources(1, 0)


def cluster_machines() -> list[Resources]:
    """Return the resources of each machine of the connected cluster."""
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Resources(int(available.get("CPU", 0)), int(available.get("GPU", 0))) for available in machines]


def cluster_resources() -> Resources:
    """Return the sum of the resources of the connected cluster."""
    machines = cluster_machines()
    return Resources(sum(machine.processors for machine in machines), sum(machine.gpus for machine in machines))


def max_worker_resources(machines: Sequence[Resources], workers: int, gpus: int) -> Resources:
    """Return the resources of each worker with as many processors as possible; 1 if the workers do not all fit."""
    def capacity(processors: int) -> int:
        return sum(min(machine.processors // processors, machine.gpus // gpus if gpus else workers)
                   for machine in machines)

    max_processors = max((machine.processors for machine in machines), default=1)
    return Resources(next((count for count in range(max_processors, 1, -1) if capacity(count) >= workers), 1), gpus)


_SHORT_WAIT = 2     # seconds in which Ray reserves resources that are free


def reserve_workers(max_workers: int, min_workers: int, resources: Resources, timeout: float, check: Callable[[], None],
                    report: Callable[[str], None]) -> tuple[Any, int]:
    """Reserve resources for as many workers as possible, on as few machines as possible.

    Args:
        max_workers: maximum number of workers.
        min_workers: minimum number of workers.
        resources: resources of each worker.
        timeout: time limit for the maximum number, as machines may join the cluster or become free.
        check: called repeatedly; an exception that it raises ends the wait.
        report: called with a message before a long wait.

    Returns:
        the placement group, and its number of workers.

    Raises:
        SettingsError: the cluster has no resources for the minimum number.
    """
    from ray.util import placement_group, remove_placement_group

    bundle = {"CPU": resources.processors, **({"GPU": resources.gpus} if resources.gpus else {})}
    for count in range(max_workers, min_workers - 1, -1):
        group = placement_group([bundle] * count, strategy="PACK")
        try:
            if _is_reserved(group, min(_SHORT_WAIT, timeout), check):
                return group, count
            if count == max_workers and timeout > _SHORT_WAIT:
                report(f"Waiting {timeout:g} s at most for the resources of {max_workers} workers of {resources} ...")
                if _is_reserved(group, timeout - _SHORT_WAIT, check):
                    return group, count
        except BaseException:
            with suppress(Exception):   # the first exception is the one to report
                remove_placement_group(group)
            raise
        remove_placement_group(group)
    machines = ", ".join(map(str, cluster_machines())) or "none"
    raise SettingsError(f"Within {timeout:g} s the Ray cluster had no resources for {min_workers} "
                        f"{'worker' if min_workers == 1 else 'workers'} of {resources} (its machines: {machines}): use "
                        "fewer workers, fewer resources for each, or a longer wait (--min-workers, --cpus, --wait).")


def _is_reserved(group: Any, timeout: float, check: Callable[[], None]) -> bool:
    deadline = time.monotonic() + timeout
    while not group.wait(timeout_seconds=1):
        check()
        if time.monotonic() > deadline:
            return False
    return True


_LONG_WAIT = 5.0    # seconds until the first worker begins if the cluster has free resources


class LongWait:
    """Reports once that a busy cluster has started no process for several seconds.

    Args:
        process: kind of the processes: "worker" or "trial".
        resources: resources of each process.
        report: called with the message.
        seconds: seconds until the message.

    Attributes:
        is_over: whether a process has begun, or the message was reported.
    """

    def __init__(self, process: str, resources: Resources, report: Callable[[str], None], seconds: float) -> None:
        self._process, self._resources, self._report = process, resources, report
        self._deadline, self.is_over = time.monotonic() + seconds, False

    def update(self, has_begun: bool) -> None:
        """Report the wait if no process has begun and the time is over."""
        is_late = not (self.is_over or has_begun) and time.monotonic() >= self._deadline
        self.is_over = self.is_over or has_begun or is_late
        if is_late:
            import ray

            free, total = ray.available_resources(), cluster_resources()
            numbers = [f"{int(free.get('CPU', 0))} of {total.processors} processors"]
            numbers += [f"{int(free.get('GPU', 0))} of {total.gpus} GPUs"] if self._resources.gpus else []
            self._report(f"Waiting for the Ray cluster to start a {self._process} with {self._resources}: "
                         f"{' and '.join(numbers)} of the cluster are free.")


class RayWorkers:
    """Actors of the connected Ray cluster.

    Args:
        make: makes the function of a worker.
        count: maximum number of actors; those without resources wait for them.
        resources: resources of each actor.
        group: placement group with a bundle for each actor; None to let Ray choose the machines.
        concurrency: number of tasks that an actor may do at the same time, including those of `notify`.
        on_stop: called after the actors have ended.
        report: called once with a message if no actor begins for several seconds; see `LongWait`.
    """

    def __init__(self, make: MakeTaskFunction, count: int, resources: Resources = ONE_PROCESSOR, group: Any = None,
                 concurrency: int = 1, on_stop: Callable[[], None] = lambda: None,
                 report: Callable[[str], None] = lambda text: None) -> None:
        import ray

        self._ray: Any = ray
        self.count, self._make, self._resources, self._group = count, make, resources, group
        self._concurrency, self._on_stop, self._report = concurrency, on_stop, report
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}
        self._begin_calls: list[Any] = []       # end when their actors begin
        self._wait_for_first: LongWait | None = None

    def start(self, number: int) -> None:
        """See `Workers.start`."""
        # Ray does not restart the actor: the farm does, and counts the losses.
        options: dict[str, Any] = {"num_cpus": self._resources.processors, "num_gpus": self._resources.gpus,
                                   "max_restarts": 0, "max_concurrency": self._concurrency}
        if self._group is not None:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, number)
        actor = self._ray.remote(WorkerActor).options(**options).remote()
        self._actors[number] = actor
        self._wait_for_first = self._wait_for_first or LongWait("worker", self._resources, self._report, _LONG_WAIT)
        if not self._wait_for_first.is_over:
            self._begin_calls.append(actor.begin.remote())
        self._calls[actor.make.remote(self._make, number)] = number

    def submit(self, number: int, task: Any) -> None:
        """See `Workers.submit`."""
        self._calls[self._actors[number].run.remote(task)] = number

    def notify(self, numbers: Iterable[int], task: Any, seconds: float = 0) -> None:
        """Do a task in some workers in parallel to their current tasks, without an event; see `concurrency`.

        Args:
            numbers: the workers.
            task: the task.
            seconds: maximum time to wait for its end.
        """
        calls = [self._actors[number].run.remote(task) for number in numbers if number in self._actors]
        if calls and seconds:
            self._ray.wait(calls, num_returns=len(calls), timeout=seconds)

    def wait(self, seconds: float) -> list[tuple[int, Event]]:
        """See `Workers.wait`.

        Raises:
            UnfinishedError: a machine cannot import towernmt.
        """
        if not self._calls:
            return []
        ready, _ = self._ray.wait(list(self._calls), timeout=seconds)
        if self._wait_for_first is not None and not self._wait_for_first.is_over:
            self._wait_for_first.update(bool(self._ray.wait(self._begin_calls, timeout=0)[0]))
        return [(self._calls.pop(reference), self._event(reference)) for reference in ready]

    def kill(self, number: int) -> None:
        """End a worker at once."""
        self._ray.kill(self._actors[number])

    def stop(self) -> None:
        """See `Workers.stop`."""
        actors, self._actors = self._actors, {}
        self._calls.clear()
        for actor in actors.values():
            self._ray.kill(actor)
        self._on_stop()

    def _event(self, reference: Any) -> Event:
        try:
            event: Event = self._ray.get(reference)
            return event
        except self._ray.exceptions.OutOfMemoryError:
            return Lost("its machine ran out of memory")
        except self._ray.exceptions.RayError as error:
            message = str(error)
            if "failed to import" in message or "No module named" in message:
                raise UnfinishedError("a machine of the Ray cluster cannot import towernmt: install this version of "
                                      "towernmt, with its extras, on all machines.") from error
            lines = [line.strip() for line in message.splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__      # the last line is the cause
            return Lost(" ".join(reason.partition(". ")[0].split())[:200].rstrip("."))


class WorkerActor:
    """A worker, in its process on a machine of the cluster."""

    _function: TaskFunction

    def begin(self) -> None:
        """Do nothing, because the end of this call shows that the cluster has started the worker."""

    def make(self, make: MakeTaskFunction, number: int) -> Event:
        """Make the function of the worker."""
        outcome = call(lambda: make(number))
        if isinstance(outcome, Failed):
            return outcome
        self._function = outcome.value
        return Ready(self._function.description)

    def run(self, task: Any) -> Result | Failed:
        """Do a task."""
        return call(lambda: self._function(task))


def enter_shared_directory(directory: str) -> None:
    """Change to the directory in which the command was started, to which its paths are relative.

    Raises:
        SettingsError: this machine does not have the directory.
    """
    if not Path(directory).is_dir():
        raise SettingsError(f"{socket.gethostname()} has no {directory}, where the command was started: start it in a "
                            "directory that all machines of the cluster share.")
    os.chdir(directory)


def make_in_directory(make: MakeTaskFunction, directory: str, number: int) -> TaskFunction:
    """Make the function of a worker after changing to the directory of the command (see `enter_shared_directory`)."""
    enter_shared_directory(directory)
    return make(number)


def connect_workers(make: MakeTaskFunction, count: int | None, address: str, gpus: bool,
                    report: Callable[[str], None]) -> RayWorkers:
    """Connect to a cluster until its workers are stopped; they work in the directory of this process.

    Args:
        make: makes the function of a worker.
        count: maximum number of workers; None for the number of GPUs of the cluster, or of its processors.
        address: see `ray_connection`.
        gpus: whether a worker takes a GPU if the cluster has some.
        report: called with messages for the user.

    Raises:
        SettingsError: Ray is not installed; see also `ray_connection`.
    """
    check_ray()
    connection = ExitStack()
    connection.enter_context(ray_connection(address, count or 0, report))
    total = cluster_resources()
    resources = Resources(1, 1 if gpus and total.gpus else 0)
    count = count or max(1, total.gpus if resources.gpus else total.processors)
    return RayWorkers(partial(make_in_directory, make, os.getcwd()), count, resources, on_stop=connection.close,
                      report=report)
