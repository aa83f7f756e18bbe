"""The command line itself: mistyped words, help, completion, and readers that close the pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE
from towernmt.checkpoint.packaged_run import open_run
from towernmt.cli.commands import COMMANDS
from towernmt.cli.main import main, make_parser
from towernmt.cli.other_toolkits import advice
from towernmt.core.errors import SettingsError
from towernmt.core.settings import all_keys, apply_overrides, parse_assignments
from towernmt.core.standard_streams import BROKEN_PIPE
from towernmt.models import settings_and_presets
from towernmt.run.run_settings import NAMES_OF_OTHER_TOOLKITS, default_settings

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("line, suggestion", [
    ("trian --data d", "towernmt: there is no command trian, did you mean train?"),
    ("translte", "did you mean translate?"),
    ("xyz", "there is no command xyz; the commands are prepare, load, inspect"),
    ("train --dta d", "towernmt train: there is no option --dta, did you mean --data?"),
    ("train --dta=d", "there is no option --dta, did you mean --data?"),
    ("prepare --vocabsize 8000", "towernmt prepare: there is no option --vocabsize, did you mean --vocab-size?"),
    ("prepare --source a --target b --outptu c", "there is no option --outptu, did you mean --output?"),
    ("translate --mod runs/x", "there is no option --mod, did you mean --model?"),     # an abbreviation is none
    ("evaluate --refrence x", "there is no option --refrence, did you mean --reference?"),
    ("--verison", "towernmt: there is no option --verison, did you mean --version?"),
    ("check model --qqq", "there is no option --qqq; see `towernmt check --help`."),
])
def test_mistyped_words_suggest_the_nearest_in_one_sentence(line, suggestion, capsys):
    assert suggestion in refusal(line, capsys)


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the sentence that refuses a command line."""
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    return error


