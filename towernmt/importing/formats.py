"""The systems whose models are imported: which function reads each. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from towernmt.core.errors import SettingsError

if TYPE_CHECKING:
    from towernmt.importing.foreign_model import ForeignModel, ImportRequest


class ForeignFormat(NamedTuple):
    """A system.

    Attributes:
        help: what is named as the model, in one line.
        place: "module:function" of its reader, from an `ImportRequest` to a `ForeignModel`. It raises a
            `TowerNMTError` for a model that cannot be imported, and names what stands in the way.
    """

    help: str
    place: str

    def reader(self) -> Callable[[ImportRequest], ForeignModel]:
        """The function that reads it; imports its module."""
        module, name = self.place.split(":")
        found: Callable[[ImportRequest], ForeignModel] = getattr(import_module(module), name)
        return found


FORMATS: dict[str, ForeignFormat] = {
    "marian": ForeignFormat("Marian's .npz, or the folder of an OPUS-MT model",
                            "towernmt.importing.marian.reader:read"),
    "opennmt-tf": ForeignFormat("OpenNMT-tf's configuration (.yml), or its directory or prefix of checkpoints",
                                "towernmt.importing.opennmt_tf.reader:read"),
    "thumt": ForeignFormat("THUMT's directory or prefix of checkpoints of its TensorFlow branch, with transformer.json",
                           "towernmt.importing.thumt.reader:read"),
}


def foreign_format(name: str) -> ForeignFormat:
    """A system by its name.

    Raises:
        SettingsError: there is none of this name.
    """
    if name not in FORMATS:
        raise SettingsError(f"--from {name}: choose one of {', '.join(FORMATS)}.")
    return FORMATS[name]
