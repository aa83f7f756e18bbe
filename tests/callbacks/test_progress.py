"""Progress: its lines and scalars, compared with sums computed by hand."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import sys

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from tensorpack.callbacks import Callback
from tensorpack.dataflow import DataFromList
from tensorpack.input_source import FeedInput
from tensorpack.tfutils.sesscreate import NewSessionCreator
from tensorpack.tfutils.sessinit import JustCurrentSession
from tensorpack.train import ModelDesc, SimpleTrainer, launch_train_with_config
from tensorpack.utils import logger

from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.progress import Progress
from towernmt.callbacks.schedules import constant
from towernmt.callbacks.status_line import Bar, Figures, StatusLine, duration
from towernmt.callbacks.stopping import StopAfterMinutes, StopAtStep
from towernmt.callbacks.validation_metrics import perplexity_from_loss
from towernmt.core.errors import SettingsError
from towernmt.core.graph_state import towers_of_batch
from towernmt.core.terminal_log import configure_terminal_log
from towernmt.core.tf_compat import tf, tf1
from towernmt.core.world import World, in_world
from towernmt.input_source import GeneralQueueInput
from towernmt.optim.gradients import SumOverTowers, allow_skipped_update, sum_over_towers
from towernmt.train import SyncMultiGPUTrainer, TrainConfig


class Clock:
    """A clock that advances by one second in each update (read twice around it), and not elsewhere."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def run(callbacks, recorder, steps, batches, epochs=1):
    """Batches of (x, source lengths, target tokens); loss = x, nll = x / 2, without any learning."""
    def tower(x, source_length, target_tokens):
        w = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
        tf.multiply(w, x / 2, name="nll")
        return tf.multiply(w, x, name="loss")

    def optimizer():
        rate = tf1.get_variable("learning_rate", initializer=0.0, trainable=False)
        return tf1.train.GradientDescentOptimizer(rate)

    signature = [tf.TensorSpec([], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "source_length"),
                 tf.TensorSpec([], tf.float32, "target_tokens")]
    points = [[np.float32(x), np.array(s, np.int32), np.float32(t)] for x, s, t in batches]
    data = DataFromList(points, shuffle=False)
    with tf.Graph().as_default():
        trainer = SimpleTrainer()
        trainer.setup_graph(signature, FeedInput(data), tower, optimizer)
        trainer.setup_callbacks(callbacks, [recorder])
        trainer.initialize(NewSessionCreator(config=tf1.ConfigProto(intra_op_parallelism_threads=1)),
                           JustCurrentSession())
        trainer.main_loop(steps, 1, epochs)
    return trainer


BATCHES = [(4.0, [3, 2], 10.0), (1.0, [5], 30.0), (2.0, [1, 1], 4.0), (2.0, [1, 1], 4.0)]


def test_a_line_holds_token_weighted_means_and_speeds(recorder, caplog, do):
    clock = Clock()

    def tick(_):
        clock.now += 100.0  # another callback's time, which the speed excludes

    class Update(type(do(tick))):
        def _after_run(self, _, __):
            clock.now += 1.0

    with caplog.at_level(logging.INFO):
        run([Update(tick), Progress(2, clock), StopAtStep(4)], recorder, 10, BATCHES)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("step ")]
    loss = (4.0 * 10 + 1.0 * 30) / 40
    assert recorder.of("loss") == [(2, pytest.approx(loss)), (4, pytest.approx(2.0))]
    assert recorder.of("perplexity")[0][1] == pytest.approx(math.exp(loss / 2))
    assert recorder.of("target_tokens_per_second") == [(2, pytest.approx(20.0)), (4, pytest.approx(4.0))]
    assert recorder.of("tokens_per_second") == [(2, pytest.approx(25.0)), (4, pytest.approx(6.0))]
    assert recorder.of("learning_rate")[0] == (2, 0.0)
    # two updates and one wait of the other callback took 102 s, and two updates are left
    assert lines[0] == ("step 2, nll 0.8750, 20 target tokens/s, ETA 1:42, perplexity 2.40, learning rate 0.000e+00, "
                        "loss as trained 1.7500, 25 tokens/s with source, epoch 1")
    assert recorder.of("nll")[0] == (2, pytest.approx(loss / 2))
    assert len(lines) == 2
    assert re.search(r"Trained 4 steps in 6:44: 48 target tokens, 12 per second of training; "
                     r"at most \d+\.\d GB of memory; the last step is 4\.", caplog.text)


