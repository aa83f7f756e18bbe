"""Read a tensorpack DataFlow, or an iterable, as batches with a position that counts its datapoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from tensorpack.dataflow import DataFlow, DataFromGenerator, common
from tensorpack.utils import logger

from towernmt.core.errors import DataError, SettingsError

DatapointSource = Iterable[Any] | Callable[[], Iterable[Any]]
"""A DataFlow, another iterable of datapoints, or a function that returns an iterable."""

if not hasattr(np, "sctypes"):
    # tensorpack's PrintData reads this name, which NumPy 2 no longer has.
    common.np = ModuleType("numpy")
    vars(common.np).update(vars(np), sctypes={"all": list(np.sctypeDict.values())})


@dataclass(frozen=True)
class DataPoints:
    """A position in a DataFlow.

    Attributes:
        count: number of datapoints before the position, over all passes.
    """

    count: int

    def to_json(self) -> str:
        """Return a text such as `{"datapoints": 12}`."""
        return json.dumps({"datapoints": self.count})

    @classmethod
    def from_json(cls, text: str) -> DataPoints:
        """Parse the text of `to_json`.

        Raises:
            DataError: the text is not a position in a DataFlow.
        """
        try:
            count = json.loads(text)["datapoints"]
        except (ValueError, TypeError, KeyError):
            count = None
        if not isinstance(count, int) or count < 0:
            raise DataError(f"{text!r} is not a position in a DataFlow, such as {DataPoints(12).to_json()}: it was "
                            "saved with other data. Pass that data, or train in another directory.")
        return cls(count)


@dataclass(frozen=True)
class DataPoint:
    """A datapoint of a DataFlow as a batch."""

    components: Any

    def arrays(self) -> Any:
        """Return the components: a list in the order of the towers' inputs, or a dict by their names."""
        return self.components


class DataFlowBatches:
    """The datapoints of a DataFlow or an iterable as batches, pass after pass, as with tensorpack's `QueueInput`.

    To resume at a position, the datapoints before it are read again and dropped. They are the same only if the source
    yields them in the same order in each process (for a DataFlow: `tensorpack.utils.fix_rng_seed`).

    Args:
        source: a DataFlow, an iterable of datapoints, a generator function, or an iterator, which has only one pass. A
            datapoint is a list with one component per input of the towers, or a dict by the names of the inputs. The
            source must have only one reader.

    Raises:
        SettingsError: the source has another type.
    """

    def __init__(self, source: DatapointSource) -> None:
        if isinstance(source, (str, bytes)) or not (callable(source) or hasattr(type(source), "__iter__")):
            raise SettingsError(f"GeneralQueueInput({source!r}): pass batches that can be read from a position "
                                "(such as towernmt.dataflow.Batches), a tensorpack DataFlow, or an iterable or "
                                "generator of datapoints.")
        self._dataflow: DataFlow = source if isinstance(source, DataFlow) else DataFromGenerator(source)
        self._fresh = True

    def batches_per_epoch(self) -> int:
        """Return the number of datapoints in a pass.

        Raises:
            NotImplementedError: the source has no length.
        """
        try:
            return len(self._dataflow)
        except TypeError:
            raise NotImplementedError("The source of the batches has no length.") from None

    def read(self, position: DataPoints | None = None, start: int = 0, step: int = 1
             ) -> Iterator[tuple[DataPoints, DataPoint]]:
        """Yield (position after the datapoint, datapoint); see `ReadableBatches`."""
        if self._fresh:
            self._fresh = False
            self._dataflow.reset_state()
        first = position.count if position is not None else 0
        if first:
            logger.info("Dropping the first %d datapoints, which the run has already trained on ...", first)
        for number, datapoint in enumerate(self._passes()):
            if number >= first and (number - first - start) % step == 0:
                yield DataPoints(number + 1), DataPoint(datapoint)

    def _passes(self) -> Iterator[Any]:
        """Yield the datapoints of pass after pass, until a pass is empty."""
        empty = False
        while not empty:
            empty = True
            for datapoint in self._dataflow:
                empty = False
                yield datapoint