@pytest.mark.parametrize("line, sentence", [
    ("inspect pairs.tsv --pairs 99999999999999999999", "argument --pairs: 99999999999999999999 has too many digits;"),
    ("load pairs.tsv --output sqlite:///a.db --batch 9999999999999999999", "argument --batch: 9999999999999999999 has"),
    ("inspect pairs.tsv --pairs many", "argument --pairs: invalid int value: 'many'; see `towernmt inspect --help`."),
])
def test_a_number_that_is_too_large_is_refused_in_one_sentence(line, sentence, capsys):
    assert sentence in refusal(line, capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_the_command_takes(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and f"example:\n  towernmt {command} " in shown
    _, parsers = make_parser([command])
    for word in COMMANDS[command].example.split():
        assert not word.startswith("--") or word in parsers[command]._option_string_actions


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_every_command_and_option(shell, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in [*COMMANDS, "--vocab-size", "--n-best", "--help-settings"]:
        assert word in script


def test_completion_without_its_package_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'towernmt[completion]'" in capsys.readouterr().err


def run_into_a_closed_pipe(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program whose standard output is a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, *command], stdout=writer, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            cwd=ROOT, env={**os.environ, "LD_PRELOAD": ""}, timeout=PATIENCE, check=False)
    finally:
        os.close(writer)


@pytest.mark.parametrize("line", ["train --help-settings", "inspect pairs.tsv"])
def test_a_reader_that_has_gone_ends_a_command_quietly_with_the_usual_status(line, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a b\tc d\n")
    ended = run_into_a_closed_pipe("-m", "towernmt.cli.main", *line.replace("pairs.tsv", str(pairs)).split())
    assert (ended.returncode, ended.stderr) == (BROKEN_PIPE, "") and BROKEN_PIPE == 141


def test_another_broken_pipe_is_an_error():
    with pytest.raises(BrokenPipeError):
        from towernmt.core.standard_streams import run_handling_closed_pipe

        def fail() -> int:
            raise BrokenPipeError(32, "a server's")

        run_handling_closed_pipe(fail)


def help_settings(capsys, *arguments: str) -> str:
    status = main(["train", "--help-settings", *arguments])
    printed = capsys.readouterr()
    return printed.out if status == 0 else printed.err


def test_settings_are_listed_by_group_or_part_of_a_name(capsys):
    everything, schedule, dropout = (help_settings(capsys, *part) for part in ((), ("schedule",), ("Dropout",)))
    keys = re.findall(r"^([a-z_.0-9]+)=", everything, re.M)
    assert len(keys) > 80 and len(keys) == len(set(keys))
    assert re.findall(r"^([a-z_.0-9]+)=", schedule, re.M) == [key for key in keys if "schedule" in key]
    assert re.findall(r"^([a-z_.0-9]+)=", dropout, re.M) == [key for key in keys if "dropout" in key]
    assert "no setting has that in its name. Did you mean 'schedule'?" in help_settings(capsys, "shedule")


def test_each_preset_is_listed_with_what_it_sets(capsys):
    shown = help_settings(capsys, "model")
    for name, values in settings_and_presets("transformer")[1].items():
        line = next(line for line in shown.splitlines() if line.startswith(f"  --preset {name}: "))
        assert all(f" {key}={value}" in line for key, value in values.items())
    assert "--preset big: residual_dropout=0.3 embedding_dropout=0.3" in help_settings(capsys, "dropout")
    assert "--preset" not in help_settings(capsys, "schedule")


def test_settings_are_listed_without_tensorflow():
    program = ("import sys\nfrom towernmt.cli.main import main\nmain(['train', '--help-settings'])\n"
               "sys.exit('tensorflow' in sys.modules or 'numpy' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("line, right", [
    ("train --source a --target b --output m", "--data DIR"), ("train -s a -t b -o m", "--data DIR"),
    ("train --trainpref a", "--data DIR"), ("train --validation-source a", "--valid-source FILE"),
    ("train -vs a", "--valid-source FILE"), ("train --lr 0.1", "--set optimizer.learning_rate=X"),
    ("train --batch_size 10", "--set data.batch_tokens=N"), ("train -batch_type tokens", "--set data.batch_type=NAME"),
    ("train --max-update=10", "--set train.steps=N"), ("train -save_model m", "--logdir RUN"),
    ("train --devices 0 1", "--gpu 0,1"), ("translate -m a b", "--model RUN RUN"),
    ("translate --models a b", "--model"),
    ("translate -i x -o y", "--input FILE"), ("translate --beam-size 4", "--beam N"), ("translate -b 4", "--beam N"),
    ("translate -src x", "--input FILE"), ("translate --beam_size 4", "--beam N"),
    ("translate --n_best 4", "did you mean --n-best?"), ("translate --remove-bpe", "the text is plain"),
    ("evaluate -r x", "--reference FILE"), ("evaluate --hypotheses x", "--hypothesis-file FILE"),
    ("evaluate -lc", "--lowercase"), ("score --hypotheses x", "--target FILE"),
    ("average --inputs x", "--model RUN"), ("export --output_dir x", "--output DIRECTORY"),
    ("prepare --trainpref x", "--source FILE --target FILE"), ("prepare -o x", "--output DIR"),
    ("train data-bin --logdir r", "'data-bin' belongs to no option; write --data DATA"),
    ("translate text.de --model r", "'text.de' belongs to no option; write --input FILE"),
    ("train --data d --gpu 0 1 --logdir r", "'1' belongs to no option"), ("serve run", "required: --model"),
    ("generate data", "there is no command generate, did you mean translate?"),
    ("preprocess -s x", "did you mean prepare?"), ("build-vocab", "did you mean prepare?"),
    ("import --model x", "without an option"),
    ("serve --models x", "--model RUN"), ("align -q x", "there is no option -q")])
def test_the_error_of_an_option_of_another_toolkit_names_the_right_option(line, right, capsys):
    assert right in refusal(line, capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_advice_names_options_and_settings_that_exist_in_the_place_of_options_that_do_not(command):
    known_settings = all_keys(default_settings())
    _, parsers = make_parser(COMMANDS)
    for option, text in advice(command).items():
        assert f"--{option}" not in parsers[command].option_names
        quoted = re.findall(r"`towernmt (\S+) ?([^`]*)`", text)
        if " to `towernmt prepare`" in text:
            quoted.append(("prepare", text))
            text = ""
        for named, words in [*quoted, (command, re.sub("`[^`]*`", "", text))]:
            assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", words)) <= set(parsers[named].option_names), text
        assert set(re.findall(r"\b([a-z]+\.\w+)=", text)) <= set(known_settings), text


@pytest.mark.parametrize("line, values", [
    ("evaluate --reference a b --reference c", {"reference": ["a", "b", "c"]}),
    ("evaluate --reference a --system x y", {"system": ["x", "y"]}),
    ("translate --model a b --checkpoint best last", {"model": ["a", "b"], "checkpoint": ["best", "last"]}),
    ("score --source s --target t --model a b", {"model": ["a", "b"]}),
    ("serve --model de-en=a fr-en=b", {"model": ["de-en=a", "fr-en=b"]}),
    ("rerank --forward-model a b:2", {"forward_model": ["a", "b:2"]}),
    ("compare runs/a --reference r runs/b", {"reference": ["r"]})])
def test_several_values_follow_one_option_or_several(line, values):
    command = line.split()[0]
    parser = make_parser([command])[1][command]
    if command == "compare":    # its runs are positional arguments, so an option takes one value
        line = "compare --reference r runs/a runs/b"
        values = {**values, "runs": ["runs/a", "runs/b"]}
    assert {name: getattr(parser.parse_args(line.split()[1:]), name) for name in values} == values


@pytest.mark.parametrize("setting, right", [
    ("data.batch_type=sentence", "'sentences'"), ("data.batch_type=SENTENCES", "'sentences'"),
    ("data.batch_type=source_target", "'source+target'"), ("train.lr=1", "'optimizer.learning_rate'"),
    ("lr=1", "'optimizer.learning_rate'"), ("data.batch_size=1", "'data.batch_tokens'"),
    ("max-update=1", "'train.steps'"), ("model.num_layers=1", "'model.encoder_layers'"),
    ("model.dropout=1", "'model.residual_dropout'"), ("train.max_grad_norm=1", "'train.clip_norm'"),
    ("train.valid_freq=1", "'validation.steps'"), ("search.beam=1", "'search.beam_size'"),
    ("eval_secs=600", "'validation.minutes'"), ("save_checkpoint_secs=600", "'checkpoint.minutes'"),
    ("keep_top_checkpoint_max=5", "'checkpoint.keep_best'")])
def test_the_error_of_a_setting_or_value_of_another_toolkit_names_the_right_one(setting, right):
    with pytest.raises(SettingsError, match=rf"Did you mean {re.escape(right)}\?"):
        apply_overrides(default_settings(), parse_assignments([setting]))


def test_the_settings_suggested_for_names_of_other_toolkits_exist():
    keys = all_keys(default_settings())
    assert set(NAMES_OF_OTHER_TOOLKITS.values()) <= set(keys)
    assert not {key.split(".")[-1] for key in keys} & set(NAMES_OF_OTHER_TOOLKITS)


@pytest.mark.parametrize("inside, said", [
    ("checkpoints/step-4", "a checkpoint of the run {run}: pass .* with --checkpoint step-4 if the command has"),
    ("best/step-4/", "a checkpoint of the run {run}"),
    ("checkpoints/step-4/model", "a checkpoint of the run {run}"),
    ("checkpoints/step-4/model.index", "a checkpoint of the run {run}"),
    ("checkpoints", "inside the run {run}: pass"), ("settings.yaml", "inside the run {run}: pass"),
    ("vocabulary", "inside the run {run}: pass")])
@pytest.mark.parametrize("relative", [False, True])
def test_a_path_inside_a_run_is_answered_with_the_run_and_its_checkpoint(tmp_path, monkeypatch, inside, said, relative):
    monkeypatch.chdir(tmp_path)
    run = Path("run") if relative else tmp_path / "run"
    for name in ("checkpoints/step-4", "best/step-4", "vocabulary"):
        (run / name).mkdir(parents=True)
    for name in ("settings.yaml", "checkpoints/step-4/model.index"):
        (run / name).write_text("architecture: transformer\n")
    with pytest.raises(SettingsError, match=said.format(run=run)):
        open_run(run / inside).saved_settings()
    with pytest.raises(SettingsError, match=said.format(run=run)):
        open_run(run / inside).vocabularies()


def test_a_path_that_leads_out_of_a_run_is_not_inside_it(tmp_path, monkeypatch):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "settings.yaml").write_text("architecture: transformer\n")
    monkeypatch.chdir(run)
    with pytest.raises(SettingsError, match=r"^\.\./misspelt: the path does not exist; pass the --logdir"):
        open_run("../misspelt").saved_settings()
    monkeypatch.chdir(run / "checkpoints")
    with pytest.raises(SettingsError, match=f"^../log is inside the run {run}: pass the run's directory, {run}."):
        open_run("../log").saved_settings()
