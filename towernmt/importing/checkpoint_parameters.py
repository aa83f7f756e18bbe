"""A checkpoint of TensorFlow's that another program wrote: where it is, and the parameters in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from towernmt.core.errors import CheckpointError, SettingsError
from towernmt.core.tf_compat import tf
from towernmt.importing.parameters import Parameters


def checkpoint_prefix(path: Path, system: str) -> Path:
    """The prefix of the checkpoint that a directory's file `checkpoint` names, or `path` if it is one.

    Args:
        system: that wrote it, for the message.
    Raises:
        SettingsError: there is none.
    """
    if Path(f"{path}.index").is_file():
        return path
    listed = path / "checkpoint"
    lines = listed.read_text(encoding="utf-8", errors="replace").splitlines() if listed.is_file() else []
    for line in lines:
        if line.startswith("model_checkpoint_path:"):
            prefix = path / Path(line.partition(":")[2].strip().strip('"')).name
            if Path(f"{prefix}.index").is_file():
                return prefix
    raise SettingsError(f"{path}: there is no checkpoint of {system}: name the directory with the file `checkpoint`, "
                        "or the prefix of one, such as model.ckpt-10000.")


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
