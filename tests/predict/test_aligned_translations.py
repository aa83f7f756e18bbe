"""Alignments of translated lines, by a predictor with specified attention. No test imports TensorFlow."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from towernmt.cli import translate
from towernmt.core.errors import SettingsError
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.lines.hypotheses import Hypothesis
from towernmt.predict.lines.line_options import line_requests
from towernmt.predict.search.search_settings import SearchSettings, StreamSettings
from towernmt.predict.stream import translate_stream

WORDS = WordVocabulary([*SPECIAL_PIECES, *"abcdefgh"])
LINES = ["a b c", "", "d", "e f g h a b c", "a  b <unk>"]


def backwards(source: np.ndarray, source_length: np.ndarray) -> tuple[np.ndarray, ...]:
    """Translate a sentence into its reverse, or its last word as second best; each word attends to itself by 0.7."""
    tokens, scores = np.zeros([len(source), 2, source.shape[1]], np.int32), np.full([len(source), 2], -1.0)
    attention = np.zeros([*tokens.shape, source.shape[1]], np.float32)
    for row, length in enumerate(source_length):
        words = source[row, :length - 1]
        for k, count in enumerate((length - 1, 1)):
            tokens[row, k, :count + 1] = [*words[::-1][:count], EOS]
            attention[row, k, range(count), length - 2 - np.arange(count)] = 0.7
            attention[row, k, :count + 1, length - 1] += 0.3
    return tokens, scores, None, attention


def translated(**settings: int) -> list[list[Hypothesis]]:
    return list(translate_stream(backwards, WORDS, WORDS, line_requests(LINES), StreamSettings(**settings)))


def test_the_links_of_each_hypothesis_are_those_of_its_words_whatever_the_batch() -> None:
    for settings in ({}, {"batch_sentences": 1}):
        best, second = zip(*((found[0], found[-1]) for found in translated(**settings)), strict=True)
        assert [one.text for one in best] == ["c b a", "", "d", "c b a h g f e", "<unk> b a"]
        assert [one.links() for one in best] == [
            [(0, 2), (1, 1), (2, 0)], None, [(0, 0)], [(i, 6 - i) for i in range(7)], [(0, 2), (1, 1), (2, 0)]]
        assert second[3].links() == [(6, 0)] and best[0].links(threshold=0.8) == []
        assert best[4].alignment and best[4].alignment.source == ["a", "b", "<unk>"]


def test_the_words_of_a_line_in_pieces_are_counted_over_all_of_them() -> None:
    found = translated(max_source_length=3)[3][0]
    assert found.text == "g f e b a h c" and found.links() == [(0, 2), (1, 1), (2, 0), (3, 5), (4, 4), (5, 3), (6, 6)]
    assert found.alignment and found.alignment.weights.shape == (7, 7)
    np.testing.assert_allclose(found.alignment.weights.sum(1), 0.7, rtol=1e-6)


class Aligning:
    """A fake `Translator`."""

    source_vocabulary = target_vocabulary = WORDS
    checkpoint = "runs/x/best/step-1/model"
    search = SearchSettings()
    engine = "graph"

    def translate_stream(self, lines: object, name: str = "input", options: object = None, first: int = 1) -> object:
        return translate_stream(backwards, WORDS, WORDS, line_requests(lines, name), StreamSettings(), name)  # type: ignore[arg-type]


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str, lines: Sequence[str] = LINES[:3]
        ) -> list[str]:
    """Return the lines of the output of `towernmt translate`."""
    asked = []
    monkeypatch.setattr(translate, "make_translator", lambda args, **details: asked.append(details) or Aligning())
    (tmp_path / "in").write_text("\n".join(lines))
    parser = argparse.ArgumentParser()
    translate.add_translate_arguments(parser)
    files = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert translate.run_translate(parser.parse_args(["--model", "runs/x", *files, *arguments])) == 0
    assert [details["attention"] for details in asked] == [bool(arguments)]
    return (tmp_path / "out").read_text().splitlines()


def test_links_are_written_to_a_file_a_line_for_each_translation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path
                                                                 ) -> None:
    links = tmp_path / "links"
    assert run(monkeypatch, tmp_path, "--alignments", str(links)) == run(monkeypatch, tmp_path)
    assert links.read_text().splitlines() == ["0-2 1-1 2-0", "", "0-0"]
    run(monkeypatch, tmp_path, "--alignments", str(links), "--n-best", "2", "--alignment-threshold", "0.5")
    assert links.read_text().splitlines() == ["0-2 1-1 2-0", "2-0", "", "0-0", "0-0"]


def test_links_stand_behind_the_translations_where_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, "--alignments", "-") == ["c b a ||| 0-2 1-1 2-0", " ||| ", "d ||| 0-0"]
    n_best = run(monkeypatch, tmp_path, "--alignments", "-", "--n-best", "1")
    assert n_best[0] == "0 ||| c b a ||| -1.0000 ||| 0-2 1-1 2-0"


def test_the_answer_of_a_blank_line_has_all_fields_that_are_requested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path
                                                                      ) -> None:
    objects = [json.dumps({"text": text}) for text in LINES[:2]]
    answers = run(monkeypatch, tmp_path, "--json", "--alignments", "-", "--token-scores", lines=objects)
    first, blank = map(json.loads, answers)
    assert first["alignment"] == [[0, 2], [1, 1], [2, 0]]
    assert [blank[name] for name in ("translation", "alignment", "tokens", "log_probs")] == ["", [], [], []]


@pytest.mark.parametrize("arguments, message", [
    (["--alignments", "out", "--alignment-threshold", "2"], "--alignment-threshold 2.0: pass a number above 0"),
    (["--alignment-threshold", "0.2"], "pass --alignments FILE"), (["--plot-tokens"], "pass --plot FILE"),
    (["--plot", "picture.pdf"], r"ends in .png or .svg"),
])
def test_options_that_cannot_work_are_refused_with_their_names(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=message):
        run(monkeypatch, tmp_path, *arguments)
