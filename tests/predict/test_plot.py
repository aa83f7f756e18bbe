"""Pictures of attention, read back: their pixels by Pillow, their text from the SVG."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from towernmt.core.errors import SettingsError
from towernmt.dataflow.vocabulary.base import EOS, SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.attention_plot import MAX_PICTURES, Picture, Pictures, draw_attention, token_picture

pytest.importorskip("matplotlib")
PICTURE = Picture(np.eye(2, 3, dtype=np.float32), ["$x^2$", "zwei_"], ["ein", "sehr & <lang>" * 4, "Wort"])


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.parse(path).iter() if element.tag.endswith("}text")]


def test_the_words_of_both_sides_are_text_of_the_svg_as_they_are_or_cut(tmp_path: Path) -> None:
    draw_attention(PICTURE, tmp_path / "a.svg")
    assert {"$x^2$", "zwei_", "ein", "Wort", "sehr & <lang>sehr & <la…", "1.00"} <= set(texts(tmp_path / "a.svg"))
    draw_attention(PICTURE, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_cell_of_a_png_is_the_darker_the_larger_its_weight(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    weights = np.zeros([20, 20], np.float32)            # more words, so the cells contain no numbers
    weights[3], weights[7, 9] = 0.5, 1.0
    words = ["w"] * 20
    draw_attention(Picture(weights, words, words), tmp_path / "a.png")
    pixels = np.asarray(image.open(tmp_path / "a.png").convert("L")).astype(float)
    shades, counts = np.unique(pixels[pixels < 252], return_counts=True)
    shade = {0.0: 250, 0.5: 156, 1.0: 44}               # of Matplotlib's Blues
    near = {weight: counts[np.abs(shades - value) < 6].sum() for weight, value in shade.items()}
    assert near[0.5] > 10 * near[1.0] > 0


def test_a_picture_of_many_words_has_a_lower_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr("towernmt.predict.attention_plot._MOST_PIXELS", 300)
    draw_attention(Picture(np.eye(30, dtype=np.float32), ["w"] * 30, ["w"] * 30), tmp_path / "a.png")
    assert max(image.open(tmp_path / "a.png").size) < 500       # with the words around the heat map


def test_one_line_has_the_name_that_was_asked_for_and_several_have_numbers(tmp_path: Path) -> None:
    with Pictures(tmp_path / "one.svg") as pictures:
        pictures.add(PICTURE)
    with Pictures(tmp_path / "more.svg") as pictures:
        for picture in (PICTURE, None, PICTURE):
            pictures.add(picture)
    with Pictures(tmp_path / "blank.svg") as pictures:
        pictures.add(None)
    with Pictures(tmp_path / "empty.svg") as pictures:
        pictures.add(Picture(np.zeros([0, 1]), [], ["ein"]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["more-1.svg", "more-3.svg", "one.svg"]


def test_pictures_end_with_a_warning_before_a_folder_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             caplog: pytest.LogCaptureFixture) -> None:
    drawn: list[object] = []
    monkeypatch.setattr("towernmt.predict.attention_plot.draw_attention", lambda picture, path: drawn.append(path))
    with Pictures(tmp_path / "p.png") as pictures, caplog.at_level(logging.WARNING):
        for _ in range(MAX_PICTURES + 3):
            pictures.add(PICTURE)
    assert len(drawn) == MAX_PICTURES
    assert [f"first {MAX_PICTURES} lines" in record.getMessage() for record in caplog.records] == [True]


def test_characters_that_no_font_has_are_named_once_in_a_warning(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> None:
    with caplog.at_level(logging.WARNING):
        draw_attention(Picture(np.ones([1, 1]), ["привет"], ["\U0001340d"]), tmp_path / "a.png")     # a hieroglyph
    assert [record.getMessage() for record in caplog.records if "no font" in record.getMessage()]
    assert "п" not in caplog.text and "\U0001340d" in caplog.text
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_a_picture_of_tokens_names_the_ends_of_the_sentences() -> None:
    vocabulary = WordVocabulary([*SPECIAL_PIECES, "a", "b"])
    picture = token_picture(np.ones([2, 3]), vocabulary, [4, 5, EOS], vocabulary, [5, EOS])
    assert (picture.rows, picture.columns) == (["b", "</s>"], ["a", "b", "</s>"])


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match=r"towernmt\[plot\]"):
        Pictures(tmp_path / "a.png")
