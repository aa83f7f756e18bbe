"""`towernmt pairs`: from documents to a file of pairs and a table for reviewers, and refused arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import run
from typing import Any
from xml.sax.saxutils import escape

import pytest

from tests.documents.alignment.parallel_texts import parallel_sentences, with_changes
from tests.manual_pages import code_blocks, shell_lines
from towernmt.cli import pairs
from towernmt.cli.main import main
from towernmt.core import line_progress
from towernmt.documents.alignment import document_aligner
from towernmt.documents.alignment.document_aligner import KnownPairs
from towernmt.predict.lines.hypotheses import Hypothesis, Translation

pytest.importorskip("sentencex")

PAIRS = parallel_sentences(120)


def write(path: str, sentences: Sequence[str], a_line: int = 4) -> str:
    """Write a text with several sentences on each line."""
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("".join(" ".join(sentences[first:first + a_line]) + "\n"
                                  for first in range(0, len(sentences), a_line)))
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a document and its translation."""
    monkeypatch.chdir(tmp_path)
    texts, _ = with_changes(PAIRS)
    write("a.de.txt", texts.source)
    write("a.en.md", texts.target, a_line=1)


def rows(path: str) -> list[list[str]]:
    return [line.split("\t") for line in Path(path).read_text().splitlines()]


def rows_without_scores(path: str) -> list[tuple[str, str]]:
    return [(source, target) for source, target, _ in rows(path)]


def test_pairs_and_a_table_that_reviewers_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pairs", "a.de.txt", "a.en.md", "--output", "pairs.tsv", "--review", "review.tsv"]) == 0
    pairs, table = rows("pairs.tsv"), rows("review.tsv")
    exact = {(source, target) for source, target, _ in pairs} & set(PAIRS)
    assert len(exact) > 0.8 * len(PAIRS) and min(float(score) for *_, score in pairs) >= 0.1
    assert f"{len(pairs)} pairs with a score of at least 0.1" in capsys.readouterr().err
    assert table[0][:3] == ["keep", "score", "kind"] and sum(row[0] == "yes" for row in table[1:]) == len(pairs)
    assert {"1-1", "1-0", "0-1"} <= {row[2] for row in table[1:]}
    first = next(number for number, row in enumerate(table) if row[0] == "yes")
    table[first][0] = "no"
    Path("review.tsv").write_text("\n".join("\t".join(row) for row in table))
    assert main(["pairs", "--reviewed", "review.tsv", "--output", "kept.tsv"]) == 0
    assert rows("kept.tsv") == pairs[1:]


def test_folders_give_the_pairs_of_all_documents_that_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        part = PAIRS[number * 40:(number + 1) * 40]
        write(f"german/part{number}.de.txt", [source for source, _ in part])
        write(f"english/part{number}.en.txt", [target for _, target in part])
    Path("german/scan.pdf").write_bytes(b"%PDF-1.4")
    Path("german/notes.tex").write_text("x")
    Path("german/letter.rtf").write_text("{\\rtf1 x}")
    Path("german/part2.de.txt").write_bytes(b"")
    write("english/more.txt", ["One."])
    assert main(["pairs", "german", "english", "--output", "pairs.tsv", "--languages", "de-en"]) == 1
    assert {(source, target) for source, target, _ in rows("pairs.tsv")} <= set(PAIRS[:80])
    assert len(rows("pairs.tsv")) > 70
    errors = capsys.readouterr().err.splitlines()
    assert errors[:5] == [
        "towernmt: No counterpart was found for english/more.txt.",
        "towernmt: german/letter.rtf: Files in the old Word format and RTF files are not read: save them as .docx "
        "first.",
        "towernmt: german/scan.pdf: PDF files and images are not read: convert them to .docx or .txt first, and "
        "scanned pages by text recognition (OCR).",
        "towernmt: These files are not read, because their formats are not supported: german/notes.tex.",
        "towernmt: german/part2.de.txt: The document has no text: check that it is the right file, and that its text "
        "is not an image."]
    assert errors[-1] == "towernmt: 2 documents were left out; the pairs of the others are written."


