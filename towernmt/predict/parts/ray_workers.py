"""Workers on a Ray cluster: actors, on whatever machines it has. Parts and what they give go through Ray."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from towernmt.core.errors import SettingsError
from towernmt.dataflow.prepare.running.ray_cluster import check_ray, connected
from towernmt.predict.parts.workers import Event, Failed, Lost, MakeTranslator, PartWork, Ready, answer

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

