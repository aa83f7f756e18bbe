"""Addresses, accounts, topics, symbols and raised signs survive any translation of the words around them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.documents import fake_translator as fakes
from tests.processor_time import processor_seconds
from towernmt.documents.addresses import addresses_in
from towernmt.documents.emoticons import emoticons_in
from towernmt.documents.formats.html import HtmlDocument
from towernmt.documents.formats.plain import Lines
from towernmt.documents.shields import codes_in, placeholders_in, symbols_in
from towernmt.documents.source_sentences import split_segment
from towernmt.documents.translation import SplitSegments
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.lines.line_options import PLAIN
from towernmt.predict.lines.protected_sentences import restored

pytest.importorskip("sentencex")


def test_a_sentence_whose_placeholders_cannot_be_written_does_not_change_the_others() -> None:
    document = Lines("see http://a.de/b\nsee http://a.de/c\nsee http://a.de/d")

    def forced(sentences: Sequence[str], words: Sequence[Sequence[str]]) -> list[fakes.Fake | None]:
        assert sentences == ["see X1"] * 3 and words == [["X1"]] * 3
        return [None, fakes.Fake("X1 LOOK", None), None]

    split = SplitSegments(document.segments, "en")
    found = document.text(split.translated(lambda texts: [fakes.Fake("LOOK", None) for _ in texts], forced))
    assert found == "LOOK http://a.de/b\nhttp://a.de/c LOOK\nLOOK http://a.de/d"


@pytest.mark.parametrize(("text", "translation", "expected"), [
    ("Siehe https://x.de/a hier.", "See 1 here.", "See https://x.de/a here."),
    ("Siehe https://x.de/a hier.", "See 91 here.", "See https://x.de/a here."),
    ("Siehe https://x.de/a hier.", "See111 here.", "See https://x.de/a here."),
    ("Siehe zwanzig https://x.de/a.", "See 20.", "See 20 https://x.de/a."),
    ("https://x.de/a oder https://x.de/b", "2 or 1", "https://x.de/b or https://x.de/a"),
    ("https://x.de/a ist hier", "here is1", "here is https://x.de/a"),
    ("<b>Siehe</b> https://x.de/a <i>hier</i>.", "See 1 here.", "<b>See</b> https://x.de/a <i>here</i>."),
    ("Siehe 1 mal https://x.de/a.", "See 1 time.", "See 1 time https://x.de/a.")])
def test_a_number_that_a_document_does_not_have_is_the_missing_placeholder_as_in_a_line(
        text: str, translation: str, expected: str) -> None:
    document = HtmlDocument(text)
    split = SplitSegments(document.segments, None)
    links = [(index, index) for index in range(len(translation.split()))]
    assert document.text(split.translated(lambda _: [fakes.Fake(translation, links)])) == expected
    line = restored(split.sentences[0], Translation([Hypothesis(translation, 0.0)]), PLAIN)[0].text
    assert line == re.sub("<.*?>", "", expected)


def test_a_required_number_stands_for_no_placeholder() -> None:
    split = SplitSegments(Lines("Siehe https://x.de/a").segments, None)
    assert split.segments([fakes.Fake("See 1", [(0, 0)])], {"1"}) == [("See https://x.de/a 1",)]


ADDRESSES = [       # a text, and its protected spans
    ("請看https://x.de/ab這是", ["https://x.de/ab"]),
    ("请看https://x.de/这是我的网站。", ["https://x.de/"]),
    ("https://x.deは、https://y.de/abを", ["https://x.de", "https://y.de/ab"]),
    ("https://x.de를 보세요", ["https://x.de"]),
    ("看www.x.de这，邮箱a@b.de是", ["www.x.de", "a@b.de"]),
    ("https://zh.wikipedia.org/wiki/中国 ja", ["https://zh.wikipedia.org/wiki/中国"]),
    ("https://x.de/?q=日本&b=1 so", ["https://x.de/?q=日本&b=1"]),
    ("https://x.de/新闻/2020.html hier", ["https://x.de/新闻/2020.html"]),
    ("https://例え.テスト/ab und https://例え.jp/ab見る", ["https://例え.テスト/ab", "https://例え.jp/ab"]),
    ("https://münchen.de/straße?q=ü.", ["https://münchen.de/straße?q=ü"]),
    ("https://ru.wikipedia.org/wiki/Россия. Да", ["https://ru.wikipedia.org/wiki/Россия"]),
    ("https://x.de/%E4%B8%AD%E5%9B%BD这", ["https://x.de/%E4%B8%AD%E5%9B%BD"]),
    ("(siehe https://x.de/a_(b)). [https://x.de/c]", ["https://x.de/a_(b)", "https://x.de/c"]),
    ("(https://x.de/a)und", ["https://x.de/a"]),
    ("https://x.de。谢谢，https://x.de/a），“https://x.de/b”", ["https://x.de", "https://x.de/a", "https://x.de/b"]),
    ("„https://x.de/a“, **https://x.de/b**, _https://x.de/c_ ...", ["https://x.de/a", "https://x.de/b", "https://x.de/c"]),
    ("https://x.de's page", ["https://x.de"]),
    ("https://x.de/{id}?q=%s&a=1;b=2!", ["https://x.de/{id}?q=%s&a=1;b=2"]),
    ("http://127.0.0.1:80/x http://[::1]:80/ http://localhost:5000 ftp://a:b@c.de/x",
     ["http://127.0.0.1:80/x", "http://[::1]:80/", "http://localhost:5000", "ftp://a:b@c.de/x"]),
    ("https://x.de/\u200bab so", ["https://x.de/\u200bab"]),
    ("x.de/ab, github.com/a/b, example.com.", ["x.de/ab", "github.com/a/b", "example.com"]),
    ("jörg@müller.de, mailto:a@b.de, git@github.com:a/b.git",
     ["jörg@müller.de", "mailto:a@b.de", "git@github.com:a/b.git"]),
    (r"/usr/local/bin ~/x ./a/b ../x C:\Users\x src/main.c",
     ["/usr/local/bin", "~/x", "./a/b", "../x", r"C:\Users\x", "src/main.c"]),
    (r"In C:\Meine Dateien\Brief.doc und C:\Users und D:\x.", [r"C:\Meine Dateien\Brief.doc", r"C:\Users", r"D:\x"]),
    ("Open notes.txt, Straße.final.pdf: and READ.ME.PDF.", ["notes.txt", "Straße.final.pdf", "READ.ME.PDF"]),
    ("z.B. usw.und d.h. bzw./oder 3.5.2026 1.000/2.000 und/oder km/h 24/7 Haus.Da Lehrer@innen 5@3 C# a#b", []),
    ("danke @user und @user@server.social!", ["@user", "@user@server.social"]),
    ("看@user你，@小明：好", ["@user", "@小明"]),
    ("#tag, #größe! #हिन्दी #東京 は #话题#", ["#tag", "#größe", "#हिन्दी #東京", "#话题#"]),
]


@pytest.mark.parametrize(("text", "expected"), ADDRESSES, ids=[text for text, _ in ADDRESSES])
def test_addresses_of_a_text_are_found(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in addresses_in(text)] == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("IBAN DE89 3704 0044 0532 0130 00.", ["DE89 3704 0044 0532 0130 00"]),
    ("id 550e8400-e29b-41d4-a716-446655440000,", ["550e8400-e29b-41d4-a716-446655440000"]),
    ("bei 0x1F4A und 00:1A:2B:3C:4D:5E", ["0x1F4A", "00:1A:2B:3C:4D:5E"]),
    ("R2D2 und C3PO", ["R2D2"]),
    (r"Wenn $x^2 = y$, dann $\alpha$; es kostet $5 und $6.", ["$x^2 = y$", r"$\alpha$"]),
    ("Mit `git commit -m x` oder `ls`.", ["`git commit -m x`", "`ls`"]),
    ("um 2024-05-17T10:30:00Z, 2024-05-17T10:30+02:00 oder 2024-05-17", ["2024-05-17T10:30:00Z",
                                                                       "2024-05-17T10:30+02:00"]),
    ("2001:db8::1 und fe80::1/64, um 10:30:00", ["2001:db8::1", "fe80::1/64"]),
    ("get_name(), a.get() und MAX_VALUE, MyClass.getName", ["get_name()", "a.get()", "MAX_VALUE", "MyClass.getName"]),
    ("mit --dry-run=yes, --help. oder -v, E-Mail - so", ["--dry-run=yes", "--help", "-v"]),
    ("-I know. -Y tú? --Bonjour, dit-il.", []), ("gcc -O -I x, -B (-C) oder -D", ["-O", "-I", "-B", "-C", "-D"]),
    ("E=mc², x=5. und a = b", ["E=mc²", "x=5"]), ("Schüler_innen und müde.Ich, 1 -2, Tom(e)", []),
    ("4x4-Fahrzeug, B2B-Kunden, G20-Gipfel, COVID-19, X1, A320, die 1990er, Windows 11, 3-4-mal, `a' und `b'", []),
])
def test_codes_of_a_text_are_found(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in codes_in(text)] == expected


@pytest.mark.parametrize(("text", "expected"), [
    ('<b>Open</b> <a href="https://x.de">it</a> <x-y/> <0/>', ["<b>", "</b>", '<a href="https://x.de">', "</a>",
                                                              "<x-y/>", "<0/>"]),
    ("a <b and c> d <3 x<y y>z < b > <da>", []), (r"see C:\a\b.", [r"C:\a\b"])])
def test_tags_and_paths_are_placeholders(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in placeholders_in(text)] == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("👨‍👩‍👧da🇩🇪🇫🇷 👍🏽 1️⃣ eins #️⃣ ❤️‍🔥", ["👨‍👩‍👧", "🇩🇪🇫🇷", "👍🏽", "1️⃣", "#️⃣", "❤️‍🔥"]), ("♪ la ♫", ["♪", "♫"]),
    ("A® © B™ § → • ★★☆ ✓", ["®", "©", "™", "§", "→", "•", "★★☆", "✓"]), ("m² CO₂", ["²", "₂"]),
    ("20 °C, 1 # 2 * 3 € $ № 5", []), ("\u2f47本\u2f08", [])])
def test_symbols_of_a_text_are_found(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in symbols_in(text)] == expected


@pytest.mark.parametrize(("text", "expected"), [
    (":-) ;) :D =) xD <3 </3 ^^ -_- T_T o_O :'( >:( :))) :/ :*", [
        ":-)", ";)", ":D", "=)", "xD", "<3", "</3", "^^", "-_-", "T_T", "o_O", ":'(", ">:(", ":)))", ":/", ":*"]),
    ("da:-) (^_^) (>_<) \\o/ ¯\\_(ツ)_/¯ (╯°□°)╯︵ ┻━┻ (｡◕‿◕｡) ʕ•ᴥ•ʔ :smile: da", [
        ":-)", "(^_^)", "(>_<)", "\\o/", "¯\\_(ツ)_/¯", "(╯°□°)╯︵ ┻━┻", "(｡◕‿◕｡)", "ʕ•ᴥ•ʔ", ":smile:"]),
    ("(siehe S. 3:) http://x, a:b, x<30, 5 <3.5, f(x), (20 °C), (…), (Да), (ώρα), (ツアー), 10:30 XDA: D", [])])
def test_emoticons_of_a_text_are_found(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in emoticons_in(text)] == expected


HTML = [    # a text, the input of the model, and the text by a translator that writes capitals
    ("siehe https://x.de/<wbr>ab hier.", ["siehe X1 hier."], "SIEHE https://x.de/<wbr>ab HIER."),
    ('<a href="u"><span class="invisible">https://</span><span class="ellipsis">x.de/ab</span><span class="invisible">c'
     '</span></a> ist gut', ["X1 ist gut"], '<a href="u"><span class="invisible">https://</span><span class="ellipsis">'
     'x.de/ab</span><span class="invisible">c</span></a> IST GUT'),
    ("das <a>@<span>user</span></a> mit <a>#<span>tag</span></a>", ["das X1 mit X2"],
     "DAS <a>@<span>user</span></a> MIT <a>#<span>tag</span></a>"),
    ("<b>siehe https://x.de/</b>ab hier", ["siehe X1 hier"], "<b>SIEHE https://x.de/</b>ab HIER"),
    ("das https://x.de/<b>ab ist</b> gut", ["das X1 ist gut"], "DAS https://x.de/<b>ab IST</b> GUT"),
    ("<b>da https://</b>x.de/<i>ab hier</i>", ["da X1 hier"], "<b>DA https://</b>x.de/<i>ab HIER</i>"),
    ("<a>https://x.de</a>hallo", ["X1 hallo"], "<a>https://x.de</a>HALLO"),
    ("<b>https://haus</b>bau.de/x da", ["X1 da"], "<b>https://haus</b>bau.de/x DA"),
    ("<b>a@b</b>.de ist (https://x.de/<wbr>c).", ["X1 ist (X2)."], "<b>a@b</b>.de IST (https://x.de/<wbr>c)."),
    ("https://x.de/?a=1&amp;b=<b>2</b> so", ["X1 so"], "https://x.de/?a=1&amp;b=<b>2</b> SO"),
    ("ein wort<sup>1</sup> hier", ["ein wort hier"], "EIN WORT<sup>1</sup> HIER"),
    ("FOOBAR<sup>®</sup> ist da", ["FOOBAR ist da"], "FOOBAR<sup>®</sup> IST DA"),
    ("so.<sup><a href=x>[1]</a></sup> da", ["so. da"], "SO.<sup><a href=x>[1]</a></sup> DA"),
    ("wort<a href=x>[1]</a> da", ["wort da"], "WORT<a href=x>[1]</a> DA"),
    ("<sup>1</sup> eine note", ["eine note"], "<sup>1</sup> EINE NOTE"),
    ("das H<sub>2</sub>O, CO<sub>2</sub>, SO<sub>4</sub><sup>2-</sup> da", ["das X1, X2, X3 da"],
     "DAS H<sub>2</sub>O, CO<sub>2</sub>, SO<sub>4</sub><sup>2-</sup> DA"),
    ("der 1<sup>ste</sup> hund", ["der 1ste hund"], "DER 1<sup>STE</sup> HUND"),
    ("10<sup>6</sup> euro", ["10 euro"], "10<sup>6</sup> EURO"),
    ("das 😊 ist gut 😊", ["das ist gut"], "DAS 😊 IST GUT 😊"),
    ("hallo! 👨‍👩‍👧 wie geht es?🇩🇪", ["hallo!", "wie geht es?"], "HALLO! 👨‍👩‍👧 WIE GEHT ES?🇩🇪"),
    ("♪ la la ♪<br>1️⃣ da • so", ["la la da so"], "♪ LA LA ♪<br>1️⃣ DA • SO"),
    ("gut😊und H₂O auf 5 m²", ["gut und X1 auf 5 m"], "GUT😊UND H₂O AUF 5 M²"),
    ("danke @user #tag #da", ["danke X1"], "DANKE @user #tag #da"),
]


@pytest.mark.parametrize(("source", "seen", "expected"), HTML, ids=[source for source, _, _ in HTML])
def test_protected_words_and_signs_of_html(source: str, seen: list[str], expected: str) -> None:
    document = HtmlDocument(source)
    assert [sentence.text for sentence in SplitSegments(document.segments, "de").sentences] in (seen, [" ".join(seen)])
    assert document.text(fakes.translate_segments(document.segments, fakes.identity, "de")) == source
    assert document.text(fakes.translate_segments(document.segments, fakes.capitals, "de")) == expected
    kept = ["".join(part for part in expected if not part.isspace())]
    for seed in range(3):
        found = document.text(fakes.translate_segments(document.segments, fakes.permuted(seed, str.upper), "de"))
        assert sorted("".join(found.split())) == sorted(kept[0])


@pytest.mark.parametrize(("text", "seen"), [
    ("Schreiben Sie an info@x.de. Wir antworten bald.", ["Schreiben Sie an X1.", "Wir antworten bald."]),
    ("Siehe https://x.de/ab. Das Haus ist alt.", ["Siehe X1.", "Das Haus ist alt."]),
    ("Sie (siehe https://x.de) antworten. {name} ist da.", ["Sie (siehe X1) antworten.", "X1 ist da."])])
def test_a_sentence_ends_after_protected_words(text: str, seen: list[str]) -> None:
    assert [sentence.text for sentence in SplitSegments(Lines(text).segments, "de").sentences] == seen


@pytest.mark.parametrize(("source", "translation", "expected"), [
    ("请看https://x.de/ab这是", "See X1 this is", "See https://x.de/ab this is"),
    ("请看https://x.de/ab这是", "请看X1这是", "请看https://x.de/ab这是"),
    ("请看https://x.de/ab这是", "请看 X1 这是", "请看https://x.de/ab这是"),
    ("看 @user 吧", "看 X1 吧", "看 @user 吧"), ("これは#tagです。", "これはX1です。", "これは#tagです。"),
    ("Siehe https://x.de hier", "请看X1这里", "请看https://x.de这里")])
def test_addresses_beside_scripts_without_spaces(source: str, translation: str, expected: str) -> None:
    document = Lines(source)
    found = fakes.translate_segments(document.segments, lambda _: [fakes.Fake(translation, None)], None)
    assert document.text(found) == expected


@pytest.mark.parametrize("text", ["Das 😊 ist @user gut", "♪ la la ♪", "FOOBAR® da", "→ los", "gut 👍🏽 😊 ja #tag"])
def test_what_a_translator_drops_survives(text: str) -> None:
    document = Lines(text)
    other = [fakes.Fake("one two", None)]
    found = document.text(fakes.translate_segments(document.segments, lambda sentences: other * len(sentences), "de"))
    for word in text.split():
        if not word.isalpha():
            assert word.removeprefix("FOOBAR") in found


def test_symbols_are_in_the_sentences_that_readers_get() -> None:
    [sentence] = split_segment(("Das 😊 ist FOOBAR® von @user so",), None).sentences
    assert sentence.text == "Das ist FOOBAR von X1 so" and sentence.shown == "Das 😊 ist FOOBAR® von @user so"
    found = restored(sentence, Translation([Hypothesis("This is FOOBAR by X1 so", 0.0, None, None, None)]), PLAIN)
    assert sorted(found[0].text.split()) == sorted(["This", "😊", "is", "FOOBAR®", "by", "@user", "so"])


PIECES = st.sampled_from([
    "wort", " ", "https://", "x.de", "/ab", "<b>", "</b>", "<i>", "</i>", "<wbr>", "<sup>", "</sup>", "<sub>", "</sub>",
    "1", "®", "😊", "H", "@user", "#tag", ".", "(", ")", "中文", "。"])


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=20).map("".join), st.integers(0, 9))
def test_any_mixture_is_as_it_was_but_for_its_words(text: str, seed: int) -> None:
    document = HtmlDocument(text)
    if not any("\u3400" < character < "\u9fff" for character in text):
        assert document.text(fakes.translate_segments(document.segments, fakes.identity, "de")) == text
    found = fakes.translate_segments(document.segments, fakes.permuted(seed), "de")
    for before, after in zip(document.segments, found, strict=True):
        assert fakes.parents(before).keys() == fakes.parents(after).keys()


HOSTILE: list[Callable[[int], str]] = [
    lambda n: "a" * n, lambda n: "a." * n, lambda n: "/a" * n, lambda n: "@a." * n, lambda n: "#a" * n,
    lambda n: "https://x.de/" + ")" * n, lambda n: "x://" * n, lambda n: "https://x.de/" + "中" * n,
    lambda n: "https://x.de/" + "'" * n, lambda n: "\\\\a" * n, lambda n: "😊\u200d" * n, lambda n: "a₂" * n,
    lambda n: "<sup>1</sup>" * n, lambda n: "a<sub>2</sub>" * n, lambda n: "https://x.de/<wbr>ab " * n,
    lambda n: "https://x.de/" + "<wbr>a" * n, lambda n: "<b>1" * n, lambda n: "@<b>a</b>" * n, lambda n: "😊 " * n]


@pytest.mark.thorough
@pytest.mark.parametrize("text", HOSTILE)
def test_the_time_grows_with_the_length(text: Callable[[int], str]) -> None:
    def translate(n: int) -> None:
        document = HtmlDocument(text(n))
        document.text(fakes.translate_segments(document.segments, fakes.without_links, None))

    # Quadratic time would be 16 times as long for 4 times the text. A busy processor may be half as fast.
    short, long = (processor_seconds(lambda n=n: translate(n)) for n in (1_000, 4_000))
    assert long < 10 * short + 0.25


def test_random_texts_of_addresses_are_found_again() -> None:
    rng = random.Random(1)
    for _ in range(200):
        address = "https://" + ".".join("".join(rng.choices("abc-dé", k=rng.randint(1, 5))).strip("-") or "a"
                                        for _ in range(3)) + "/" + "".join(rng.choices("abc/=&%20", k=8)) + "x"
        text = f"siehe {address}, da"
        assert (6, 6 + len(address)) in list(addresses_in(text)), text
