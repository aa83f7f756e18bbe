"""`from tensorpack import *` after imports from towernmt replaces names by tensorpack's: the resulting errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tensorpack.callbacks import EnableCallbackIf, PeriodicTrigger
from tensorpack.callbacks import HookToCallback as TensorpackHookToCallback
from tensorpack.callbacks.group import Callbacks
from tensorpack.callbacks.hooks import TFLocalCLIDebugHook
from tensorpack.train import SimpleTrainer, launch_train_with_config
from tensorpack.train import TrainConfig as TensorpackTrainConfig

from towernmt.callbacks import CallbackToHook, CheckpointSaver, StopAtStep
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.train import SyncMultiGPUTrainer

HOOK = r"HookToCallback of tensorpack .* import it after `from tensorpack import \*`"


def hook() -> TensorpackHookToCallback:
    return TensorpackHookToCallback(tf1.train.StopAtStepHook(last_step=5))


@pytest.mark.parametrize("wrap", [
    lambda one: one, lambda one: EnableCallbackIf(one, lambda _: True),
    lambda one: PeriodicTrigger(one, every_k_steps=2),
    lambda one: Callbacks([EnableCallbackIf(one, lambda _: True)])])
@pytest.mark.parametrize("ours, trainer", [(True, lambda: SyncMultiGPUTrainer(towers=1)), (True, SimpleTrainer),
                                           (False, lambda: SyncMultiGPUTrainer(towers=1))])
def test_tensorpacks_hook_to_callback_is_refused_with_the_right_import(run, wrap, ours, trainer):
    with pytest.raises(SettingsError, match=HOOK):
        run([wrap(hook())], ours=ours, trainer=trainer)


def test_it_is_refused_in_a_plain_session_too():
    with pytest.raises(SettingsError, match=HOOK):
        CallbackToHook(hook())


def test_a_hook_that_derives_from_it_is_refused_by_its_name(run):
    debug = TFLocalCLIDebugHook.__new__(TFLocalCLIDebugHook)
    with pytest.raises(SettingsError, match="TFLocalCLIDebugHook of tensorpack"):
        run([debug])


def train(line, directory, steps, trainer=None):
    with tf.Graph().as_default():
        launch_train_with_config(TensorpackTrainConfig(
            model=line(), data=GeneralQueueInput([[np.full(2, 3.0)], [np.full(2, 5.0)]]), monitors=[],
            callbacks=[CheckpointSaver(directory), StopAtStep(steps)], steps_per_epoch=100, max_epoch=1),
            trainer or SyncMultiGPUTrainer(towers=1))


@pytest.mark.parametrize("trainer", [lambda: SyncMultiGPUTrainer(towers=1), SimpleTrainer])
def test_tensorpacks_train_config_saves_the_position_and_never_begins_again_over_checkpoints(line, tmp_path, trainer):
    train(line, tmp_path, 3, trainer())
    state = (tmp_path / "step-3" / "state.json").read_bytes()
    assert json.loads(json.loads(state)["position"]) == {"datapoints": 3}
    with pytest.raises(SettingsError, match=r"step 3, but training starts at step 0: .* Import TrainConfig from"):
        train(line, tmp_path, 6, trainer())
    assert (tmp_path / "step-3" / "state.json").read_bytes() == state
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-0", "step-3"}
