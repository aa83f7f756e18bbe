"""A tensorpack DataFlow as batches in a fixed order, with a position that counts its datapoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorpack.dataflow import DataFlow
from tensorpack.utils import logger

from towernmt.core.errors import DataError


@dataclass(frozen=True)
class DataPoints:
    """A position in a DataFlow.

    Attributes:
        count: datapoints before it, over all passes.
    """

    count: int

    def to_json(self) -> str:
        """As `{"datapoints": 12}`."""
        return json.dumps({"datapoints": self.count})

    @classmethod
    def from_json(cls, text: str) -> DataPoints:
        """Read what `to_json` wrote.

        Raises:
            DataError: it is something else.
        """
        try:
            count = json.loads(text)["datapoints"]
        except (ValueError, TypeError, KeyError):
            count = None
        if not isinstance(count, int) or count < 0:
            raise DataError(f"{text!r} is no position in a DataFlow, such as {DataPoints(12).to_json()}: it was saved "
                            "with other data; pass those, or begin in another directory.")
        return cls(count)


@dataclass(frozen=True)
class DataPoint:
    """A datapoint as a batch."""

    components: list[Any]

    def arrays(self) -> list[Any]:
        """Its components, in the order of the towers' inputs."""
        return list(self.components)


class DataFlowBatches:
    """What `GeneralQueueInput` makes of a DataFlow: its datapoints, again and again, as `QueueInput` reads it.

    To go on at a position, the datapoints before it are read again and passed over. They are the same ones if the
    DataFlow gives them in the same order in each program (`tensorpack.utils.fix_rng_seed`).

    Args:
        dataflow: of lists with a component for each input of the towers. It has one reader, for it is one iterator.
    """

    def __init__(self, dataflow: DataFlow) -> None:
        self._dataflow, self._fresh = dataflow, True

    def batches_per_epoch(self) -> int:
        """Its length, where it has one."""
        return len(self._dataflow)

    def read(self, position: DataPoints | None = None, start: int = 0, step: int = 1
             ) -> Iterator[tuple[DataPoints, DataPoint]]:
        """See `ReadableBatches`."""
        if self._fresh:
            self._fresh = False
            self._dataflow.reset_state()
        passed = position.count if position is not None else 0
        if passed:
            logger.info(f"Passing over the first {passed} datapoints of {type(self._dataflow).__name__} ...")
        for number, datapoint in enumerate(self._again()):
            if number >= passed and (number - passed - start) % step == 0:
                yield DataPoints(number + 1), DataPoint(datapoint)

    def _again(self) -> Iterator[Any]:
        """Pass after pass, until one is empty."""
        found = True
        while found:
            found = False
            for datapoint in self._dataflow:
                found = True
                yield datapoint
