"""The formats of `towernmt export`: which function writes each, and in which precisions. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from towernmt.core.errors import SettingsError

if TYPE_CHECKING:
    from towernmt.export.job import ExportJob


@dataclass(frozen=True)
class ExportFormat:
    """A format.

    Attributes:
        help: who reads it, in one line.
        place: "module:function" of its writer, which takes an `ExportJob` and returns what `towernmt.json` tells of the
            files, by name. It raises SettingsError for a model or a search that the format cannot express, and names
            the setting.
        precisions: of the weights; the first is the default.
    """

    help: str
    place: str
    precisions: tuple[str, ...] = ("float32",)

    def writer(self) -> Callable[[ExportJob], dict[str, Any]]:
        """The function that writes it; imports its module."""
        module, name = self.place.split(":")
        found: Callable[[ExportJob], dict[str, Any]] = getattr(import_module(module), name)
        return found


FORMATS: dict[str, ExportFormat] = {
    "ctranslate2": ExportFormat("the CTranslate2 engine", "towernmt.export.ctranslate2.writer:write",
                                ("float32", "bfloat16", "float16", "int16", "int8")),
    "argos": ExportFormat("Argos Translate and LibreTranslate", "towernmt.export.argos:write",
                          ("int8", "float32", "bfloat16", "float16", "int16")),
    "savedmodel": ExportFormat("plain TensorFlow, with the search inside", "towernmt.export.savedmodel:write"),
    "marian": ExportFormat("Marian's .npz, or the 8-bit model of Bergamot and Firefox",
                           "towernmt.export.marian.writer:write", ("float32", "int8")),
    "web": ExportFormat("a page that translates in the browser, with its engine and the 8-bit model",
                        "towernmt.export.web.writer:write", ("int8",)),
    "litert": ExportFormat("LiteRT (TensorFlow Lite), with the search", "towernmt.export.litert.conversion:write",
                           ("float32", "float16", "int8")),
}


def export_format(name: str) -> ExportFormat:
    """A format by its name.

    Raises:
        SettingsError: there is none of this name.
    """
    if name not in FORMATS:
        raise SettingsError(f"format '{name}': choose one of {', '.join(FORMATS)}.")
    return FORMATS[name]
