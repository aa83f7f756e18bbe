"""A run that is trained, served and exported on fake GPUs equals one on CPU towers, and works without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.free_ports import free_ports
from tests.gpu import fake_gpu
from tests.gpu.conftest import wait_for_all
from towernmt.checkpoint.checkpoint_files import latest_checkpoint
from towernmt.cli.main import main
from towernmt.core.directories import EXPORT_DESCRIPTION
from towernmt.core.tf_compat import tf, tf1

pytestmark = pytest.mark.thorough

MODEL = ["model.hidden_size=16", "model.filter_size=32", "model.heads=2", "model.encoder_layers=1",
         "model.decoder_layers=1"]
STEPS = 8
SETTINGS = [*MODEL, f"train.steps={STEPS}", "validation.steps=4", "checkpoint.steps=4", "data.batch_tokens=100",
            "optimizer.ema_decay=0.5", "train.update_cycle=2"]
SERVES = all(find_spec(name) is not None for name in ("starlette", "uvicorn", "sentencex"))
"""Whether the packages of `towernmt[serve]` are installed."""


@pytest.fixture(scope="module")
def folder(start: Callable[..., Any], prepare_pairs: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
           ) -> Path:
    """Return a folder with the runs `gpu`, `workers` and `cpu`, and what was made of `gpu` on the GPUs.

    Two processes with a GPU each train `workers`.
    """
    folder = tmp_path_factory.mktemp("whole")
    data = prepare_pairs(folder)
    train = ["train", "--data", str(data), "--defaults", "fixed", "--set", *SETTINGS, "--logdir"]
    run, source = str(folder / "gpu"), str(folder / "source")
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]

    def start_commands(name: str, cards: int, commands: list[list[str]], **variables: str) -> Any:
        (folder / name).write_text(json.dumps(commands), encoding="utf-8")
        return start(cards, ["-m", "tests.gpu.commands", folder / name], **variables)

    programs = [start_commands("commands.json", 2, [
        [*train, run, "--gpu", "0,1"],
        ["translate", "--model", run, "--gpu", "0", "--input", source, "--output", str(folder / "translated-on-gpu")],
        ["export", "--model", run, "--format", "savedmodel", "--output", str(folder / "exported")],
        *([["serve", "--model", f"de-en={run}", "--gpu", "0", "--port", "0", "--no-retry", source,
            str(folder / "served")]] * SERVES),
    ])]
    for index in range(len(workers)):
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        programs.append(start_commands(f"worker-{index}.json", 1, [[*train, str(folder / "workers"), "--gpu", "0"]],
                                       TF_CONFIG=json.dumps(cluster)))
    assert main([*train, str(folder / "cpu"), "--towers", "2"]) == 0
    wait_for_all(programs)
    return folder


def weights(run: Path) -> dict[str, np.ndarray]:
    """Return the variables of a run's last checkpoint."""
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    reader = tf.train.load_checkpoint(str(checkpoint / "model"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def scalars(run: Path) -> list[dict[str, float]]:
    """Return the validation scores of a run."""
    steps = map(json.loads, (run / "log" / "stats.jsonl").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in step.items() if name.startswith("validation_")}
            for step in steps if step["global_step"] <= STEPS]


@pytest.mark.parametrize("run", ["gpu", "workers"])
def test_the_checkpoint_is_that_of_cpu_towers(folder: Path, run: str) -> None:
    on_gpus, on_cpu = weights(folder / run), weights(folder / "cpu")
    assert on_gpus.keys() == on_cpu.keys()
    assert all(np.allclose(on_gpus[name], on_cpu[name], rtol=0, atol=1e-5) for name in on_gpus)


@pytest.mark.parametrize("run", ["gpu", "workers"])
def test_validation_gives_the_scores_of_cpu_towers(folder: Path, run: str) -> None:
    on_gpus, on_cpu = scalars(folder / run), scalars(folder / "cpu")
    assert len(on_gpus) == 2
    for one, other in zip(on_gpus, on_cpu, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_a_machine_without_gpus_translates_as_the_gpus_do(folder: Path) -> None:
    assert main(["translate", "--model", str(folder / "gpu"), "--input", str(folder / "source"),
                 "--output", str(folder / "translated-on-cpu")]) == 0
    assert (folder / "translated-on-cpu").read_text() == (folder / "translated-on-gpu").read_text()


@pytest.mark.skipif(not SERVES, reason="towernmt[serve] is not installed")
def test_a_server_translates_on_its_gpu(folder: Path) -> None:
    assert (folder / "served").read_text() == (folder / "translated-on-gpu").read_text()
    counts = fake_gpu.parse((folder / "served.tsv").read_text(encoding="utf-8"))
    assert counts.cards() == {"0"} and not counts.missing


def test_a_run_resumes_on_another_number_of_cpu_towers(folder: Path) -> None:
    assert main(["train", "--data", str(folder / "data"), "--logdir", str(folder / "gpu"), "--towers", "1", "--set",
                 f"train.steps={STEPS + 1}", "validation.steps=0"]) == 0
    assert weights(folder / "gpu")["global_step"] == STEPS + 1


def test_an_export_from_a_machine_with_gpus_names_no_device(folder: Path, graph: object) -> None:
    about = json.loads((folder / "exported" / EXPORT_DESCRIPTION).read_text(encoding="utf-8"))
    with tf1.Session() as session:
        tf1.saved_model.loader.load(session, about["tags"], str(folder / "exported"))
        assert {operation.device for operation in session.graph.get_operations()
                if "gpu" in operation.device.lower()} == set()
