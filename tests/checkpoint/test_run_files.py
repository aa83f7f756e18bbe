"""Files of a run that are removed or damaged during training are written again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.directory_contents import contents
from towernmt.checkpoint.saved_run import RunFiles
from towernmt.core.errors import CheckpointError

FILES = {"settings.yaml": b"architecture: mine.py:Mine\n", "automatic.yaml": b"a: 1\n", "rollbacks.json": b"{}\n",
         "vocabulary/source.model": b"\0source", "vocabulary/target.model": b"\0target", "code/mine.py": b"x = 1\n",
         "code/near/by.py": b"y = 2\n", "code/SHA256SUMS": b"sums\n"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_bytes(content)
    return tmp_path / "run"


@pytest.mark.parametrize("name", FILES)
def test_a_removed_file_is_written_again(run: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    files = RunFiles(run)
    (run / name).unlink()
    files.restore()
    assert contents(run) == FILES
    assert f"{run / name} again, because it was removed or changed during training" in caplog.text


@pytest.mark.parametrize("name", [name for name in FILES if "/" in name or name == "settings.yaml"])
@pytest.mark.parametrize("content", [b"", b"arc", b"\0"])
def test_a_damaged_file_is_written_again(run: Path, name: str, content: bytes) -> None:
    files = RunFiles(run)
    (run / name).write_bytes(content)
    files.restore()
    assert contents(run) == FILES


@pytest.mark.parametrize("name", ["vocabulary", "code"])
def test_a_removed_folder_is_written_again(run: Path, name: str) -> None:
    files = RunFiles(run)
    shutil.rmtree(run / name)
    files.restore()
    assert contents(run) == FILES


def test_edited_settings_and_foreign_files_are_kept(run: Path) -> None:
    files = RunFiles(run)
    (run / "settings.yaml").write_text("architecture: mine.py:Mine\ntrain: {steps: 9}\n")
    (run / "notes.txt").write_text("mine")
    before = contents(run)
    files.restore()
    assert contents(run) == before


def test_a_file_that_cannot_be_written_again_is_an_error(run: Path) -> None:
    files = RunFiles(run)
    shutil.rmtree(run / "vocabulary")
    (run / "vocabulary").write_text("in the way")
    with pytest.raises(CheckpointError, match="vocabulary/.* was removed or changed during training, and cannot be"):
        files.restore()


def test_a_directory_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text("a: 1")
    files = RunFiles(tmp_path)
    (tmp_path / "some.yaml").unlink()
    files.restore()
    assert not list(tmp_path.iterdir())
