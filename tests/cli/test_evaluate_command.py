"""`towernmt evaluate` of existing translations, with one reference or several."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from towernmt.cli.main import main


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"hyp": "a b c d x f\n", "one": "a b c d e f\n", "two": "q x f\n", "long": "a\nb\n"}.items():
        Path(name).write_text(text)


def test_an_n_gram_counts_that_any_of_several_references_has(texts, capsys) -> None:
    assert main(["evaluate", "--hypothesis-file", "hyp", "--reference", "one", "--reference", "two", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    # 1- to 4-gram precisions 6/6, 4/5, 2/4, 1/3; the closest reference is as long.
    assert result["bleu"] == pytest.approx(100 * (6 / 6 * 4 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert result["signature"].startswith("nrefs:2|") and result["sentences"] == 1
    assert main(["evaluate", "--hypothesis-file", "hyp", "--reference", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bleu"] == pytest.approx(
        100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_a_reference_of_another_length_is_named(texts, capsys) -> None:
    assert main(["evaluate", "--hypothesis-file", "hyp", "--reference", "one", "--reference", "long"]) == 1
    assert "hyp has 1 lines and long has 2" in capsys.readouterr().err


@pytest.fixture
def systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reference = [f"the {color} {animal} sees a {noun}" for color in ("red", "blue", "old", "young")
                 for animal in ("dog", "cat", "horse") for noun in ("man", "house")]
    worse = [line.replace("sees a", "is the") if i % 2 else line.replace("sees", "looks") for i, line in
             enumerate(reference)]
    better = [line.replace("the old", "an old") for line in reference]
    for name, lines in {"ref": reference, "worse": worse, "better": better, "src": reference}.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines))


QUICK = ["--bootstrap-samples", "50", "--randomization-trials", "60"]


def test_several_systems_are_compared_in_one_table_with_p_values(systems, capsys) -> None:
    assert main(["evaluate", "--reference", "ref", "--system", "first=worse", "--system", "better", *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "24 sentences; ± is the 95 % confidence interval; p against first, * below 0.05"
    assert lines[1].split() == ["BLEU", "chrF2", "TER"]
    assert [line.split()[0] for line in lines[2:6]] == ["first", "better", "bootstrap", "randomisation"]
    assert lines[4].count("*") == 3
    assert [line.split("|")[0] for line in lines[6:]] == ["BLEU", "chrF2", "TER"] * 2
    assert "bs:50|seed:12345|case:mixed" in lines[6] and "ar:60|seed:12345" in lines[9]


def test_buckets_and_examples_are_shown_on_request(systems, capsys) -> None:
    arguments = ["evaluate", "--reference", "ref", "--system", "worse", "--system", "better", *QUICK, "--buckets",
                 "--examples", "2", "--metrics", "bleu"]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert "BLEU by the length of the reference:\nwords  sentences" in output
    assert "F1 of words by their frequency in the reference:" in output
    assert "Worst of worse (sentence chrf):\nline " in output and "better is furthest above worse" in output
    assert main([*arguments, "--source", "src", "--frequency-text", "src"]) == 0
    output = capsys.readouterr().out
    assert "by the length of the source" in output and "frequency in src" in output
    assert "\n  source" in output


def test_the_report_of_systems_is_one_json_object(systems, capsys) -> None:
    assert main(["evaluate", "--reference", "ref", "--system", "a=worse", "--system", "b=better", *QUICK, "--json",
                 "--source", "src"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["sentences"], report["references"], report["baseline"]) == (24, 1, "a")
    assert [system["name"] for system in report["systems"]] == ["a", "b"]
    scores = report["systems"][1]["scores"]
    assert set(scores) == {"BLEU", "chrF2", "TER"} and scores["BLEU"]["bootstrap_p"] < 0.05
    assert sum(bucket["sentences"] for bucket in report["by_length"]["buckets"]) == 24
    assert sum(bucket["words"] for bucket in report["by_word_frequency"]["buckets"]) == 24 * 6
    gained = report["systems"][1]["gained"][0]
    assert gained["scores"]["b"] > gained["scores"]["a"] and set(gained["translations"]) == {"a", "b"}


def test_one_system_has_further_scores_only_on_request(systems, capsys) -> None:
    command = ["evaluate", "--reference", "ref", "--hypothesis-file", "worse"]
    assert main([*command, "--json"]) == 0
    basic_scores = json.loads(capsys.readouterr().out)
    assert list(basic_scores) == ["bleu", "chrf", "signature", "chrf_signature", "sentences"]
    assert main([*command, "--json", "--buckets", "--metrics", "bleu", "chrf", "ter", *QUICK]) == 0
    all_scores = json.loads(capsys.readouterr().out)
    assert {key: all_scores[key] for key in basic_scores} == basic_scores
    assert all_scores["ter_signature"].startswith("nrefs:1|case:lc") and all_scores["by_length"]["buckets"]
    assert main([*command, "--metrics", "ter", "--buckets", *QUICK]) == 0
    assert capsys.readouterr().out.startswith("TER = ")


@pytest.mark.parametrize(("arguments", "message"), [
    (["--system", "a=worse", "--system", "a=better"], "two systems have the name 'a'"),
    (["--system", "=worse"], "expected NAME=RUN_OR_FILE"),
    (["--system", "worse", "--model", "x"], "leave out --model"),
    (["--system", "."], "is a run: pass the text to translate as --source"),
    (["--system", "missing"], "missing: cannot read"),
    (["--system", "one"], "one has 1 lines and ref has 24"),
    (["--system", "worse", "--checkpoint", "last", "--checkpoint", "best"], "--checkpoint applies to all systems"),
    (["--system", "worse", "--significance-seed", "0"], "seed=0"),
    (["--system", "worse", "--buckets", "--lengths", "5", "3"], "must ascend"),
])
def test_systems_that_cannot_be_compared_are_refused_in_one_sentence(systems, capsys, arguments, message) -> None:
    Path("one").write_text("a\n")
    assert main(["evaluate", "--reference", "ref", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.fixture
def requests(systems, monkeypatch) -> list[tuple[list[str], list[str]]]:
    """Return the requested runs and checkpoints, for which models return the source."""
    from towernmt.cli import evaluate
    from towernmt.predict.lines.hypotheses import Hypothesis

    for checkpoint in (Path("run/best/step-7"), Path("run/averages/last-2/step-5"), Path("copy/step-5")):
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.index").touch()
    Path("run/settings.yaml").touch()

    class Echo:
        def __init__(self, checkpoint: str) -> None:
            self.checkpoint = checkpoint

        def translate_stream(self, lines, name, options=None):
            return ([Hypothesis(line, 0.0)] for line in lines)

    requests = []

    def make(args, **details):
        requests.append((args.model, args.checkpoint))
        return Echo(" ".join([*args.model, *args.checkpoint]))

    monkeypatch.setattr(evaluate, "make_translator", make)
    return requests


def test_runs_and_checkpoints_of_runs_are_translated_and_files_are_read(requests, capsys) -> None:
    assert main(["evaluate", "--reference", "ref", "--source", "src", "--system", "file=worse", "--system", "run",
                 "--system", "seventh=run/best/step-7", "--system", "both=run+run/best/step-7",
                 "--checkpoint", "last", "--json", *QUICK]) == 0
    assert requests == [(["run"], ["last"]), (["run"], ["run/best/step-7/model"]),
                        (["run", "run"], ["last", "run/best/step-7/model"])]
    results = json.loads(capsys.readouterr().out)["systems"]
    assert [system["checkpoint"] for system in results] == [
        None, "run last", "run run/best/step-7/model", "run run last run/best/step-7/model"]
    assert [round(system["scores"]["BLEU"]["score"]) for system in results[1:]] == [100, 100, 100]


def test_a_checkpoint_anywhere_inside_a_run_is_a_system(requests, monkeypatch) -> None:
    run = Path("run").absolute()
    monkeypatch.chdir(run / "best")
    assert main(["evaluate", "--reference", "../../ref", "--source", "../../src", "--system", "step-7",
                 "../averages/last-2/step-5", f"{run}/averages/last-2/step-5", *QUICK]) == 0
    assert requests == [([str(run)], ["step-7/model"]), ([".."], ["../averages/last-2/step-5/model"]),
                        ([str(run)], [f"{run}/averages/last-2/step-5/model"])]


def test_paths_may_contain_an_equals_sign(requests) -> None:
    for run in (Path("lr=1"), Path("lr=2")):
        run.mkdir()
        (run / "settings.yaml").touch()
    assert main(["evaluate", "--reference", "ref", "--source", "src", "--system", "lr=1", "lr=1+lr=2", "both=lr=1+lr=2",
                 "--checkpoint", "last", *QUICK]) == 0
    assert [runs for runs, _ in requests] == [["lr=1"], ["lr=1", "lr=2"], ["lr=1", "lr=2"]]


def test_a_checkpoint_outside_of_runs_is_refused(requests, capsys) -> None:
    assert main(["evaluate", "--reference", "ref", "--source", "src", "--system", "copy/step-5"]) == 1
    error = capsys.readouterr().err
    assert "the checkpoint copy/step-5 is not inside a run" in error and error.count("\n") == 1


def test_a_page_is_written_in_addition_to_the_table_and_never_over_an_input(systems, capsys) -> None:
    arguments = ["evaluate", "--reference", "ref", "--system", "worse", "--system", "better", *QUICK]
    assert main([*arguments, "--html", "page.html"]) == 0
    text = Path("page.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "Translations of ref" in text and "worse" in text
    for file in ("ref", "better"):
        assert main([*arguments, "--html", file]) == 1
        assert f"--html {file} is the same file as" in capsys.readouterr().err
    assert main(["evaluate", "--reference", "ref", "--hypothesis-file", "worse", "--html", "one.html", *QUICK]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 and Path("one.html").stat().st_size > 10000


def test_terms_are_requested_and_the_used_ones_are_counted_for_each_system(tmp_path, monkeypatch, capsys) -> None:
    from towernmt.cli import evaluate
    from towernmt.predict.lines.hypotheses import Hypothesis

    monkeypatch.chdir(tmp_path)
    for name, lines in {"src": ["Der Hund", "Das Haus"], "ref": ["The hound", "The red house"],
                        "dog": ["The dog", "The red house"], "terms": ["Hund\thound"], "phrases": ["", "red"],
                        "short": ["a"]}.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines))

    class Obedient:
        checkpoint = "x"

        def translate_stream(self, lines, name, options):
            return ([Hypothesis(" ".join([*request.constraints, "hound"]), 0.0)] for request in options)

    all_options = []
    monkeypatch.setattr(evaluate, "make_translator",
                        lambda args, options, **_: all_options.append(options) or Obedient())
    arguments = ["evaluate", "--reference", "ref", "--terminology", "terms", "--constraints", "phrases"]
    assert main([*arguments, "--source", "src", "--system", "file=dog", "--system", "model=.", *QUICK]) == 0
    lines_of_words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines_of_words if line[:1] == ["terms"] or line[-1:] in (["50.00"], ["100.00"])] == [
        ["terms", "met", "of", "%"], ["file", "1", "2", "50.00"], ["model", "2", "2", "100.00"]]
    assert all_options[0].terminology.terms[0].target == "hound"
    assert main([*arguments, "--source", "src", "--hypothesis-file", "dog", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["terms"] == {"dog": {"required": 2, "met": 1}}
    assert main([*arguments, "--hypothesis-file", "dog"]) == 1
    assert "--terminology needs the source text" in capsys.readouterr().err
    assert main([*arguments, "--source", "src", "--hypothesis-file", "dog", "--constraints", "short"]) == 1
    assert "short has 1 lines, and the test set has 2" in capsys.readouterr().err


class EchoTranslator:
    """Translates a line into itself without zero-width spaces; the source `src` equals the reference `ref`."""

    checkpoint = "runs/echo/checkpoints/step-1/model"

    def translate_stream(self, lines, name, **options):
        for line in lines:
            yield [type("Best", (), {"text": line.replace("\u200b", "")})()]


def test_all_forms_of_a_test_set_are_scored_and_shown(systems, capsys, monkeypatch) -> None:
    monkeypatch.setattr("towernmt.cli.evaluate.make_translator", lambda *arguments, **options: EchoTranslator())
    command = ["evaluate", "--robustness", "--model", "runs/echo", "--source", "src", "--reference", "ref", *QUICK]
    assert main([*command, "--html", "page.html", "--hypothesis", "out"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "runs/echo" and lines[1].split()[:4] == ["form", "sentences", "BLEU", "of"]
    rows = {line[:20].strip(): line[20:].split() for line in lines[2:]}
    assert rows["upper case"][:3] == ["24", "100.00", "1.000"] and rows["address"][-3:] == ["100.0%", "0.0%", "0.0%"]
    assert rows["joined in twos"][0] == "12" and float(rows["two typos"][1]) < float(rows["one typo"][1]) < 100
    page = Path("page.html").read_text()
    assert "Robustness of runs/echo" in page and "<td>zero-width space</td><td>24</td>" in page
    assert Path("out").read_text() == Path("src").read_text()
    command = command[:-len(QUICK)]
    assert main([*command, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["robustness"]["runs/echo"]
    assert main([*command, "--json", "--robustness-seed", "2"]) == 0
    second = json.loads(capsys.readouterr().out)["robustness"]["runs/echo"]
    assert first[0] == second[0] and first[5] != second[5] and first[7]["copied"] == 1.0


def test_the_terms_of_the_unchanged_test_set_are_counted_besides_its_forms(systems, capsys, monkeypatch) -> None:
    monkeypatch.setattr("towernmt.cli.evaluate.make_translator", lambda *arguments, **options: EchoTranslator())
    Path("terms").write_text("red dog\tred dog\nred cat\tgreen cat\n")
    command = ["evaluate", "--robustness", "--model", "runs/echo", "--source", "src", "--reference", "ref",
               "--terminology", "terms"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["terms"] == {"runs/echo": {"required": 4, "met": 2}}
    assert main(command) == 0
    last_lines = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert last_lines == [["terms", "met", "of", "%"], ["runs/echo", "2", "4", "50.00"]]


def test_a_metric_that_fails_is_refused_before_anything_is_translated(systems, capsys, monkeypatch) -> None:
    def translate(*arguments, **options):
        raise AssertionError("the model translates")

    monkeypatch.setattr("towernmt.cli.evaluate.make_translator", translate)
    Path("mine.py").write_text("def broken(sources, translations, references):\n    return [1 / 0]\n")
    Path("runs/echo/best/step-1").mkdir(parents=True)
    command = ["evaluate", "--source", "src", "--reference", "ref", "--metric", "mine.py:broken"]
    for translated in (["--model", "runs/echo"], ["--system", "better", "runs/echo", *QUICK],
                       ["--robustness", "--model", "runs/echo", "--html", "page.html", *QUICK]):
        assert main([*command, *translated]) == 1
        error = capsys.readouterr().err
        assert "The metric broken failed (ZeroDivisionError: division by zero, line 2 of " in error
        assert error.endswith("mine.py): correct the function, or leave out --metric.\n")


def test_a_metric_is_not_tried_if_nothing_is_translated(systems) -> None:
    Path("mine.py").write_text("def count(sources, translations, references):\n"
                               "    print(len(translations), file=open('calls', 'a'))\n"
                               "    return [1.0] * len(translations)\n")
    assert main(["evaluate", "--reference", "ref", "--hypothesis-file", "worse", "--metric", "mine.py:count"]) == 0
    assert Path("calls").read_text() == "24\n"


@pytest.mark.parametrize("arguments, message", [
    (["--hypothesis-file", "worse", "--checkpoint", "step-99", "--beam", "7", "--prefix", "the", "--protect", "x"],
     "without regard to --checkpoint and --beam and --prefix and --protect: leave out these options"),
    (["--system", "worse", "better", "--last-weights", "--cpu"], "without regard to --last-weights and --cpu"),
    (["--system", "worse", "missing", "--cpu"], "missing: cannot read"),
    (["--hypothesis-file", "worse", "--lengths", "3", "--examples-by", "bleu"],
     "Without --buckets and --examples, or --html, the output does not depend on --lengths and --examples-by: pass "
     "--buckets and --examples, too, or leave out --lengths and --examples-by."),
    (["--hypothesis-file", "worse", "--json", "--frequency-text", "src"], "does not depend on --frequency-text"),
    (["--hypothesis-file", "worse", "--examples", "2", "--frequencies", "3"], "does not depend on --frequencies"),
    (["--system", "worse", "--examples-by", "bleu"], "does not depend on --examples-by"),
    (["--model", "runs/echo", "--source", "src", *QUICK],
     "does not depend on --bootstrap-samples and --randomization-trials: pass --system, too")])
def test_options_without_effect_are_refused_in_one_sentence(systems, capsys, arguments, message) -> None:
    assert main(["evaluate", "--reference", "ref", *arguments]) == 1
    output = capsys.readouterr()
    assert message in output.err and output.err.count("\n") == 1 and not output.out


@pytest.mark.parametrize("arguments", [
    ["--metrics", "ter", "--tokenize", "char", "--lowercase", "--target-language", "ja"],
    ["--source", "src", "--terminology", "terms"], ["--constraints", "ref"],
    ["--buckets", "--lengths", "3", "--frequencies", "1", "--frequency-text", "src", *QUICK],
    ["--examples", "2", "--examples-by", "bleu"], ["--json", "--examples", "2", "--lengths", "3", *QUICK],
    ["--html", "page.html", "--lengths", "3", "--frequencies", "1", "--examples-by", "bleu", *QUICK]])
def test_options_with_an_effect_on_existing_translations_are_accepted(systems, capsys, arguments) -> None:
    Path("terms").write_text("dog\tdog\n")
    outputs = []
    for options in ([], arguments):
        assert main(["evaluate", "--reference", "ref", "--hypothesis-file", "worse", *options]) == 0
        outputs.append(capsys.readouterr().out)
    assert "--html" in arguments or outputs[0] != outputs[1]


@pytest.mark.parametrize("arguments, message", [
    (["--hypothesis-file", "better"], "--robustness translates the test set in several forms"),
    (["--source", "src", "--system", "better"], "--robustness translates the test set in several forms"),
    (["--source", "src", "--model", "runs/echo", "--constraints", "ref"], "no longer belong to them"),
    (["--source", "short", "--model", "runs/echo"], "short has 1 lines and ref has 24")])
def test_robustness_needs_a_model_and_a_test_set_and_no_options_of_single_lines(systems, capsys, arguments, message
                                                                                ) -> None:
    Path("short").write_text("the dog\n")
    assert main(["evaluate", "--robustness", "--reference", "ref", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.fixture
def piped() -> Iterator[Callable[[str], str]]:
    """Return a function that returns the path of a pipe with a text, which can be read once, as `<(...)` in a shell."""
    def make(text: str) -> str:
        reader, writer = os.pipe()
        os.write(writer, text.encode())
        os.close(writer)
        descriptors.append(reader)
        return f"/dev/fd/{reader}"

    descriptors: list[int] = []
    yield make
    for descriptor in descriptors:
        os.close(descriptor)


def test_the_terms_and_the_text_of_frequencies_are_read_once(systems, capsys, monkeypatch, piped) -> None:
    monkeypatch.setattr("towernmt.cli.evaluate.make_translator", lambda *arguments, **options: EchoTranslator())
    assert main(["evaluate", "--robustness", "--model", "runs/echo", "--source", "src", "--reference", "ref", "--json",
                 "--html", "page.html", "--terminology", piped("red dog\tred dog\n"),
                 "--frequency-text", piped(Path("ref").read_text()), *QUICK]) == 0
    assert json.loads(capsys.readouterr().out)["terms"] == {"runs/echo": {"required": 2, "met": 2}}
    assert "<th>10-99</th>" in Path("page.html").read_text()


def test_the_prefixes_and_phrases_of_lines_are_read_once_for_all_systems(systems, capsys, monkeypatch, piped) -> None:
    from towernmt.predict.lines.hypotheses import Hypothesis

    class Obedient:
        checkpoint = "x"

        def translate_stream(self, lines, name, options):
            return ([Hypothesis(" ".join([request.prefix, *request.constraints]), 0.0)] for request in options)

    monkeypatch.setattr("towernmt.cli.evaluate.make_translator", lambda *arguments, **options: Obedient())
    command = ["evaluate", "--source", "src", "--reference", "ref", "--system", "first=.", "second=.", *QUICK]
    assert main([*command, "--json", "--prefix", piped("the\n" * 24),
                 "--constraints", piped("red dog\n" * 24)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["terms"] == {name: {"required": 24, "met": 24} for name in ("first", "second")}
    assert report["systems"][1]["worst"][0]["translations"] == {"first": "the red dog", "second": "the red dog"}


def test_a_pipe_is_refused_as_the_table_of_several_translators(systems, capsys) -> None:
    os.mkfifo("pipe")
    assert main(["evaluate", "--source", "src", "--reference", "ref", "--system", "first=.", "second=.",
                 "--replace-unknown", "pipe"]) == 1
    assert "pipe: a pipe or a device can be read only once" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--prefix", "--constraints"])
def test_a_file_for_lines_with_another_number_of_lines_is_refused_before_anything_is_translated(
        systems, capsys, monkeypatch, option) -> None:
    def translate(*arguments, **options):
        raise AssertionError("the model translates")

    monkeypatch.setattr("towernmt.cli.evaluate.make_translator", translate)
    Path("short").write_text("the\n")
    assert main(["evaluate", "--source", "src", "--reference", "ref", "--model", "runs/echo", option, "short"]) == 1
    assert "short has 1 lines, and the test set has 24: write one line per sentence" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--robustness-seed", "2"], ["--source-language", "tr"]])
def test_options_of_robustness_need_it(systems, capsys, option) -> None:
    assert main(["evaluate", "--source", "src", "--reference", "ref", "--model", "runs/echo", *option]) == 1
    assert f"{option[0]}: only the forms of --robustness depend on this" in capsys.readouterr().err


@pytest.mark.parametrize("option", [
    ["--metric", "mine.py:count"], ["--metrics", "ter"], ["--lowercase"], ["--buckets"], ["--lengths", "5"],
    ["--frequencies", "0", "9"], ["--frequency-text", "src"], ["--examples", "2"], ["--examples-by", "bleu"], QUICK])
def test_options_that_change_only_the_page_of_robustness_need_it(systems, capsys, monkeypatch, option) -> None:
    Path("mine.py").write_text("def count(sources, translations, references):\n    return [1.0] * len(translations)\n")
    monkeypatch.setattr("towernmt.cli.evaluate.make_translator", lambda *arguments, **options: EchoTranslator())
    command = ["evaluate", "--robustness", "--model", "runs/echo", "--source", "src", "--reference", "ref"]
    assert main([*command, *option]) == 1
    names = " and ".join(text for text in option if text.startswith("--"))
    error = capsys.readouterr().err
    assert f"without regard to {names}: leave out these options, or pass --html" in error and error.count("\n") == 1
    if option == ["--metric", "mine.py:count"]:
        assert main([*command, *option, "--html", "page.html"]) == 0 and "count" in Path("page.html").read_text()
