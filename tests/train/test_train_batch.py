"""A custom `train_batch` keeps update cycles and the skipping of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.train.plain_model import PlainModel, train_plainly
from towernmt.core.errors import SettingsError
from towernmt.train.trainer import SyncMultiGPUTrainer


class Noting(SyncMultiGPUTrainer):
    """Records the number of each batch before it is trained on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(towers=1, **options)
        self.numbers: list[int] = []

    def train_batch(self, run: Any) -> None:
        self.numbers.append(self.batch_number)
        run()


def train(too_large: Any = (), **options: Any) -> tuple[Noting, PlainModel, np.ndarray]:
    trainers: list[Noting] = []
    model = PlainModel(too_large)
    weights = train_plainly(lambda: trainers.append(Noting(**options)) or trainers[0], [], model)
    return trainers[0], model, weights


def test_train_batch_is_called_for_each_batch_of_an_update_cycle() -> None:
    trainer, model, weights = train(update_cycle=2)
    assert model.processed_numbers == list(range(6))
    assert trainer.numbers == [*range(6), 6]        # the last one finds no data
    usual = train_plainly(lambda: SyncMultiGPUTrainer(towers=1, update_cycle=2), [], PlainModel())
    assert np.array_equal(weights, usual)


@pytest.mark.parametrize("cycle, numbers, steps", [(1, [0, 2, 3, 4, 5], 5), (2, [0, 2, 3, 4, 5], 2)])
def test_a_batch_that_runs_out_of_memory_is_left_out(cycle: int, numbers: list[int], steps: int) -> None:
    trainer, model, _ = train({1}, update_cycle=cycle, skip_out_of_memory=1)
    assert model.processed_numbers == numbers and trainer.skipped_batches == 1 and trainer.loop.global_step == steps


@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("number", [2, 3])
def test_a_batch_that_is_not_run_once_in_an_update_cycle_is_refused(number: int, calls: int) -> None:
    class Skipping(Noting):
        def train_batch(self, run: Any) -> None:
            for _ in range(calls if self.batch_number == number else 1):
                run()

    with pytest.raises(SettingsError, match=rf"Skipping.train_batch called run {calls} times .* train.update_cycle=2"):
        train_plainly(lambda: Skipping(update_cycle=2), [], PlainModel())
