"""Files of two folders that belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processor_time import processor_seconds
from towernmt.core.errors import DataError
from towernmt.dataflow.text.language_codes import Direction
from towernmt.documents.alignment import matched_files
from towernmt.documents.alignment.matched_files import MatchedFiles, code_of_name, codes_of_names, match_folders


def folder(root: Path, *names: str) -> str:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    return str(root)


def matched(source: str, target: str, languages: Direction | None = None) -> dict[str, str]:
    found = match_folders(source, target, languages)
    return {str(Path(one.source).relative_to(source)): str(Path(one.target).relative_to(target))
            for one in found.matched}


def test_names_are_equal_apart_from_languages_and_suffixes(tmp_path: Path) -> None:
    source = folder(tmp_path / "de", "brief.de.docx", "Manual_German.odt", "a/same.txt", "2019 (de-DE).md", "x.txt",
                    "x.md", "alone.txt", ".hidden/brief.txt", "picture.png")
    target = folder(tmp_path / "en", "brief.en.docx", "manual-english.docx", "a/same.txt", "2019 (en_GB).md", "x.txt",
                    "x.md", "b/same.txt")
    assert matched(source, target) == {
        "brief.de.docx": "brief.en.docx", "Manual_German.odt": "manual-english.docx", "a/same.txt": "a/same.txt",
        "2019 (de-DE).md": "2019 (en_GB).md", "x.txt": "x.txt", "x.md": "x.md"}
    found = match_folders(source, target, None)
    assert [Path(name).name for name in found.unmatched] == ["alone.txt", "same.txt"]
    assert [Path(name).name for name in found.unread] == ["picture.png"]


def test_names_that_could_belong_to_several_belong_to_none(tmp_path: Path) -> None:
    source = folder(tmp_path / "one", "a.de.txt", "b.txt")
    target = folder(tmp_path / "two", "a.en.txt", "a.fr.txt", "b.txt")
    assert matched(source, target) == {"b.txt": "b.txt"}
    assert matched(source, target, Direction("de", "en")) == {"a.de.txt": "a.en.txt", "b.txt": "b.txt"}


def unmatched(both: str, languages: Direction) -> list[str]:
    return [str(Path(name).relative_to(both)) for name in match_folders(both, both, languages).unmatched]


def test_one_folder_can_have_both_languages(tmp_path: Path) -> None:
    both = folder(tmp_path / "de", "a.de.txt", "a.eng.txt", "b_de.txt", "b_en.txt", "c.txt", "en.txt", "de.md")
    assert matched(both, both, Direction("de", "en")) == {
        "a.de.txt": "a.eng.txt", "b_de.txt": "b_en.txt", "de.md": "en.txt"}
    assert unmatched(both, Direction("de", "en")) == ["c.txt"]


def test_one_folder_can_have_a_folder_for_each_language_with_further_folders(tmp_path: Path) -> None:
    both = folder(tmp_path / "en", "de/2019/vertrag.txt", "en/2019/vertrag.txt", "de/en/kurs.txt", "en/en/kurs.txt",
                  "de/2019/allein.txt", "fr/2019/vertrag.txt", "x.txt")
    assert matched(both, both, Direction("de", "en")) == {"de/2019/vertrag.txt": "en/2019/vertrag.txt"}
    assert unmatched(both, Direction("de", "en")) == [
        "de/2019/allein.txt", "de/en/kurs.txt", "en/en/kurs.txt", "fr/2019/vertrag.txt", "x.txt"]


def test_one_folder_can_have_two_variants_of_a_language(tmp_path: Path) -> None:
    both = folder(tmp_path, "a.pt_BR.txt", "a.pt_PT.txt", "b.pt-br.md", "b.pt-pt.md", "c.pt.txt")
    assert matched(both, both, Direction("pt-br", "pt-pt")) == {
        "a.pt_BR.txt": "a.pt_PT.txt", "b.pt-br.md": "b.pt-pt.md"}
    assert unmatched(both, Direction("pt-br", "pt-pt")) == ["c.pt.txt"]


def test_equal_names_belong_together_before_those_that_differ_in_case_or_in_composed_letters(tmp_path: Path) -> None:
    source = folder(tmp_path / "one", "Brief.txt", "brief.txt", "NOTE.md", "März.txt", "A.md", "a.md")
    target = folder(tmp_path / "two", "Brief.txt", "brief.txt", "note.md", "Ma\u0308rz.txt", "A.txt", "a.txt")
    if len(list((tmp_path / "one").iterdir())) < 6:
        pytest.skip("the file system ignores case")
    assert matched(source, target) == {"Brief.txt": "Brief.txt", "brief.txt": "brief.txt", "NOTE.md": "note.md",
                                       "März.txt": "Ma\u0308rz.txt", "A.md": "A.txt", "a.md": "a.txt"}


@pytest.mark.parametrize(("one", "other", "languages"), [
    ("letter.my.txt", "letter.no.txt", None), ("letter-German.txt", "letter-English.txt", None),
    ("German letter.txt", "english Letter.txt", None), ("brief.de.docx", "brief_EN-gb.odt", None),
    ("brief.zh-Hans-CN.txt", "brief.sr_Latn.txt", None), ("DE_Vertrag.txt", "EN_Vertrag.txt", Direction("de", "en")),
    ("a.de.final.txt", "a.en-us.final.txt", Direction("de", "en"))])
def test_languages_in_names_do_not_count(tmp_path: Path, one: str, other: str, languages: Direction | None) -> None:
    assert matched(folder(tmp_path / "one", one), folder(tmp_path / "two", other), languages) == {one: other}


@pytest.mark.parametrize(("one", "other"), [
    ("my-letter.txt", "no-letter.txt"), ("My Book.txt", "No Book.txt"), ("it-is-so-far.txt", "it-is-far.txt")])
def test_words_that_are_also_codes_do_count(tmp_path: Path, one: str, other: str) -> None:
    with pytest.raises(DataError, match="no documents with the same names"):
        match_folders(folder(tmp_path / "one", one), folder(tmp_path / "two", other), None)


def test_the_time_for_many_files_is_proportional_to_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(count: int) -> float:
        names = [f"{number}.txt" for number in range(count)]
        monkeypatch.setattr(matched_files, "_files", lambda top: (Path(top, name) for name in names))
        return processor_seconds(lambda: match_folders("one", "two", None))

    # Quadratic time would be 16 times as long for 4 times the files. A busy processor may be half as fast.
    assert seconds(16_000) < 10 * seconds(4_000) + 1


def test_folders_without_common_names_are_refused(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "one", "a.txt"), folder(tmp_path / "two", "b.txt")
    with pytest.raises(DataError, match=r"no documents with the same names.*brief\.de\.docx"):
        match_folders(source, target, None)


def test_folders_of_scans_are_refused_with_the_advice_to_extract_their_text(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "one", "a.pdf", "b.doc"), folder(tmp_path / "two", "a.PNG")
    with pytest.raises(DataError) as refused:
        match_folders(source, target, None)
    assert str(refused.value) == (
        f"{source} and {target} contain no documents in a supported format, such as .docx or .txt. {source}/a.pdf, "
        f"{target}/a.PNG: PDF files and images are not read: convert them to .docx or .txt first, and scanned pages by "
        "text recognition (OCR). "
        f"{source}/b.doc: Files in the old Word format and RTF files are not read: save them as .docx first.")
    folder(tmp_path / "one", "a.txt")
    with pytest.raises(DataError, match=f"^{target} contains no documents in a supported format.*OCR"):
        match_folders(source, target, None)
    folder(tmp_path / "two", "c.txt")
    with pytest.raises(DataError, match=r"no documents with the same names: .*OCR.*b\.doc"):
        match_folders(source, target, None)


@pytest.mark.parametrize(("name", "folders", "code"), [
    ("brief.de.docx", [], "de"), ("brief_en-GB.txt", [], "en-gb"), ("brief.txt", ["de"], "de"),
    ("brief.txt", ["German"], "de"), ("brief.txt", ["2019", "german texts (de_AT)", "en"], "de-at"),
    ("brief.en.txt", ["de"], "en"), ("brief.deu.txt", [], "de"), ("it.txt", [], None), ("brief.txt", ["2019"], None),
    ("how-to.de.Hans.txt", [], "de-hans"), ("x.zh-hant-tw.txt", [], "zh-hant-tw"), ("de.brief.txt", [], None)])
def test_the_end_of_a_name_is_the_language(name: str, folders: list[str], code: str | None) -> None:
    assert code_of_name(name, folders) == code


@pytest.mark.parametrize(("source", "target", "codes"), [
    ("de/2019/x.txt", "en/2019/x.txt", ("de", "en")), ("/it/german/2019/a.txt", "/it/english/2019/a.txt", ("de", "en")),
    ("/it/2019/a.txt", "/it/2019/b.en.txt", (None, "en")), ("de/a.txt", "de/b.en.txt", ("de", "en")),
    ("a.txt", "en/2019/b.txt", (None, "en"))])
def test_the_folders_by_which_two_files_differ_name_their_languages(
        source: str, target: str, codes: tuple[str | None, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
        ) -> None:
    monkeypatch.chdir(tmp_path)
    assert codes_of_names(MatchedFiles(source, target)) == codes
