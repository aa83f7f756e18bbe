"""Options of `towernmt export` that a format cannot express or does not read are refused, others are in the export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from towernmt.cli.main import main

SHORTLIST = ["--shortlist", "some.lexicon"]
LANGUAGES = ["--source-language", "de", "--target-language", "en"]
REFUSED_SEARCH = [
    ("marian", ["--no-repeat-ngram", "3", "--min-length", "5", "--max-tokens", "20", "--n-best", "3"],
     "--n-best 3, --max-tokens 20, --min-length 5 and --no-repeat-ngram 3: the format marian in float32 cannot express "
     "these options"),
    ("marian", ["--length-normalization", "gnmt"], "--length-normalization gnmt: the format marian in float32 cannot"),
    ("marian", ["--max-length", "2,10"], "--max-length 2,10: the format marian in float32 cannot express this option"),
    ("marian", ["--sample"], "--selection sampling: the format marian"),
    ("marian", ["--stopping", "first"], "--stopping first: the format marian"),
    ("marian", ["--precision", "int8", "--beam", "4"], "--beam 4: the format marian in int8 cannot"),
    ("web", ["--max-length", "2,0"], "--max-length 2,0: the format web in int8 cannot express this option"),
    ("argos", [*LANGUAGES, "--beam", "4", *SHORTLIST], "--beam 4 and --shortlist some.lexicon: the format argos"),
    ("ctranslate2", SHORTLIST, "--shortlist some.lexicon: the format ctranslate2 cannot"),
    ("ctranslate2", SHORTLIST, "pass --shortlist '', or choose another --format"),
    ("ctranslate2", ["--coverage-penalty", "0.2"], "--coverage-penalty 0.2: the format ctranslate2 cannot"),
    ("ctranslate2", ["--temperature", "2"], "pass --temperature 1.0, or choose another --format")]
REFUSED_FILES = [
    ("marian", ["--calibration", "valid.de"],
     "--calibration valid.de: the format marian reads it only in int8; pass --precision int8, too"),
    ("ctranslate2", ["--precision", "int8", "--calibration", "valid.de"],
     "--calibration valid.de: the format ctranslate2 does not read calibration sentences"),
    ("marian", ["--bergamot", "folder"], "--bergamot folder: the format marian does not contain the browser engine"),
    ("savedmodel", LANGUAGES, "--source-language de: the format savedmodel does not contain the languages"),
    ("marian", ["--target-language", "en"], "--target-language en: the format marian does not contain the languages")]


def export(run: Path, output: Path, format_name: str, *options: str) -> int:
    return main(["export", "--model", str(run), "--checkpoint", "step-1", "--output", str(output), "--format",
                 format_name, *options])


def run_with_search(original: Path, path: Path, **search: object) -> Path:
    """Copy a run with other search settings."""
    shutil.copytree(original, path)
    settings = yaml.safe_load((path / "settings.yaml").read_text())
    (path / "settings.yaml").write_text(yaml.safe_dump({**settings, "search": search}))
    return path


@pytest.mark.parametrize("format_name, options, message", [*REFUSED_SEARCH, *REFUSED_FILES])
def test_options_that_a_format_cannot_express_or_does_not_read_are_refused(
        student_on_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], format_name: str,
        options: list[str], message: str) -> None:
    assert export(student_on_disk, tmp_path / "out", format_name, *options) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_options_that_marian_can_express_are_in_its_options(student_on_disk: Path, tmp_path: Path) -> None:
    assert export(student_on_disk, tmp_path / "out", "marian", "--beam", "2", "--length-normalization", "average",
                  "--length-penalty", "0.7", "--word-reward", "0.1", "--max-length", "1.5,0", "--n-best", "1",
                  "--min-length", "0") == 0
    decoder = yaml.safe_load((tmp_path / "out/decoder.yml").read_text())
    expected = {"beam-size": 2, "normalize": 0.7, "word-penalty": -0.1, "max-length-factor": 1.5}
    assert {name: decoder[name] for name in expected} == expected


def test_settings_of_the_run_that_marian_cannot_express_are_printed(
        student_on_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with_search(student_on_disk, tmp_path / "run", no_repeat_ngram=3, beam_size=2, length_penalty=0.4)
    assert export(run, tmp_path / "out", "marian") == 0
    assert "The export does not contain search.no_repeat_ngram=3 of the run" in capsys.readouterr().err
    decoder = yaml.safe_load((tmp_path / "out/decoder.yml").read_text())
    assert (decoder["beam-size"], decoder["normalize"], decoder["max-length-factor"]) == (2, 0.4, 3.0)


def test_settings_of_the_run_that_ctranslate2_cannot_express_are_refused_unless_an_option_replaces_them(
        run_on_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with_search(run_on_disk, tmp_path / "run", coverage_penalty=0.2)
    assert export(run, tmp_path / "out", "ctranslate2") == 1
    assert ("search.coverage_penalty=0.2 of the run: the format ctranslate2 cannot express this setting"
            in capsys.readouterr().err)
    assert export(run, tmp_path / "out", "ctranslate2", "--coverage-penalty", "0", "--no-repeat-ngram", "2") == 0
    search = json.loads((tmp_path / "out/towernmt.json").read_text())["search"]
    assert (search["coverage_penalty"], search["no_repeat_ngram"]) == (0.0, 2)
    (tmp_path / "text").write_text("der hund\n")
    assert main(["translate", "--model", str(tmp_path / "out"), "--cpu", "--input", str(tmp_path / "text")]) == 0


@pytest.mark.parametrize(("command", "options", "beginning", "advice"), [
    ("export", ["--format", "ctranslate2", "--output", "out"], "", "Choose another --format."),
    ("package", ["--include", "ctranslate2", "--licence", "CC0-1.0", "--date", "2026-11-30", "--output", "out"],
     "--include ctranslate2:float32: ", "Choose another format, or leave this one out."),
    ("translate", ["--engine", "ctranslate2", "--input", "text"], "",
     "Leave out --engine to use TensorFlow's graph.")])
def test_a_model_that_a_format_cannot_express_is_refused_with_advice_for_the_command(
        student_on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
        command: str, options: list[str], beginning: str, advice: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("den hund\n")
    assert main([command, "--model", str(student_on_disk), "--checkpoint", "step-1", *options]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"towernmt: {beginning}model.decoder_cell=ssru: CTranslate2's decoder supports only self-attention. {advice}")
    assert not Path("out").exists()
