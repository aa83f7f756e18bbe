"""Cached exports of a run for an engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorpack.tfutils.tower import PredictTowerContext

from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import CheckpointError
from towernmt.core.files import is_undamaged, write_checksums
from towernmt.core.temporary_directories import temporary_directory
from towernmt.core.tf_compat import tf1
from towernmt.interop import export_cache
from towernmt.interop.export_cache import MAX_CACHED_EXPORTS, ExportSpec, exported_run


@pytest.fixture
def run(original_run: Path, tmp_path: Path) -> SavedRun:
    return SavedRun(shutil.copytree(original_run, tmp_path / "run"))


def export_spec(run: SavedRun, precision: str = "float32", averaged: bool = True) -> ExportSpec:
    return ExportSpec(run, None, averaged, precision)


def test_an_export_is_made_once_for_each_checkpoint_and_precision(run: SavedRun) -> None:
    with exported_run(export_spec(run)) as (first, prefix):
        made = (first / "model.bin").stat().st_mtime_ns
        assert prefix == run.checkpoint()
    with exported_run(export_spec(run)) as (again, _):
        assert again == first and (again / "model.bin").stat().st_mtime_ns == made
    with exported_run(export_spec(run, "int8")) as (other, _):
        assert other != first
    index = Path(f"{run.checkpoint()}.index")
    here = export_spec(run).directories(str(index)[:-len(".index")])[0]
    shutil.copy(index, index.with_suffix(".kept"))
    index.write_bytes(index.read_bytes() + b"other weights")
    assert export_spec(run).directories(str(index)[:-len(".index")])[0] != here == first
    assert {path.name for path in first.parent.iterdir()} == {first.name, other.name}


def test_an_export_in_a_thread_leaves_stdout_to_the_other_threads(
        run: SavedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    during, before = [], sys.stdout
    export = export_cache.export_model

    def recorded(*arguments: Any, **options: Any) -> Path:
        during.append(sys.stdout)
        return export(*arguments, **options)

    monkeypatch.setattr(export_cache, "export_model", recorded)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: exported_run(export_spec(run)).__enter__()).result()
    assert during == [before] and sys.stdout is before


def test_an_export_in_a_thread_enters_no_tower_context(run: SavedRun) -> None:
    with tf1.Graph().as_default(), PredictTowerContext(""), ThreadPoolExecutor(1) as threads:
        directory, _ = threads.submit(lambda: exported_run(export_spec(run)).__enter__()).result()
    assert (directory / "model.bin").is_file()


@pytest.mark.parametrize("name", ["model.bin", "towernmt.json", "checksums.json"])
def test_a_damaged_export_is_made_again(run: SavedRun, name: str) -> None:
    with exported_run(export_spec(run)) as (directory, _):
        whole = {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}
    damaged = bytearray(whole[name])
    damaged[len(damaged) // 2] ^= 1
    (directory / name).write_bytes(damaged)
    with exported_run(export_spec(run)) as (again, _):
        assert again == directory and (directory / "model.bin").read_bytes() == whole["model.bin"]
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_an_export_removes_the_files_of_one_whose_process_was_killed(run: SavedRun) -> None:
    cache = run.path / "exports"
    cache.mkdir()
    child = os.fork()
    if child == 0:
        unfinished = temporary_directory("export to CTranslate2", cache)
        unfinished.__enter__()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(cache.iterdir())) == 1
    with exported_run(export_spec(run)) as (directory, _):
        assert list(cache.iterdir()) == [directory]


def test_a_checkpoint_that_lacks_a_weight_is_not_exported(run: SavedRun) -> None:
    settings = yaml.safe_load(run.settings_file.read_text())
    settings["model"]["decoder_layers"] = 2
    run.settings_file.write_text(yaml.safe_dump(settings))
    with pytest.raises(CheckpointError, match="transformer/decoder/layer_1/.* is not in this checkpoint"):
        exported_run(export_spec(run)).__enter__()


def test_only_the_newest_exports_are_kept(run: SavedRun) -> None:
    cache = run.path / "exports"
    for number in range(MAX_CACHED_EXPORTS + 1):
        (cache / f"old-{number}").mkdir(parents=True)
        (cache / f"old-{number}/towernmt.json").write_text("{}")
        os.utime(cache / f"old-{number}", (number, number))
    with exported_run(export_spec(run)) as (directory, _):
        kept = {path.name for path in cache.iterdir()}
    assert kept == {directory.name, *(f"old-{number}" for number in range(2, MAX_CACHED_EXPORTS + 1))}


def test_an_export_that_is_used_stays_longer_than_newer_ones(run: SavedRun) -> None:
    cache = run.path / "exports"
    with exported_run(export_spec(run)) as (directory, _):
        os.utime(directory, (1, 1))
    for number in range(2, MAX_CACHED_EXPORTS + 1):
        (cache / f"old-{number}").mkdir()
        (cache / f"old-{number}/towernmt.json").write_text("{}")
        os.utime(cache / f"old-{number}", (number, number))
    with exported_run(export_spec(run)):
        pass
    with exported_run(export_spec(run, "int8")) as (other, _):
        kept = {path.name for path in cache.iterdir()}
    assert kept == {directory.name, other.name, *(f"old-{number}" for number in range(3, MAX_CACHED_EXPORTS + 1))}


def test_without_a_cache_a_run_is_exported_to_a_temporary_place(
        run: SavedRun, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.path / "exports").write_text("in the way")
    (tmp_path / "cache").write_text("in the way, too")
    monkeypatch.setenv("TOWERNMT_CACHE", str(tmp_path / "cache"))
    with exported_run(export_spec(run)) as (directory, _):
        assert (directory / "model.bin").is_file() and run.path not in directory.parents
    assert not directory.exists()
    assert "the export is not cached" in caplog.text


def test_of_two_that_export_at_once_one_is_kept_and_both_go_on(run: SavedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    real = export_cache.export_model

    def second_meanwhile(trained: object, *args: object, **details: object) -> Path:
        monkeypatch.setattr(export_cache, "export_model", real)
        with ThreadPoolExecutor(1) as other:        # writes the export after this one has found none
            other.submit(lambda: exported_run(export_spec(run)).__enter__()).result()
        return real(trained, *args, **details)  # type: ignore[arg-type]

    monkeypatch.setattr(export_cache, "export_model", second_meanwhile)
    with exported_run(export_spec(run)) as (directory, _):
        assert sorted(path.name for path in (run.path / "exports").iterdir()) == [directory.name]
        assert (directory / "model.bin").is_file()


def test_an_export_that_another_process_completes_at_the_last_moment_is_kept(
        run: SavedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process may have loaded its export already."""
    waiting, others = [True], list[int]()

    def other_process() -> None:
        if waiting and waiting.pop():
            with ThreadPoolExecutor(1) as other:
                directory, _ = other.submit(lambda: exported_run(export_spec(run)).__enter__()).result()
            others.append(directory.stat().st_ino)

    def write_checksums_before_the_other(directory: Path) -> None:
        write_checksums(directory)
        if waiting:
            monkeypatch.setattr(export_cache, "is_undamaged", undamaged_before_the_other)
            monkeypatch.setattr(Path, "rename", lambda path, to: (other_process(), rename(path, to))[1])

    def undamaged_before_the_other(directory: Path) -> bool:
        undamaged = is_undamaged(directory)
        other_process()
        return undamaged

    rename = Path.rename
    monkeypatch.setattr(export_cache, "write_checksums", write_checksums_before_the_other)
    with exported_run(export_spec(run)) as (directory, _):
        assert [directory.stat().st_ino] == others


@pytest.mark.processes
def test_a_run_that_was_exported_is_translated_without_tensorflow(run: SavedRun) -> None:
    with exported_run(export_spec(run)):
        pass
    program = ("import sys; from towernmt.cli.main import main; "
               "status = main(sys.argv[1:]); sys.exit(status or 10 * ('tensorflow' in sys.modules))")
    done = subprocess.run([sys.executable, "-c", program, "translate", "--engine", "ctranslate2", "--model",
                           str(run.path), "--cpu"], input="w1 w2\n\nw3\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\n")) == (0, 3), done.stderr


def test_an_export_that_another_process_removes_meanwhile_is_no_error(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_cache, "is_export", lambda path: True)
    (tmp_path / "removed").symlink_to(tmp_path / "nowhere")
    for number in range(MAX_CACHED_EXPORTS + 1):
        (tmp_path / f"{number}").mkdir()
    export_cache._remove_old_exports(tmp_path / "0")
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == MAX_CACHED_EXPORTS
