"""The parameters in a checkpoint of TensorFlow's that another program wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from towernmt.core.errors import CheckpointError
from towernmt.core.tf_compat import tf
from towernmt.importing.parameters import Parameters


def open_checkpoint(prefix: Path, name_of: Callable[[str], str]) -> Parameters:
    """The parameters, read when they are asked for.

    Args:
        prefix: of the checkpoint's files.
        name_of: from a variable's name to that of a parameter; "" for what is none of the model's.
    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{prefix}: it is not a checkpoint of TensorFlow's, or a damaged one.") from error
    names = {name_of(name): name for name in shapes if name_of(name)}

    def value(name: str) -> object:
        try:
            return reader.get_tensor(names[name])
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{prefix}: the variable {names[name]} cannot be read: the checkpoint is damaged."
                                  ) from error

    return Parameters(str(prefix), {name: tuple(shapes[saved]) for name, saved in names.items()}, value)
