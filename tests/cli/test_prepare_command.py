"""`towernmt prepare` from the command line's arguments to its output."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from towernmt.cli import data_commands as command
from towernmt.cli.main import main
from towernmt.cli.output_paths import path_options
from towernmt.dataflow.preparation.prepare_settings import PrepareSettings
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.text.validation_set import ValidationFiles


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="towernmt prepare")
    command.add_prepare_arguments(parser)
    return parser


def test_the_command_prepares_and_prints_the_table(tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    for name, word in (("train.de", "ja"), ("train.en", "yes"), ("valid.de", "ja"), ("valid.en", "yes")):
        (tmp_path / name).write_text("".join(f"{word} {n} {word}\n" for n in range(50)))
    arguments = [f"--{option}={tmp_path / name}" for option, name in (
        ("source", "train.de"), ("target", "train.en"), ("valid-source", "valid.de"),
        ("valid-target", "valid.en"), ("output", "out"))]
    options = ["--vocab-size", "30", "--shared-vocab", "--vocab-kind", "bpe"]
    assert command.run_prepare(_parser().parse_args(arguments + options)) == 0
    data = PreparedData(tmp_path / "out")
    assert (data.pairs, data.shared_vocabulary, len(data.valid_source)) == (50, True, 50)
    printed = capsys.readouterr()
    assert printed.out == data.statistics_table
    assert "pairs: 50 of 50 lines; 0 dropped" in printed.out
    assert "encoding: 50 of 50 lines" in printed.err
    assert printed.err.endswith(f"Prepared. Train on it: towernmt train "
                                f"--data {tmp_path / 'out'} --logdir runs/out\n")


def test_the_error_of_one_side_alone_names_the_missing_option(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.de").write_text("ja\n")
    assert main(["prepare", "--source", str(tmp_path / "train.de"), "--output", str(tmp_path / "out")]) == 1
    assert f"--target is missing: {tmp_path / 'train.de'} has one side" in capsys.readouterr().err
    assert main(["prepare", "--source", str(tmp_path / "nothing.de"), "--output", str(tmp_path / "out")]) == 1
    assert "nothing.de: the file does not exist" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("gpus", "options"), [
    ([], "--logdir"), (["0", "1"], "--gpu 0 --logdir")])
def test_a_preset_is_proposed_with_its_reason_and_the_next_command(gpus: list[str], options: str, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("a b\n")
    monkeypatch.setattr(command, "visible_gpus", lambda: gpus)
    text = str(tmp_path / "text")
    assert main(["prepare", "--source", text, "--target", text, "--vocab-kind", "word", "--output",
                 str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().err
    assert "Proposed: --preset tiny, because there are 1 pairs" in printed
    assert f"Prepared. Train on it: towernmt train --data {tmp_path / 'out'} {options} runs/out\n" in printed


def test_a_shared_vocabulary_or_two_may_be_requested_or_left_to_the_default() -> None:
    required = ["--source=a", "--target=b", "--output=c"]
    assert [_parser().parse_args([*required, *option]).shared_vocab
            for option in ([], ["--shared-vocab"], ["--no-shared-vocab"])] == [None, True, False]


def settings_of(args: argparse.Namespace) -> PrepareSettings:
    """Return the settings without the option that replaces the settings of the vocabularies."""
    return PrepareSettings(**{name: value for name, value in vars(args).items() if name != "vocabulary_of"})


def test_every_setting_has_an_option_with_the_same_default() -> None:
    args = _parser().parse_args(["--source=a", "--target=b", "--output=c"])
    assert settings_of(args) == PrepareSettings(source="a", target="b", output="c")
    text = " ".join(_parser().format_help().split())
    for field in dataclasses.fields(PrepareSettings):
        assert ("--" + field.name.replace("_", "-") in text) or not field.metadata


def test_the_options_of_validation_text_may_be_repeated() -> None:
    required = ["--source=a", "--target=b", "--output=c"]
    for options in (["--valid-source", "n.de", "t.de", "--valid-target", "n.en", "t.en"],
                    ["--valid-source=n.de", "--valid-target=n.en", "--valid-source=t.de", "--valid-target=t.en"]):
        files = settings_of(_parser().parse_args([*required, *options])).validation_files()
        assert files == [ValidationFiles("n", "n.de", ["n.en"]), ValidationFiles("t", "t.de", ["t.en"])]
    options = ["--valid-source", "n.de", "--valid-target", "n.1", "--valid-target", "n.2", "--valid-name", "news"]
    files = settings_of(_parser().parse_args([*required, *options])).validation_files()
    assert files == [ValidationFiles("news", "n.de", ["n.1", "n.2"])]


def test_the_values_of_options_that_name_no_files_are_no_paths() -> None:
    paths = set(path_options(_parser()))
    assert {"source", "target", "output", "valid_source", "alignments", "source_vocab"} <= paths
    assert paths.isdisjoint({"vocab_symbols", "source_script", "target_script", "source_language", "target_language"})


def test_unknown_tokens_lead_to_a_larger_vocabulary_only_if_the_text_is_in_two_files() -> None:
    settings = PrepareSettings(source="a.de", target="a.en", output="out")
    statistics = {"source": {"unknown_rate": 0.1}, "target": {"unknown_rate": 0.0}}
    assert "towernmt grow --model M --source a.de --target a.en --output GROWN" in command._note_of_unknown_tokens(
        settings, statistics, "M")
    of_a_table = dataclasses.replace(settings, source="pairs.tsv", target="")
    assert command._note_of_unknown_tokens(of_a_table, statistics, "M") == ""


def test_no_larger_vocabulary_is_proposed_for_bpe_codes_which_cannot_be_extended() -> None:
    statistics = {"source": {"unknown_rate": 0.1}, "target": {"unknown_rate": 0.0}}
    for kind, is_proposed in ((".model", True), (".words", True), (".codes", False)):
        settings = PrepareSettings(source="a.de", target="a.en", output="out", source_vocab=f"v/source{kind}",
                                   target_vocab=f"v/target{kind}")
        assert ("towernmt grow" in command._note_of_unknown_tokens(settings, statistics, "M")) == is_proposed


def test_a_kind_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["--source=a", "--target=b", "--output=c", "--vocab-kind=chars"])
    assert "unigram" in capsys.readouterr().err
