"""TensorBoard events and `stats.jsonl`, after resumes and on a failing disk."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorpack.callbacks import Callback
from tensorpack.tfutils.sessinit import JustCurrentSession
from tensorpack.train import SimpleTrainer

from towernmt.core.session import SessionCreator
from towernmt.core.tf_compat import tf, tf1
from towernmt.train.monitors import EventWriter, StatsWriter


class Put(Callback):
    def _trigger_step(self) -> None:
        self.trainer.monitors.put_scalar("half", self.global_step / 2)


SETTINGS = {"train.steps": 300, "optimizer.learning_rate": 0.5, "model.pre_norm": True, "train.only": ["a|b"],
            "architecture": "transformer", "long": "x" * 300}


class PutAtStart(Put):
    def _before_epoch(self) -> None:
        self.trainer.monitors.put_scalar("first", 7.0)


def train(log: Path, steps: int, start: int = 0, settings: dict | None = None, puts: type[Put] = Put) -> None:
    """Count up to `steps`, and record a scalar after each step."""
    with tf.Graph().as_default():
        trainer = SimpleTrainer()
        step = tf1.train.get_or_create_global_step()
        trainer.train_op = tf.no_op()
        trainer.setup_callbacks([puts()], [EventWriter(log, settings), StatsWriter(log)])
        assign = step.assign(start)
        trainer.initialize(SessionCreator(), JustCurrentSession())
        trainer.sess.run(assign)
        trainer.main_loop(steps - start, 1, 1)


def stats(log: Path) -> list[dict]:
    return [json.loads(line) for line in (log / "stats.jsonl").read_text().splitlines()]


def events(log: Path) -> list[tuple[int, str, float]]:
    values = []
    for file in sorted(log.glob("events.out.tfevents.*")):
        for event in tf1.train.summary_iterator(str(file)):
            values += [(event.step, value.tag, value.simple_value) for value in event.summary.value
                       if value.HasField("simple_value")]
    return values


def accumulated(log: Path) -> Any:
    """Return the scalars that TensorBoard reads from the files."""
    accumulator = EventAccumulator(str(log), {TENSORS: 0})
    accumulator.Reload()
    return accumulator


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("tensorpack").setLevel(logging.WARNING)
    yield
    logging.getLogger("tensorpack").setLevel(logging.INFO)


def test_scalars_before_the_first_update_have_a_line_of_their_own(tmp_path):
    train(tmp_path, 1, puts=PutAtStart)
    assert stats(tmp_path) == [{"first": 7.0, "epoch_num": 1, "global_step": 0},
                               {"half": 0.5, "epoch_num": 1, "global_step": 1}]


def test_a_scalar_that_is_not_finite_is_null_because_json_has_no_nan(tmp_path):
    class PutNothingFinite(Put):
        def _trigger_step(self) -> None:
            for name in ("nan", "inf", "-inf"):
                self.trainer.monitors.put_scalar(name, float(name))

    train(tmp_path, 1, puts=PutNothingFinite)
    line = json.loads((tmp_path / "stats.jsonl").read_text(), parse_constant=pytest.fail)
    assert line == {"nan": None, "inf": None, "-inf": None, "epoch_num": 1, "global_step": 1}


def test_scalars_stand_in_the_event_file_and_in_stats_jsonl(tmp_path):
    train(tmp_path, 3)
    assert events(tmp_path) == [(1, "half", 0.5), (2, "half", 1.0), (3, "half", 1.5)]
    entries = [(entry["global_step"], entry["epoch_num"], entry["half"]) for entry in stats(tmp_path)]
    assert entries == [(1, 1, 0.5), (2, 1, 1.0), (3, 1, 1.5)]


def test_a_resumed_run_writes_after_the_entry_of_its_step(tmp_path):
    train(tmp_path, 4)
    train(tmp_path, 6, start=2)     # killed after 4, resumed from the checkpoint of 2
    assert [entry["global_step"] for entry in stats(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_the_graph_is_written_once_and_not_at_each_resume(tmp_path):
    for start in (0, 3, 6):
        train(tmp_path, start + 3, start)
    files = sorted(tmp_path.glob("events.out.tfevents.*"))
    graphs = [sum(event.HasField("graph_def") for event in tf1.train.summary_iterator(str(file))) for file in files]
    assert graphs == [1, 0, 0]
    assert accumulated(tmp_path).Graph().node


def test_a_file_that_was_cut_before_its_graph_is_made_up_for(tmp_path):
    train(tmp_path, 1)
    (file,) = tmp_path.glob("events.out.tfevents.*")
    file.write_bytes(file.read_bytes()[:60])
    train(tmp_path, 2)
    assert accumulated(tmp_path).Graph().node


def test_tensorboard_forgets_the_steps_that_a_resumed_run_makes_again(tmp_path):
    train(tmp_path, 4)
    train(tmp_path, 6, start=2)     # killed after 4, resumed from the checkpoint of 2
    assert [event.step for event in accumulated(tmp_path).Scalars("half")] == [1, 2, 3, 4, 5, 6]


def test_settings_are_shown_as_a_text_and_as_hyper_parameters(tmp_path):
    train(tmp_path, 2, settings=SETTINGS)
    accumulator = accumulated(tmp_path)
    (text,) = accumulator.Tensors("settings")
    assert "| train.only | \\['a\\|b'\\] |" in text.tensor_proto.string_val[0].decode()
    assert accumulator.SummaryMetadata("settings").plugin_data.plugin_name == "text"
    metadata = accumulator.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert metadata.plugin_name == "hparams"
    info = HParamsPluginData.FromString(metadata.content).session_start_info
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in info.hparams.items()}
    assert values == {**SETTINGS, "train.only": "['a|b']"}
    assert info.group_name == str(tmp_path)


def test_training_and_validation_scalars_of_one_kind_share_a_chart(tmp_path):
    train(tmp_path, 1)
    (event,) = accumulated(tmp_path).Tensors("custom_scalars__config__")
    (category,) = Layout.FromString(event.tensor_proto.string_val[0]).category
    curves = {chart.title: list(chart.multiline.tag) for chart in category.chart}
    assert curves["perplexity"] == ["perplexity$", "validation_perplexity(/.*)?$"]
    assert ["nll$", "validation_loss(/.*)?$"] in curves.values()


def test_half_a_line_that_a_killed_process_left_is_dropped(tmp_path):
    train(tmp_path, 2)
    with (tmp_path / "stats.jsonl").open("a") as file:
        file.write('{"half": 1.5, "glo')
    train(tmp_path, 4, start=2)
    assert [entry["global_step"] for entry in stats(tmp_path)] == [1, 2, 3, 4]


def test_a_file_that_cannot_be_written_gives_one_warning_and_training_continues(tmp_path):
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


def test_a_directory_that_was_removed_meanwhile_is_not_made_anew(tmp_path):
    class Remove(Callback):
        def _trigger_step(self) -> None:
            if self.global_step == 2:
                shutil.rmtree(tmp_path / "log")

    with tf.Graph().as_default():
        trainer = SimpleTrainer()
        trainer.train_op = tf1.train.get_or_create_global_step().assign_add(1).op
        trainer.setup_callbacks([Remove(), Put()], [EventWriter(tmp_path / "log"), StatsWriter(tmp_path / "log")])
        trainer.initialize(SessionCreator(), JustCurrentSession())
        trainer.main_loop(5, 1, 1)
    assert not (tmp_path / "log").exists()