def test_an_update_cycle_counts_the_tokens_of_all_its_batches(recorder):
    clock = Clock()

    class Ticking(Progress):
        def _setup_graph(self):
            super()._setup_graph()
            self._cycle = 3

        def _after_run(self, context, values):
            clock.now += 2.0
            super()._after_run(context, values)

    run([Ticking(1, clock), StopAtStep(1)], recorder, 1, BATCHES)
    assert recorder.of("target_tokens_per_second") == [(1, pytest.approx(15.0))]


class SharedBatch(ModelDesc):
    """A tower function of rows, of which the towers of all processes get a share."""

    def inputs(self):
        return [tf.TensorSpec([None], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "source_length"),
                tf.TensorSpec([], tf.float32, "target_tokens")]

    def build_graph(self, x, source_length, target_tokens):
        w = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
        return tf.multiply(tf.reduce_sum(w * x), towers_of_batch() / target_tokens, name="loss")

    def optimizer(self):
        return tf1.train.GradientDescentOptimizer(0.0)


class OwnGradients(SumOverTowers):
    def reduce(self, towers, world):
        return sum_over_towers(towers)


def test_the_source_tokens_of_several_processes_are_those_of_all_rows(recorder):
    clock = Clock()

    class Ticking(Progress):
        def _after_run(self, context, values):
            clock.now += 2.0
            super()._after_run(context, values)

    batch = [np.ones(4, np.float32), np.array([3, 3, 3, 3], np.int32), np.float32(10.0)]
    with tf.Graph().as_default(), in_world(World(0, 2)):
        config = TrainConfig(SharedBatch(), GeneralQueueInput([batch]), [Ticking(1, clock), StopAtStep(1)],
                             monitors=[recorder])
        launch_train_with_config(config, SyncMultiGPUTrainer(towers=1, reducer=OwnGradients()))
    assert recorder.of("target_tokens_per_second") == [(1, pytest.approx(5.0))]
    assert recorder.of("tokens_per_second") == [(1, pytest.approx(11.0))]


class Overflowing(Callback):
    """Marks updates with a loss of 4 as skipped, as with a gradient that is not finite."""

    def _setup_graph(self):
        loss = self.trainer.towers.training()[0].get_tensor("loss")
        tf.where(loss > 3.0, float("inf"), loss + 0.5, name="gradient_norm")
        allow_skipped_update(loss > 3.0)


def test_skipped_updates_count_for_the_speed_alone(recorder, caplog):
    batches = [(1.0, [5], 30.0), (4.0, [3, 2], 10.0), (4.0, [1], 10.0), (4.0, [1], 10.0)]
    clock = Clock()

    class Ticking(Overflowing):
        def _after_run(self, _, __):
            clock.now += 1.0

    with caplog.at_level(logging.INFO):
        run([Ticking(), Progress(2, clock), StopAtStep(4)], recorder, 10, batches)
    assert recorder.of("loss") == [(2, 1.0)] and recorder.of("gradient_norm") == [(2, 1.5)]
    assert recorder.of("perplexity") == [(2, pytest.approx(math.exp(0.5)))]
    assert recorder.of("target_tokens_per_second") == [(2, pytest.approx(20.0)), (4, pytest.approx(10.0))]
    assert [step for step, _ in recorder.of("learning_rate")] == [2, 4]
    line = next(r.getMessage() for r in caplog.records if r.getMessage().startswith("step 4"))
    assert "loss" not in line and "nll" not in line and "inf" not in line


