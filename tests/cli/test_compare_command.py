"""`towernmt compare`: figures, differences and scores of runs, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from towernmt.cli.main import main


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write run a with 1, 2, 3 ... BLEU after every 10 updates, and run b with twice the BLEU at half the speed."""
    monkeypatch.chdir(tmp_path)
    for name, gain, pace in (("a", 1.0, 10), ("b", 2.0, 5)):
        (tmp_path / name / "log").mkdir(parents=True)
        (tmp_path / name / "settings.yaml").write_text(
            f"architecture: transformer\nmodel: {{size: {gain}, same: 1}}\nmade_from: {{data: d{name}}}\n")
        (tmp_path / name / "log" / "stats.jsonl").write_text("".join(json.dumps(
            {"validation_bleu": gain * i, "minutes_trained": 10 * i / pace, "target_tokens_trained": 1000 * i,
             "global_step": 10 * i}) + "\n" for i in range(1, 5 if name == "a" else 4)))


def test_the_comparison_shows_figures_best_scores_and_differences(capsys) -> None:
    assert main(["compare", "a", "new=b"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[0] == ["a", "new"]
    assert ["best", "BLEU", "4.00", "6.00"] in table and ["at", "update", "40", "30"] in table
    assert ["best", "BLEU", "by", "30", "updates", "3.00", "6.00"] in table
    assert ["best", "BLEU", "by", "15", "updates", "1.00", "2.00"] in table
    assert ["best", "BLEU", "by", "4", "minutes", "4.00", "4.00"] in table
    assert ["best", "BLEU", "by", "3k", "target", "tokens", "3.00", "6.00"] in table
    assert ["model.size", "1", "2"] in table and ["made_from.data", "da", "db"] in table
    assert not any(line[:1] == ["model.same"] for line in table)
    assert table[-1][:7] == "Their data differ, and not all runs".split()


def test_json_has_the_same_values_and_null_for_unknown_ones(capsys) -> None:
    Path("b/log/stats.jsonl").unlink()
    assert main(["compare", "a", "b", "--json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert [(run["name"], run["best"], run["best_step"], run["parameters"]) for run in comparison["runs"]] == [
        ("a", 4.0, 40, None), ("b", None, None, None)]
    assert comparison["differences"]["model.size"] == {"a": "1", "b": "2"} and "evaluation" not in comparison
    assert comparison["runs"][1]["notes"] == ["nothing is recorded yet"] and comparison["best_so_far"] == []


def test_with_a_test_set_the_runs_are_the_systems_of_an_evaluation_whatever_their_names(capsys, monkeypatch) -> None:
    lines = [f"the {adjective} {animal} sleeps here" for adjective in ("red", "old", "big")
             for animal in ("dog", "cat", "cow", "hen")]
    Path("src").write_text("".join(f"{line}\n" for line in lines))
    requests = []

    def make_translator(args, **_):
        requests.append((args.model, args.checkpoint, args.beam_size))
        translations = lines if args.model == ["lr=0.2"] else [line.replace("sleeps", "slept") for line in lines]
        return SimpleNamespace(checkpoint="c", translate_stream=lambda *_, **__: (
            [SimpleNamespace(text=line)] for line in translations))

    monkeypatch.setattr("towernmt.cli.evaluate.make_translator", make_translator)
    Path("b").rename("lr=0.2")
    arguments = ["--source", "src", "--reference", "src", "--checkpoint", "last", "--beam", "7", "--metrics", "bleu",
                 "--bootstrap-samples", "50", "--randomization-trials", "100"]
    assert main(["compare", "a", "new=lr=0.2", *arguments]) == 0
    out = capsys.readouterr().out
    assert requests == [(["a"], ["last"], 7), (["lr=0.2"], ["last"], 7)]
    assert "12 sentences; ± is the 95 % confidence interval; p against a" in out and "100.00 ± 0.00" in out
    assert "best BLEU" in out
    assert main(["compare", "a", "lr=0.2", "--json", *arguments]) == 0
    systems = json.loads(capsys.readouterr().out)["evaluation"]["systems"]
    assert [system["name"] for system in systems] == ["a", "lr=0.2"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["a", "b", "--source", "a/settings.yaml"], "--source and --reference must be specified together"),
    (["a", "b", "--html", "x.html"], "towernmt plot RUN ... --output FILE.html"),
    (["a", "b", "--checkpoint", "last", "--metrics", "ter", "--buckets", "--examples", "5", "--beam", "10", "--json"],
     "Only the recorded curves are compared, without regard to --metrics and --buckets and --examples and --checkpoint "
     "and --beam: pass a test set as --source and --reference, too, or leave out these options."),
    (["a", "b", "--source", "a/settings.yaml", "--reference", "a/settings.yaml", "--lengths", "3"],
     "Without --buckets, or --html, the output does not depend on --lengths"),
    (["a", "b", "--source", "a/settings.yaml", "--reference", "a/settings.yaml", "--checkpoint", "last", "--checkpoint",
      "best"], "--checkpoint applies to all systems: pass it once.\n"),
    (["a", "c"], "c: the directory does not exist")])
def test_mistakes_are_one_sentence(arguments, message, capsys) -> None:
    assert main(["compare", *arguments]) == 1
    assert message in capsys.readouterr().err
