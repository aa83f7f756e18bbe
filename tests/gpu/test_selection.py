"""Commands compute on the GPUs that they name, and on no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.program_process import Result

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
        ["devices"], ["train", "--data", "missing", "--logdir", "none", "--gpu", "0,4"],
        [*TRAIN, "--logdir", "run", "--gpu", "3"],
        ["translate", "--model", "run", "--gpu", "1", "--input", "valid.source", "--output", "translations"],
        ["score", *TEXT], ["score", *TEXT, "--gpu", "2"],
        ["export", "--model", "run", "--format", "savedmodel", "--output", "exported"],
        ["train", "--data", "data", "--defaults", "fixed", "--logdir", "other", "--towers", "1", "--set",
         "train.steps=1", "validation.steps=0", *MODEL]):
    fake_gpu.reset()
    status = main(command)
    cards = sorted(fake_gpu.parse(fake_gpu.snapshot()).cards())
    print("status", status, "cards", *cards, file=sys.__stderr__, flush=True)
    if command[0] == "train" and status == 0:       # the first one makes the context of TensorFlow
        import tensorflow as tf

        print("status of the context:", len(tf.config.list_logical_devices("GPU")), file=sys.__stderr__, flush=True)
"""


@pytest.fixture(scope="module")
def done(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory, prepare_pairs: Callable[[Path], Path]
         ) -> Result:
    """Return the output of the program on a machine with four GPUs."""
    folder = tmp_path_factory.mktemp("selection")
    prepare_pairs(folder)
    (folder / "program.py").write_text(PROGRAM)
    return start(4, [folder / "program.py"], folder).wait()


def test_each_command_uses_its_gpu_alone(done: Result) -> None:
    """Without `--gpu`, a command uses the first GPU that its process has chosen; exports use none."""
    found = [line for line in done.errors.splitlines() if line.startswith("status ")]
    assert found == ["status 0 cards", "status 1 cards", "status 0 cards 3", "status of the context: 1",
                     "status 0 cards 1", "status 0 cards 3", "status 0 cards 2", "status 0 cards", "status 0 cards",
                     "status of the context: 1"], done.errors[-2000:]


def test_a_number_that_is_too_large_is_refused_before_data_are_read(done: Result) -> None:
    assert [line for line in done.errors.splitlines() if line.startswith("towernmt: ")] == [
        "towernmt: --gpu 0,4: GPU 4 was not found (TensorFlow sees the GPUs 0 to 3); use --towers 2 to run the same "
        "towers on the CPU."]


def test_devices_lists_what_tensorflow_sees(done: Result) -> None:
    assert [line for line in done.output.splitlines() if line.startswith("GPU")] == [
        f"GPU {number}: fake GPU, compute capability 9.0, bfloat16 and TF32" for number in range(4)]
