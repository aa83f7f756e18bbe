"""The systems whose models are imported, and the function that reads each. No TensorFlow.

`towernmt.core.foreign_models` recognises the system of a path.
"""

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
        help: one line that describes the path of a model.
        function: "module:function" of the reader, which takes an `ImportRequest` and returns a `ForeignModel`. If a
            model cannot be imported, it raises a `TowerNMTError` that names the cause.
    """

    help: str
    function: str

    def read(self, request: ImportRequest) -> ForeignModel:
        """Read a model of this system.

        Raises:
            TowerNMTError: see `function`.
            SettingsError: the request contradicts the files of the model.
        """
        reader: Callable[[ImportRequest], ForeignModel] = resolve_name(self.function)
        model = reader(request)
        if request.heads not in (None, model.settings.heads):
            raise SettingsError(f"--heads {request.heads}: the model has {model.settings.heads} attention heads: leave "
                                "out --heads.")
        return model


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
