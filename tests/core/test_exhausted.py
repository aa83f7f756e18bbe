"""Memory, threads and open files that run out: one sentence for the user, wherever the exception comes from."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import PATIENCE
from towernmt.cli import main as main_module
from towernmt.cli.main import main, run_command
from towernmt.core.errors import exhausted_resource


def _raise(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error
    return command


@pytest.mark.parametrize("error, message", [
    (MemoryError(), "out of memory. Make --beam smaller, or use a machine with more memory."),
    (MemoryError("Unable to allocate 1.2 TiB"), "out of memory (Unable to allocate 1.2 TiB)."),
    (RuntimeError("CUDA failed with error out of memory"), "out of memory (CUDA failed with error out of memory)."),
    (RuntimeError("std::bad_alloc"), "out of memory"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
    (ImportError("libtensorflow_cc.so.2: failed to map segment from shared object"), "out of memory (libtensorflow"),
    (RuntimeError("can't start new thread"), "no further thread or process can be started. End other"),
    (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "no further thread or process"),
    (OSError(errno.EMFILE, "Too many open files", "a.txt"), "a.txt: too many files are open. Raise the limit"),
    (RuntimeError("Symlink loop from '/x/loop'"), "/x/loop: the symbolic links lead back to themselves."),
    (UnicodeEncodeError("utf-8", "a\udcff.txt", 1, 2, "surrogates not allowed"), "holds bytes that are not UTF-8"),
])
def test_an_exhausted_machine_is_one_sentence(error: Exception, message: str,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(_raise(error), ["--beam"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("towernmt: ") and message in lines[0]


@pytest.mark.parametrize(("arguments", "advice"), [
    (["translate", "--model", "x"], "Use fewer --threads or --workers, end other programs, or raise"),
    (["prepare", "--source", "s", "--output", "o"], "Use fewer --workers, end other programs, or raise"),
    (["inspect", "x"], "End other programs, or raise")])
def test_only_options_of_the_command_are_recommended(arguments: list[str], advice: str, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(main_module, "_run", lambda *_: _raise(RuntimeError("can't start new thread"))())
    assert main(arguments) == 1
    assert capsys.readouterr().err == (f"towernmt: no further thread or process can be started. {advice} the limit of "
                                       "processes (ulimit -u).\n")


def test_errors_of_tensorflow_without_memory_are_known() -> None:
    from towernmt.core.tf_compat import tf

    error = tf.errors.ResourceExhaustedError(None, None, "2 errors found.\n (0) OOM: tensor [9000,9000]\n")
    assert exhausted_resource(error) == "out of memory ((0) OOM: tensor [9000,9000]). Use a machine with more memory."
    assert exhausted_resource(tf.errors.InvalidArgumentError(None, None, "shapes differ")) is None


@pytest.mark.parametrize("error", [
    RuntimeError("a fault of the program"), ImportError("No module named 'x'"),
    OSError(errno.EINVAL, "Invalid argument"),
    BlockingIOError(errno.EAGAIN, "write could not complete without blocking")])
def test_other_errors_keep_their_stack(error: Exception) -> None:
    with pytest.raises(type(error)):
        run_command(_raise(error))


def test_a_loop_of_links_as_an_output_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a").write_text("a\n")
    assert main(["prepare", "--source", str(tmp_path / "a"), "--target", str(tmp_path / "a"), "--output",
                 str(tmp_path / "loop" / "data")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.processes
@pytest.mark.parametrize("environment", [
    {"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_inspect_prints_escapes_for_characters_that_the_locale_lacks(
        environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("你好\tΓειά\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "towernmt", "inspect", "pairs.tsv"], cwd=tmp_path, capture_output=True,
                          env={**os.environ, **environment}, timeout=PATIENCE)
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert ascii("你好").strip("'").encode() in done.stdout or "你好".encode() in done.stdout


@pytest.mark.processes
def test_a_name_that_the_locale_cannot_read_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "towernmt", "inspect", "文.tsv"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=PATIENCE,
                          env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "LC_ALL=C.UTF-8" in done.stderr
