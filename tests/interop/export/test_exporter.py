"""The directory of an export, for a test format with one file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from towernmt.checkpoint.saved_run import SavedRun
from towernmt.cli.main import run_command
from towernmt.core.errors import SettingsError
from towernmt.interop import export
from towernmt.interop.export import ExportFormat, ExportJob, export_model
from towernmt.predict.search.search_settings import SearchSettings


def write_one_file(job: ExportJob) -> dict[str, Any]:
    (job.directory / "weights").write_text(f"in {job.precision}")
    return {"files": ["weights"]}


def fail_halfway(job: ExportJob) -> dict[str, Any]:
    write_one_file(job)
    raise SettingsError("model.something=odd: this format has none.")


@pytest.fixture(autouse=True)
def some_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("write_one_file", "fail_halfway"):
        monkeypatch.setitem(export.FORMATS, name, ExportFormat("tests", f"{__name__}:{name}", ("float32", "int8")))


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    run = tmp_path / "run"
    (run / "vocabulary").mkdir(parents=True)
    (run / "vocabulary/source.words").write_text("some words")
    (run / "settings.yaml").write_text("architecture: seq2seq\nsearch:\n  beam_size: 7\n")
    return SimpleNamespace(run=SavedRun(run), checkpoint=str(run / "best/step-12/model"), uses_averages=True)


def test_an_export_holds_files_vocabularies_and_its_description(trained: Any, tmp_path: Path) -> None:
    place = export_model(trained, "write_one_file", tmp_path / "new/export", precision="int8")
    assert sorted(path.name for path in place.iterdir()) == ["towernmt.json", "vocabulary", "weights"]
    assert (place / "weights").read_text() == "in int8"
    assert (place / "vocabulary/source.words").read_text() == "some words"
    told = json.loads((place / "towernmt.json").read_text())
    assert told["search"]["beam_size"] == 7
    names = ("format", "precision", "architecture", "checkpoint", "averaged", "files")
    assert {name: told[name] for name in names} == {
        "format": "write_one_file", "precision": "int8", "architecture": "seq2seq", "checkpoint": "step-12",
        "averaged": True, "files": ["weights"]}


def test_the_first_precision_and_the_runs_search_are_the_default(trained: Any, tmp_path: Path) -> None:
    place = export_model(trained, "write_one_file", tmp_path / "export", search=SearchSettings(beam_size=2))
    told = json.loads((place / "towernmt.json").read_text())
    assert (told["precision"], told["search"]["beam_size"]) == ("float32", 2)


def test_an_export_that_fails_leaves_nothing(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="model.something=odd"):
        export_model(trained, "fail_halfway", tmp_path / "exports/one")
    assert list((tmp_path / "exports").iterdir()) == []


def test_a_vocabulary_file_that_cannot_be_copied_is_named(
        trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trained.run.vocabulary / "target.words").symlink_to(tmp_path / "nowhere")
    assert run_command(lambda: 0 if export_model(trained, "write_one_file", tmp_path / "export") else 1) == 1
    assert re.search("target.words: No such file or directory; fix that", capsys.readouterr().err)
    assert not (tmp_path / "export").exists()


def test_what_is_there_already_is_not_written_over(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("taken", "file"):
        with pytest.raises(SettingsError, match=f"{name} exists already: choose another --output"):
            export_model(trained, "write_one_file", tmp_path / name)
    assert (tmp_path / "taken/file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert (export_model(trained, "write_one_file", tmp_path / "empty") / "weights").is_file()


@pytest.mark.parametrize("output", ["link", "."])
def test_an_existing_directory_is_filled_and_not_replaced(
        output: str, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume cannot be replaced; its directory has the same number afterwards."""
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "towernmt-scratch-of-a-killed-process/content").mkdir(parents=True)
    (tmp_path / "link").symlink_to(volume)
    monkeypatch.chdir(volume if output == "." else tmp_path)
    number = volume.stat().st_ino
    export_model(trained, "write_one_file", output)
    assert sorted(path.name for path in volume.iterdir()) == ["towernmt.json", "vocabulary", "weights"]
    assert volume.stat().st_ino == number and (tmp_path / "link").is_symlink()
    with pytest.raises(SettingsError, match="exists already: choose another --output"):
        export_model(trained, "write_one_file", output)


def test_an_export_into_an_existing_directory_that_fails_leaves_it_empty(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingsError, match="model.something=odd"):
        export_model(trained, "fail_halfway", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_an_unknown_format_or_precision_is_refused_with_those_there_are(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="format 'onnx': choose one of .*write_one_file"):
        export_model(trained, "onnx", tmp_path / "export")
    with pytest.raises(SettingsError, match="precision 'int4': the format write_one_file supports float32, int8"):
        export_model(trained, "write_one_file", tmp_path / "export", precision="int4")
