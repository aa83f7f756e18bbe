"""A package is unpacked once and completely, by the first process."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.packaged.conftest import write_package
from towernmt.checkpoint import checkpoint_files, packaged_run
from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint
from towernmt.checkpoint.packaged_run import PackagedRun, open_run
from towernmt.checkpoint.stored_weights import restore, store
from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import CheckpointError


def test_a_package_is_unpacked_once_and_again_if_a_file_was_removed(package: Path, own_cache: Path) -> None:
    run = open_run(package)
    assert run.path.parent == own_cache
    time = run.settings_file.stat().st_mtime_ns
    assert open_run(shutil.copy(package, package.with_name("copy.zip"))).settings_file.stat().st_mtime_ns == time
    run.settings_file.unlink()
    assert open_run(package).settings_file.is_file()


def test_a_process_that_unpacks_removes_the_files_of_one_that_was_killed(package: Path, own_cache: Path) -> None:
    run = open_run(package)
    shutil.rmtree(run.path)
    (own_cache / "towernmt-scratch-killed" / "content").mkdir(parents=True)
    with DirectoryLock(own_cache / "towernmt-scratch-running", "unpacking"):
        assert open_run(package).settings_file.is_file()
        assert {path.name for path in own_cache.iterdir()} == {run.path.name, "towernmt-scratch-running"}


def flip(file: Path) -> None:
    """Change one bit, but neither size nor time of the file."""
    content, times = bytearray(file.read_bytes()), file.stat()
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace_by_a_folder(file: Path) -> None:
    file.unlink()
    (file / "inside").mkdir(parents=True)


def replace_by_a_link(file: Path) -> None:
    link_target = file.parent.parent.parent / "other"
    link_target.write_text("something else")
    file.unlink()
    file.symlink_to(link_target)


def replace_the_folder_by_a_file(file: Path) -> None:
    shutil.rmtree(file.parent)
    file.parent.write_text("")


@pytest.mark.parametrize("name", ["settings.yaml", "vocabulary/source.words", "code/mine.py", "model-card.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda file: file.write_bytes(b""), replace_by_a_folder,
                                    replace_by_a_link, replace_the_folder_by_a_file])
def test_a_damaged_file_of_the_cache_is_unpacked_again(package: Path, own_cache: Path, caplog: pytest.LogCaptureFixture,
                                                       name: str, damage: Callable[[Path], None]) -> None:
    directory = open_run(package).path
    contents = {file.relative_to(directory): file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    damage(directory / name)
    assert open_run(package).path == directory
    contents_after = {file.relative_to(directory): file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    assert contents_after == contents
    assert [path.name for path in own_cache.iterdir() if path.name != "other"] == [directory.name]
    assert "unpacking" in caplog.text or (damage, name.count("/")) == (replace_the_folder_by_a_file, 0)


def test_a_damaged_package_leaves_no_further_files_in_the_cache(package: Path, own_cache: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.zip"
    directory = open_run(package).path
    names = sorted(str(path) for path in own_cache.rglob("*"))
    (directory / "model-card.json").write_bytes(b"")
    content = bytearray(package.read_bytes())
    content[content.index(b'{"licence"')] ^= 1
    copy.write_bytes(content)
    with pytest.raises(CheckpointError, match="model-card.json is damaged"):
        open_run(copy)
    assert sorted(str(path) for path in own_cache.rglob("*")) == names


@pytest.mark.parametrize("name", ["model.data-00000-of-00001", "model.index", "state.json", "../checksums.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_damaged_checkpoint_of_the_cache_is_written_again(package: Path, caplog: pytest.LogCaptureFixture,
                                                            name: str, damage: Callable[[Path], None]) -> None:
    def weights() -> dict[str, np.ndarray]:
        checkpoint = OpenCheckpoint(PackagedRun(package).checkpoint())
        values = {variable: checkpoint.value(variable) for variable in checkpoint.shapes()}
        checkpoint.close()
        return values

    original_values = weights()
    damage(PackagedRun(package).checkpoints / "step-7" / name)
    restored_values = weights()
    assert restored_values.keys() == original_values.keys()
    assert all(np.array_equal(restored_values[variable], value) for variable, value in original_values.items())
    assert "because it is damaged" in caplog.text


def test_two_processes_that_unpack_at_the_same_time_share_one_folder(
        package: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = packaged_run._unpack

    def second_meanwhile(opened_package: object, directory: Path) -> None:
        monkeypatch.setattr(packaged_run, "_unpack", real)
        with ThreadPoolExecutor(1) as executor:
            assert executor.submit(lambda: open_run(package).settings_file.is_file()).result()
        real(opened_package, directory)  # type: ignore[arg-type]

    monkeypatch.setattr(packaged_run, "_unpack", second_meanwhile)
    run = open_run(package)
    assert run.settings_file.is_file() and [path.name for path in own_cache.iterdir()] == [run.path.name]


def test_without_a_writable_cache_the_package_is_unpacked_temporarily(
        package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "file"))
    run = open_run(package)
    directory = run.path
    assert run.settings_file.is_file() and "Set TOWERNMT_CACHE to a writable folder" in caplog.text
    del run
    gc.collect()
    assert not directory.exists()


def test_a_full_cache_is_reported_with_its_fix_when_the_weights_are_unpacked(
        package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(options["dir"]))

    run = PackagedRun(package)
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(CheckpointError, match=r"\(No space left on device\).*set TOWERNMT_CACHE to a writable folder"):
        run.checkpoint()


def test_a_disk_that_fills_while_the_weights_are_written_is_reported_with_its_fix(
        package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = PackagedRun(package)
    monkeypatch.setattr(checkpoint_files, "flush_to_disk", refuse)
    with pytest.raises(CheckpointError) as error:
        run.checkpoint()
    assert str(error.value) == (
        f"{package}: the weights cannot be unpacked in {run.path} (No space left on device). Free disk space there, or "
        "set TOWERNMT_CACHE to a writable folder.")


def test_its_checkpoint_has_the_weights_dequantised(package: Path, weights: dict[str, np.ndarray]) -> None:
    run = PackagedRun(package)
    held = OpenCheckpoint(run.checkpoint("step-7"))
    state = held.state()
    assert state is not None and state.step == 7 and state.weights == sorted(weights)
    for name, value in weights.items():
        assert np.array_equal(held.value(name), restore(store(value, "int8")))
    held.close()
    Path(f"{run.checkpoint()}.index").unlink()
    assert Path(f"{PackagedRun(package).checkpoint()}.index").is_file()


def test_a_package_that_was_replaced_is_opened_with_its_new_weights(
        package: Path, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    package_path, doubled = tmp_path / "served.towernmt.zip", {name: 2 * value for name, value in weights.items()}
    shutil.copy(package, package_path)
    old_checkpoint = OpenCheckpoint(PackagedRun(package_path).checkpoint())
    os.replace(write_package(tmp_path, doubled), package_path)
    new_checkpoint = OpenCheckpoint(PackagedRun(package_path).checkpoint())
    for checkpoint, values in ((old_checkpoint, weights), (new_checkpoint, doubled)):
        for name, value in values.items():
            assert np.array_equal(checkpoint.value(name), restore(store(value, "int8")))
        checkpoint.close()


@pytest.mark.processes
def test_processes_that_open_a_package_at_the_same_time_read_the_same_complete_checkpoint(
        package: Path, own_cache: Path, tmp_path: Path, start_program: Any) -> None:
    program = ("import sys, time\nfrom pathlib import Path\n"
               "from towernmt.checkpoint.packaged_run import PackagedRun\n"
               "from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint\n"
               "print('ready')\n"
               "while not Path(sys.argv[2]).exists(): time.sleep(0.001)\n"
               "held = OpenCheckpoint(PackagedRun(sys.argv[1]).checkpoint())\n"
               "print(sum(float(abs(held.value(name)).sum()) for name in sorted(held.shapes())))")
    started = [start_program(program, package, tmp_path / "go") for _ in range(3)]
    for process in started:
        process.wait_for("ready")
    (tmp_path / "go").touch()
    results = [process.wait() for process in started]
    assert [result.status for result in results] == [0, 0, 0], results
    assert len({result.output for result in results}) == 1 and results[0].output.count("\n") == 2
    assert len(list(own_cache.iterdir())) == 1
    assert sorted(path.name for path in next(own_cache.iterdir()).glob("checkpoints*")) == ["checkpoints"]
