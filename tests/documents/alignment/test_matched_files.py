"""Files of two folders that belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.core.errors import DataError
from towernmt.dataflow.text.language_codes import Direction
from towernmt.documents.alignment.matched_files import language_of_name, match_folders


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


def test_one_folder_can_have_both_languages(tmp_path: Path) -> None:
    both = folder(tmp_path, "a.de.txt", "a.eng.txt", "b_de.txt", "b_en.txt", "c.txt")
    assert matched(both, both, Direction("de", "en")) == {"a.de.txt": "a.eng.txt", "b_de.txt": "b_en.txt"}


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
        "text recognition (OCR). These files are not read, because their formats are not supported: "
        f"{source}/b.doc.")
    folder(tmp_path / "one", "a.txt")
    with pytest.raises(DataError, match=f"^{target} contains no documents in a supported format.*OCR"):
        match_folders(source, target, None)
    folder(tmp_path / "two", "c.txt")
    with pytest.raises(DataError, match=r"no documents with the same names: .*OCR.*b\.doc"):
        match_folders(source, target, None)


@pytest.mark.parametrize(("name", "language"), [
    ("brief.de.docx", "de"), ("brief_en-GB.txt", "en"), ("de/brief.txt", "de"), ("German/brief.txt", "de"),
    ("brief.deu.txt", "de"), ("it.txt", None), ("brief.txt", None), ("how-to.de.Hans.txt", "de")])
def test_the_end_of_a_name_is_the_language(name: str, language: str | None) -> None:
    assert language_of_name(name) == language
