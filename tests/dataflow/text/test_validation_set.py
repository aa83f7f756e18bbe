"""Validation and test sets without text are refused, however they are passed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from towernmt.cli.main import main
from towernmt.core.errors import DataError
from towernmt.dataflow.preparation.input_texts import ValidationText
from towernmt.dataflow.text.text_lines import read_lines
from towernmt.dataflow.text.validation_set import ValidationFiles, check_has_text, read_lines_of_set

NO_TEXT = [
    ("", "", "v.de is empty"), ("\n \n\t\n", "a\nb\nc\n", "v.de has only blank lines"),
    ("a\n", "\n", "v.en has only blank lines"), ("\n\n", "\n\n", "v.de has only blank lines"),
    ("\x01\n\u2028\n", "a\nb\n", "v.de has only blank lines"), ("\ufeff\n", "a\n", "v.de has only blank lines"),
    ("a\n\n", "\nb\n", "v.de and v.en: no line has text in both files")]
"""Source, reference, and the message."""


@pytest.fixture(params=NO_TEXT, ids=[message for _, _, message in NO_TEXT])
def no_text(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two files without a pair of sentences in the working directory, and the message."""
    monkeypatch.chdir(tmp_path)
    source, target, message = request.param
    Path("v.de").write_text(source, encoding="utf-8")
    Path("v.en").write_text(target, encoding="utf-8")
    return str(message)


FILES = [ValidationFiles("", "v.de", ["v.en"])]


@pytest.mark.parametrize("read", [
    lambda: ValidationText(FILES, 0), lambda: read_lines_of_set(FILES[0], lambda path: list(read_lines(path)))],
    ids=["prepared", "streamed"])
def test_a_validation_set_without_text_is_refused(no_text: str, read: Callable[[], object]) -> None:
    with pytest.raises(DataError, match=f"^{no_text}: pass validation text with its translations"):
        read()


@pytest.mark.parametrize("scored", ["--hypothesis-file v.en", "--model no/run", "--system a=v.en --system b=v.de"])
def test_a_test_set_without_text_is_refused_before_anything_is_translated_or_written(
        no_text: str, scored: str, capsys: pytest.CaptureFixture[str]) -> None:
    written = ["--hypothesis", "out"] if "--model" in scored else []
    assert main(["evaluate", "--source", "v.de", "--reference", "v.en", *scored.split(), *written]) == 1
    assert f"towernmt: {no_text}: pass a test set with text" in capsys.readouterr().err
    assert not Path("out").exists()


def test_every_further_set_and_reference_needs_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"a": "x\n", "b": "y\n", "blank": "\n", "empty": ""}.items():
        Path(name).write_text(text)
    with pytest.raises(DataError, match="^blank has only blank lines"):
        ValidationText([ValidationFiles("n", "a", ["b", "blank"])], 0)
    with pytest.raises(DataError, match="^empty is empty"):
        ValidationText([ValidationFiles("n", "a", ["b"]), ValidationFiles("m", "empty", ["empty"])], 0)


def test_a_reference_alone_needs_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ref").write_text("\n")
    Path("hyp").write_text("a\n")
    assert main(["evaluate", "--hypothesis-file", "hyp", "--reference", "ref"]) == 1
    assert "ref has only blank lines" in capsys.readouterr().err


def test_a_blank_line_beside_text_is_accepted_and_reading_stops_at_the_first_text() -> None:
    def lines():
        yield from ("", "a")
        raise AssertionError("reading went on")

    check_has_text([("source", lines()), ("reference", ["", "b"])], "")