def test_a_trainer_without_tokens_gets_steps_per_second(train, caplog):
    with caplog.at_level(logging.INFO):
        _, recorder = train([LearningRateSchedule(constant(0.5)), Progress(2)], steps=4, inputs=(3.0,))
    assert [step for step, _ in recorder.of("steps_per_second")] == [2, 4]
    assert not recorder.of("perplexity")
    line = next(r.getMessage() for r in caplog.records if r.getMessage().startswith("step 2"))
    assert "steps/s" in line and "learning rate 5.000e-01" in line and "perplexity" not in line


def test_the_eta_is_that_of_the_nearest_limit(recorder, caplog):
    clock = Clock()

    class Ticking(Progress):
        def _after_run(self, context, values):
            clock.now += 6.0
            super()._after_run(context, values)

    def eta(*limits, expected_end=0, **kwargs):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            run([Ticking(1, clock, expected_end=expected_end), *limits], recorder, 2, BATCHES, **kwargs)
        first = next(r.getMessage() for r in caplog.records if r.getMessage().startswith("step 1"))
        return first.partition("ETA ")[2].split(",")[0]

    assert eta(StopAtStep(101)) == "0:06"  # one epoch of two steps is nearer
    assert eta(StopAtStep(2), epochs=50) == "0:06"
    assert eta(StopAfterMinutes(0.25, clock), epochs=50) == "0:09"
    assert eta(StopAtStep(101), epochs=50, expected_end=4) == "0:18"


def figures(**changes):
    scalars = {"nll": 4.0312, "loss": 4.9, "perplexity": 56.33, "learning_rate": 1.9e-3, "gradient_norm": 0.81,
               "target_tokens_per_second": 21405.0, "tokens_per_second": 42000.0, "steps_per_second": 40.0}
    return Figures(**{"step": 120_000, "steps": 250_000, "epoch": 3, "scalars": scalars, "seconds_left": 45296.0,
                      "fraction_done": 0.48, "seconds": 41000.0, **changes})


def drawn(bar, width):
    """Return the text that a terminal of this width shows."""
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=True, color_system=None).print(bar, end="")
    return stream.getvalue().rstrip("\n")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_bar_has_step_loss_speed_and_eta_in_one_line_of_any_terminal(width):
    line = drawn(Bar(figures()), width)
    assert "\n" not in line and cell_len(line.rstrip()) < width
    assert re.match(r"(step )?120000(/250000)? ", line) and "nll 4.03" in line and "ETA 12:34:56" in line
    assert ("21,405" in line or "21.4k" in line) and ("━" in line) == (width >= 60)
    assert ("perplexity 56.33" in line) == (width >= 120)


def test_the_bar_without_a_limit_shows_the_duration_of_training():
    line = drawn(Bar(figures(steps=None, seconds_left=None, fraction_done=None)), 80)
    assert line.startswith("step 120000 ") and "for 11:23:20" in line and "━" not in line


@pytest.mark.parametrize("width", [31, 71, 111])
def test_a_line_of_history_fits_the_terminal(width):
    line = figures().line(width)
    assert len(line) <= width and re.match("(step )?120000, nll 4.0", line)


