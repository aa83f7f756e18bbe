"""The number of feeders, and of towers with the same global batch, does not change the data of any update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorpack.callbacks import Callback

from towernmt.core.tf_compat import tf1

pytestmark = pytest.mark.processes


class GlobalBatches(Callback):
    """Records each step's global batch when it leaves the queue, with the position after it."""

    def __init__(self, source: Any, noted: list[list[bytes]]) -> None:
        self._source, self._noted = source, noted

    def _before_run(self, _: Any) -> Any:
        return tf1.train.SessionRunArgs([*self._source._global, self._source.position_tensor])

    def _after_run(self, _: Any, values: Any) -> None:
        self._noted.append([value if isinstance(value, bytes) else value.tobytes() for value in values.results])


@pytest.mark.parametrize("kind", ["mixture", "shards"])
def test_feeders_and_towers_do_not_change_the_order(request: pytest.FixtureRequest, kind: str, numbered: Any,
                                                    train: Callable[..., Any]) -> None:
    data: Path = request.getfixturevalue(kind)

    def order(feeders: int, towers: int) -> list[list[bytes]]:
        noted: list[list[bytes]] = []
        ended = train(data, "train.epochs=2", f"data.feeders={feeders}", towers=towers, prepared=kind == "shards",
                      logdir=f"run-{feeders}-{towers}", more_callbacks=lambda source: [GlobalBatches(source, noted)])
        assert ended.status == 0, ended.errors
        numbered.assert_counted_once(ended.counts, epochs=2)
        return noted

    first = order(feeders=1, towers=1)
    assert len(first) > 60 and all(len(step) == 7 for step in first)
    assert order(feeders=3, towers=1) == first
    assert order(feeders=4, towers=3) == first
