"""The messages of a run: one paragraph at its start, and one at its end."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from towernmt.cli.main import main
from towernmt.core.terminal_log import terminal_handlers

pytestmark = pytest.mark.thorough

SMALL = ["model.hidden_size=16", "model.filter_size=16", "model.heads=2", "model.encoder_layers=1",
         "model.decoder_layers=1", "data.batch_tokens=100", "checkpoint.steps=0"]


@pytest.fixture(scope="module")
def text(tmp_path_factory, write_pairs) -> Path:
    place = tmp_path_factory.mktemp("text")
    write_pairs(place)
    return place


def prepare(text: Path, *more: str) -> Path:
    output = text / f"data{len(more)}"
    if output.exists():
        return output
    assert main(["prepare", "--source", str(text / "source"), "--target", str(text / "target"), "--vocab-kind", "word",
                 "--shared-vocab", "--output", str(output), *more]) == 0
    return output


@pytest.fixture
def train(tmp_path, capsys, monkeypatch):
    """Return `train(data, *settings)`, which returns the lines that the command prints."""
    def run(data: Path, *settings: str, arguments: tuple[str, ...] = ()) -> list[str]:
        for handler in terminal_handlers():     # the logger of the test that imported it
            monkeypatch.setattr(handler, "stream", sys.stdout)
        capsys.readouterr()
        assert main(["train", "--defaults=fixed", "--data", str(data), "--logdir", str(tmp_path / "run"), *arguments,
                     "--set", *SMALL, *settings]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_a_run_begins_with_one_paragraph_and_ends_with_the_next_command(text, train, tmp_path):
    sides = ["--valid-source", str(text / "source"), "--valid-target", str(text / "target")]
    first, *_, end, _, command = train(prepare(text, *sides), "train.steps=2", "validation.sentences=3")
    run = tmp_path / "run"
    for part in ("Training a transformer of ", " parameters on 1 CPU tower", "data4, 50 pairs, in batches of 100",
                 "Validation: 3 sentences every 1,000 updates", "Until update 2.", f"The run is in {run}",
                 f"{run}/log/log.log", f"tensorboard --logdir {run}/log", "Ctrl-C"):
        assert part in first
    assert "the last step is 2." in end
    assert command.split() == ["towernmt", "translate", "--model", str(run), "--input", "FILE"]


def test_what_has_no_validation_says_that_there_will_be_no_bleu_and_no_best_checkpoint(text, train):
    lines = train(prepare(text), "train.steps=1", "train.epochs=3", "data.batch_type=sentences")
    assert "50 pairs, in batches of 100 sentences. " in lines[0]
    assert "Until update 1 or the end of epoch 3. " in lines[0]
    assert "The data have no validation text: the run has no BLEU and no best checkpoint." in lines[0]


@pytest.mark.parametrize(("changed", "beginning"), [
    ("validation.steps=0", "validation.steps=0: the run has no BLEU"), ("checkpoint.keep_best=0", " updates")])
def test_a_run_that_no_longer_has_a_new_best_checkpoint_says_that_the_earlier_one_remains(
        text, train, changed, beginning):
    data = prepare(text, "--valid-source", str(text / "source"), "--valid-target", str(text / "target"))
    train(data, "train.steps=1", "validation.sentences=3")
    assert any(f"{beginning}, and the best checkpoint remains that of step 1; pass --checkpoint last to translate with "
               "the last one." in line for line in train(data, "train.steps=2", changed))


def test_a_run_whose_general_data_alone_have_validation_text_says_that_its_scores_choose_nothing(text, train, tmp_path):
    sides = ["--valid-source", str(text / "source"), "--valid-target", str(text / "target")]
    general = prepare(text, *sides)
    lines = train(prepare(text), "train.steps=3", "train.stop_patience=1", "validation.steps=1",
                  "validation.sentences=3", arguments=("--general", str(general)))
    assert "Validation: 3 sentences every 1 updates, all of them of --general. Their scores neither choose the best " \
           "checkpoint nor stop training, because " in lines[0]
    assert "or set validation.metric_set=general. Until update 3. " in lines[0]
    log = (tmp_path / "run" / "log" / "log.log").read_text()
    assert "Validation of general at step 3: BLEU" in log and "best so far" not in log
    assert not (tmp_path / "run" / "best").exists()
    rows = [json.loads(line) for line in (tmp_path / "run" / "log" / "stats.jsonl").read_text().splitlines()]
    assert [row["global_step"] for row in rows if "validation_loss/general" in row] == [1, 2, 3]
    assert not any("validation_loss" in row for row in rows)


def test_a_named_set_of_the_general_data_chooses_the_best_checkpoint(text, train, tmp_path):
    sides = ["--valid-source", str(text / "source"), "--valid-target", str(text / "target")]
    lines = train(prepare(text), "train.steps=2", "train.stop_patience=5", "validation.steps=1",
                  "validation.metric_set=general", arguments=("--general", str(prepare(text, *sides))))
    assert "Until update 2 or 5 validations have no better score." in lines[0]
    assert json.loads((tmp_path / "run" / "best" / "record.json").read_text())[0]["metric"] == "validation_bleu"


@pytest.mark.parametrize(("values", "message"), [
    ({"checkpoint.average": 2}, "checkpoint.average=2 needs validation on text of --data"),
    ({"schedule.name": "plateau"}, "is not a validation score of this run.*: use validation_bleu/general, ")])
def test_settings_that_need_a_deciding_set_are_refused_without_it(text, tmp_path, capsys, values, message):
    sides = ["--valid-source", str(text / "source"), "--valid-target", str(text / "target")]
    assert main(["train", "--defaults=fixed", "--data", str(prepare(text)), "--general", str(prepare(text, *sides)),
                 "--logdir", str(tmp_path / "run"), "--set", *SMALL, "train.steps=1",
                 *(f"{key}={value}" for key, value in values.items())]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_the_table_of_variables_is_in_the_output_with_verbose(text, train):
    """Without it, the table is only in the log file: see tests/integration/test_whole_chain.py."""
    shown = "\n".join(train(prepare(text), "train.steps=1", arguments=("--verbose",)))
    assert "self_attention" in shown and "Graph Finalized" in shown
