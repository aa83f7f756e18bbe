"""`data.memory_gb`: the largest batch that fits is found, saved with the run, and not searched again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.waiting import has_ended, wait_until
from towernmt.cli.main import main
from towernmt.core.errors import SettingsError, TowerNMTError
from towernmt.core.machine import peak_memory
from towernmt.core.temporary_directories import temporary_directory
from towernmt.dataflow.batches.batch import Batch
from towernmt.run import memory_fit
from towernmt.run.directory import RunDirectory
from towernmt.run.memory_fit import (
    candidate_size,
    largest_that_fits,
    load_batches,
    save_batches,
    wants_search,
    with_batch_tokens,
    with_fitting_batch,
    with_found_batch,
)
from towernmt.run.run_settings import DataSettings, default_settings

pytestmark = pytest.mark.thorough

GIB = 1 << 30


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10 ** 9), st.floats(1e2, 1e7), st.floats(0.0, 10.0), st.integers(0, 1 << 32), st.booleans())
def test_the_largest_size_that_fits_is_found_in_few_measurements(base, slope, bend, limit, dies):
    def true(n: int) -> int:
        return int(base + slope * n + bend * n * n)

    tried = []

    def measure(n: int) -> int | None:
        tried.append(n)
        return None if dies and true(n) > limit else true(n)

    found = largest_that_fits(measure, limit)
    sizes = [candidate_size(i) for i in range(16 * 17)]
    fitting = [n for n in sizes if n <= memory_fit.LARGEST and true(n) <= limit]
    assert found == (max(fitting) if fitting else None)
    assert len(tried) == len(set(tried)) <= 14


def test_sizes_of_the_grid_grow_by_few_per_cent_and_hold_the_powers_of_two():
    sizes = [candidate_size(i) for i in range(200)]
    assert all(1.03 < b / a < 1.07 for a, b in zip(sizes, sizes[1:], strict=False))
    assert {2 ** k for k in range(4, 16)} <= set(sizes)


def measured_by(monkeypatch, peak):
    asked = []

    def peak_of_step(s, *_):
        asked.append(s.data.batch_tokens)
        return peak(s.data.batch_tokens)

    monkeypatch.setattr(memory_fit, "peak_of_step", peak_of_step)
    return asked


def with_limit(gib: float):
    return dataclasses.replace(default_settings(), data=DataSettings(memory_gb=gib))


def test_the_largest_batch_that_fits_becomes_the_setting(monkeypatch):
    asked = measured_by(monkeypatch, lambda n: GIB + n * 2 ** 20)
    assert with_fitting_batch(with_limit(3.0), None, None, 1).data.batch_tokens == 2048 in asked


def test_a_limit_that_even_the_smallest_batch_passes_is_refused_in_a_sentence(monkeypatch, tmp_path):
    measured_by(monkeypatch, lambda n: None)
    with pytest.raises(SettingsError, match=r"data.memory_gb=0.5: not even data.batch_tokens=16 fits .*checkpointing"):
        with_fitting_batch(with_limit(0.5), None, None, 1)
    with pytest.raises(SettingsError, match="must be 0"):
        with_fitting_batch(with_limit(-1.0), None, None, 1)
    recomputing = with_limit(0.5)
    recomputing.train.gradient_checkpointing = True
    with pytest.raises(SettingsError, match="raise the limit, or use a smaller model"):
        with_fitting_batch(recomputing, None, None, 1)
    (tmp_path / "made.py").write_text("from towernmt.models import Transformer, TransformerSettings\n\n\n"
                                      "def make(settings: TransformerSettings):\n    return Transformer(settings)\n")
    with pytest.raises(SettingsError, match="raise the limit, or use a smaller model"):
        with_fitting_batch(dataclasses.replace(with_limit(0.5), architecture=f"{tmp_path}/made.py:make"), None, None, 1)


def test_a_system_that_tells_no_memory_is_refused_rather_than_taken_for_boundless(monkeypatch):
    asked = measured_by(monkeypatch, lambda n: 0)
    monkeypatch.setattr(memory_fit, "peak_memory", lambda *_: 0)
    with pytest.raises(SettingsError, match="data.memory_gb=1: this system does not report the memory"):
        with_fitting_batch(with_limit(1.0), None, None, 1)
    assert asked == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_measurement_tells_a_lack_of_memory_from_other_failures(monkeypatch, wrapped):
    from towernmt.core.tf_compat import tf

    def measure(*_):
        lack = tf.errors.ResourceExhaustedError(None, None, "OOM")
        if wrapped:
            raise SettingsError("a step ran out of memory") from lack
        raise lack      # before the first step, while variables are initialised

    monkeypatch.setattr(memory_fit, "peak_of_directory", measure)
    monkeypatch.setattr(sys, "argv", ["memory_fit", "directory"])
    assert memory_fit.main() == memory_fit.OUT_OF_MEMORY


def test_a_run_keeps_what_it_found_until_it_is_given_another_limit(tmp_path):
    run = RunDirectory(tmp_path / "run")
    assert wants_search(with_limit(2.0), run) and not wants_search(with_limit(0.0), run)
    run.save_settings(with_limit(2.0))
    assert not wants_search(with_limit(2.0), run) and wants_search(with_limit(3.0), run)


def test_a_program_that_goes_on_with_settings_of_its_own_gets_what_the_run_found(tmp_path):
    run = RunDirectory(tmp_path / "run")
    assert with_found_batch(with_limit(2.0), run) == with_limit(2.0)
    run.save_settings(with_batch_tokens(with_limit(2.0), 1664))
    assert with_found_batch(with_limit(2.0), run).data.batch_tokens == 1664
    assert with_found_batch(with_limit(0.0), run) == with_limit(0.0)
    asked = with_batch_tokens(with_limit(2.0), 512)     # for example by --set, as at the start of the run
    assert with_found_batch(asked, run).data.batch_tokens == 1664


def test_batches_come_back_as_they_were_saved(tmp_path):
    words, lengths = np.arange(6, dtype=np.int32).reshape(2, 3), np.array([3, 2], np.int32)
    plain = Batch(words, lengths, words + 1, lengths, np.float32(5))
    linked = dataclasses.replace(plain, alignment=np.ones([2, 3, 3], np.uint8))
    save_batches([plain, linked], tmp_path / "batches.npz")
    back = load_batches(tmp_path / "batches.npz")
    assert back[0].alignment is None and len(back) == 2
    for one, other in zip([plain, linked], back, strict=True):
        assert [a.tolist() for a in one.arrays()] == [a.tolist() for a in other.arrays()]
        assert [a.dtype for a in one.arrays()] == [a.dtype for a in other.arrays()]


def test_the_peak_of_a_process_is_its_own():
    held = np.ones(300 << 20, np.uint8)     # 300 MiB here, which must not count for the other process
    assert peak_memory() >= held.nbytes
    status = subprocess.run([sys.executable, "-c", "print(open('/proc/self/status').read())"], capture_output=True,
                            text=True, check=True).stdout
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    assert peak < 100 << 20


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(0)
    lines = [" ".join(f"w{i}" for i in random.integers(0, 30, random.integers(2, 12))) for _ in range(600)]
    for side in ("s", "t"):
        (place / f"text.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["prepare", "--source", str(place / "text.s"), "--target", str(place / "text.t"), "--vocab-kind",
                 "word", "--output", str(place / "data")]) == 0
    return str(place / "data")


MODEL = ["model.hidden_size=16", "model.filter_size=32", "model.encoder_layers=1", "model.decoder_layers=1"]


def test_training_begins_with_the_batch_that_real_steps_have_measured(corpus, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(memory_fit, "LARGEST", 1024)
    command = ["train", "--defaults=fixed", "--data", corpus, "--logdir", str(tmp_path / "run"), "--set", *MODEL,
               "train.steps=1"]
    assert main([*command, "data.memory_gb=30"]) == 0
    assert RunDirectory(tmp_path / "run").settings().data.batch_tokens == 1024
    assert "data.batch_tokens=1024 is the largest that fits into 30 GiB" in caplog.text
    measured = re.search(r"data.batch_tokens=1024: ([\d.]+) GiB", caplog.text)
    assert measured is not None and 0.1 < float(measured[1]) < 4
    caplog.clear()
    assert main([*command[:-1], "train.steps=2"]) == 0 and "largest" not in caplog.text


def test_a_limit_below_what_tensorflow_itself_takes_is_refused(corpus, tmp_path, capfd):
    assert main(["train", "--defaults=fixed", "--data", corpus, "--logdir", str(tmp_path / "run"), "--set", *MODEL,
                 "data.memory_gb=0.05"]) == 1
    assert "data.memory_gb=0.05: not even data.batch_tokens=16 fits" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_measurement_that_fails_is_an_error_and_no_lack_of_memory(corpus, tmp_path, monkeypatch):
    from towernmt.dataflow.batches.training_data import open_training_data
    from towernmt.run.assemble import with_vocabulary_sizes

    data = open_training_data(corpus, None, None)
    (tmp_path / "python").write_text("#!/bin/sh\necho Traceback\necho 'SettingsError: no such variable' >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(TowerNMTError, match="Measuring data.batch_tokens=4096 failed: SettingsError: no such variable"):
        memory_fit.peak_of_step(with_vocabulary_sizes(default_settings(), data), data, None, 1, 64 * GIB)


SEARCH = """
import sys
from towernmt.run import memory_fit
from towernmt.run.run_settings import default_settings
memory_fit.largest_batches = lambda *_: []
sys.executable = sys.argv[1]
memory_fit.peak_of_step(default_settings(), None, None, 1, 1 << 40)
"""


@pytest.mark.processes
def test_a_signal_ends_the_measuring_process_too(tmp_path, monkeypatch, start_program):
    """The measuring process writes its number and never ends by itself."""
    (tmp_path / "python").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/unfinished\n"
                                     f"mv {tmp_path}/unfinished {tmp_path}/pid\nexec sleep 600\n")
    (tmp_path / "python").chmod(0o700)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    search = start_program(SEARCH, tmp_path / "python")
    wait_until((tmp_path / "pid").exists, search.popen)
    measuring = int((tmp_path / "pid").read_text())
    assert [*(tmp_path / "temporary").iterdir()]
    search.send(signal.SIGTERM)
    assert search.wait().status == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(measuring, 0)
    assert not [*(tmp_path / "temporary").iterdir()]


MEASUREMENT = """
import os
import runpy
import sys
os.dup2(os.open(sys.argv.pop(), os.O_RDONLY), 0)
runpy.run_module("towernmt.run.memory_fit", run_name="__main__", alter_sys=True)
"""


@pytest.mark.processes
def test_the_measuring_process_ends_with_a_killed_parent(tmp_path, monkeypatch, start_program):
    """Standard input, which `cat` reads, ends with the parent, and a measurement ends with its standard input."""
    (tmp_path / "python").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/unfinished\n"
                                     f"mv {tmp_path}/unfinished {tmp_path}/pid\nexec cat\n")
    (tmp_path / "python").chmod(0o700)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    search = start_program(SEARCH, tmp_path / "python")
    wait_until((tmp_path / "pid").exists, search.popen)
    measuring = int((tmp_path / "pid").read_text())
    assert not has_ended(measuring)
    search.popen.kill()
    search.wait()
    wait_until(lambda: has_ended(measuring))
    assert [*temporary.iterdir()]
    with temporary_directory("the next search", temporary):
        assert len([*temporary.iterdir()]) == 1     # the directory of the killed process is removed
    RunDirectory(tmp_path).save_settings(default_settings())
    for pipe in ("input", memory_fit.BATCHES):
        os.mkfifo(tmp_path / pipe)
    measurement = start_program(MEASUREMENT, tmp_path, tmp_path / "input")
    writers = []

    def is_reading(pipe):
        with contextlib.suppress(OSError):      # nothing has opened the pipe for reading
            writers.append(os.open(tmp_path / pipe, os.O_WRONLY | os.O_NONBLOCK))
            return True
        return False

    wait_until(lambda: is_reading("input"), measurement.popen)
    wait_until(lambda: is_reading(memory_fit.BATCHES), measurement.popen)      # of batches, which never come
    os.close(writers[0])
    assert measurement.wait().status == 1
    os.close(writers[1])


def test_a_look_at_drawn_batches_draws_no_window_that_is_not_looked_at(tmp_path, monkeypatch):
    from towernmt.dataflow.batches.batches import SampledBatches
    from towernmt.dataflow.batches.training_data import open_training_data

    (tmp_path / "text").write_text("".join(f"word{i} and more words {i}\n" for i in range(100)), encoding="utf-8")
    assert main(["prepare", "--source", str(tmp_path / "text"), "--target", str(tmp_path / "text"), "--vocab-kind",
                 "bpe", "--vocab-size", "50", "--output", str(tmp_path / "data")]) == 0
    drawn, draw = [], SampledBatches._sample
    monkeypatch.setattr(SampledBatches, "_sample", lambda self, *key: drawn.append(key) or draw(self, *key))
    monkeypatch.setattr(memory_fit, "SAMPLED_BATCHES", 2)
    data = dataclasses.replace(default_settings().data, subword_sampling=True, window=20, batch_tokens=64)
    settings = dataclasses.replace(default_settings(), data=data)
    memory_fit.largest_batches(settings, open_training_data(tmp_path / "data"))
    assert len(drawn) == 1
