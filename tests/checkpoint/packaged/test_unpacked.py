"""Where a package is unpacked: once, whole, by whoever comes first."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from towernmt.checkpoint.packaged import unpacked
from towernmt.checkpoint.packaged.packaged_run import PackagedRun, open_run
from towernmt.checkpoint.packaged.stored_weights import restore, store


def test_it_is_unpacked_once_and_again_where_something_removed_a_file(package: Path, own_cache: Path) -> None:
    run = open_run(package)
    assert run.path.parent == own_cache
    made = run.settings_file.stat().st_mtime_ns
    assert open_run(shutil.copy(package, package.with_name("copy.zip"))).settings_file.stat().st_mtime_ns == made
    run.settings_file.unlink()
    for name, age in (("old", 1e6), ("new", 0)):
        left = own_cache / f"{run.path.name}.{name}"
        left.mkdir()
        os.utime(left, (time.time() - age,) * 2)
    assert open_run(package).settings_file.is_file()
    assert {path.name for path in own_cache.iterdir()} == {run.path.name, f"{run.path.name}.new"}


def test_of_two_that_unpack_at_once_one_is_kept_and_both_go_on(
        package: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = unpacked._unpack

    def second_meanwhile(one: object, place: Path) -> None:
        monkeypatch.setattr(unpacked, "_unpack", real)
        with ThreadPoolExecutor(1) as other:
            assert other.submit(lambda: open_run(package).settings_file.is_file()).result()
        real(one, place)  # type: ignore[arg-type]

    monkeypatch.setattr(unpacked, "_unpack", second_meanwhile)
    run = open_run(package)
    assert run.settings_file.is_file() and [path.name for path in own_cache.iterdir()] == [run.path.name]


def test_where_nothing_can_be_kept_it_is_unpacked_for_the_time_being(
        package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "file"))
    run = open_run(package)
    place = run.path
    assert run.settings_file.is_file() and "set TOWERNMT_CACHE to a folder" in caplog.text
    del run
    gc.collect()
    assert not place.exists()


def test_its_checkpoint_has_the_weights_dequantised(package: Path, weights: dict[str, np.ndarray]) -> None:
    from towernmt.checkpoint.held import HeldCheckpoint

    run = PackagedRun(package)
    held = HeldCheckpoint(run.checkpoint("step-7"))
    state = held.state()
    assert state is not None and state.step == 7 and state.weights == sorted(weights)
    for name, value in weights.items():
        assert np.array_equal(held.value(name), restore(store(value, "int8")))
    held.close()
    Path(f"{run.checkpoint()}.index").unlink()
    assert Path(f"{PackagedRun(package).checkpoint()}.index").is_file()


@pytest.mark.processes
def test_processes_that_open_it_at_once_find_the_same_whole_checkpoint(package: Path, own_cache: Path) -> None:
    program = ("import sys\nfrom towernmt.checkpoint.packaged.packaged_run import PackagedRun\n"
               "from towernmt.checkpoint.held import HeldCheckpoint\n"
               "sys.stdin.readline()\n"
               "held = HeldCheckpoint(PackagedRun(sys.argv[1]).checkpoint())\n"
               "print(sum(float(abs(held.value(name)).sum()) for name in sorted(held.shapes())))")
    started = [subprocess.Popen([sys.executable, "-c", program, str(package)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0] and len(set(found)) == 1 and found[0]
    assert len(list(own_cache.iterdir())) == 1
    assert sorted(path.name for path in next(own_cache.iterdir()).glob("checkpoints*")) == ["checkpoints"]
