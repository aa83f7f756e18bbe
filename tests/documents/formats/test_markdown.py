"""Markdown: translated text, text that is kept byte for byte, and translations that parse correctly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.documents import fake_translator as fakes
from towernmt.core.errors import DataError
from towernmt.documents.formats.markdown import open_markdown
from towernmt.documents.segments import Mark, Shielded

pytest.importorskip("sentencex")
ROOT = Path(__file__).parents[3]


PAGES = sorted((ROOT / "docs").rglob("*.md"))
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


def tags(text: str) -> list[str]:
    """Return the tags in the HTML that a parser writes."""
    return re.findall(r"<[a-zA-Z/][^>]*>", re.sub(r' alt="[^"]*"', "", renderer.render(text)))


def test_the_text_of_paragraphs_headings_items_and_cells_is_translated() -> None:
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
    written = document.written(fakes.capital_segments(document.segments)).decode()
    assert written.split("\n")[4:16] == [
        "# DIE *ERSTE* ÜBERSCHRIFT #", "",
        'EIN ABSATZ MIT `code()`, **FETTEM TEXT** UND [EINEM LINK](https://example.org "Titel"),',
        "DER AUF DER ZWEITEN ZEILE WEITERGEHT.\\", "NACH DEM UMBRUCH. ![EIN BILD](bild.png)", "",
        "> - [x] EIN PUNKT", ">   MIT ZWEI ZEILEN", "> 1. 12", "", "| NAME | WERT |", "|:-----|------|"]
    assert "| DER `a\\|b` PREIS \\| NEU | 12 |" in written
    assert "SIEHE [DAS HAUS][h] &amp; <https://example.org>.[^1]" in written
    assert written.partition("| 12 |")[2].partition("SIEHE")[0] == TEXT.partition("| 12 |")[2].partition("Siehe")[0]


@pytest.mark.parametrize("front", ["---\ntitle: Ein Titel\n---\n", "---\r\ntitle: Ein Titel\r\n...\r\n",
                                   "---\n---\n", "---\n...\n", "+++\n+++\n",
                                   "+++\ntitle = 'Ein ... Titel'\n...\n+++ \n"])
def test_front_matter_is_kept(front: str) -> None:
    document = open_markdown(f"{front}Text\n\n---\n".encode())
    assert document.segments == [("Text",)]
    assert document.written([("Translation",)]).decode() == f"{front}Translation\n\n---\n"


@pytest.mark.parametrize(("translation", "expected"), [
    ("1. Mai", "1\\. Mai"), ("# eins", "\\# eins"), ("- eins", "\\- eins"), ("*wie* es ist", "\\*wie\\* es ist"),
    ("a_b und c * d", "a_b und c * d"), ("[h]", "\\[h\\]"), ("<b>fett</b>", "\\<b\\>fett\\</b\\>"),
    ("`so`", "\\`so\\`"), ("+", "\\+"), ("R&D", "R&D"), ("&amp;", "\\&amp;"), ("ende\\", "ende\\")])
def test_words_are_not_taken_for_marks(translation: str, expected: str) -> None:
    written = open_markdown(b"Wort\n\n[h]: x\n").written([(translation,)]).decode()
    assert written == f"{expected}\n\n[h]: x\n"
    shown = re.sub(r"</?p>|\n", "", renderer.render(written))
    assert shown == translation.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@pytest.mark.parametrize(("source", "expected"), [
    ("Lies [das Haus] jetzt", "LIES [DAS HAUS][das Haus] JETZT"), ("[das Haus][]", "[DAS HAUS][das Haus]"),
    ("Ein Wort, [das\nHaus]", "EIN WORT, [DAS\nHAUS][das Haus]"), ("[das Haus][h]", "[DAS HAUS][h]"),
    ("[das *Haus*]", "[DAS *HAUS*][das *Haus*]"), ("![das Haus]", "![DAS HAUS][das Haus]"),
    ("Ein Bild: ![das Haus][]", "EIN BILD: ![DAS HAUS][das Haus]"), ("[![das Haus]](x)", "[![DAS HAUS][das Haus]](x)")])
def test_a_link_whose_words_are_a_label_keeps_its_definition(source: str, expected: str) -> None:
    text = f"{source}\n\n[das Haus]: https://haus.de\n[das *Haus*]: https://haus.de\n[h]: https://haus.de\n"
    document = open_markdown(text.encode())
    assert document.written(document.segments).decode() == text
    written = document.written(fakes.capital_segments(document.segments)).decode()
    assert written == text.replace(source, expected, 1) and tags(written) == tags(text)


def test_white_space_goes_out_of_emphasis() -> None:
    document = open_markdown(b"Ein **Wort** mehr\n")
    [(_, begin, _, end, _)] = document.segments
    assert document.written([("One", begin, " word ", end, "more")]) == b"One **word** more\n"


@pytest.mark.parametrize("page", [
    pytest.param(page, marks=[pytest.mark.slow] * (number % 3 > 0)) for number, page in enumerate(PAGES)],
    ids=lambda page: page.name)
def test_pages_of_the_manual_translated_by_themselves_are_the_same_bytes(page: Path) -> None:
    content = page.read_bytes()
    document = open_markdown(content)
    assert document.written(document.segments) == content
    assert tags(document.written(fakes.capital_segments(document.segments)).decode()) == tags(content.decode())


@pytest.mark.parametrize("content", [b"wort " * 1_000_000, b"[" * 20_000, b"a*\n" * 10_000, b"|a" * 10_000])
def test_what_parsers_take_very_long_for_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="more than 10000 characters"):
        open_markdown(content)


@pytest.mark.parametrize("address", ["<data:image/png;base64,{}>", 'data:image/png;base64,{} "Titel"'])
def test_a_definition_may_contain_an_image_of_any_size(address: str) -> None:
    text = f"Ein Bild: ![][bild1]\n\n[bild1]: {address.format('iVBORw0KGgo' * 5000)}\n\nEin Satz\n"
    document = open_markdown(text.encode())
    assert document.written(document.segments).decode() == text
    written = document.written(fakes.capital_segments(document.segments)).decode()
    assert written == text.replace("Ein Bild", "EIN BILD").replace("Ein Satz", "EIN SATZ")


EXTENSIONS = """Die Formel $x_1$ und $y_2 * z_2$ ist *gut*, kostet $5 und 10$, \\(a_b\\) und \\[x^2\\], \\[siehe da\\].

