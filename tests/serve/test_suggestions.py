"""Suggestions of better translations: stored in a tab-separated file, disabled by default, and never logged."""

from __future__ import annotations

import logging
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from towernmt.core.errors import SettingsError
from towernmt.serve import suggestions
from towernmt.serve.suggestions import Suggestions, suggestion_rows

ASKED = {"q": "guten morgen", "s": "Good day!", "source": "de", "target": "en"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of suggestions."""
    return tmp_path / "suggestions.tsv"


@pytest.fixture
def client(make_client: Any, file: Path) -> Any:
    """Return a client of a server that accepts suggestions."""
    client = make_client()
    client.service.suggestions = Suggestions(file)
    return client


def test_a_suggestion_is_a_line_of_the_file_with_time_model_and_texts(client: Any, file: Path) -> None:
    answer = client.post("/suggest", json={**ASKED, "translation": "GUTEN MORGEN"})
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert client.post("/suggest", data={**ASKED, "source": "auto"}).json() == {"success": True}
    first, second = (line.split("\t") for line in file.read_text().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first[0])
    assert first[1:] == ["de-en=echo", "guten morgen", "GUTEN MORGEN", "Good day!"]
    assert second[2:] == ["guten morgen", "", "Good day!"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert client.get("/frontend/settings").json()["suggestions"] is True


def test_a_suggestion_begins_a_line_after_a_last_line_without_an_end(client: Any, file: Path) -> None:
    file.write_text("t\tm\ta\tb\tc")
    client.post("/suggest", json=ASKED)
    client.post("/suggest", json=ASKED)
    assert [line.split("\t")[2:] for line in file.read_text().splitlines()] == [
        ["a", "b", "c"], *[["guten morgen", "", "Good day!"]] * 2]


def test_suggestions_are_off_by_default(make_client: Any) -> None:
    client = make_client()
    answer = client.post("/suggest", json=ASKED)
    assert answer.status_code == 403 and answer.json() == {"error": "Suggestions are disabled on this server."}
    assert client.get("/frontend/settings").json()["suggestions"] is False


def test_the_log_has_no_text_of_a_suggestion(client: Any, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        client.post("/suggest", json={**ASKED, "q": "geheim hund", "s": "secret dog", "translation": "hidden"})
    records = " ".join(str({**record.__dict__}) for record in caplog.records if record.name.startswith("towernmt"))
    assert "/suggest" in records and not re.search("geheim|secret|hidden", records)


@pytest.mark.parametrize(("values", "status", "sentence"), [
    ({"s": None}, 400, "missing s parameter"), ({"q": None}, 400, "missing q parameter"),
    ({"q": "  "}, 400, "q and s must contain text"), ({"s": "\n\t"}, 400, "q and s must contain text"),
    ({"target": "zz"}, 400, "zz is not supported"),
    ({"source": "en"}, 400, "q is English already, so no model has translated it"),
    ({"s": "x" * 60_000}, 413, "characters of text")])
def test_what_cannot_be_stored_is_refused_and_leaves_the_file(client: Any, file: Path, values: dict[str, Any],
                                                              status: int, sentence: str) -> None:
    body = {key: value for key, value in {**ASKED, **values}.items() if value is not None}
    answer = client.post("/suggest", json=body)
    assert answer.status_code == status and sentence in answer.json()["error"]
    assert file.read_text() == ""


def test_a_text_that_can_be_translated_can_be_improved(make_client: Any, file: Path) -> None:
    client = make_client(limits={"max_characters": 30})
    client.service.suggestions = Suggestions(file)
    text = "guten morgen " * 2 + "haus"
    assert client.post("/translate", json={"q": text, "source": "de", "target": "en"}).status_code == 200
    values = {"q": text, "s": "x" * 30, "translation": text.upper(), "source": "de", "target": "en"}
    assert client.post("/suggest", json=values).status_code == 200
    for name in ("q", "s", "translation"):
        assert client.post("/suggest", json={**values, name: "x" * 31}).status_code == 413


def test_tabs_and_line_ends_stay_inside_their_fields() -> None:
    assert suggestion_rows("a\tb\nc", "", "x\ty\nz") == [("a b", "", "x y"), ("c", "", "z")]
    assert suggestion_rows("a\n\nb", "A\n\nB", "x\n\nz") == [("a", "A", "x"), ("b", "B", "z")]
    assert suggestion_rows("a\nb", "A\nB", "x y") == [("a b", "A B", "x y")]
    assert suggestion_rows("a", "A\r\nB", "x") == [("a", "", "x")]
    assert suggestion_rows("a\x85b\u2028c", "", "x") == [("a b c", "", "x")]


@pytest.mark.parametrize(("source", "translation", "suggestion", "rows"), [
    ("a\nb\nc", "A\nB\nC", "X\nB\n", [("a", "A", "X")]),
    ("a\nb\nc\n", "A\nB\nC\n", "X\nB\n", [("a", "A", "X")]),
    ("a\nb\nc", "A\nB\nC", "\nX\nC", [("b", "B", "X")]),
    ("a\nb\nc", "A\nB\nC", "\nX\n", [("b", "B", "X")]),
    ("a\nb\nc", "A\nB\nC", "\n\nX\n", [("c", "C", "X")]),
    ("a\nb", "A\nB", "A\n", [("a", "A", "A")]),
    ("\na\nb", "\nA\nB", "X\nB\n", [("a", "A", "X")]),
    ("a\nb\n", "A\nB\n", "X\nB", [("a", "A", "X")]),
    ("a\nb", "A\nB", "\nX\nB\n", [("a", "A", "X")]),
    ("a\nb", "A\nB", "X", [("a b", "A B", "X")])])
def test_a_blank_first_or_last_line_of_a_suggestion_is_the_missing_line(
        source: str, translation: str, suggestion: str, rows: list[tuple[str, str, str]]) -> None:
    assert suggestion_rows(source, translation, suggestion) == rows


def test_lines_that_the_user_has_not_changed_are_no_suggestions(client: Any, file: Path) -> None:
    assert suggestion_rows("a\nb\nc", "A\nB\nC", "A \nb\nC") == [("b", "B", "b")]
    assert suggestion_rows("a\nb", "A", "A\nB") == [("a", "", "A"), ("b", "", "B")]
    assert suggestion_rows("a\nb", "A\nB", "A\nB") == [("a", "A", "A"), ("b", "B", "B")]
    assert client.post("/suggest", json={**ASKED, "translation": ASKED["s"]}).json() == {"success": True}
    assert len(file.read_text().splitlines()) == 1


def test_a_file_that_is_full_or_cannot_be_written_is_one_sentence(client: Any, file: Path, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "MAX_BYTES", 10)
    answer = client.post("/suggest", json=ASKED)
    assert answer.status_code == 503 and answer.json()["error"] == "The file of suggestions is full."
    file.unlink()
    file.mkdir()
    assert client.post("/suggest", json=ASKED).status_code == 503
    with pytest.raises(SettingsError, match="--suggestions .*none/file: cannot write to the file .No such file"):
        Suggestions(tmp_path / "none" / "file")


def test_a_suggestion_for_which_the_disk_has_no_space_leaves_no_part_of_a_line(
        client: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_part(descriptor: int, content: bytes) -> int:
        with file.open("a") as same_file:       # of another server
            same_file.write(stored)
        return write(descriptor, content[:20])

    write = os.write
    client.post("/suggest", json=ASKED)
    stored = file.read_text()
    monkeypatch.setattr(suggestions.os, "write", write_part)
    answer = client.post("/suggest", json=ASKED)
    assert answer.status_code == 503 and "cannot be stored (No space left on device)" in answer.json()["error"]
    assert file.read_text() == 2 * stored
