"""The batches of a validation, dealt to the processes that train together; each gets the results of all."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import TypeVar

from towernmt.core.errors import DivergenceError
from towernmt.core.world import present_world

A = TypeVar("A")
B = TypeVar("B")


class StoppedError(Exception):
    """A signal asked for the end of training while the validation set was being translated."""


def dealt(function: Callable[[A], B], batches: Iterable[A]) -> Iterable[B]:
    """The results of all batches in their order, in every process; process *i* of *N* does every *N*-th.

    The batches, and so the results, are those of one process. They travel pickled: whoever can send them can run any
    operation in these processes anyhow (see `TensorFlowWorld`).

    Raises:
        DivergenceError, StoppedError: in every process, where it came up in one.
    """
    world = present_world()
    if world.processes == 1:
        return map(function, batches)
    mine: dict[int, B] = {}
    error: Exception | None = None
    try:
        for number, batch in enumerate(batches):
            if number % world.processes == world.process:
                mine[number] = function(batch)
    except (DivergenceError, StoppedError) as found:
        error = found
    of_all: dict[int, B] = {}
    for sent in world.exchange(pickle.dumps((mine, error))):
        results, failed = pickle.loads(sent)
        if failed is not None:
            raise failed
        of_all.update(results)
    return [of_all[number] for number in sorted(of_all)]
