"""`towernmt translate` and `towernmt evaluate`, with a translator that reverses words."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.waiting import PATIENCE
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.cli import evaluate, translate, translator_options
from towernmt.cli.commands import function_of
from towernmt.cli.request_options import options_of_all_lines
from towernmt.cli.translation_output import task_of
from towernmt.core.errors import DataError, SettingsError
from towernmt.core.standard_streams import BROKEN_PIPE
from towernmt.dataflow.vocabulary.base import SPECIAL_PIECES
from towernmt.dataflow.vocabulary.word_vocabulary import WordVocabulary
from towernmt.predict.line_translator import LineTranslator
from towernmt.predict.lines.faults import RETRY_ADVICE
from towernmt.predict.lines.hypotheses import Hypothesis, SearchOutput, Translation
from towernmt.predict.lines.line_options import LineOptions, line_requests
from towernmt.predict.lines.resumable import LineOutput
from towernmt.predict.minimum_bayes_risk import MinimumBayesRisk
from towernmt.predict.search.search_settings import (
    EnsembleSettings,
    SearchSettings,
    SpecialLineSettings,
    StreamSettings,
)


class Reverser:
    """A fake `Translator`: the best translation is the reversed line, the second is empty."""

    checkpoint, engine = "runs/x/best/step-1/model", "graph"
    target_vocabulary = None
    search = SearchSettings()
    asked: list[LineOptions] = []

    def translate_stream(self, lines: Iterable[str | bytes], name: str = "input", options: Any = None,
                         first: int = 1) -> Iterator[list[Hypothesis]]:
        for request in line_requests(lines, name, options=options):
            self.asked.append(request.options)
            yield Translation([Hypothesis(" ".join(reversed(request.text.split())), -0.5), Hypothesis("", -2.0)])

    def translate(self, lines: list[str]) -> list[str]:
        return [hypotheses[0].text for hypotheses in self.translate_stream(lines)]


class Stdin:
    """Standard input from bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)

    def isatty(self) -> bool:
        return False


