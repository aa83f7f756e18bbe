"""How large a run's model is."""

from __future__ import annotations

import math
from pathlib import Path

from towernmt.checkpoint.saved_run import SavedRun, hold_checkpoint
from towernmt.core.errors import CheckpointError


def parameters(path: Path) -> int | None:
    """The numbers in the weights of a run's checkpoint; None where there is no checkpoint that can be read."""
    try:
        held = hold_checkpoint(SavedRun(path))
        from towernmt.checkpoint.weights import weights_of_checkpoint  # imports TensorFlow

        shapes = held.shapes()
        return sum(math.prod(shapes[name]) for name in weights_of_checkpoint(held))
    except CheckpointError:
        return None
