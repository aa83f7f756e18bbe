"""Commands compute on the GPUs that they name, and on no other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu import fake_gpu

pytestmark = [pytest.mark.thorough, pytest.mark.processes]

PROGRAM = """
import sys
from tests.gpu import fake_gpu

fake_gpu.load()
from towernmt.cli.main import main

MODEL = "model.hidden_size=16 model.filter_size=32 model.heads=2 model.encoder_layers=1 model.decoder_layers=1".split()
TRAIN = ["train", "--data", "data", "--set", "train.steps=4", "validation.steps=2", "checkpoint.average=2", *MODEL]
TEXT = ["--model", "run", "--source", "valid.source", "--target", "valid.target", "--output", "scores"]
for command in (
        [*TRAIN, "--logdir", "run", "--gpu", "3"],
        ["translate", "--model", "run", "--gpu", "1", "--input", "valid.source", "--output", "translations"],
        ["score", *TEXT], ["score", *TEXT, "--gpu", "2"],
        ["export", "--model", "run", "--format", "savedmodel", "--output", "exported"],
        [*TRAIN, "--logdir", "other", "--towers", "1"]):
    fake_gpu.reset()
    status = main(command)
    cards = sorted(fake_gpu.parse(fake_gpu.snapshot()).cards())
    print("status", status, "cards", *cards, file=sys.__stderr__, flush=True)
    if command[0] == "train":       # the first one makes the context of TensorFlow
        import tensorflow as tf

        print("status of the context:", len(tf.config.list_logical_devices("GPU")), file=sys.__stderr__, flush=True)
"""


def test_each_command_uses_its_gpu_alone(library: Path, tmp_path: Path, prepare_pairs: Callable[[Path], Path]) -> None:
    """Without `--gpu`, a command uses the first GPU that its process has chosen; exports use none."""
    prepare_pairs(tmp_path)
    environment = fake_gpu.environment(library, 4, PYTHONPATH=str(Path(__file__).parents[2]))
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True,
                          text=True)
    found = [line for line in done.stderr.splitlines() if line.startswith("status ")]
    assert found == ["status 0 cards 3", "status of the context: 1", "status 0 cards 1", "status 0 cards 3",
                     "status 0 cards 2", "status 0 cards", "status 0 cards", "status of the context: 1"
                     ], done.stderr[-2000:]


def test_a_number_that_is_too_large_is_refused_before_data_are_read(library: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.fake_gpu", "2", "-m", "towernmt", "train", "--data", "missing",
               "--logdir", str(tmp_path / "run"), "--gpu", "0,2"]
    done = subprocess.run(command, env=fake_gpu.environment(library, 2), capture_output=True, text=True,
                          cwd=Path(__file__).parents[2])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "towernmt: --gpu 0,2: GPU 2 was not found (TensorFlow sees the GPUs 0 to 1); use --towers 2 to run the same "
        "towers on the CPU.")


def test_devices_lists_what_tensorflow_sees(library: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.gpu.fake_gpu", "2", "-m", "towernmt", "devices"],
                          env=fake_gpu.environment(library, 2), capture_output=True, text=True,
                          cwd=Path(__file__).parents[2])
    assert [line for line in done.stdout.splitlines() if line.startswith("GPU")] == [
        f"GPU {number}: fake GPU, compute capability 9.0, bfloat16 and TF32" for number in range(2)]
