"""The sentences of files of all formats, and files that have none."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from towernmt.core.errors import DataError
from towernmt.documents.alignment.document_sentences import READABLE_SUFFIXES, document_sentences

pytest.importorskip("sentencex")

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
EXPECTED = ["Das ist Dr. Maier.", "Er kommt aus Ulm."]


def archive(members: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return made.getvalue()


FILES: dict[str, str | bytes] = {
    ".txt": "Das ist Dr. Maier. Er kommt aus Ulm.\n\n* * *\n",
    ".md": "# Das ist **Dr. Maier.**\n\n    code\n\nEr kommt aus `Ulm`.\n",
    ".html": "<style>p {}</style><p>Das ist <b>Dr.</b> Maier. Er kommt aus Ulm.</p>",
    ".srt": "1\n00:00:01,000 --> 00:00:02,000\nDas ist\nDr. Maier.\n\n"
            "2\n00:00:02,000 --> 00:00:03,000\n<i>Er kommt aus Ulm.</i>\n",
    ".po": 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "one"\nmsgstr "Das ist Dr. '
           'Maier."\n\n'
           '#, fuzzy\nmsgid "two"\nmsgstr "Falsch."\n\nmsgid "three"\nmsgstr "Er kommt "\n"aus Ulm."\n',
    ".pot": 'msgid "Das ist Dr. Maier."\nmsgstr ""\n\nmsgid "Er kommt aus Ulm."\nmsgstr ""\n',
    ".docx": archive({
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override '
                               'PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
                               'officedocument.wordprocessingml.document.main+xml"/></Types>',
        "word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body><w:p><w:r><w:t>Das ist Dr. Maier. Er kommt</w:t>'
                             '</w:r><w:r><w:t xml:space="preserve"> aus Ulm.</w:t></w:r></w:p></w:body></w:document>'}),
    ".odt": archive({
        "mimetype": "application/vnd.oasis.opendocument.text",
        "content.xml": f'<office:document-content xmlns:office="{OFFICE}" xmlns:text="{TEXT}"><office:body>'
                       '<office:text><text:p>Das ist <text:span>Dr. Maier.</text:span></text:p>'
                       '<text:p>Er kommt aus Ulm.</text:p></office:text></office:body></office:document-content>'}),
    ".tmx": '<tmx version="1.4"><body><tu><tuv xml:lang="en"><seg>This is Dr Maier.</seg></tuv><tuv xml:lang="de-AT">'
            '<seg>Das ist <ph>{1}</ph>Dr. Maier.</seg></tuv></tu><tu><tuv xml:lang="de"><seg>Er kommt aus Ulm.</seg>'
            '</tuv></tu></body></tmx>',
    ".xlf": '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" '
            'target-language="de-DE"><body><trans-unit id="1"><source>This is Dr Maier.</source><target>Das ist <g '
            'id="1">Dr. Maier</g>.<ph id="2">&lt;br/></ph></target><alt-trans><target>Falsch.</target></alt-trans>'
            '</trans-unit><trans-unit id="2"><source>He is from Ulm.</source><target>Er kommt aus Ulm.</target>'
            '</trans-unit></body></file></xliff>',
    ".xliff": '<xliff version="2.0" srcLang="de" trgLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file '
              'id="f"><unit id="1"><segment><source>Das ist <pc id="1">Dr. Maier</pc>.</source></segment><segment>'
              '<source>Er kommt aus Ulm.</source><target>He is from Ulm.</target></segment></unit></file></xliff>'}


@pytest.mark.parametrize("suffix", FILES)
def test_each_format_has_its_sentences(tmp_path: Path, suffix: str) -> None:
    content = FILES[suffix]
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert suffix in READABLE_SUFFIXES
    assert document_sentences(str(path), "de") == EXPECTED


def test_a_template_has_the_plurals_that_a_catalogue_translates(tmp_path: Path) -> None:
    entry = 'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "{}"\nmsgstr[1] "{}"\n\nmsgid "Open"\nmsgstr "{}"\n'
    for name, texts in (("a.pot", ("", "", "")), ("de.po", ("%d Datei", "%d Dateien", "Öffnen"))):
        (tmp_path / name).write_text(entry.format(*texts), encoding="utf-8")
    assert document_sentences(str(tmp_path / "a.pot"), "en") == ["%d file", "%d files", "Open"]
    assert document_sentences(str(tmp_path / "de.po"), "de") == ["%d Datei", "%d Dateien", "Öffnen"]


def test_lines_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("Das ist gut. Sehr gut.\n12\n\nNein!\u2028Doch!\n- Ein\tPunkt\n")
    assert document_sentences(str(path), None, by_line=True) == [
        "Das ist gut. Sehr gut.", "Nein! Doch!", "- Ein Punkt"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_lines_of_a_wrapped_text_stay_lines(tmp_path: Path, encoding: str) -> None:
    lines = ["Das ist ein Absatz, der nach ungefähr siebzig Zeichen umgebrochen wurde,",
             "wie es viele Programme tun. Er hat mehrere Zeilen, von denen keine", "länger ist."]
    (tmp_path / "lines.LOG").write_text("\r\n".join(lines), encoding=encoding)
    assert document_sentences(str(tmp_path / "lines.LOG"), "de", by_line=True) == lines
    assert len(document_sentences(str(tmp_path / "lines.LOG"), "de")) == 2


def test_line_breaks_and_images_separate_words(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>Ein Satz.<br>Noch einer und <b>fett</b>er<img src='a'>Text<br>.</p>")
    assert document_sentences(str(tmp_path / "page.html"), "de") == ["Ein Satz.", "Noch einer und fetter Text."]


@pytest.mark.parametrize("code", ['<x id="1" ctype="lb"/>', '<ph id="1" ctype="lb">{br}</ph>',
                                  '<ph id="1">&lt;br/></ph>', '<x id="1" equiv-text="&lt;br/>"/>',
                                  '<ph id="1" type="fmt" subType="xlf:lb"/>',
                                  '<ph id="1" equiv="LINE_BREAK" disp="&lt;br/>"/>'])
def test_line_breaks_in_xliff_separate_words(code: str, tmp_path: Path) -> None:
    path = tmp_path / "a.xlf"
    path.write_text('<xliff><file source-language="de"><trans-unit><source>Eine Zeile.' + code + 'Noch <x id="2"/>ein'
                    '<ph id="3">&lt;i></ph>e.<!-- <br> --></source></trans-unit></file></xliff>')
    assert document_sentences(str(path), "de") == ["Eine Zeile.", "Noch eine."]


def test_marked_sentences_in_xliff_are_separate(tmp_path: Path) -> None:
    path = tmp_path / "a.xlf"
    path.write_text('<xliff><file source-language="de"><trans-unit><source><mrk mtype="seg" mid="1">Ein Satz.</mrk>'
                    '<mrk mtype="seg" mid="2">Noch <mrk mtype="term">ein</mrk>er.</mrk></source></trans-unit></file>'
                    "</xliff>")
    assert document_sentences(str(path), "de") == ["Ein Satz.", "Noch einer."]


@pytest.mark.parametrize("unit", ['<trans-unit><source>Nein.</source><target state="{}">Nope.</target></trans-unit>',
                                  '<segment state="{}"><source>Nein.</source><target>Nope.</target></segment>'])
@pytest.mark.parametrize(("state", "is_read"), [
    ("new", False), ("needs-translation", False), ("initial", False), ("translated", True), ("final", True),
    ("needs-review-translation", True), ("", True)])
def test_a_target_in_xliff_is_not_read_before_it_is_translated(unit: str, state: str, is_read: bool,
                                                               tmp_path: Path) -> None:
    path = tmp_path / "a.xlf"
    path.write_text('<xliff><file source-language="de" target-language="en"><trans-unit><source>Ja.</source><target>'
                    f"Yes.</target></trans-unit>{unit.format(state)}</file></xliff>")
    assert document_sentences(str(path), "de") == ["Ja.", "Nein."]
    assert document_sentences(str(path), "en") == ["Yes.", *["Nope."] * is_read]


def test_a_paragraph_of_another_format_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>Das ist ein Satz,\nder umgebrochen wurde.</p><p>Ende.</p>")
    assert document_sentences(str(tmp_path / "page.html"), "de", by_line=True) == [
        "Das ist ein Satz, der umgebrochen wurde.", "Ende."]


@pytest.mark.parametrize(("codes", "language", "text"), [
    (("pt-PT", "pt-BR"), "pt-br", "two"), (("pt-BR", "pt_PT"), "pt-br", "one"), (("pt-BR", "pt"), "pt-pt", "two"),
    (("en", "zh-CN"), "zh-hans", "two"), (("en-US", "en-GB"), "en-gb", "two"), (("deu", "en"), "de-at", "one"),
    (("pt-PT", "pt-BR"), "pt", "which both match pt"), (("zh-CN", "zh-TW"), "zh-hans", "zh-CN and zh-TW, which both"),
    (("de", "de"), "de", "which both match de")])
def test_the_side_of_an_xliff_file_has_the_nearest_variant_of_the_language(
        codes: tuple[str, str], language: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.xlf"
    path.write_text(f'<xliff><file source-language="{codes[0]}" target-language="{codes[1]}"><trans-unit>'
                    "<source>one</source><target>two</target></trans-unit></file></xliff>")
    if text in ("one", "two"):
        assert document_sentences(str(path), language) == [text]
    else:
        with pytest.raises(DataError, match=f"{text}.*pass their exact codes"):
            document_sentences(str(path), language)


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("scan.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "PDF files and images are not read"),
    ("scan.docx", b"%PDF-1.7\n", "PDF files and images are not read"),
    ("scan.JPG", b"\xff\xd8\xff", r"text recognition \(OCR\)"),
    ("letter.docx", b"PK\x03\x04 damaged", "letter.docx: "),
    ("letter.doc", b"\xd0\xcf\x11\xe0", r"letter\.doc: Files in the old Word format .*save them as \.docx"),
    ("letter.rtf", b"{\\rtf1 x}", r"RTF files are not read: save them as \.docx"),
    ("letter.tex", b"text", r"Files with the suffix \.tex are not read: .*\.docx"),
    ("LICENSE", b"text", "Files without a suffix are not read"),
    ("empty.txt", b"", "has no text"),
    ("numbers.txt", b"1\n2\n3\n", "has no text"),
    ("latin.txt", "Grüße\n".encode("latin-1"), "not encoded as UTF-8"),
    ("empty.po", b'msgid ""\nmsgstr ""\n', "has no text"),
    ("memory.tmx", b'<tmx><body><tu><tuv xml:lang="fr"><seg>Oui</seg></tuv></tu></body></tmx>',
     r"No unit has a text in the language de \(the file has fr\)"),
    ("file.xlf", b'<xliff><file source-language="fr" target-language="es"/></xliff>', r"\(it has es, fr\)"),
    ("file.xlf", b"<html/>", "begins with <html> instead of <xliff>"),
    ("file.xlf", b"<xliff>", "is not XML"),
    ("bomb.xlf", b'<!DOCTYPE x [<!ENTITY a "aaaa">]><xliff><file source-language="de"><body><trans-unit><source>&a;'
                 b"</source></trans-unit></body></file></xliff>", "the entity 'a', and entities are not expanded"),
    ("dash.xlf", b'<!DOCTYPE xliff PUBLIC "-//XLIFF//DTD XLIFF//EN" "xliff.dtd"><xliff><file source-language="de">'
                 b"<trans-unit><source>Von A&dash;B.</source></trans-unit></file></xliff>", "the entity 'dash'"),
    ("memory.tmx", b'<!DOCTYPE tmx [<!ENTITY dash "-">]><tmx/>', "declares the entity 'dash'"),
])
def test_files_without_sentences_are_refused_in_one_sentence(tmp_path: Path, name: str, content: bytes,
                                                             sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence) as refused:
        document_sentences(str(tmp_path / name), "de")
    assert name in str(refused.value) and "\n" not in str(refused.value)


def test_files_of_several_languages_need_the_language(tmp_path: Path) -> None:
    (tmp_path / "memory.tmx").write_text("<tmx><body/></tmx>")
    with pytest.raises(DataError, match="pass --languages"):
        document_sentences(str(tmp_path / "memory.tmx"), None)
    with pytest.raises(DataError, match="cannot read it"):
        document_sentences(str(tmp_path / "missing.txt"), None)
