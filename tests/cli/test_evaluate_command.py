"""`towernmt evaluate` of translations that are there already, with one reference or several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from towernmt.cli.main import main


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"hyp": "a b c d x f\n", "one": "a b c d e f\n", "two": "q x f\n", "long": "a\nb\n"}.items():
        Path(name).write_text(text)


def test_an_n_gram_counts_that_any_of_several_references_has(texts, capsys) -> None:
    assert main(["evaluate", "--hypothesis-file", "hyp", "--reference", "one", "--reference", "two", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    # 1- to 4-gram precisions 6/6, 4/5, 2/4, 1/3; the closest reference is as long.
    assert result["bleu"] == pytest.approx(100 * (6 / 6 * 4 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert result["signature"].startswith("nrefs:2|") and result["sentences"] == 1
    assert main(["evaluate", "--hypothesis-file", "hyp", "--reference", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bleu"] == pytest.approx(
        100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_a_reference_of_another_length_is_named(texts, capsys) -> None:
    assert main(["evaluate", "--hypothesis-file", "hyp", "--reference", "one", "--reference", "long"]) == 1
    assert "hyp has 1 lines and long has 2" in capsys.readouterr().err
