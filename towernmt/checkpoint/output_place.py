"""Where a command may write a new checkpoint or run: not over the steps of a run, and not into prepared data."""

from __future__ import annotations

from pathlib import Path

from towernmt.checkpoint.files import checkpoint_path, checkpoint_steps
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.state import read_state
from towernmt.core.errors import SettingsError
from towernmt.dataflow.prepared.manifest import FORMAT, MANIFEST


def check_average_output(output: Path, step: int) -> None:
    """Refuse to write an averaged checkpoint among the steps of a run, or over a checkpoint of training.

    Args:
        output: the directory of the new `step-N`.
        step: N.
    Raises:
        SettingsError: it would be there. An older average of that name may be replaced.
        CheckpointError: the checkpoint that is there is damaged.
    """
    _refuse_prepared_data(output)
    place = output.resolve()
    run = SavedRun(place.parent)
    if run.exists() and place.name in (run.checkpoints.name, run.best.name, run.averaged.name):
        raise SettingsError(f"{output} holds the steps of a run, which goes on from them: leave --output out, or name "
                            "another directory.")
    there = checkpoint_path(output, step)
    if step in checkpoint_steps(output) and not read_state(there).mean_of:
        raise SettingsError(f"{there} is a checkpoint of training, which the average would replace: leave --output "
                            "out, or name another directory.")


def check_run_output(output: Path) -> None:
    """Refuse to make a run where there is one, or prepared data, or a vocabulary or checkpoints of something else.

    Raises:
        SettingsError: there is.
    """
    _refuse_prepared_data(output)
    run = SavedRun(output)
    if run.exists():
        raise SettingsError(f"{output} holds a run already: name another directory for the grown one.")
    for place in (run.checkpoints, run.vocabulary, run.best, run.averaged):
        if place.is_dir() and any(place.iterdir()):
            raise SettingsError(f"{place} is there already, and would be replaced: name another directory for the new "
                                "run.")


def _refuse_prepared_data(output: Path) -> None:
    for place in (output.resolve(), *output.resolve().parents):
        manifest = place / MANIFEST
        if manifest.is_file() and FORMAT.encode() in manifest.read_bytes():
            raise SettingsError(f"{output} lies in prepared data ({place}), which would be spoilt: name another "
                                "directory.")