class Terminal(io.StringIO):
    """A terminal of 80 columns; `shown()` returns its visible lines."""

    def isatty(self):
        return True

    def shown(self):
        lines, row = [""], 0
        for part in re.findall(r"\x1b\[\d*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self.getvalue()):
            if part == "\n":
                row += 1
                lines[row:row + 1] = lines[row:row + 1] or [""]
            elif part.endswith("A") and part.startswith("\x1b"):
                row -= int(part[2:-1] or 1)
            elif part == "\x1b[2K":
                lines[row] = ""
            elif not part.startswith("\x1b") and part != "\r":
                lines[row] += part
        return [line.rstrip() for line in lines]


@contextlib.contextmanager
def on_a_terminal(monkeypatch, kind="xterm"):
    """Standard output is a terminal, and tensorpack's logger writes to it."""
    with monkeypatch.context() as patch:
        stream = Terminal()
        patch.setattr(sys, "stdout", stream)
        for name, value in (("TERM", kind), ("NO_COLOR", "1"), ("COLUMNS", "80")):
            patch.setenv(name, value)
        patch.setattr(logger._logger, "handlers", [logging.StreamHandler(stream)])
        configure_terminal_log()
        yield stream


def test_a_terminal_has_the_history_above_a_bar_that_is_gone_at_the_end(recorder, monkeypatch):
    screens = []

    class Look(Callback):
        def _trigger_step(self):
            screens.append(terminal.shown())

    with on_a_terminal(monkeypatch) as terminal:
        run([Progress(2, status=StatusLine(every_seconds=0.0)), Look(), StopAtStep(4)], recorder, 4, BATCHES)
    assert [lines[-1].split("  ")[0] for lines in screens] == ["step 1/4", "step 2/4", "step 3/4", "step 4/4"]
    assert all(len(line) <= 80 for lines in screens for line in lines)
    end = [line[9:] for line in terminal.shown() if line]
    assert [line.split(",")[0] for line in end if line.startswith("step")] == ["step 2", "step 4"]
    assert end[-1].endswith("the last step is 4.") and "━" not in terminal.shown()[-1]


def test_printed_and_logged_lines_appear_above_the_bar(monkeypatch):
    with on_a_terminal(monkeypatch) as terminal:
        status = StatusLine(every_seconds=0.0)
        status.open()
        status.show("the bar")
        logger.info("logged")
        print("printed")
        assert [line[-7:] for line in terminal.shown()] == [" logged", "printed", "the bar"]
        status.close()
        print("after")
    assert terminal.shown()[1:] == ["printed", "after", ""]


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(kind, recorder, monkeypatch):
    with on_a_terminal(monkeypatch, kind) as terminal:
        run([Progress(2), StopAtStep(4)], recorder, 4, BATCHES)
    assert "\x1b" not in terminal.getvalue() and "step 4, nll" in terminal.getvalue()


def test_no_terminal_gets_no_escape_codes():
    stream = io.StringIO()
    status = StatusLine(stream)
    status.open()
    assert not status.active and not status.due()
    status.show("step 1")
    status.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("seconds, text", [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"),
                                           (90061, "1 d 01:01:01")])
def test_durations_are_written_as_clocks_do(seconds, text):
    assert duration(seconds) == text


def test_perplexity_overflows_to_infinity():
    assert perplexity_from_loss(0.0) == 1.0
    assert perplexity_from_loss(1000.0) == math.inf
    assert math.isnan(perplexity_from_loss(math.nan))


def test_an_interval_of_no_steps_is_refused():
    with pytest.raises(SettingsError, match="log.steps=0"):
        Progress(0)


def totals(recorder, name):
    return [value for _, value in recorder.of(name)]


def test_target_tokens_and_minutes_include_those_before_a_resume(recorder, do):
    clock = Clock()

    def tick(_):
        clock.now += 60.0       # another callback's time counts

    first = Progress(2, clock)
    run([do(tick), first, StopAtStep(3)], recorder, 10, BATCHES)
    assert totals(recorder, "target_tokens_trained") == [40.0, 44.0]        # of step 2, and at the end
    assert totals(recorder, "minutes_trained") == pytest.approx([1.0, 3.0])   # another acts after it
    assert first.state() == {"target_tokens": 44.0, "seconds": 180.0}
    resumed, after = Progress(2, clock), type(recorder)()
    resumed.restore_state({"target_tokens": 40.0, "seconds": 120.0})        # of a checkpoint of step 2
    run([do(tick), resumed, StopAtStep(2)], after, 10, BATCHES)
    assert totals(after, "target_tokens_trained")[0] == 80.0
    assert totals(after, "minutes_trained")[0] == pytest.approx(3.0)


def test_a_run_from_a_checkpoint_without_totals_records_no_totals(train):
    progress = Progress(2, Clock())
    _, recorder = train([progress], steps=4, start=100)
    assert recorder.of("steps_per_second") and progress.state() == {}
    assert not recorder.of("minutes_trained") and not recorder.of("target_tokens_trained")
    again = Progress(2, Clock())
    again.restore_state({})
    assert again.state() == {"target_tokens": 0.0, "seconds": 0.0}
