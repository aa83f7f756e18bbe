"""Values of variables: set in one run of a session, which takes less time than `load` of each variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towernmt.core.tf_compat import tf1


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