$$
- x_1
+ y_2

= 3
$$

vor ihr
$$x = 1$$
nach ihr

> \\[
> - a
> \\]

\\begin{align}
a &= b
\\end{align}

:::note
Ein Hinweis.
:::

!!! note "Titel"
    Der Text hier.

    - ein punkt

    ```py
    x = 1
    ```

> [!NOTE]
> Ein Hinweis.

Satz^[Eine Note mit *Stern* und [Link](u).] und
Wort[^1] und :white_check_mark: [[Seite]] {{ x }} {% y %} so, ~~$a~~b$~~.

[^1]: Eine Fußnote hier.
    Mit *mehr* Text.

    Und mehr.

[^2]: Noch eine.
nächste Zeile

# Titel {#id .class}

[TOC]

*[HTML]: Hyper Text

| Name | $a_1$ |
|---|---|
| Wert | $b_1 * c$ |

- [ ] Aufgabe

```
$$
```

danach $$ offen, https://x.de/<wbr>ab_c H<sub>2</sub>O Wort<sup>1</sup>

Begriff
:   Die Erklärung
"""
STAY = ["^[Eine Note mit *Stern* und [Link](u).]",
        "$x_1$", "$y_2 * z_2$", "$5", "10$", r"\(a_b\)", r"\[x^2\]", "$$x = 1$$", r"\begin", "align", "a &= b", r"\end",
        ":::note", '!!! note "Titel"', "x = 1", "```py", "[!NOTE]", "[^1]", ":white_check_mark:", "[[Seite]]",
        "{{ x }}",
        "{% y %}", "$a~~b$", "Eine Fußnote hier.", "Mit *mehr* Text.", "Und mehr.", "Noch eine.", "nächste Zeile",
        "{#id .class}", "[TOC]", "*[HTML]: Hyper Text", "$a_1$", "$b_1 * c$", "https://x.de/<wbr>ab_c",
        "H<sub>2</sub>O", "<sup>1</sup>", "x_1", "y_2", "> - a"]


def test_extensions_stay_and_the_text_between_them_is_translated() -> None:
    document = open_markdown(EXTENSIONS.encode())
    assert document.written(document.segments).decode() == EXTENSIONS
    for translate in (fakes.identity, fakes.capitals):
        found = document.written(fakes.translate_segments(document.segments, translate, "de")).decode()
        expected = EXTENSIONS
        if translate is fakes.capitals:
            stay = re.compile("|".join(map(re.escape, sorted(STAY, key=len, reverse=True))))
            expected = "".join(part if number % 2 else part.upper()
                               for number, part in enumerate(re.split(f"({stay.pattern})", EXTENSIONS)))
        assert found == expected


@pytest.mark.parametrize(("source", "translation", "links", "expected"), [
    ("Siehe **hier** bitte", "please now", [(0, 1)], "**please** now"), ("**hier**", "", None, ""),
    ("Das [da](u) ist", "this is", [(0, 0), (2, 1)], "[this](u) is"), ("~~hier~~ ja", "yes", [(1, 0)], "~~yes~~"),
    ("**a** *b* [c](d) ja", "yes", [(3, 0)], "**yes**"), ("[hier](u) ja", "", None, ""),
    ("~~eins~~ ~~zwei~~", "one", [(0, 0)], "~~one~~"), ("<b>da</b> *ja*", "", None, ""),
    ("das _wort_ ist", "这是词", None, "这*是*词"), ("**eins** **zwei**", "一二", None, "**一二**"),
    ("das **wort** ist", "这是“词”的", None, "这是“**词**”的")])
def test_no_mark_surrounds_nothing(source: str, translation: str, links: list[tuple[int, int]] | None,
                                   expected: str) -> None:
    document = open_markdown(source.encode())
    found = fakes.translate_segments(document.segments, lambda all_: [fakes.Fake(translation, links)] * len(all_), None)
    assert document.written(found).decode() == expected


@pytest.mark.parametrize(("source", "translation", "expected"), [
    ("Preis \\$50 und 9\\$ je $10", "$50 and 9$ for $10", "\\$50 and 9\\$ for \\$10"),
    ("Wort", "$x_1$ here", "\\$x\\_1\\$ here"), ("kostet $5", "costs $5", "costs $5"),
    ("ein $x_1$ da", "one $y_1$", "one $x_1$ \\$y\\_1\\$")])
def test_words_do_not_become_mathematics(source: str, translation: str, expected: str) -> None:
    document = open_markdown(source.encode())
    found = fakes.translate_segments(document.segments, lambda all_: [fakes.Fake(translation, None)] * len(all_), None)
    assert document.written(found).decode() == expected


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(["**wort**", "*wort*", "_wort_", "~~wort~~", "[wort](u)", "<b>wort</b>", "wort", "`x`",
                                 "**wort *da* so**", "[**wort**](u)"]), min_size=1, max_size=6).map(" ".join),
       st.lists(st.sampled_from(["one", "two", "“", "”", ".", "词", "é-b", " "]), max_size=6).map("".join))
@example("`x` **wort** ~~wort~~ ~~wort~~", "““")
def test_any_translation_keeps_the_structure(source: str, translation: str) -> None:
    document = open_markdown(source.encode())
    found = fakes.translate_segments(document.segments, lambda all_: [fakes.Fake(translation, None)] * len(all_), None)
    written = document.written(found).decode()
    assert not re.search(r"\[\]\(|<b></b>|(?<![*_~])(?:\*\*\*\*|~~~~|__)(?![*_~])", written)
    assert not set(re.sub(r"<[^>]*>", "", renderer.render(written))) & set("*_~[")


PIECES = st.sampled_from([
    "a", "Wort ", "wort", "*", "**", "_", "`", "``", "[", "]", "(", ")", "![", "](x)", "[a]", "<b>", "</b>", "<http://a.b>",
    "\\", "\\*", "&amp;", "&", " ", "  ", "\n", "\n\n", "- ", "1. ", "# ", "> ", "    ", "|", "\n|---|---|\n", "~~",
    "$", "$$\n", ":::note\n", "!!! note\n    ", "[^1]: ", "\\(", "\\)", "\n: ", "<wbr>", "<sup>1</sup>", "😊",
    "<!-- x -->", "[a]: /u\n", "\r\n", "\t", "---\n", "é"])


@settings(deadline=None)
@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_markdown_translated_by_itself_reads_the_same(text: str) -> None:
    document = open_markdown(text.encode())
    written = document.written(document.segments).decode()
    assert renderer.render(written).split() == renderer.render(text).split()
