"""TensorBoard's events and `stats.jsonl`, over resumes and on a disk that fails."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tensorpack.callbacks import Callback
from tensorpack.tfutils.sessinit import JustCurrentSession
from tensorpack.train import SimpleTrainer

from towernmt.tf_compat import tf, tf1
from towernmt.train.monitors import EventWriter, StatsWriter
from towernmt.train.session import SessionCreator


class Put(Callback):
    def _trigger_step(self) -> None:
        self.trainer.monitors.put_scalar("half", self.global_step / 2)


def train(log: Path, steps: int, start: int = 0) -> None:
    """Count up to `steps`, putting a scalar after each."""
    with tf.Graph().as_default():
        trainer = SimpleTrainer()
        step = tf1.train.get_or_create_global_step()
        trainer.train_op = tf.no_op()
        trainer.setup_callbacks([Put()], [EventWriter(log), StatsWriter(log)])
        assign = step.assign(start)
        trainer.initialize(SessionCreator(), JustCurrentSession())
        trainer.sess.run(assign)
        trainer.main_loop(steps - start, 1, 1)


def stats(log: Path) -> list[dict]:
    return [json.loads(line) for line in (log / "stats.jsonl").read_text().splitlines()]


def events(log: Path) -> list[tuple[int, str, float]]:
    found = []
    for file in sorted(log.glob("events.out.tfevents.*")):
        for event in tf1.train.summary_iterator(str(file)):
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("tensorpack").setLevel(logging.WARNING)
    yield
    logging.getLogger("tensorpack").setLevel(logging.INFO)


def test_scalars_stand_in_the_event_file_and_in_stats_jsonl(tmp_path):
    train(tmp_path, 3)
    assert events(tmp_path) == [(1, "half", 0.5), (2, "half", 1.0), (3, "half", 1.5)]
    entries = [(entry["global_step"], entry["epoch_num"], entry["half"]) for entry in stats(tmp_path)]
    assert entries == [(1, 1, 0.5), (2, 1, 1.0), (3, 1, 1.5)]


def test_a_resumed_run_goes_on_behind_the_entry_of_its_step(tmp_path):
    train(tmp_path, 4)
    train(tmp_path, 6, start=2)     # killed after 4, resumed from the checkpoint of 2
    assert [entry["global_step"] for entry in stats(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_half_a_line_that_a_killed_process_left_is_dropped(tmp_path):
    train(tmp_path, 2)
    with (tmp_path / "stats.jsonl").open("a") as file:
        file.write('{"half": 1.5, "glo')
    train(tmp_path, 4, start=2)
    assert [entry["global_step"] for entry in stats(tmp_path)] == [1, 2, 3, 4]


def test_a_place_that_cannot_be_written_is_one_warning_each_and_training_goes_on(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    log = tmp_path / "file" / "log"
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tensorpack").addHandler(handler)
    try:
        train(log, 5)
    finally:
        logging.getLogger("tensorpack").removeHandler(handler)
    for name in ("EventWriter", "StatsWriter"):
        assert sum(f"{name} records nothing more" in record for record in records) == 1
