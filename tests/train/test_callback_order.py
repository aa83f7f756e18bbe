"""The order of custom callbacks among the usual callbacks of a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorpack.callbacks import Callback

from tests.train.plain_model import PlainModel, train_plainly
from towernmt.callbacks.best_checkpoints import BestCheckpoints
from towernmt.callbacks.saver import CheckpointSaver
from towernmt.callbacks.stateful import ScoreWatcher
from towernmt.callbacks.stopping import StopAtStep
from towernmt.checkpoint.checkpoint_files import STATE, checkpoint_steps, state_text
from towernmt.core.errors import SettingsError
from towernmt.run import assemble
from towernmt.run.assemble import Components
from towernmt.run.directory import RunDirectory
from towernmt.run.run_settings import default_settings
from towernmt.train.trainer import SyncMultiGPUTrainer


class Validator(Callback):
    """Records a score after each step, as the validator of a run does."""

    metric, scalars = "validation_bleu", ("validation_bleu",)

    def _trigger_step(self) -> None:
        self.trainer.monitors.put_scalar(self.metric, 10.0 * self.global_step)


class Watcher(ScoreWatcher):
    """Records the step at which it receives each score."""

    def __init__(self, key: str) -> None:
        super().__init__("validation_bleu")
        self.state_key, self.scores = key, []

    def _on_score(self, step: int, score: float) -> None:
        self.scores.append([self.global_step, step, score])

    def state(self) -> dict[str, Any]:
        return {"scores": list(self.scores)}


def test_a_score_watcher_after_the_usual_ones_gets_each_score_at_once(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "make_validator", lambda *_: Validator())
    monkeypatch.setattr(assemble, "fingerprints", lambda _: {})
    before, after = Watcher("before"), Watcher("after")
    settings = default_settings("transformer")
    settings.train.steps, settings.checkpoint.steps, settings.log.attention_pictures = 3, 1, 0
    data: Any = SimpleNamespace(validation_sets=[None])
    callbacks = assemble.make_callbacks(
        settings, data, RunDirectory(tmp_path), PlainModel(), None,  # type: ignore[arg-type]
        Components(callbacks_before=lambda: [before], callbacks_after=lambda: [after]))
    assert callbacks[0] is before
    kinds = (Watcher, Validator, CheckpointSaver, StopAtStep)
    train_plainly(lambda: SyncMultiGPUTrainer(towers=1), [c for c in callbacks if isinstance(c, kinds)], PlainModel())
    assert before.scores == [[2, 1, 10.0], [3, 2, 20.0]]
    assert after.scores == [[1, 1, 10.0], [2, 2, 20.0], [3, 3, 30.0]]
    saved = json.loads((tmp_path / "checkpoints" / "step-2" / "state.json").read_text())
    assert saved["callbacks"]["after"]["scores"] == after.scores[:2]       # it stands before the saver


def test_the_best_checkpoints_are_those_of_the_run_although_a_custom_saver_acts_first(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "make_validator", lambda *_: Validator())
    monkeypatch.setattr(assemble, "fingerprints", lambda _: {})
    settings = default_settings("transformer")
    settings.train.steps, settings.log.attention_pictures = 3, 0
    data: Any = SimpleNamespace(validation_sets=[None])
    callbacks = assemble.make_callbacks(
        settings, data, RunDirectory(tmp_path), PlainModel(), None,  # type: ignore[arg-type]
        Components(callbacks_after=lambda: [CheckpointSaver(tmp_path / "custom", every_steps=0)]))
    kinds = (Validator, BestCheckpoints, CheckpointSaver, StopAtStep)
    train_plainly(lambda: SyncMultiGPUTrainer(towers=1), [c for c in callbacks if isinstance(c, kinds)], PlainModel())
    assert checkpoint_steps(tmp_path / "custom") == [0, 3]
    assert checkpoint_steps(tmp_path / "checkpoints") == [0, 1, 2, 3]


@pytest.mark.parametrize("sentences", [200, 500])
def test_watchers_of_a_resumed_run_forget_the_scores_of_other_sentences(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: int) -> None:
    class Comparing(Validator):
        state_key = "bleu_validator"

        def had_other_text(self, state: dict[str, Any], scalar: str) -> bool:
            return bool(state["sentences"] != sentences)

    monkeypatch.setattr(assemble, "make_validator", lambda *_: Comparing())
    monkeypatch.setattr(assemble, "fingerprints", lambda _: {})
    checkpoint = tmp_path / "checkpoints" / "step-4"
    checkpoint.mkdir(parents=True)
    (checkpoint / STATE).write_text(state_text({"step": 4, "position": None, "callbacks": {
        "bleu_validator": {"sentences": 200}}}))
    settings = default_settings("transformer")
    settings.train.stop_patience, settings.log.attention_pictures, settings.schedule.name = 3, 0, "plateau"
    data: Any = SimpleNamespace(validation_sets=[None])
    callbacks = assemble.make_callbacks(
        settings, data, RunDirectory(tmp_path), PlainModel(), None,  # type: ignore[arg-type]
        Components(callbacks_after=lambda: [Watcher("custom")]))
    watchers = [callback for callback in callbacks if isinstance(callback, ScoreWatcher)]
    assert len(watchers) == 4       # the schedule, early stopping, the best checkpoints, and the custom one
    assert [watcher.forgets_scores for watcher in watchers] == [sentences != 200] * 4


def test_a_score_watcher_of_two_trainings_gets_the_scores_of_both() -> None:
    """A program may pass the same callback to each attempt after a rollback."""
    watcher = Watcher("both")
    for _ in range(2):
        train_plainly(lambda: SyncMultiGPUTrainer(towers=1), [Validator(), watcher], PlainModel(), batches=2)
    assert watcher.scores == [[1, 1, 10.0], [2, 2, 20.0]] * 2


class Refusing(Callback):
    """Refuses to train, as a saver does whose directory another process uses."""

    def _before_train(self) -> None:
        raise SettingsError("the directory is in use")


class Prepared(Callback):
    """Ends what it has prepared before training."""

    def _before_train(self) -> None:
        self.prepared = True

    def _after_train(self) -> None:
        assert self.prepared
        self.prepared = False


def test_a_callback_whose_training_never_began_is_not_ended() -> None:
    trainer = SyncMultiGPUTrainer(towers=1)
    first, last = Prepared(), Prepared()
    with pytest.raises(SettingsError, match="in use"):
        train_plainly(lambda: trainer, [first, Refusing(), last], PlainModel())
    assert trainer._group.error is None
    assert not first.prepared and not hasattr(last, "prepared")
