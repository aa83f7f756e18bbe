"""`towernmt translate --document`: the outputs of documents, and refused arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from towernmt.cli import translate
from towernmt.cli.main import make_parser
from towernmt.core.errors import DataError, SettingsError
from towernmt.predict.lines.hypotheses import Hypothesis, Translation
from towernmt.predict.lines.line_options import LineOptions

pytest.importorskip("sentencex")


class Capitals:
    """A translator that returns the text in capitals."""

    def translate_stream(self, lines: Any, name: str, options: Any = None) -> Any:
        return (Translation([Hypothesis(line.upper(), 0.0)]) for line in lines)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs `towernmt translate` in a folder with some files."""
    options_of_translators: list[dict[str, Any]] = []

    def make(args: Any, **options: Any) -> Capitals:
        options_of_translators.append(options)
        return Capitals()

    monkeypatch.setattr(translate, "make_translator", make)
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("eins\n")
    Path("b.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\n<i>zwei</i> drei\n")
    Path("c.pdf").write_text("x")
    Path("d.docx").write_text("x")

    def translated(*arguments: str) -> list[dict[str, Any]]:
        parser, _ = make_parser(["translate"])
        assert translate.run_translate(parser.parse_args(["translate", "--model", "runs/x", *arguments])) == 0
        return options_of_translators

    return translated


def test_a_document_goes_to_its_output(run: Any, capsys: Any) -> None:
    options_of_translators = run("--document", "a.txt", "--output", "b.txt")
    assert Path("b.txt").read_text() == "EINS\n" and not options_of_translators[0]["attention"]
    assert "a.txt: 1 sentences to b.txt" in capsys.readouterr().err


def test_several_documents_are_written_to_a_folder_or_to_derived_names(run: Any) -> None:
    options_of_translators = run("--document", "a.txt", "b.srt", "--output", "out/")
    assert Path("out/a.txt").read_text() == "EINS\n" and options_of_translators[0]["attention"]
    assert Path("out/b.srt").read_text().endswith("<i>ZWEI</i> DREI\n")
    run("--document", "a.txt", "b.srt", "--output", "en-{name}")
    assert Path("en-b.srt").read_text() == Path("out/b.srt").read_text()


def test_word_alignments_place_symbols_in_a_document_without_marks(run: Any) -> None:
    Path("heart.txt").write_text("Anna mag Katzen ❤ sehr\n")
    options_of_translators = run("--document", "heart.txt", "--output", "x.txt")
    assert options_of_translators[0]["attention"]


def test_a_model_without_attention_translates_documents_with_marks(run: Any) -> None:
    Path("mute").mkdir()
    Path("mute/settings.yaml").write_text(
        "architecture: seq2seq\nmodel: {attention: none, source_vocab_size: 9, target_vocab_size: 9}\n")
    options_of_translators = run("--model", "mute", "--document", "b.srt", "--output", "c.srt")
    assert not options_of_translators[0]["attention"] and Path("c.srt").read_text().endswith("<i>ZWEI</i> DREI\n")


@pytest.mark.parametrize(("arguments", "expected"), [
    ("", "SIEHE https://x.de ODER ACME\n"), ("--protect Ac\\w+", "SIEHE https://x.de ODER Acme\n"),
    ("--protection off", "SIEHE HTTPS://X.DE ODER ACME\n"),
    ("--protection off --protect Ac\\w+", "SIEHE HTTPS://X.DE ODER Acme\n")])
def test_addresses_and_words_of_patterns_are_protected(run: Any, arguments: str, expected: str) -> None:
    Path("x.txt").write_text("siehe https://x.de oder Acme\n")
    run("--document", "x.txt", "--output", "y.txt", *arguments.split())
    assert Path("y.txt").read_text() == expected


def test_a_placeholder_that_the_vocabulary_cannot_write_does_not_change_other_sentences(
        run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(Capitals):
        """Loses placeholders that are not required, and cannot write `X2`."""

        def check(self, options: LineOptions) -> None:
            if "X2" in options.constraints:
                raise SettingsError("X2 is unknown")

        def translate_stream(self, lines: Any, name: str, options: Any = None) -> Any:
            for line, given in zip(lines, options or [LineOptions()] * len(lines), strict=True):
                self.check(given)
                words = (word for word in line.upper().split() if not word.startswith("X") or word in given.constraints)
                yield Translation([Hypothesis(" ".join(reversed(list(words))), 0.0)])

    monkeypatch.setattr(translate, "make_translator", lambda args, **options: Forgetful())
    Path("x.txt").write_text("x.de/a siehe und x.de/b\n\nsiehe x.de/c hier\n")
    run("--document", "x.txt", "--output", "y.txt")
    assert Path("y.txt").read_text().splitlines()[-1] == "HIER x.de/c SIEHE"


@pytest.mark.parametrize(("arguments", "error", "sentence"), [
    ("--document a.txt", SettingsError, "needs --output"),
    ("--document a.txt --output a.txt", DataError, "same file as --document a.txt"),
    ("--document a.txt b.srt --output x.txt", SettingsError, "for 2 documents, pass a directory"),
    ("--document a.txt ./a.txt --output out/", SettingsError, "both be written to out/a.txt"),
    ("--document a.txt --output a.srt", SettingsError, "keeps its format"),
    ("--document a.txt --output s3://bucket/a.txt", SettingsError, "s3://bucket/a.txt: .* pass a path"),
    ("--document a.txt --output b.txt --n-best 2", SettingsError, "--n-best cannot be used with"),
    ("--document a.txt --output b.txt --alignment-threshold 0.5", SettingsError, "--alignment-threshold cannot"),
    ("--document a.txt --output b.txt --plot-tokens", SettingsError, "--plot-tokens cannot be used with"),
    ("--document a.txt --output b.txt --json", SettingsError, "--json cannot be used with"),
    ("--document a.txt --output b.txt --language German", SettingsError, "--language German"),
    ("--document a.txt --output b.txt --constraints a.txt", SettingsError, "--constraints a.txt has one line per"),
    ("--input a.txt --language de", SettingsError, "--language needs --document"),
    ("--document no.txt --output b.txt", DataError, "no.txt: cannot read it"),
    ("--document c.pdf --output b.pdf", DataError, "c.pdf: PDF files and images are not read: convert"),
    ("--document d.docx --output b.docx", DataError, "d.docx: The file is not a valid .docx")])
def test_impossible_options_are_refused_before_anything_is_loaded(run: Any, arguments: str, error: type,
                                                                  sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        run(*arguments.split())
    assert sorted(path.name for path in Path().iterdir() if path.is_file()) == ["a.txt", "b.srt", "c.pdf", "d.docx"]
