"""One attempt at a training on Ray.

Placement of its workers, their outcome, requests to stop, and the number of attempts.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError, WorkerLostError
from towernmt.jobs.worker_actor import Place, Said, WorkerActor, WorkerOutput


class EndRequestedError(Exception):
    """The user asked for the end before anything was trained that could be saved."""


class EndRequest:
    """What the user asked for.

    Attributes:
        number: the signal that came first, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        """Raises:
            EndRequestedError: a signal has come.
        """
        if self.number is not None:
            raise EndRequestedError

    def receive(self, number: int, _: Any = None) -> None:
        """The handler of the signals.

        Raises:
            KeyboardInterrupt: Ctrl-C came again.
        """
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = self.number or number


@contextmanager
def end_requests() -> Iterator[EndRequest]:
    """While the block runs, signals ask for the end; outside the main thread, where Python has no handlers, none do."""
    request, former = EndRequest(), {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        former = {number: signal.signal(number, request.receive) for number in numbers
                  if number != getattr(signal, "SIGHUP", None) or signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class Failures:
    """Counts the failed attempts since the last one that made a checkpoint.

    Args:
        most: that many may fail one after the other, each without a checkpoint of its own; the next is the last.
        step: of the run's last checkpoint; -1 if there is none.
    Attributes:
        count: failures so far.
    """

    def __init__(self, most: int, step: int) -> None:
        self._most, self._step, self.count = most, step, 0

    def may_go_on(self, step: int) -> bool:
        """Count a failure, and say whether a new attempt may follow.

        Args:
            step: of the run's last checkpoint by now.
        """
        if step > self._step:
            self._step, self.count = step, 0
        self.count += 1
        return self.count <= self._most


_SHORT = 2      # seconds in which room that there is, is found


class Machine(NamedTuple):
    """What a machine of the cluster has.

    Attributes:
        processors: as Ray counts them.
        gpus: the same.
    """

    processors: int
    gpus: int


class Share(NamedTuple):
    """What each worker gets.

    Attributes:
        processors: at least 1.
        gpus: 0 for towers on the CPU.
    """

    processors: int
    gpus: int

    def __str__(self) -> str:
        gpus = f", {self.gpus} {'GPU' if self.gpus == 1 else 'GPUs'}" if self.gpus else ""
        return f"{self.processors} {'processor' if self.processors == 1 else 'processors'}{gpus}"


def largest_share(machines: Sequence[Machine], workers: int, gpus: int) -> Share:
    """The most processors that each of so many workers can have; 1 if there is no room for them all.

    Args:
        gpus: that each worker needs.
    """
    def room(processors: int) -> int:
        return sum(min(machine.processors // processors, machine.gpus // gpus if gpus else workers)
                   for machine in machines)

    most = max((machine.processors for machine in machines), default=1)
    return Share(next((count for count in range(most, 1, -1) if room(count) >= workers), 1), gpus)


def machines_of_cluster() -> list[Machine]:
    """The machines of the cluster that this process is connected to."""
    import ray

    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Machine(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in there]


def find_room(most: int, least: int, share: Share, seconds: float, watch: Callable[[], None],
              say: Callable[[str], None]) -> tuple[Any, int]:
    """Room for as many workers as possible, side by side on as few machines as have it.

    Args:
        most: workers.
        least: workers.
        seconds: that the cluster has for the largest number, since machines may be about to come or to get free.
        watch: is called again and again meanwhile; what it raises ends the search.
        say: is called where that takes long.
    Returns:
        the placement group, and how many workers it has room for.
    Raises:
        SettingsError: there is not even room for the least number.
    """
    from ray.util import placement_group, remove_placement_group

    bundle = {"CPU": share.processors, **({"GPU": share.gpus} if share.gpus else {})}
    for count in range(most, least - 1, -1):
        group = placement_group([bundle] * count, strategy="PACK")
        try:
            if _ready(group, min(_SHORT, seconds), watch):
                return group, count
            if count == most and seconds > _SHORT:
                say(f"Waiting {seconds:g} s at most for room for {most} workers of {share} ...")
                if _ready(group, seconds - _SHORT, watch):
                    return group, count
        except BaseException:
            with suppress(Exception):   # the first is what matters
                remove_placement_group(group)
            raise
        remove_placement_group(group)
    there = ", ".join(str(Share(*machine)) for machine in machines_of_cluster()) or "none"
    raise SettingsError(f"Within {seconds:g} s the Ray cluster had no room for {least} "
                        f"{'worker' if least == 1 else 'workers'} of {share} (its machines: {there}): ask for fewer "
                        "workers, or for less for each, or wait longer (--min-workers, --cpus, --wait).")


def _ready(group: Any, seconds: float, watch: Callable[[], None]) -> bool:
    end = time.monotonic() + seconds
    while not group.wait(timeout_seconds=1):
        watch()
        if time.monotonic() > end:
            return False
    return True


class Ending(NamedTuple):
    """How the process of a worker ended.

    Attributes:
        worker: its number.
        address: its `host:port`; "" if it was lost before it had one.
        status: as `subprocess` has it, negative for a signal; None: it was lost together with its machine.
        words: its last sentence, "" if it said none; of one that was lost, what Ray says.
        ended_by_us: it was killed since another had ended.
    """

    worker: int
    address: str
    status: int | None
    words: str = ""
    ended_by_us: bool = False

    @property
    def name(self) -> str:
        """Name of the worker in messages."""
        return f"Worker {self.worker} ({self.address})" if self.address else "A worker that had not begun"


class Kind(Enum):
    """What became of an attempt.

    Attributes:
        DONE: the training is at its end.
        ASKED: it ended by the signal that the user sent.
        LOST: a worker was lost: a new attempt goes on.
        FAILED: a new attempt would fail, too.
    """

    DONE = auto()
    ASKED = auto()
    LOST = auto()
    FAILED = auto()


class Outcome(NamedTuple):
    """What became of an attempt.

    Attributes:
        kind: in one word.
        why: in a sentence, where a worker was lost or failed.
    """

    kind: Kind
    why: str = ""


def outcome_of(endings: Sequence[Ending], asked: int | None) -> Outcome:
    """Judge an attempt by how its workers ended.

    When one ends, the others miss it, and end as well (with the status of `WorkerLostError`). So the first that ended
    by anything else tells what happened.

    Args:
        endings: of all workers, in the order in which they ended.
        asked: the signal that was sent to worker 0.
    """
    missing = WorkerLostError.exit_status
    if asked is not None and all(_as_asked(ending, asked) for ending in endings):
        return Outcome(Kind.ASKED)
    own = [ending for ending in endings if not ending.ended_by_us]
    first = next((ending for ending in own if ending.status not in (0, missing)), None)
    if first is None:
        first = next((ending for ending in own if ending.status == missing), None)
        return Outcome(Kind.DONE) if first is None else Outcome(Kind.LOST, _missed(first))
    if first.status is None:
        return Outcome(Kind.LOST, f"{first.name} was lost with its machine, or with its process of Ray"
                                  f"{f' ({first.words})' if first.words else ''}.")
    if first.status < 0 or first.status > 128:
        return Outcome(Kind.LOST, f"{first.name} was ended by {_signal(first.status)}.")
    if first.words:
        return Outcome(Kind.FAILED, first.words if first.worker == 0 else f"{first.name}: {first.words}")
    where = f"in log/worker-{first.worker}.log of the run" if first.worker else "above"
    return Outcome(Kind.FAILED, f"{first.name} ended with status {first.status}; what it said stands {where}.")


def _as_asked(ending: Ending, number: int) -> bool:
    return ending.ended_by_us or ending.status in (0, 128 + number, -number)


def _missed(ending: Ending) -> str:
    """What a worker says that misses another, without what its reader should do."""
    return f"{ending.words.partition(': ')[0] or f'{ending.name} misses another'}."


def _signal(status: int) -> str:
    number = -status if status < 0 else status - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if status > 0:
        return f"{name}, with a checkpoint"
    return f"{name}, which the system sends where memory is short" if name == "SIGKILL" else name


_TO_START = 300.0       # seconds in which the actors must answer
_PATIENCE = 30.0        # seconds that the others have to end by themselves when one has ended,
_PATIENCE_UNBEGUN = 2.0     # and when the user ended it before it could take the signal


class Attempt:
    """Workers in the room that was found for them.

    Args:
        group: the placement group.
        count: workers.
        share: of each.
        request: the user's wish to end.
    Attributes:
        addresses: of the workers, once they are there.
    """

    def __init__(self, group: Any, count: int, share: Share, request: EndRequest) -> None:
        import ray

        self._ray: Any = ray
        self._group, self._share, self._request = group, share, request
        self.addresses = [""] * count
        self._actors = [self._actor(bundle) for bundle in range(count)]
        self._running: dict[Any, int] = {}      # what `follow` will give, to the worker's number

    def begin(self, arguments: Sequence[str], run: Path) -> list[Ending]:
        """Start the processes.

        Args:
            arguments: what `towernmt` gets.
            run: directory of the run.
        Returns:
            nothing, or which workers were lost already.
        Raises:
            SettingsError: a machine has not what it needs.
            EndRequestedError: the user asked for the end.
        """
        try:
            self._find_addresses()
            self._get([actor.start.remote(list(arguments), self.addresses, number, self._share.processors, str(run))
                       for number, actor in enumerate(self._actors)])
        except self._ray.exceptions.RayError as error:
            return [self._lost(0, error)]
        return []

    def follow(self, outputs: Sequence[WorkerOutput]) -> list[Ending]:
        """Hand on what workers say, and what the user asks for, until all have ended.

        Args:
            outputs: of each worker.
        """
        self._running = {actor.follow.remote(): number for number, actor in enumerate(self._actors)}
        endings: list[Ending] = []
        sent, deadline = None, float("inf")     # when the rest is ended
        while self._running:
            for reference in self._ray.wait(list(self._running), timeout=0.2)[0]:
                endings += self._take(reference, outputs, time.monotonic() > deadline)
            if self._request.number != sent:
                sent = self._request.number
                self._actors[0].send.remote(sent)
            if any(ending.status != 0 or sent for ending in endings):
                unbegun = sent is not None and any(ending.status == -sent for ending in endings)
                deadline = min(deadline, time.monotonic() + (_PATIENCE_UNBEGUN if unbegun else _PATIENCE))
            self._end_the_rest(deadline)
        for output in outputs:
            output.close()
        return [ending._replace(words=ending.words or outputs[ending.worker].sentence) for ending in endings]

    def close(self) -> None:
        """End what still runs, and give the room back."""
        from ray.util import remove_placement_group

        ends = [actor.kill.remote() for actor in self._actors]
        self._ray.wait(ends, num_returns=len(ends), timeout=5)      # of what is lost nothing comes
        for actor in self._actors:
            self._ray.kill(actor)
        remove_placement_group(self._group)

    def _actor(self, bundle: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        # Several calls at a time: a signal does not wait for the end of `follow`.
        return self._ray.remote(WorkerActor).options(
            num_cpus=self._share.processors, num_gpus=self._share.gpus, max_restarts=0, max_concurrency=4,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, bundle)).remote()

    def _find_addresses(self) -> None:
        """Number the workers machine by machine, and give each a port."""
        places: list[Place] = self._get([actor.place.remote(os.getcwd()) for actor in self._actors])
        problem = next((place.problem for place in places if place.problem), "")
        if problem:
            raise SettingsError(problem)
        order = sorted(range(len(places)), key=lambda index: places[index].host)
        self._actors = [self._actors[index] for index in order]
        for number, (actor, index) in enumerate(zip(self._actors, order, strict=True)):
            while not self.addresses[number]:
                address = f"{places[index].host}:{self._get([actor.port.remote()])[0]}"
                self.addresses[number] = "" if address in self.addresses else address

    def _get(self, references: Sequence[Any]) -> list[Any]:
        end, waiting = time.monotonic() + _TO_START, list(references)
        while waiting:
            self._request.check()
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=1)
            if waiting and time.monotonic() > end:
                raise self._ray.exceptions.GetTimeoutError(f"no answer within {_TO_START:g} s")
        return list(self._ray.get(list(references)))

    def _take(self, reference: Any, outputs: Sequence[WorkerOutput], by_us: bool) -> list[Ending]:
        number = self._running.pop(reference)
        try:
            said: Said = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return [self._lost(number, error)._replace(ended_by_us=by_us)]
        outputs[number].take(said.pieces)
        if said.status is not None:
            return [Ending(number, self.addresses[number], said.status, ended_by_us=by_us)]
        self._running[self._actors[number].follow.remote()] = number
        return []

    def _end_the_rest(self, deadline: float) -> None:
        """Another one has ended: the rest may stand still, or wait for it for long."""
        late = time.monotonic() - deadline
        for number in self._running.values():
            if late > _PATIENCE:
                self._ray.kill(self._actors[number])
            elif late > 0:
                self._actors[number].kill.remote()

    def _lost(self, number: int, error: Exception) -> Ending:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[-1] if lines else type(error).__name__      # the cause stands last
        return Ending(number, self.addresses[number], None, why.partition(". ")[0][:200].rstrip("."))
