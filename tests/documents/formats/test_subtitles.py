"""Subtitles: the segments, and the division of their translations into lines and cues."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.documents import fake_translator as fakes
from tests.processor_time import processor_seconds
from towernmt.core.errors import DataError
from towernmt.documents.formats.subtitles import open_srt, open_vtt
from towernmt.documents.segments import Mark, Segment

SRT = """1
00:00:01,000 --> 00:00:02,000
<i>Das ist der erste Untertitel,
der zwei Zeilen hat.</i>

2
00:00:02,500 --> 00:00:03,000
- Wer da?
- <b>Ich</b>, wer
  sonst?

3
00:00:04,000 --> 00:00:06,000
{\\an8}Und der alte

4
00:00:06,000 --> 00:00:08,000
{\\an8}Mann ging nach
Hause, wo er schlief.

5
00:00:08,000 --> 00:00:09,000
♪ 123

6
00:00:18,000 --> 00:00:19,000
"""
VTT = """WEBVTT - Titel

STYLE
::cue { color: red }

NOTE ein Kommentar
--

REGION
id:fred

intro
00:01.000 --> 00:02.000 align:start position:0%
<v Anna>Tom &amp; Jerry sind <c.gelb>gelbe <00:01.500>Tiere</c>

00:03.000 --> 00:04.000
Hallo&nbsp;Welt & ein &lt;Tag&gt;!
"""


@pytest.mark.parametrize("text", [SRT, SRT.replace("\n", "\r\n"), SRT.rstrip(), "\ufeff" + SRT, "", "\n\n"],
                         ids=["lines", "CRLF", "no end", "mark", "empty", "blank"])
def test_subrip_translated_by_itself_is_the_same_bytes(text: str) -> None:
    document = open_srt(text.encode())
    assert document.written(document.segments).decode() == text


def test_what_is_said_together_is_translated_together() -> None:
    assert open_srt(SRT.encode()).segments == [
        ("Das ist der erste Untertitel, der zwei Zeilen hat.",), ("Wer da?",),
        (Mark("open", 0, "<b>"), "Ich", Mark("close", 0, "</b>"), ", wer sonst?"),
        ("Und der alte Mann ging nach Hause, wo er schlief.",)]
    assert open_vtt(VTT.encode()).segments == [
        ("Tom & Jerry sind ", Mark("open", 1, "<c.gelb>"), "gelbe ", Mark("single", 2, "<00:01.500>"), "Tiere",
         Mark("close", 1, "</c>")), ("Hallo\xa0Welt & ein <Tag>!",)]


def test_a_translation_goes_into_its_cues_and_lines() -> None:
    document = open_srt(SRT.encode())
    bold, end = document.segments[2][0], document.segments[2][2]
    written = document.written([
        ("This is the very first of all subtitles, and I think that it has two lines.",), ("Who's there?",),
        ("Who else but ", bold, "me", end, "?"), ("And the old man went home, where he slept.",)]).decode()
    assert re.split(r"\n\n\d\n.*\n", written)[:4] == [
        "1\n00:00:01,000 --> 00:00:02,000\n<i>This is the very first of all subtitles,\n"
        "and I think that it has two lines.</i>",
        "- Who's there?\n- Who else but\n  <b>me</b>?", "{\\an8}And the old",
        "{\\an8}man went home,\nwhere he slept."]


def test_lines_become_more_where_they_would_be_too_wide() -> None:
    document = open_srt(b"1\n00:00:01,000 --> 00:00:02,000\nKurz.")
    assert document.written([("It is by far the longest translation of a word that anybody ever has seen here.",)]
                            ).decode().split("\n")[2:] == [
        "It is by far the longest translation of", "a word that anybody ever has seen here."]


def test_a_cue_of_very_many_lines_is_wrapped_in_little_time() -> None:
    line = "Das ist eine Zeile von vielen."
    document = open_srt(f"1\n00:00:01,000 --> 00:00:02,000\n{chr(10).join([line] * 2000)}\n".encode())
    translated: list[Segment] = [(" ".join(["This is a translated line of many."] * 2500),)]
    assert processor_seconds(lambda: document.written(translated)) < 10
    lines = document.written(translated).decode().split("\n")[2:-1]
    assert " ".join(lines) == translated[0][0] and max(map(len, lines)) <= 42


def test_webvtt_keeps_what_is_no_cue() -> None:
    document = open_vtt(VTT.encode())
    assert document.written(document.segments).decode() == VTT
    written = document.written(fakes.capital_segments(document.segments)).decode()
    assert written.partition("intro")[0] == VTT.partition("intro")[0]
    assert written.partition("intro")[2].split("\n")[1:] == [
        "00:01.000 --> 00:02.000 align:start position:0%",
        "<v Anna>TOM &amp; JERRY SIND <c.gelb>GELBE <00:01.500>TIERE</c>", "", "00:03.000 --> 00:04.000",
        "HALLO&nbsp;WELT & EIN &lt;TAG&gt;!", ""]


def test_what_ends_with_a_sign_or_comes_late_is_a_sentence_of_its_own() -> None:
    cue = "{}\n00:00:{:02},000 --> 00:00:{:02},900\n{}\n\n"
    said = [(1, "Ich gehe."), (2, "Du kommst"), (9, "Er bleibt."), (10, "♪ La la la ♪"), (11, "Wir, die hier"),
            (12, "- Was?"), (13, "sind.")]
    text = "".join(cue.format(number, second, second, line) for number, (second, line) in enumerate(said, 1))
    assert [segment[0] for segment in open_srt(text.encode()).segments] == [
        "Ich gehe.", "Du kommst", "Er bleibt.", "♪ La la la ♪", "Wir, die hier", "Was?", "sind."]


@pytest.mark.parametrize("words", ["أين أنت؟", "میں یہاں ہوں۔", "मैं यहाँ हूँ।", "「行こう」", "（笑）"])
def test_signs_of_other_scripts_end_a_sentence(words: str) -> None:
    said = [words, words, "Ja.", "Ja."]
    text = "".join(f"{number}\n00:00:0{number},000 --> 00:00:0{number},900\n{line}\n\n"
                   for number, line in enumerate(said, 1))
    assert open_srt(text.encode()).segments == [(line,) for line in said]


def test_without_signs_cues_are_not_joined() -> None:
    cue = "{}\n00:00:{:02},000 --> 00:00:{:02},900\nein wort\n\n"
    text = "".join(cue.format(number, number, number) for number in range(1, 9))
    assert len(open_srt(text.encode()).segments) == 8


LINES = st.lists(st.text(st.sampled_from("aä,.!?-–<>/ib{}\\&;♪ \t日本語 "), min_size=1, max_size=60).filter(
    lambda line: line.strip() and "-->" not in line and not line.strip().isdecimal()), min_size=1, max_size=3)


@settings(deadline=None)
@example([["<a", ">"]], True)      # no tag, as it is on two lines
@given(st.lists(LINES, max_size=6), st.booleans())
def test_any_cues_translated_by_themselves_are_the_same_text(cues: list[list[str]], is_vtt: bool) -> None:
    mark = "." if is_vtt else ","
    text = "WEBVTT\n\n" if is_vtt else ""
    for number, lines in enumerate(cues, 1):
        text += f"{number}\n00:00:{number:02}{mark}000 --> 00:00:{number:02}{mark}900\n" + "\n".join(lines) + "\n\n"
    document = (open_vtt if is_vtt else open_srt)(text.encode())
    written = document.written(document.segments).decode()
    assert re.sub(r"\s+", "", written) == re.sub(r"\s+", "", text)
    assert written.count("\n\n") == text.count("\n\n")


@pytest.mark.parametrize(("opener", "content", "sentence"), [
    (open_srt, b"Just some text.\n", "no subtitles"), (open_vtt, b"1\n00:01.000 --> 00:02.000\nHi\n", "not a WebVTT"),
    (open_vtt, b"", "not a WebVTT"), (open_srt, "Zürich".encode("latin-1"), "not encoded as UTF-8"),
    (open_srt, b"PK\x03\x04\x00", "not text"),
    (open_srt, b"9" * 5000 + b":00:01,000 --> 00:00:02,000\nHi\n", "no subtitles")])
def test_what_is_broken_is_refused(opener, content, sentence) -> None:
    with pytest.raises(DataError, match=sentence):
        opener(content)
