"""`recovery.on_divergence=rollback`: back to the last good checkpoint, with a lower rate, up to a limit."""

from __future__ import annotations

import dataclasses
import json
import os
import signal

import pytest
from tensorpack.callbacks import Callback

from towernmt.cli.main import main
from towernmt.core.errors import CheckpointError, DivergenceError, SettingsError
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.run.directory import RunDirectory
from towernmt.run.launch import train
from towernmt.run.rollbacks import with_lower_rate, with_rollbacks
from towernmt.run.run_settings import RecoverySettings, Settings, default_settings

pytestmark = pytest.mark.thorough


def settings(**recovery) -> Settings:
    return dataclasses.replace(default_settings(), recovery=RecoverySettings(on_divergence="rollback", **recovery))


class Run:
    """A training that diverges while its rate is too high; it first saves a checkpoint if this is enabled."""

    def __init__(self, path, highest: float, saves: bool = True) -> None:
        self.run, self.highest, self.rates = RunDirectory(path), highest, []
        if saves:
            (self.run.checkpoints / "step-10").mkdir(parents=True, exist_ok=True)
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
    with pytest.raises(DivergenceError, match="step 12. .Rollbacks made: 2; recovery.rollbacks=2 allows no more"):
        with_rollbacks(settings(rollbacks=2, rollback_rate=0.1), run.run, run)
    assert run.rates == pytest.approx([0.001, 0.0001, 0.00001])


def test_the_lower_rate_holds_when_the_same_settings_are_given_again(tmp_path):
    run = Run(tmp_path, highest=0.0003)
    for _ in range(2):
        assert with_rollbacks(settings(), run.run, run) == 7
    assert run.rates == [0.001, 0.0005, 0.00025, 0.00025]


def test_a_run_that_is_killed_in_its_second_attempt_goes_on_with_the_lower_rate(tmp_path):
    run = Run(tmp_path, highest=0.0007)

    def killed(s: Settings) -> int:
        run(s)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_rollbacks(settings(), run.run, killed)
    assert with_rollbacks(settings(), run.run, run) == 7
    assert run.rates == [0.001, 0.0005, 0.0005]


def test_rollbacks_of_former_starts_count_and_their_factors_are_multiplied(tmp_path):
    run = Run(tmp_path, highest=0.0007)
    with_rollbacks(settings(rollbacks=2), run.run, run)
    run.highest, run.rates = 0.0, []
    with pytest.raises(DivergenceError, match="Rollbacks made: 2; recovery.rollbacks=2 allows no more"):
        with_rollbacks(settings(rollbacks=2, rollback_rate=0.1), run.run, run)
    assert run.rates == pytest.approx([0.0005, 0.00005])


def test_rollbacks_of_a_run_whose_checkpoints_are_gone_are_forgotten(tmp_path):
    run = Run(tmp_path, highest=1.0, saves=False)
    (tmp_path / "rollbacks.json").write_text('{"factor": 0.5, "rollbacks": 1}')

    def saving(s: Settings) -> int:
        Run(tmp_path, highest=1.0)
        return run(s)

    for _ in range(2):
        with_rollbacks(settings(), run.run, saving)
    assert run.rates == [0.001, 0.001]


@pytest.mark.parametrize("record", ["{", '{"factor": 2.0, "rollbacks": 1}', '{"factor": 0.5, "rollbacks": -1}'])
def test_a_damaged_record_of_rollbacks_is_told_with_its_file(tmp_path, record):
    run = Run(tmp_path, highest=1.0)
    (tmp_path / "rollbacks.json").write_text(record)
    with pytest.raises(CheckpointError, match=r"rollbacks.json: .* Fix it, or remove it"):
        with_rollbacks(settings(), run.run, run)
    assert run.rates == []


def test_a_signal_in_the_step_that_diverged_ends_the_run_and_the_next_start_goes_on_lower(tmp_path):
    run = Run(tmp_path, highest=0.0007)

    def signalled(s: Settings) -> int:
        try:
            return run(s)
        except DivergenceError as error:
            error.signal = signal.SIGTERM
            raise

    assert with_rollbacks(settings(), run.run, signalled) == 128 + signal.SIGTERM
    assert run.rates == [0.001]
    assert with_rollbacks(settings(), run.run, run) == 7
    assert run.rates == [0.001, 0.0005]


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


TINY = ["model.hidden_size=8", "model.filter_size=8", "model.heads=2", "model.encoder_layers=1",
        "model.decoder_layers=1", "data.batch_tokens=40", "log.steps=1", "train.deterministic=false",
        "schedule.name=constant", "schedule.warmup_steps=0"]


@pytest.fixture
def arguments(tmp_path) -> list[str]:
    """Return the arguments of a command that trains in `run` on prepared `data`."""
    for name, lines in (("source", ["a b c", "b c", "c a"]), ("target", ["x y z", "y z", "z x"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines * 10))
    assert main(["prepare", f"--source={tmp_path}/source", f"--target={tmp_path}/target", "--vocab-kind", "word",
                 f"--output={tmp_path}/data"]) == 0
    return ["train", "--defaults=fixed", f"--data={tmp_path}/data", f"--logdir={tmp_path}/run", "--set", *TINY]


def rates(run: RunDirectory) -> dict[int, float]:
    """Return the learning rate at each step."""
    rows = map(json.loads, (run.log / "stats.jsonl").read_text().splitlines())
    return {row["global_step"]: row["learning_rate"] for row in rows if "learning_rate" in row}


def test_a_run_that_diverges_goes_on_by_itself_from_its_checkpoint_and_so_when_started_again(arguments, tmp_path):
    assert main([*arguments, "train.steps=3", "optimizer.learning_rate=0.001"]) == 0
    too_high = ["optimizer.learning_rate=1e30", "recovery.on_divergence=rollback", "recovery.rollback_rate=1e-33"]
    assert main([*arguments, *too_high, "train.steps=8"]) == 0
    run = RunDirectory(tmp_path / "run")
    assert run.checkpoint("last").endswith("step-8/model")
    log = "".join(file.read_text() for file in run.log.glob("log.log*"))
    assert f"Rollback 1 of 3: resuming from {run.checkpoints / 'step-3'}" in log and "Rollback 2" not in log
    assert main([*arguments, *too_high, "train.steps=12", "recovery.rollbacks=1"]) == 0
    assert rates(run)[8] == pytest.approx(0.001) and rates(run)[12] == pytest.approx(0.001)
    assert run.settings().optimizer.learning_rate == 1e30


def test_a_signal_in_the_step_that_diverged_is_the_status_of_the_training(arguments, tmp_path):
    assert main([*arguments, "train.steps=3"]) == 0
    run = RunDirectory(tmp_path / "run")
    s = dataclasses.replace(run.settings(), recovery=RecoverySettings(on_divergence="rollback"))
    s.train.steps = 6

    class DivergesWhenStopped(Callback):
        def _trigger_step(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            raise DivergenceError(f"Training diverged at step {self.global_step}.")

    status = train(s, PreparedData(tmp_path / "data"), run.path, callbacks_before=lambda: [DivergesWhenStopped()])
    assert status == 128 + signal.SIGTERM
    assert run.checkpoint("last").endswith("step-3/model")
    assert json.loads((run.path / "rollbacks.json").read_text()) == {"factor": 0.5, "rollbacks": 1}
