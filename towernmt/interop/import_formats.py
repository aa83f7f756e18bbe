"""The systems whose models are imported, and the function that reads each. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from towernmt.core.errors import SettingsError

if TYPE_CHECKING:
    from towernmt.interop.foreign_model import ForeignModel, ImportRequest


class ForeignFormat(NamedTuple):
    """A system whose models can be imported.

    Attributes:
        help: one line that says what to pass as the model.
        function: "module:function" of the reader, which takes an `ImportRequest` and returns a `ForeignModel`. If a
            model cannot be imported, it raises a `TowerNMTError` that names the cause.
    """

    help: str
    function: str

    def reader(self) -> Callable[[ImportRequest], ForeignModel]:
        """Import the reader's module and return the reader."""
        reader: Callable[[ImportRequest], ForeignModel] = resolve_name(self.function)
        return reader


FORMATS: dict[str, ForeignFormat] = {
    "marian": ForeignFormat("Marian's .npz, or the folder of an OPUS-MT model",
                            "towernmt.interop.marian_import:read_marian"),
    "opennmt-tf": ForeignFormat("OpenNMT-tf's configuration (.yml), or its directory or prefix of checkpoints",
                                "towernmt.interop.opennmt_tf_import:read_opennmt_tf"),
    "thumt": ForeignFormat("THUMT's directory or prefix of checkpoints of its TensorFlow branch, with transformer.json",
                           "towernmt.interop.thumt_import:read_thumt"),
}


def foreign_format(name: str) -> ForeignFormat:
    """Return the system with a name.

    Raises:
        SettingsError: the name is unknown.
    """
    if name not in FORMATS:
        raise SettingsError(f"--from {name}: choose one of {', '.join(FORMATS)}.")
    return FORMATS[name]
