"""Former names of settings, and facts that are no settings, as the commands take them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from towernmt.checkpoint.former_settings import FORMER
from towernmt.cli.main import main
from towernmt.run.directory import RunDirectory
from towernmt.run.launch import check_resumable
from towernmt.run.settings import Settings, default_settings


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["train", "--help-settings", *arguments])
    return status, *capsys.readouterr()


def former(settings: Settings) -> dict[str, dict[str, object]]:
    """What `settings.yaml` held before settings were renamed and removed."""
    content = yaml.safe_load(yaml.safe_dump({name: dataclasses.asdict(group) for name, group in vars(settings).items()
                                             if dataclasses.is_dataclass(group)}))
    old: dict[str, dict[str, object]] = {"train": {}}
    for before, now in FORMER.renamed.items():
        (group, name), (new_group, new_name) = before.split("."), now.split(".")
        old.setdefault(group, {})[name] = content[new_group].pop(new_name)
    for before, removed in FORMER.removed.items():
        group, name = before.split(".")
        old.setdefault(group, {})[name] = removed.value
    for group, values in content.items():
        old.setdefault(group, {}).update(values)
    return {"architecture": "transformer", **old}


def test_a_setting_by_its_former_name_is_set_with_a_note_of_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = shown(capsys, "batch_tokens", "--set", "train.batch_tokens=7")
    assert (status, err) == (0, "--set: train.batch_tokens is now data.batch_tokens.\n")
    assert out.startswith("data.batch_tokens=7\n")


def test_a_file_of_former_names_gives_one_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train: {seed: 3, metric: chrf, least_loss_scale: 1.0}\n")
    status, out, err = shown(capsys, "data.seed", "--config", str(file))
    assert (status, err) == (0, f"{file}: train.seed is now data.seed, train.metric is now validation.metric.\n")
    assert out.startswith("data.seed=3\n")


def test_help_finds_a_setting_by_its_former_name(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = shown(capsys, "train.checkpoint_steps")
    assert out.startswith("checkpoint.steps=1000\n") and out.endswith("Formerly train.checkpoint_steps.\n")


def test_a_run_of_before_is_read_without_a_word_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, settings = RunDirectory(tmp_path), default_settings()
    settings.data.seed, settings.checkpoint.keep = 7, 3
    run.checkpoints.mkdir()
    run.settings_file.write_text(yaml.safe_dump(former(settings)))
    assert run.settings() == settings
    check_resumable(run, settings)
    assert capsys.readouterr() == ("", "")


def test_a_run_goes_on_with_another_alpha_of_r_drop(tmp_path: Path) -> None:
    run, settings = RunDirectory(tmp_path), default_settings()
    run.save_settings(settings)
    run.checkpoints.mkdir()
    check_resumable(run, dataclasses.replace(settings, model=dataclasses.replace(settings.model, r_drop_alpha=1.0)))


def test_the_size_of_a_vocabulary_is_no_setting_but_may_stand_in_a_file(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("model: {source_vocab_size: 9, heads: 2}\n")
    assert shown(capsys, "heads", "--config", str(file))[:2] == (0, shown(capsys, "heads", "--set", "model.heads=2")[1])
    status, _, err = shown(capsys, "heads", "--set", "model.source_vocab_size=9")
    assert status == 1 and "--set: model.source_vocab_size is no setting" in err
    assert "vocab_size" not in shown(capsys, "model")[1]