def test_the_other_documents_of_a_folder_help_to_check_an_excerpt_of_a_book() -> None:
    """Their word translations are also those of the random orders, which then have few pairs by chance."""
    book = parallel_sentences(500, seed=2)
    excerpt = book[300:335]
    for name, sides in (("a", (PAIRS, PAIRS)), ("book", (excerpt, book))):
        for language, side, sentences in zip(("german", "english"), (0, 1), sides, strict=True):
            write(f"{language}/{name}.txt", [pair[side] for pair in sentences])
    assert main(["pairs", "german", "english", "--output", "pairs.tsv"]) == 0
    assert len(set(rows_without_scores("pairs.tsv")) & set(excerpt)) > 30


def test_a_document_without_a_counterpart_changes_the_exit_status_but_a_file_in_another_format_does_not() -> None:
    for language, side in (("german", 0), ("english", 1)):
        write(f"{language}/a.txt", [pair[side] for pair in PAIRS])
    Path("german/a.pdf").write_bytes(b"%PDF-1.4")
    command = ["pairs", "german", "english", "--output", "pairs.tsv"]
    assert main(command) == 0
    write("english/more.txt", ["One."])
    assert main(command) == 1 and len(rows("pairs.tsv")) > 50


def test_documents_of_one_folder_without_a_counterpart_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for name, side in (("de/2019", 0), ("en/2019", 1)):
        Path("all", name).mkdir(parents=True)
        write(f"all/{name}/vertrag.txt", [pair[side] for pair in PAIRS])
    write("all/de/2019/allein.txt", ["Eins."])
    assert main(["pairs", "all", "all", "--languages", "de-en", "--output", "pairs.tsv"]) == 1
    assert len(set(rows_without_scores("pairs.tsv")) & set(PAIRS)) > 50
    assert capsys.readouterr().err.splitlines()[0] == (
        "towernmt: No counterpart was found for all/de/2019/allein.txt.")


def test_variants_of_a_language_are_told_apart_by_their_regions(capsys: pytest.CaptureFixture[str]) -> None:
    for region, side in (("BR", 0), ("PT", 1)):
        write(f"x.pt_{region}.txt", [pair[side] for pair in PAIRS])
    command = ["pairs", "x.pt_BR.txt", "x.pt_PT.txt", "--output", "pairs.tsv", "--languages"]
    assert main([*command, "pt_BR-pt_PT"]) == 0
    capsys.readouterr()
    assert main([*command, "pt_PT-pt_BR"]) == 1
    assert "are pt-br-pt-pt by their names" in capsys.readouterr().err


def test_a_document_that_is_too_long_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
                                              ) -> None:
    monkeypatch.setattr(document_aligner, "MAX_CELLS", 1000)
    assert main(["pairs", "a.de.txt", "a.en.md", "--output", "pairs.tsv"]) == 1
    assert capsys.readouterr().err.startswith(
        "towernmt: a.de.txt and a.en.md: The document and its translation have ")


def test_a_table_that_a_reviewer_changed_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["pairs", "a.de.txt", "a.en.md", "--output", "pairs.tsv", "--review", "review.tsv", "--threshold"]
    assert main([*command, "0.1"]) == 0 and main([*command, "0.4"]) == 0
    changed = Path("review.tsv").read_text().replace("\nno\t", "\nyes\t", 1)
    capsys.readouterr()
    for content in (changed.encode(), b"a letter\n", b"\xff\xfe\x00"):
        Path("review.tsv").write_bytes(content)
        assert main([*command, "0.1"]) == 1
        assert capsys.readouterr().err == (
            "towernmt: --review review.tsv: this file would be replaced, but it is not as `towernmt pairs` wrote it: "
            "pass another file for the new table, or write the pairs that this one keeps with `towernmt pairs "
            "--reviewed review.tsv --output FILE`.\n")
        assert Path("review.tsv").read_bytes() == content


