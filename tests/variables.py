"""Values of variables: read from a checkpoint, or set in one run of a session, which is faster than `load` of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.core.tf_compat import tf, tf1


def checkpoint_values(checkpoint: Path) -> dict[str, np.ndarray]:
    """Return every variable of a checkpoint by name.

    Args:
        checkpoint: directory of the checkpoint.
    """
    reader = tf.train.load_checkpoint(str(checkpoint / "model"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assign(session: Any, values: Mapping[str, np.ndarray]) -> None:
    """Set the variables of the default graph that have these names.

    Args:
        session: session of the default graph.
        values: values by name of the variable.
    """
    variables = [variable for variable in tf1.global_variables() if variable.op.name in values]
    assert len(variables) == len(values)
    session.run([variable.initializer for variable in variables],
                {variable.initializer.inputs[1]: values[variable.op.name] for variable in variables})


def assign_random(session: Any, random: np.random.Generator, deviation: float, variables: Sequence[Any] | None = None
                  ) -> dict[str, np.ndarray]:
    """Set variables to normally distributed values, and return the values by name.

    Args:
        session: session of the default graph.
        random: source of the values.
        deviation: standard deviation of the values.
        variables: the variables; None for all that are trained.
    """
    values = {variable.op.name: random.normal(0, deviation, variable.shape).astype(np.float32)
              for variable in (tf1.trainable_variables() if variables is None else variables)}
    assign(session, values)
    return values
