"""Pictures of curves, read back: text and lines of the SVG, the size of the PNG."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from towernmt.core.errors import DataError, SettingsError
from towernmt.plots.panels import COLORS
from towernmt.plots.picture import TEXT_SIZE, PictureSettings, draw_curves, text_width
from towernmt.plots.recorded_runs import read_run

pytest.importorskip("matplotlib")


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.parse(path).iter() if element.tag.endswith("}text")]


def test_the_svg_has_panels_runs_figures_settings_and_notes(make_run, rows, tmp_path: Path) -> None:
    runs = [read_run(make_run("a", rows, {"model": {"size": 192}}), "a_$x^2$"),
            read_run(make_run("b", rows[:5], {"model": {"size": 256}}), "b"), read_run(make_run("none"), "none")]
    draw_curves(runs, tmp_path / "one.svg", PictureSettings(window=2))
    svg_texts = texts(tmp_path / "one.svg")
    assert {"training loss, nats a target token", "BLEU of validation", "loss of validation, nats a target token",
            "learning rate", "target tokens a second of training", "updates", "a_$x^2$", "b", "none", "best BLEU",
            "20.00", "size", "192", "256", "none: nothing is recorded yet."} <= set(svg_texts)
    assert any("running means over 3 logged figures" in text for text in svg_texts)
    assert not any("chrF" in text for text in svg_texts)
    text = (tmp_path / "one.svg").read_text()
    assert COLORS[0] in text and COLORS[1] in text
    draw_curves(runs, tmp_path / "two.svg", PictureSettings(window=3))
    assert (tmp_path / "two.svg").read_text() == text       # the same picture is the same file


def test_the_number_at_the_best_point_has_the_digits_of_its_metric(make_run, tmp_path: Path) -> None:
    rows = [{"validation_bleu": 2.0, "validation_loss": 1.23456, "global_step": 1}]
    draw_curves([read_run(make_run("a", rows), "a")], tmp_path / "a.svg", PictureSettings(table=False))
    assert {"2.00", "1.2346"} <= set(texts(tmp_path / "a.svg"))


def test_panels_axis_and_table_are_those_that_are_asked_for(make_run, rows, tmp_path: Path) -> None:
    draw_curves([read_run(make_run("a", rows), "a")], tmp_path / "a.svg",
         PictureSettings("tokens", ["validation-bleu"], 1, table=False))
    svg_texts = texts(tmp_path / "a.svg")
    assert {"BLEU of validation", "target tokens", "400k"} <= set(svg_texts) and "learning rate" not in svg_texts
    assert "best BLEU" not in svg_texts and not any("running means" in text for text in svg_texts)


def test_runs_without_positions_on_the_axis_are_named_or_refused(make_run, rows, tmp_path: Path) -> None:
    by_hand = read_run(make_run("by-hand", [{"nll": 2.0, "global_step": 1}]), "by-hand")
    draw_curves([read_run(make_run("a", rows), "a"), by_hand], tmp_path / "a.svg", PictureSettings("minutes"))
    assert "by-hand: no minutes are recorded, so curves are missing." in texts(tmp_path / "a.svg")
    empty = read_run(make_run("empty"), "empty")
    with pytest.raises(DataError, match="empty: no target tokens are recorded: pass --x updates"):
        draw_curves([by_hand, empty], tmp_path / "b.svg", PictureSettings("tokens"))
    draw_curves([by_hand, empty], tmp_path / "b.svg")


def test_settings_that_differ_have_further_tables_and_what_has_no_room_is_counted(make_run, rows, tmp_path) -> None:
    def drawn(count: int) -> list[str]:
        settings = [{"model": {f"a_setting_with_a_long_name_{i}": value for i in range(count)}} for value in range(2)]
        draw_curves([read_run(make_run(f"{name}{count}", rows, values), name)
                     for name, values in zip("ab", settings, strict=True)], tmp_path / "a.svg")
        return texts(tmp_path / "a.svg")

    svg_texts = drawn(30)
    shown = sum(text.startswith("a_setting") for text in svg_texts)
    assert 6 <= shown < 30
    assert any(text.startswith(f"{30 - shown} more settings differ, but do not fit here") for text in svg_texts)
    assert svg_texts.count("run") == 3
    assert any(text.startswith("1 more setting differs, but does not fit here") for text in drawn(shown + 1))


def test_a_png_is_as_wide_as_ever(make_run, rows, tmp_path: Path) -> None:
    draw_curves([read_run(make_run("a", rows), "a")], tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">I", content[16:20])[0] == 1430


def font_with(characters: str, family: str, path: Path) -> Path:
    """A font file in which each of the characters is a filled square."""
    builder = pytest.importorskip("fontTools.fontBuilder").FontBuilder(1000, isTTF=True)
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for point in ((0, 900), (1000, 900), (1000, 0)):
        pen.lineTo(point)
    pen.closePath()
    names = [".notdef", *(f"uni{ord(character):04X}" for character in characters)]
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, characters), names[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(path)
    return path


def test_names_of_any_script_have_a_font_that_has_it_or_one_warning(make_run, rows, tmp_path, caplog, recwarn) -> None:
    from matplotlib.font_manager import fontManager

    runs = [read_run(make_run("a", rows), "\U0001340d\U0001340e")]       # hieroglyphs, which few machines have
    draw_curves(runs, tmp_path / "boxes.png")
    assert ["\U0001340d \U0001340e" in record.getMessage() for record in caplog.records] == [True]
    draw_curves(runs, tmp_path / "text.svg")
    caplog.clear()
    fonts_before = list(fontManager.ttflist)
    try:
        fontManager.addfont(font_with(runs[0].name, "Squares", tmp_path / "squares.ttf"))
        draw_curves(runs, tmp_path / "squares.png")
    finally:
        fontManager.ttflist = fonts_before
    assert (tmp_path / "squares.png").read_bytes() != (tmp_path / "boxes.png").read_bytes()
    assert not caplog.records and not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_wide_signs_have_room_in_the_table() -> None:
    assert [text_width("言語処理") > 0.8 * 4 * TEXT_SIZE / 72, text_width("言") == text_width("M")] == [True, True]


def test_runs_that_cannot_be_drawn_are_reported(make_run, rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:
    run = read_run(make_run("a", rows), "a")
    with pytest.raises(DataError, match="nothing is recorded that could be drawn"):
        draw_curves([read_run(make_run("empty"), "e")], tmp_path / "a.svg")
    with pytest.raises(DataError, match="cannot write"):
        draw_curves([run], tmp_path / "there is no such folder" / "a.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match=r"towernmt\[plot\]"):
        draw_curves([run], tmp_path / "a.svg")
    assert not list(tmp_path.glob("*.svg"))