def test_a_table_that_a_reviewer_changes_during_the_alignment_is_not_replaced(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["pairs", "a.de.txt", "a.en.md", "--output", "pairs.tsv", "--review", "review.tsv"]
    assert main(command) == 0
    changed = Path("review.tsv").read_text().replace("\nno\t", "\nyes\t", 1)
    align = pairs.align_sentences

    def align_while_a_reviewer_works(*arguments: Any) -> Any:
        Path("review.tsv").write_text(changed)
        return align(*arguments)

    monkeypatch.setattr(pairs, "align_sentences", align_while_a_reviewer_works)
    assert main(command) == 1 and "this file would be replaced" in capsys.readouterr().err
    assert Path("review.tsv").read_text() == changed and len(rows("pairs.tsv")) > 50


def test_both_sides_of_an_xliff_file_give_pairs() -> None:
    units = "".join(f'<trans-unit id="{number}"><source>{escape(source)}</source><target>{escape(target)}</target>'
                    "</trans-unit>" for number, (source, target) in enumerate(PAIRS))
    Path("a.xlf").write_text(f'<xliff version="1.2"><file source-language="de" target-language="en"><body>{units}'
                             "</body></file></xliff>")
    assert main(["pairs", "a.xlf", "a.xlf", "--languages", "de-en", "--output", "pairs.tsv"]) == 0
    pairs = {(source, target) for source, target, _ in rows("pairs.tsv")}
    assert len(pairs & set(PAIRS)) > 0.9 * len(PAIRS)


class Model:
    """Translates sentences as a dictionary does, or not at all."""

    def __init__(self, translations: Mapping[str, str]) -> None:
        self._translations = translations

    def translate_stream(self, lines: Sequence[str], name: str) -> Iterator[Translation]:
        return (Translation([Hypothesis(self._translations.get(line, line), 0.0)]) for line in lines)


def test_a_model_translates_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "make_translator", lambda args: Model(dict(PAIRS)))
    write("b.de.txt", [source for source, _ in PAIRS[:10]])
    write("b.en.txt", [target for _, target in PAIRS[:10]])
    assert main(["pairs", "b.de.txt", "b.en.txt", "--output", "pairs.tsv", "--model", "runs/x", "--threshold", "0.5"
                 ]) == 0
    assert {(source, target) for source, target, _ in rows("pairs.tsv")} == set(PAIRS[:10])