def parse(module: Any, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    function_of(module.__name__.split(".")[-1], "add_{}_arguments")(parser)
    return parser.parse_args(list(arguments))


@pytest.fixture
def run_translate(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    def run(content: bytes, *arguments: str) -> bytes:
        monkeypatch.setattr(translate, "make_translator", lambda args, **details: Reverser())
        monkeypatch.setattr(sys, "stdin", Stdin(content))
        assert translate.run_translate(parse(translate, "--model", "runs/x", *arguments)) == 0
        return capfdbinary.readouterr().out
    return run


def test_lines_go_from_stdin_to_stdout_one_for_one(run_translate: Any) -> None:
    assert run_translate("a ä\n\nc d\r\ne f".encode()) == "ä a\n\nd c\nf e\n".encode()


def test_lines_go_from_file_to_file(run_translate: Any, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a b\nc d\n")
    assert run_translate(b"", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")) == b""
    assert (tmp_path / "out").read_bytes() == b"b a\nd c\n"


def test_the_folders_of_outputs_are_made(run_translate: Any, tmp_path: Path) -> None:
    run_translate(b"a b\n", "--output", f"{tmp_path}/new/folder/out", "--alignments", f"{tmp_path}/other/links")
    assert (tmp_path / "new/folder/out").read_bytes() == b"b a\n"
    assert (tmp_path / "other/links").read_bytes() == b"\n"


def test_n_best_lines_carry_line_number_text_and_score(run_translate: Any) -> None:
    assert run_translate(b"a b\nc\n", "--n-best", "2").decode().splitlines() == [
        "0 ||| b a ||| -0.5000", "0 |||  ||| -2.0000", "1 ||| c ||| -0.5000", "1 |||  ||| -2.0000"]


def test_scores_stand_before_the_text(run_translate: Any) -> None:
    assert run_translate(b"a b\n", "--scores") == b"-0.5000\tb a\n"
    with pytest.raises(SettingsError, match="leave out --scores"):
        run_translate(b"", "--scores", "--n-best", "2")


def test_objects_go_in_and_out_one_a_line(run_translate: Any) -> None:
    given = [{"text": "a ä", "id": [7]}, {"text": "", "sentence_id": "x", "target_prefix": "c d", "avoid": ["e"]}]
    found = run_translate("".join(json.dumps(line) + "\n" for line in given).encode(), "--json", "--n-best=2").decode()
    both = {"translations": ["ä a", ""], "scores": [-0.5, -2.0]}
    assert [json.loads(line) for line in found.splitlines()] == [
        {"sentence_id": 1, "id": [7], "translation": "ä a", "score": -0.5, **both},
        {"sentence_id": "x", "translation": "", "score": -0.5, **both, "translations": ["", ""]}]
    assert "ä" in found
    assert Reverser.asked[-2:] == [LineOptions(), LineOptions(prefix="c d", avoid=["e"])]


@pytest.mark.parametrize("options", [{"n_best": 2}, {"search": {"n_best": 2}}], ids=["option", "setting"])
def test_an_object_may_request_several_translations(run_translate: Any, options: dict[str, Any]) -> None:
    found = run_translate(json.dumps({"text": "a b", **options}).encode(), "--json")
    assert json.loads(found)["translations"] == ["b a", ""]


@pytest.mark.parametrize("to_file", [False, True])
def test_an_id_with_half_a_character_is_repeated(run_translate: Any, tmp_path: Path, to_file: bool) -> None:
    content = b'{"text": "a \\ud83d", "id": "\\ud83d \xc3\xa4"}\n{"text": "b"}\n'
    output = tmp_path / "out"
    written = run_translate(content, "--json", *(["--output", str(output)] if to_file else []))
    written = output.read_bytes() if to_file else written
    assert b'"id": "\\ud83d \xc3\xa4"' in written
    first, second = map(json.loads, written.decode().splitlines())
    assert first["id"] == "\ud83d ä" and first["translation"] == "\ufffd a" and second["translation"] == "b"


def test_objects_before_a_broken_one_are_translated_and_kept(run_translate: Any, tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"text": "a b"}\n{"text": "c"}\n{"text": "d"\n{"text": "e"}\n')
    with pytest.raises(DataError, match="in line 3: this is not JSON .*Expecting"):
        run_translate(b"", "--json", "--input", f"{tmp_path}/in", "--output", f"{tmp_path}/out")
    kept, = tmp_path.glob("out.unfinished-*[0-9]")
    assert [json.loads(line)["translation"] for line in kept.read_text().splitlines()] == ["b a", "c"]


def test_prefixes_come_as_a_text_or_as_a_file_with_one_for_each_line(run_translate: Any, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("x y\n\n")
    run_translate(b"a\nb\n", "--prefix", str(tmp_path / "prefixes"))
    assert Reverser.asked[-2:] == [LineOptions(prefix="x y"), LineOptions()]
    run_translate(b'{"text": "a"}\n{"text": "b", "prefix": "z"}\n', "--json", "--prefix", str(tmp_path / "prefixes"))
    assert Reverser.asked[-2:] == [LineOptions(prefix="x y"), LineOptions(prefix="z")]
    reader, writer = os.pipe()
    os.write(writer, b"p q\n\n")
    os.close(writer)
    run_translate(b"a\nb\n", "--prefix", f"/dev/fd/{reader}")      # as `<(...)` of a shell
    os.close(reader)
    assert Reverser.asked[-2:] == [LineOptions(prefix="p q"), LineOptions()]
    (tmp_path / "avoid").write_text("New York\n\nhouse\n")
    all_lines = options_of_all_lines(parse(translate, "--model", "runs/x", "--prefix", "x y", "--partial-word",
                                           "--avoid", str(tmp_path / "avoid")))
    assert all_lines == LineOptions(prefix="x y", partial_word=True, avoid=["New York", "house"])


def test_phrases_come_as_a_file_with_a_line_for_each_line_and_terms_as_a_file_for_all(
        run_translate: Any, tmp_path: Path) -> None:
    (tmp_path / "phrases").write_text("New York\ta\n\n")
    run_translate(b"a\nb\n", "--constraints", str(tmp_path / "phrases"))
    assert Reverser.asked[-2:] == [LineOptions(constraints=["New York", "a"]), LineOptions(constraints=[])]
    run_translate(b'{"text": "a", "constraints": ["b"]}\n{"text": "b"}\n', "--json", "--constraints",
                  str(tmp_path / "phrases"))
    assert [list(asked.constraints) for asked in Reverser.asked[-2:]] == [["New York", "a", "b"], []]
    (tmp_path / "terms").write_text("Hund\thound\n")
    terms = options_of_all_lines(parse(translate, "--model", "runs/x", "--terminology", str(tmp_path / "terms")))
    assert terms.terminology is not None and terms.terminology.terms[0].target == "hound"


@pytest.mark.parametrize(("prefixes", "phrases", "shorter"), [
    ("x\ny\n", "a\n", "--constraints"), ("x\n", "a\nb\n", "--prefix"), ("", "a\n", "--prefix")])
def test_files_of_prefixes_and_phrases_with_different_numbers_of_lines_are_refused(
        run_translate: Any, tmp_path: Path, prefixes: str, phrases: str, shorter: str) -> None:
    (tmp_path / "prefixes").write_text(prefixes)
    (tmp_path / "phrases").write_text(phrases)
    with pytest.raises(DataError, match=f"The file of {shorter} has fewer lines"):
        run_translate(b"a\n", "--prefix", str(tmp_path / "prefixes"), "--constraints", str(tmp_path / "phrases"))


@pytest.mark.parametrize(("arguments", "message"), [
    (["--json", "--scores"], "leave out --scores"), (["--token-scores"], "needs --json"),
    (["--resume", "--output", "x"], "--resume needs --input and --output")])
def test_options_that_do_not_fit_together_are_refused(run_translate: Any, arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run_translate(b"", *arguments)


def test_a_precision_that_only_ctranslate2_has_is_refused_without_it() -> None:
    with pytest.raises(SettingsError, match="--precision int8: --engine graph supports float32, bfloat16, float16"):
        translator_options.make_translator(parse(translate, "--model", "runs/x", "--engine", "graph", "--precision",
                                                 "int8"))


def test_an_option_is_refused_by_its_name_with_an_engine_that_lacks_it() -> None:
    with pytest.raises(SettingsError, match="--ensemble-weights cannot be combined with --engine ctranslate2: it does"):
        translator_options.make_translator(parse(translate, "--model", "runs/x", "--engine", "ctranslate2",
                                                 "--ensemble-weights", "2,1"))


def test_every_line_is_flushed_before_the_next_is_translated() -> None:
    events: list[str] = []

    class Output(io.BytesIO):
        def flush(self) -> None:
            events.append("flush")

    output = LineOutput(Output(), window=5)
    for number, text in enumerate(("a", "b"), start=1):
        events.append(text)
        output.write(number, [text])
    assert events == ["a", "flush", "b", "flush"]


def test_a_program_that_waits_for_each_translation_gets_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    words = WordVocabulary([*SPECIAL_PIECES, "the", "device"])

    class Device:
        """A search whose translation of each line is one word."""

        def __call__(self, source: np.ndarray, source_length: np.ndarray) -> SearchOutput:
            tokens = np.full([len(source), 1, 1], words.piece_to_id("device"))
            return SearchOutput(tokens, np.full([len(source), 1], -0.1))

        def with_settings(self, changed: Mapping[str, Any]) -> Device:
            return self

    monkeypatch.setattr(translate, "make_translator", lambda args, **details: LineTranslator(
        Device(), words, words, checkpoint="", search=SearchSettings(), stream=StreamSettings(window=args.window)))
    (read_input, write_input), (read_output, write_output) = os.pipe(), os.pipe()
    with (open(read_input, encoding="utf-8") as stdin, open(write_input, "wb", buffering=0) as lines,
          open(read_output, "rb", buffering=0) as answers, open(write_output, "w", encoding="utf-8") as stdout):
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        thread = threading.Thread(target=translate.run_translate, args=(parse(
            translate, "--model", "runs/x", "--window", "1"),))
        thread.start()
        try:
            for line in ("the device", "12345", "", "THE DEVICE", "the 12345 ❤️", "x"):     # plain and special lines
                lines.write(f"{line}\n".encode())
                assert select.select([answers], [], [], PATIENCE)[0], line
                assert answers.read(1000).endswith(b"\n")
        finally:
            lines.close()
            thread.join()


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    program = """
import sys
from towernmt.cli import translate
from towernmt.cli.main import main
from towernmt.predict.lines.hypotheses import Hypothesis
class Endless:
    def translate_stream(self, lines, name, **options):
        while True:
            yield [Hypothesis("x" * 1000, 0.0)]
translate.make_translator = lambda args, **details: Endless()
sys.exit(main(["translate", "--model", "runs/x"]))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"x" * 1000 + b"\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == BROKEN_PIPE
    process.stderr.close()


def test_the_command_line_parses_without_tensorflow() -> None:
    program = ("import sys; from towernmt.cli import evaluate, rerank, translate; "
               "exit('tensorflow' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(("arguments", "message"), [
    (["--beam", "0"], "beam_size=0"), (["--n-best", "0"], "n_best=0"),
    (["--beam", "2", "--n-best", "3"], "n_best=3"), (["--mbr", "chrf", "--n-best", "-1"], "n_best=-1"),
    (["--mbr", "chrf", "--samples", "9", "--n-best", "0"], "n_best=0"),
    (["--mbr", "chrf", "--beam", "2", "--n-best", "3"], "n_best=3: choose 1 to beam_size"),
    (["--window", "0"], "window=0"), (["--samples", "9"], "needs --mbr or --rerank-by"), (["--mbr", "x"], "mbr=x"),
    (["--rerank-by", "runs/y", "--mbr-aggregate"], "--mbr-aggregate needs --mbr chrf"),
    (["--mbr", "chrf", "--beam", "1"], "a --beam of 2 or more"), (["--ensemble-weights", "a,b"], "weights a,b"),
    (["--max-length", "two"], "--max-length two"), (["--batch-tokens", "0"], "batch_tokens=0")])
def test_values_that_cannot_work_are_refused_before_anything_is_loaded(
        arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        translator_options.make_translator(parse(translate, "--model", "runs/x", *arguments))


@pytest.mark.parametrize(("retry", "advice"), [(None, ""), (False, RETRY_ADVICE), (True, RETRY_ADVICE)])
def test_only_commands_that_can_repeat_a_search_recommend_it(retry: bool | None, advice: str,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towernmt.predict.translator.Translator", lambda **given: SimpleNamespace(fault_advice=""))
    assert translator_options.make_translator(parse(translate, "--model", "runs/a"), retry=retry).fault_advice == advice


@pytest.mark.parametrize(("module", "arguments"), [(translate, []), (evaluate, ["--reference", "r"])])
def test_only_translate_recommends_its_option_to_write_samples(module: Any, arguments: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        translator_options.make_translator(parse(module, "--model", "runs/x", "--samples", "9", *arguments))
    assert ("--n-best" in str(error.value)) == (module is translate)


def test_the_models_and_the_order_that_are_asked_for_reach_the_translator(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("towernmt.predict.translator.Translator", lambda **given: asked.update(given))
    translator_options.make_translator(parse(
        translate, "--model", "runs/a", "--model", "runs/b", "--checkpoint", "step-1", "--checkpoint", "last",
        "--ensemble-weights", "2,1", "--ensemble-mean", "log-probabilities", "--mbr", "chrf", "--beam", "20"))
    assert asked["run_dir"] == ["runs/a", "runs/b"] and asked["checkpoint"] == ["step-1", "last"]
    assert asked["ensemble"] == EnsembleSettings("log-probabilities", (2.0, 1.0))
    assert isinstance(asked["reranker"], MinimumBayesRisk) and asked["n_best"] == asked["beam_size"] == 20
    translator_options.make_translator(parse(
        translate, "--model", "runs/a", "--mbr", "bleu", "--samples", "30", "--epsilon", "0.02"))
    assert (asked["selection"], asked["n_best"], asked["epsilon"]) == ("sampling", 30, 0.02)
    translator_options.make_translator(parse(translate, "--model", "runs/a"))
    assert asked["run_dir"] == ["runs/a"] and asked["ensemble"] == EnsembleSettings() and asked["reranker"] is None


@pytest.mark.parametrize(("saved", "arguments", "expected"), [
    ("beam_size: 12", [], ("beam", 12, 12)), ("beam_size: 12", ["--n-best", "20"], ("beam", 20, 20)),
    ("beam_size: 12", ["--beam", "3"], ("beam", 3, 3)), ("beam_size: 1", [], ("beam", 5, 5)),
    ("selection: sampling", [], ("sampling", 5, 100)),
    ("selection: sampling", ["--selection", "beam"], ("beam", 5, 5))])
def test_a_reranker_gets_the_beam_or_the_samples_of_the_settings_of_the_run(
        saved: str, arguments: list[str], expected: tuple[str, int, int], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings.yaml").write_text(f"search:\n  {saved}\n")
    asked: dict[str, Any] = {}
    monkeypatch.setattr("towernmt.predict.translator.Translator", lambda **given: asked.update(given))
    translator_options.make_translator(parse(translate, "--model", str(tmp_path), "--mbr", "chrf", *arguments))
    search = {name: value for name, value in asked.items() if name in ("selection", "beam_size", "n_best")}
    settings = dataclasses.replace(SavedRun(tmp_path).group("search", SearchSettings()), **search)
    assert (settings.selection, settings.beam_size, settings.n_best) == expected


def test_an_output_is_resumed_only_with_the_same_tables_and_functions(tmp_path: Path) -> None:
    table, lexicon, utility = (tmp_path / name for name in ("table", "lexicon", "utility.py"))
    translator: Any = Reverser()
    translator.search = SearchSettings(shortlist=str(lexicon))
    args = parse(translate, "--model", "runs/x", "--replace-unknown", str(table), "--mbr", f"{utility}:score")
    files = {"--replace-unknown": table, "--shortlist": lexicon, "--mbr": utility}
    for file in files.values():
        file.write_text("old")
    task = task_of(args, translator)
    for option, file in files.items():
        file.write_text("new")
        changed_task = task_of(args, translator)
        assert {key for key in task if task[key] != changed_task[key]} == {f"the content of {option}"}
        file.write_text("old")


@pytest.mark.parametrize(("begun_engine", "engine", "precision", "export_first"), [
    (None, "auto", "int8", False), ("graph", "graph", "float32", False),
    ("CTranslate2 4.8.5 int8", "auto", "int8", True)])
def test_an_unfinished_output_is_resumed_by_the_engine_that_began_it(
        monkeypatch: pytest.MonkeyPatch, begun_engine: str | None, engine: str, precision: str, export_first: bool
        ) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("towernmt.predict.translator.Translator", lambda **given: asked.update(given))
    translator_options.make_translator(parse(translate, "--model", "runs/a", "--precision", "int8"),
                                       begun_engine=begun_engine)
    assert (asked["engine"], asked["precision"], asked["export_first"]) == (engine, precision, export_first)


def test_the_options_of_special_lines_reach_the_translator(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("towernmt.predict.translator.Translator", lambda **given: asked.update(given))
    translator_options.make_translator(parse(translate, "--model", "runs/a"))
    assert asked["special_lines"] == SpecialLineSettings(*["auto"] * 5)
    args = parse(translate, "--model", "runs/a", "--casing", "off", "--copy-lines", "off", "--protect", "a+",
                 "--protect", "b")
    translator_options.make_translator(args, options=options_of_all_lines(args))
    assert asked["special_lines"] == SpecialLineSettings(copy_lines="off", casing="off")
    assert asked["options"] == LineOptions(protect=["a+", "b"])


def test_a_json_line_has_its_own_protected_words(run_translate: Any) -> None:
    run_translate(b'{"text": "a", "protect": ["b"]}\n', "--json")
    assert Reverser.asked[-1] == LineOptions(protect=["b"])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "source").write_text("you thank I\nhouse the in is he today\n", encoding="utf-8")
    (tmp_path / "reference").write_text("I thank you\ntoday he is in the house\n", encoding="utf-8")
    return tmp_path


def test_a_model_is_scored_on_a_test_set(files: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(evaluate, "make_translator", lambda args, **details: Reverser())
    arguments = ["--model", "runs/x", "--source", str(files / "source"),
                 "--reference", str(files / "reference")]
    assert evaluate.run_evaluate(parse(evaluate, *arguments, "--hypothesis", str(files / "out"), "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["bleu"] == pytest.approx(100) and result["chrf"] == pytest.approx(100)
    assert result["sentences"] == 2 and result["sentences_per_second"] > 0
    assert "tok:13a" in result["signature"] and result["checkpoint"] == Reverser.checkpoint
    assert (files / "out").read_text(encoding="utf-8") == (files / "reference").read_text(encoding="utf-8")
    assert evaluate.run_evaluate(parse(evaluate, *arguments)) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("BLEU = 100.00  nrefs:1|case:mixed") and second.startswith("chrF = 100.00")
    assert "sentences/s" in third


def test_translations_that_are_there_already_are_scored_without_a_model(
        files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--hypothesis-file", str(files / "reference"), "--reference", str(files / "reference")]
    assert evaluate.run_evaluate(parse(evaluate, *arguments)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_incomplete_or_unequal_test_sets_are_refused(files: Path) -> None:
    reference = ["--reference", str(files / "reference")]
    with pytest.raises(SettingsError, match="Pass --model and --source"):
        evaluate.run_evaluate(parse(evaluate, *reference, "--model", "runs/x"))
    with pytest.raises(SettingsError, match="leave out --model"):
        evaluate.run_evaluate(parse(evaluate, *reference, "--model", "runs/x", "--hypothesis-file", "x"))
    (files / "source").write_text("one line\n", encoding="utf-8")
    with pytest.raises(DataError, match="has 1 lines and .* has 2"):
        evaluate.run_evaluate(parse(evaluate, *reference, "--model", "runs/x", "--source", str(files / "source")))


@pytest.mark.parametrize("command, arguments", [
    ("translate", ["--model", "runs/x", "--input", "{source}", "--constraints", "{lost}"]),
    ("evaluate", ["--model", "runs/x", "--source", "{source}", "--reference", "{source}", "--constraints", "{lost}"]),
    ("score", ["--model", "runs/x", "--source", "{source}", "--target", "{lost}"]),
    ("align", ["--model", "runs/x", "--source", "{source}", "--target", "{lost}"])])
def test_a_file_that_is_not_there_is_refused_before_a_model_is_loaded(tmp_path: Path, command: str,
                                                                      arguments: list[str]) -> None:
    (tmp_path / "source").write_text("one line\n")
    places = {"source": tmp_path / "source", "lost": tmp_path / "lost"}
    with pytest.raises(DataError, match="lost: cannot read"):    # and not that the run is missing
        parser = argparse.ArgumentParser()
        function_of(command, "add_{}_arguments")(parser)
        function_of(command, "run_{}")(parser.parse_args([argument.format(**places) for argument in arguments]))
