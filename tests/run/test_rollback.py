"""`recovery.on_divergence=rollback`: back to the last good checkpoint, with a lower rate, up to a limit."""

from __future__ import annotations

import dataclasses

import pytest

from towernmt.cli.main import main
from towernmt.core.errors import DivergenceError, SettingsError
from towernmt.run.directory import RunDirectory
from towernmt.run.rollback import with_lower_rate, with_rollbacks
from towernmt.run.settings import RecoverySettings, Settings, default_settings

pytestmark = pytest.mark.thorough


def settings(**recovery) -> Settings:
    return dataclasses.replace(default_settings(), recovery=RecoverySettings(on_divergence="rollback", **recovery))


class Run:
    """A training that diverges while its rate is too high; it saves a checkpoint first if it may."""

    def __init__(self, path, highest: float, saves: bool = True) -> None:
        self.run, self.highest, self.rates = RunDirectory(path), highest, []
        if saves:
            (self.run.checkpoints / "step-10").mkdir(parents=True)
            (self.run.checkpoints / "step-10" / "state.json").write_text("{}")

    def __call__(self, s: Settings) -> int:
        self.rates.append(s.optimizer.learning_rate)
        if s.optimizer.learning_rate > self.highest:
            raise DivergenceError("Training diverged at step 12.")
        return 7


def test_the_rate_falls_until_training_goes_well(tmp_path):
    run = Run(tmp_path, highest=0.0003)
    assert with_rollbacks(settings(), run.run, run) == 7
    assert run.rates == [0.001, 0.0005, 0.00025]


def test_the_limit_of_rollbacks_ends_it_with_the_error(tmp_path):
    run = Run(tmp_path, highest=0.0)
    with pytest.raises(DivergenceError, match="step 12. .2 rollbacks were made, as many as recovery.rollbacks allows"):
        with_rollbacks(settings(rollbacks=2, rollback_rate=0.1), run.run, run)
    assert run.rates == pytest.approx([0.001, 0.0001, 0.00001])


def test_without_being_asked_or_without_a_checkpoint_divergence_ends_training(tmp_path):
    run = Run(tmp_path / "a", highest=0.0)
    with pytest.raises(DivergenceError):
        with_rollbacks(default_settings(), run.run, run)
    other = Run(tmp_path / "b", highest=0.0, saves=False)
    with pytest.raises(DivergenceError):
        with_rollbacks(settings(), other.run, other)
    assert len(run.rates) == len(other.rates) == 1


def test_every_rate_of_the_schedule_is_lowered():
    s = settings()
    s = dataclasses.replace(s, schedule=dataclasses.replace(s.schedule, values=[0.4, 0.2], end_learning_rate=0.1))
    lower = with_lower_rate(s, 0.5)
    assert lower.schedule.values == [0.2, 0.1] and lower.schedule.end_learning_rate == 0.05
    assert lower.optimizer.learning_rate == 0.0005


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_rate_that_would_not_fall_is_refused(tmp_path, rate):
    with pytest.raises(SettingsError, match="rollback_rate"):
        with_rollbacks(settings(rollback_rate=rate), RunDirectory(tmp_path), lambda s: 0)


def test_a_run_that_diverges_goes_on_by_itself_from_its_checkpoint(tmp_path, capfd):
    for name, lines in (("source", ["a b c", "b c", "c a"]), ("target", ["x y z", "y z", "z x"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines * 10))
    data, logdir = tmp_path / "data", tmp_path / "run"
    assert main(["prepare", f"--source={tmp_path}/source", f"--target={tmp_path}/target", "--vocab-kind", "word",
                 f"--output={data}"]) == 0
    tiny = ["model.hidden_size=8", "model.filter_size=8", "model.heads=2", "model.encoder_layers=1",
            "model.decoder_layers=1", "data.batch_tokens=40", "log.steps=1", "train.deterministic=false",
            "schedule.name=constant", "schedule.warmup_steps=0"]
    arguments = ["train", f"--data={data}", f"--logdir={logdir}", "--set", *tiny]
    assert main([*arguments, "train.steps=3", "optimizer.learning_rate=0.001"]) == 0
    too_high = ["train.steps=8", "optimizer.learning_rate=1e30", "recovery.on_divergence=rollback",
                "recovery.rollback_rate=1e-33"]
    assert main([*arguments, *too_high]) == 0
    run = RunDirectory(logdir)
    assert run.checkpoint("last").endswith("step-8/model")
    assert run.settings().optimizer.learning_rate == pytest.approx(0.001)
    log = "".join(file.read_text() for file in run.log.glob("log.log*"))
    assert f"Rollback 1 of 3: going on from {run.checkpoints / 'step-3'}" in log and "Rollback 2" not in log
    assert main([*arguments, *too_high, "train.steps=12", "recovery.rollbacks=0"]) == 1
    assert "0 rollbacks were made" in capfd.readouterr().err