def test_each_long_stage_shows_its_progress(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(line_progress, "report_interval", lambda terminal: 0.0)
    monkeypatch.setattr(pairs, "make_translator", lambda args: Model({}))
    Path("known.tsv").write_text("".join(f"{source}\t{target}\t0.9\n" for source, target in PAIRS))
    write("b.de.txt", [source for source, _ in PAIRS[:50]])
    write("b.en.txt", [target for _, target in parallel_sentences(50, seed=7)])
    main(["pairs", "b.de.txt", "b.en.txt", "--output", "pairs.tsv", "--known", "known.tsv", "--model", "runs/x"])
    reports = [line.rpartition(": ") for line in capsys.readouterr().err.splitlines() if "/s" in line]
    last = {stage: report.split(", ")[0] for stage, _, report in reports}
    stages = ["dividing into words", "learning word translations", "aligning by lengths", "aligning by words"]
    assert {"reading known pairs", "reading documents", "translating", *stages, *(
        f"checking b.de.txt and b.en.txt: {stage}" for stage in stages)} == set(last)
    assert (last.pop("reading known pairs"), last.pop("reading documents")) == ("120 lines", "100 sentences")
    assert all(re.fullmatch(r"(\d+) of \1 (sentences|pairs)", report) for report in last.values())


def test_known_pairs_help_short_documents(capsys: pytest.CaptureFixture[str]) -> None:
    Path("known.tsv").write_text("".join(f"{source}\t{target}\t0.9\n" for source, target in PAIRS[20:]))
    write("b.de.txt", [source for source, _ in PAIRS[:10]])
    write("b.en.txt", [target for _, target in PAIRS[:10]])
    command = ["pairs", "b.de.txt", "b.en.txt", "--output", "pairs.tsv", "--threshold", "0.3"]
    assert main([*command, "--known", "known.tsv"]) == 0
    assert {(source, target) for source, target, _ in rows("pairs.tsv")} == set(PAIRS[:10])
    [summary] = capsys.readouterr().err.splitlines()      # no report of progress, since the command is quick
    assert summary.endswith("which are few to judge by: check them, or pass --known or --model")


def test_known_pairs_are_prepared_data_or_a_list_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    known = []

    def align(documents: Any, known_pairs: KnownPairs, *others: Any) -> Any:
        known.append(list(known_pairs.pairs))
        return document_aligner.align_sentences(documents, known_pairs, *others)

    monkeypatch.setattr(pairs, "align_sentences", align)
    texts = [("das haus", "the house"), ("ein hund", "a dog"), ("eine katze", "a cat")]
    Path("a.tsv").write_text("das|DET haus|NOUN\tthe house\n")
    Path("b.tsv").write_text("".join(f"{source.replace(' ', '|X ')}|Y\t{target}\n" for source, target in texts[1:]))
    Path("corpora.yaml").write_text("sources:\n- {uri: a.tsv, weight: 9, tag: <a|X>}\n- b.tsv\nsource_factors: 1\n")
    Path("all.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in texts))
    assert main(["prepare", "--source", "all.tsv", "--vocab-kind", "word", "--output", "data"]) == 0
    command = ["pairs", "a.de.txt", "a.en.md", "--output", "pairs.tsv", "--known"]
    for locations in (["corpora.yaml"], ["data"], ["all.tsv"], ["all.tsv", "data"]):
        assert main([*command, *locations]) == 0
    assert [sorted(each) for each in known] == [sorted(texts)] * 3 + [sorted(texts * 2)]


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["a.de.txt", "missing.txt"], "missing.txt does not exist: pass a document or a folder."),
    (["a.de.txt", "a.de.txt"], "a.de.txt and a.de.txt are the same file: pass a document and its translation."),
    (["a.de.txt", "copy.txt"], "a.de.txt and copy.txt have the same text: pass a document and its translation, "
                                 "or --no-text-check if most of its sentences stay as they are."),
    (["a.de.txt", "sub"], "a.de.txt and sub: pass two documents or two folders."),
    (["sub", "sub"], "sub and sub are the same folder: pass --languages, such as --languages de-en, so that the names "
                     "of the files show their language."),
    (["a.xlf", "a.xlf"], "a.xlf: The file has several languages: pass --languages, such as --languages de-en."),
    (["a b.tmx", "a b.tmx", "--languages", "de-en"],
     "a b.tmx already contains sentence pairs: pass it to `towernmt prepare --source 'a b.tmx?source_language=de&"
     "target_language=en'`."),
    (["a.po", "a.po"], "a.po already contains sentence pairs: pass it to `towernmt prepare --source a.po`."),
    (["a.de.txt", "scan.pdf"], "scan.pdf: PDF files and images are not read: convert them to .docx or .txt first, and "
                               "scanned pages by text recognition (OCR)."),
    (["empty.txt", "a.en.md"], "empty.txt: The document has no text: check that it is the right file, and that its "
                               "text is not an image."),
    (["a.de.txt", "a.en.md", "--languages", "en-de"],
     "a.de.txt and a.en.md are de-en by their names, but --languages en-de is specified: exchange the paths, or pass "
     "--languages de-en."),
    (["en.txt", "de.txt", "--languages", "de-en"],
     "en.txt and de.txt are en-de by their names, but --languages de-en is specified: exchange the paths, or pass "
     "--languages en-de."),
    (["a.de.txt"], "Pass a document and its translation, two folders, or a table as --reviewed."),
    (["a.de.txt", "--reviewed", "a.en.md"],
     "Pass a document and its translation, two folders, or a table as --reviewed."),
    (["a.de.txt", "a.en.md", "--threshold", "2"], "--threshold 2.0: pass a number from 0 to 1."),
    (["--reviewed", "a.de.txt", "--review", "r.tsv"],
     "--reviewed only writes the kept pairs of a table: leave out --review."),
    (["--reviewed", "a.de.txt", "--threshold", "0.1", "--by-line", "--languages", "de-en", "--no-text-check", "--known",
      "a.tsv", "--model", "runs/x", "--beam", "3", "--cpu", "--max-source-length", "9"],
     "--reviewed only writes the kept pairs of a table: leave out --languages, --threshold, --by-line, --known, "
     "--no-text-check, --model, --max-source-length, --beam, --cpu."),
    (["a.de.txt", "a.en.md", "--beam", "3", "--engine", "ctranslate2"],
     "--engine, --beam: these options are about a model: pass --model, too, or leave them out."),
    (["a.de.txt", "a.en.md", "--known", "missing.tsv"], "missing.tsv: the file does not exist. Check the path."),
    (["--reviewed", "a.de.txt"], "a.de.txt line 1: the columns keep, source, target are missing: pass a table that "
                                 "`towernmt pairs --review` wrote."),
])
def test_each_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    for copy, name in (("copy.txt", "a.de.txt"), ("de.txt", "a.de.txt"), ("en.txt", "a.en.md")):
        Path(copy).write_bytes(Path(name).read_bytes())
    Path("scan.pdf").write_bytes(b"%PDF-1.4\n%\xe2\xe3")
    Path("empty.txt").write_bytes(b"\n")
    for name in ("a.xlf", "a b.tmx", "a.po"):
        Path(name).touch()
    Path("sub").mkdir()
    assert main(["pairs", *arguments, "--output", "pairs.tsv"]) == 1
    assert capsys.readouterr().err == f"towernmt: {sentence}\n"
    assert not Path("pairs.tsv").exists()


