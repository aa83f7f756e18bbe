"""One attempt at a training: an actor for each worker, followed until the processes of all have ended."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.elastic.end_request import EndRequest
from towernmt.elastic.outcome import Ending
from towernmt.elastic.output import WorkerOutput
from towernmt.elastic.placement import Share
from towernmt.elastic.worker_actor import Place, Said, WorkerActor

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
            EndAskedError: the user asked for the end.
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

