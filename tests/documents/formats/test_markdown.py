"""Markdown: what is translated, what stays byte for byte, and that a translation reads as it is meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from towernmt.core.errors import DataError
from towernmt.documents.formats.markdown import open_markdown
from towernmt.documents.segments import Mark, Segment, Shielded

PAGES = sorted((Path(__file__).parents[3] / "docs").rglob("*.md"))
TEXT = """---
title: Ein Titel
---

# Die *erste* Überschrift #

Ein Absatz mit `code()`, **fettem Text** und [einem Link](https://example.org "Titel"),
der auf der zweiten Zeile weitergeht.\\
Nach dem Umbruch. ![Ein Bild](bild.png)

> - [x] Ein Punkt
>   mit zwei Zeilen
> 1. 12

| Name | Wert |
|:-----|------|
| Der `a\\|b` Preis \\| neu | 12 |

    eingerückt

```sh
echo Hallo
```

<div>bleibt</div>

Siehe [das Haus][h] &amp; <https://example.org>.[^1]

[h]: https://haus.de "Das Haus"
"""
renderer = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def capitals(segments: list[Segment]) -> list[Segment]:
    return [tuple(part.upper() if isinstance(part, str) else part for part in segment) for segment in segments]


def tags(text: str) -> list[str]:
    """The tags that readers get."""
    return re.findall(r"<[a-zA-Z/][^>]*>", re.sub(r' alt="[^"]*"', "", renderer.render(text)))


def test_what_is_translated() -> None:
    single = [part for segment in open_markdown(TEXT.encode()).segments for part in segment if isinstance(part, Mark)
              and part.kind == "single"]
    texts = ["".join(part if isinstance(part, str) else f"<{part.text}>" if isinstance(part, Shielded) else "_"
                     for part in segment) for segment in open_markdown(TEXT.encode()).segments]
    assert texts == [
        "Die _erste_ Überschrift",
        "Ein Absatz mit <code()>, _fettem Text_ und _einem Link_, der auf der zweiten Zeile weitergeht.",
        "Nach dem Umbruch. _", "Ein Bild", "Ein Punkt mit zwei Zeilen", "Name", "Wert", "Der <a|b> Preis | neu",
        "Siehe _das Haus_ & <https://example.org>.<[^1]>"]
    assert len(single) == 1


def test_a_translation_stands_where_its_source_was() -> None:
    document = open_markdown(TEXT.encode())
    assert document.written(document.segments).decode() == TEXT
    written = document.written(capitals(document.segments)).decode()
    assert written.split("\n")[4:16] == [
        "# DIE *ERSTE* ÜBERSCHRIFT #", "",
        'EIN ABSATZ MIT `code()`, **FETTEM TEXT** UND [EINEM LINK](https://example.org "Titel"),',
        "DER AUF DER ZWEITEN ZEILE WEITERGEHT.\\", "NACH DEM UMBRUCH. ![EIN BILD](bild.png)", "",
        "> - [x] EIN PUNKT", ">   MIT ZWEI ZEILEN", "> 1. 12", "", "| NAME | WERT |", "|:-----|------|"]
    assert "| DER `a\\|b` PREIS \\| NEU | 12 |" in written
    assert "SIEHE [DAS HAUS][h] &amp; <https://example.org>.[^1]" in written
    assert written.partition("| 12 |")[2].partition("SIEHE")[0] == TEXT.partition("| 12 |")[2].partition("Siehe")[0]


@pytest.mark.parametrize(("translation", "expected"), [
    ("1. Mai", "1\\. Mai"), ("# eins", "\\# eins"), ("- eins", "\\- eins"), ("*wie* es ist", "\\*wie\\* es ist"),
    ("a_b und c * d", "a_b und c * d"), ("[h]", "\\[h\\]"), ("<b>fett</b>", "\\<b\\>fett\\</b\\>"),
    ("`so`", "\\`so\\`"), ("+", "\\+"), ("R&D", "R&D"), ("&amp;", "\\&amp;"), ("ende\\", "ende\\")])
def test_words_are_not_taken_for_marks(translation: str, expected: str) -> None:
    written = open_markdown(b"Wort\n\n[h]: x\n").written([(translation,)]).decode()
    assert written == f"{expected}\n\n[h]: x\n"
    shown = re.sub(r"</?p>|\n", "", renderer.render(written))
    assert shown == translation.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def test_white_space_goes_out_of_emphasis() -> None:
    document = open_markdown(b"Ein **Wort** mehr\n")
    [(_, begin, _, end, _)] = document.segments
    assert document.written([("One", begin, " word ", end, "more")]) == b"One **word** more\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_of_the_manual_translated_by_themselves_are_the_same_bytes(page: Path) -> None:
    content = page.read_bytes()
    document = open_markdown(content)
    assert document.written(document.segments) == content
    assert tags(document.written(capitals(document.segments)).decode()) == tags(content.decode())


@pytest.mark.parametrize("content", [b"wort " * 10_000_000, b"[" * 20_000, b"a*\n" * 10_000, b"|a" * 10_000])
def test_what_parsers_take_very_long_for_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="more than 10000 characters"):
        open_markdown(content)


PIECES = st.sampled_from([
    "a", "Wort ", "wort", "*", "**", "_", "`", "``", "[", "]", "(", ")", "![", "](x)", "[a]", "<b>", "</b>", "<http://a.b>",
    "\\", "\\*", "&amp;", "&", " ", "  ", "\n", "\n\n", "- ", "1. ", "# ", "> ", "    ", "|", "\n|---|---|\n", "~~",
    "<!-- x -->", "[a]: /u\n", "\r\n", "\t", "---\n", "é"])


@settings(deadline=None)
@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_markdown_translated_by_itself_reads_the_same(text: str) -> None:
    document = open_markdown(text.encode())
    written = document.written(document.segments).decode()
    assert renderer.render(written).split() == renderer.render(text).split()