def test_folders_without_a_document_that_can_be_read_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for language in ("german", "english"):
        write(f"{language}/a.txt", [])
    assert main(["pairs", "german", "english", "--output", "pairs.tsv"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith("towernmt: german/a.txt: The document has no text")
    assert errors[1:] == ["towernmt: german and english have no documents from which pairs can be made; the lines "
                          "above name the reason for each."]


def test_documents_that_are_no_translations_of_each_other_are_refused_but_not_without_the_check(
        capsys: pytest.CaptureFixture[str]) -> None:
    write("other.txt", [target for _, target in parallel_sentences(100, seed=5)])
    assert main(["pairs", "a.de.txt", "other.txt", "--output", "pairs.tsv"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("towernmt: a.de.txt and other.txt are probably no translations of each other: ")
    assert error.endswith("Pass documents that belong together, or --no-text-check if they do.\n")
    assert error.count("\n") == 1 and not Path("pairs.tsv").exists()
    assert main(["pairs", "a.de.txt", "other.txt", "--output", "pairs.tsv", "--no-text-check"]) == 0
    assert Path("pairs.tsv").exists() and "no translations" not in capsys.readouterr().err


def test_the_tutorial_of_the_manual() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "sentence-pairs.md").read_text(encoding="utf-8")
    tutorial = page.partition("## Tutorial")[2].partition("\n## ")[0]
    for name, text in re.findall(r"[Ii]n `([\w.]+)`:\n\n```\w+\n(.*?)^```", tutorial, re.M | re.S):
        Path(name).write_text(text, encoding="utf-8")
    for line in shell_lines(tutorial):
        program, *arguments = shlex.split(line)
        assert (main(arguments) if program == "towernmt" else run([program, *arguments]).returncode) == 0, line
    expected, = code_blocks(tutorial, "tsv")
    assert ["\t".join(row[:2]) for row in rows("pairs.tsv")] == expected.splitlines()
