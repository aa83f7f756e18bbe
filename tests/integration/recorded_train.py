"""`towernmt train` with a callback that records each step, and with faults on demand.

    python recorded_train.py RECORD [--hold-at STEP] [--die-writing STEP] -- train --data ...

A line of RECORD describes a step: the position after its batch, a checksum of the batch, the exact bits of the loss and
of the gradients' norm.

    --hold-at STEP      after STEP, prints "held at step STEP" and waits until it is killed
    --die-writing STEP  kills itself (SIGKILL) when all files of the checkpoint of STEP are written, and
                        the directory is about to get its name
"""

from __future__ import annotations

import json
import os
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

import towernmt.core.tf_compat  # noqa: F401    # before tensorpack, as in all of towernmt's programs

# isort: split
from tensorpack.callbacks import Callback

from towernmt.cli.main import main
from towernmt.core.tf_compat import tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.run import assemble


class Recorder(Callback):
    """Writes one line a step."""

    def __init__(self, record: str, source: GeneralQueueInput, hold_at: int) -> None:
        self._file = open(record, "a", encoding="utf-8")  # noqa: SIM115
        self._source, self._hold_at = source, hold_at

    def _setup_graph(self) -> None:
        tower = self.trainer.towers.training()[0]
        norm = next(op for op in self.graph.get_operations() if op.name.split("/")[-1] == "gradient_norm")
        self._fetches = {"loss": tower.get_tensor("loss"), "norm": norm.outputs[0],
                         "batch": list(tower.inputs)}

    def _before_run(self, _: Any) -> Any:
        return tf1.train.SessionRunArgs(self._fetches)

    def _after_run(self, _: Any, values: Any) -> None:
        self._values = values.results

    def _trigger_step(self) -> None:
        batch = b"".join(array.tobytes() for array in self._values["batch"])
        print(json.dumps({
            "step": self.global_step, "loss": float(self._values["loss"]).hex(),
            "norm": float(self._values["norm"]).hex(), "position": self._source.last_position,
            "batch": zlib.crc32(batch)}), file=self._file, flush=True)
        if self.global_step == self._hold_at:
            print(f"held at step {self._hold_at}", flush=True)
            while True:
                signal.pause()


def record_steps(record: str, hold_at: int) -> None:
    """Let every training of this process have a `Recorder`, before the callbacks that may end it."""
    make_callbacks = assemble.make_callbacks

    def with_recorder(settings: Any, data: Any, run: Any, model: Any, source: Any, components: Any) -> list[Any]:
        return [Recorder(record, source, hold_at), *make_callbacks(settings, data, run, model, source, components)]

    assemble.make_callbacks = with_recorder


def die_writing(step: int) -> None:
    """Kill this process at the moment when the checkpoint of `step` would be renamed."""
    rename = Path.rename

    def killed(self: Path, target: Any) -> Path:
        if Path(target).parts[-2:] == ("checkpoints", f"step-{step}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(self, target)

    Path.rename = killed  # type: ignore[method-assign]


if __name__ == "__main__":
    cut = sys.argv.index("--")
    record, *faults = sys.argv[1:cut]
    options = dict(zip(faults[::2], map(int, faults[1::2]), strict=True))
    record_steps(record, options.get("--hold-at", -1))
    if "--die-writing" in options:
        die_writing(options["--die-writing"])
    sys.exit(main(sys.argv[cut + 1:]))
