"""The public names of towernmt: a change here is a change for users."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import towernmt

ROOT = Path(__file__).parents[1]
NAMES = ["DataError", "FeederError", "PreparedData", "Scorer", "Settings", "SettingsError", "TowerNMTError",
         "TrainedModel", "Translator", "__version__", "apply_overrides", "default_settings", "evaluate", "load_yaml",
         "parse_assignments", "prepare", "setting", "tf", "tf1", "train", "translation_config"]
NOT_CALLED = {"__version__", "tf", "tf1"}


def test_the_package_gives_these_names():
    assert towernmt.__all__ == NAMES and set(NAMES) <= set(dir(towernmt))
    assert all(callable(getattr(towernmt, name)) for name in NAMES if name not in NOT_CALLED)


def test_a_name_that_is_missing_is_named():
    with pytest.raises(AttributeError, match="'towernmt' has no attribute 'trian'"):
        getattr(towernmt, "trian")  # noqa: B009


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_the_package_train_is_the_function_train_too():
    """Each order of imports runs in a separate fork; TensorFlow is imported once."""
    program = """
import os
import tensorpack
for first in ("import towernmt", "from towernmt.train import SyncMultiGPUTrainer"):
    if os.fork():
        assert os.wait()[1] == 0, first
        continue
    exec(first)
    import inspect, towernmt
    from towernmt import train
    from towernmt.run.launch import train as function
    from towernmt.train import SyncMultiGPUTrainer
    assert towernmt.train.SyncMultiGPUTrainer is SyncMultiGPUTrainer and towernmt.train is train
    try:
        train("no settings", logdir=3, no_such_option=1)
    except TypeError as error:
        assert "train() got an unexpected keyword argument 'no_such_option'" in str(error), error
    break
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_package_evaluate_scores_a_corpus():
    scores = towernmt.evaluate(["the house is old"], ["the house is old"])
    assert scores.bleu == pytest.approx(100.0) and scores.chrf == pytest.approx(100.0)


def test_the_package_has_types_and_importing_it_loads_no_tensorflow():
    assert (Path(towernmt.__file__).parent / "py.typed").is_file()
    program = "import sys, towernmt; towernmt.apply_overrides; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("first_use", [
    "towernmt.train()",
    "towernmt.translation_config('no run')",
    "importlib.import_module('towernmt.predict.engine_choice')._graph(None)",       # Translator without CTranslate2
])
def test_importing_tensorflow_on_first_use_prints_nothing(first_use):
    program = ("import contextlib, importlib, pathlib, sys, towernmt\nwith contextlib.suppress(Exception):\n"
               f"    {first_use}\nassert 'tensorflow' in sys.modules")
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
