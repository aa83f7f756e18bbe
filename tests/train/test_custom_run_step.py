"""A `run_step` without `super().run_step()` is reported at set-up, together with what it loses."""

from __future__ import annotations

import logging

import pytest

from tests.train.plain_model import PlainModel, train_plainly
from towernmt.train.trainer import SyncMultiGPUTrainer


class OwnStep(SyncMultiGPUTrainer):
    def run_step(self) -> None:
        self.hooked_sess.run(self.train_op)


class ExtendedStep(SyncMultiGPUTrainer):
    def run_step(self) -> None:
        super().run_step()


class IndirectStep(SyncMultiGPUTrainer):
    def run_step(self) -> None:
        self.update()

    def update(self) -> None:
        super().run_step()


def warnings(caplog: pytest.LogCaptureFixture, kind: type[SyncMultiGPUTrainer], **options: int) -> list[str]:
    caplog.set_level(logging.WARNING, "tensorpack")
    train_plainly(lambda: kind(towers=1, **options), [], PlainModel(), batches=4)
    return list(dict.fromkeys(record.getMessage() for record in caplog.records if "run_step" in record.getMessage()))


def test_a_step_without_super_is_reported_with_its_losses(caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = warnings(caplog, OwnStep, update_cycle=2, skip_out_of_memory=3)
    assert warning.startswith("OwnStep.run_step does not call super().run_step(): ")
    assert "train.update_cycle=2" in warning and "recovery.skip_out_of_memory=3" in warning
    assert "override train_batch instead" in warning


def test_a_step_without_super_is_not_reported_if_it_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings(caplog, OwnStep)


@pytest.mark.parametrize("kind", [SyncMultiGPUTrainer, ExtendedStep, IndirectStep])
def test_a_step_with_super_is_not_reported(caplog: pytest.LogCaptureFixture, kind: type[SyncMultiGPUTrainer]) -> None:
    assert not warnings(caplog, kind, update_cycle=2, skip_out_of_memory=3)
