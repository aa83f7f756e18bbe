"""Why TensorFlow sees no GPU: which of the card, its driver and CUDA's libraries is missing."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from towernmt.core.tf_compat import tf

NVIDIA = "0x10de"
"""The vendor's number on the PCI bus."""
LIBRARIES = {"12": ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11",
                    "libcusparse.so.12")}
"""By CUDA's main version, what TensorFlow loads of it at its start."""


def why_missing(build: Any = None, root: Path = Path("/"), loads: Callable[[str], bool] | None = None) -> str:
    """What is missing for TensorFlow to use a GPU, as the end of a sentence.

    Args:
        build: `tf.sysconfig.get_build_info()`.
        root: where `/dev`, `/proc` and `/sys` are.
        loads: whether a shared library of that name can be loaded.
    """
    build = tf.sysconfig.get_build_info() if build is None else build
    loads = _loads if loads is None else loads
    if not build.get("is_cuda_build"):
        return "this TensorFlow was built without CUDA"
    if not _has_driver(root):
        if _has_card(root):
            return "there is an NVIDIA card, but its driver is not running: `nvidia-smi` must show the card"
        return "the card is missing: this machine shows no NVIDIA card"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.split(",")[0].strip() in ("", "-1"):
        return f"the card is there, but CUDA_VISIBLE_DEVICES={hidden or chr(39) * 2} hides it"
    if not loads("libcuda.so.1"):
        return "the card is there, but not its driver's library libcuda.so.1"
    missing = [name for name in _libraries(build) if not loads(name)]
    if missing:
        return ("the card is there, but not CUDA's libraries (" + ", ".join(missing) + "): "
                "pip install 'towernmt[gpu]' brings them")
    return "card and libraries are there, but TensorFlow cannot use them: TOWERNMT_DEBUG=1 shows what it says"


def _libraries(build: Any) -> Iterable[str]:
    yield from LIBRARIES.get(str(build.get("cuda_version", "")).split(".")[0], ())
    cudnn = str(build.get("cudnn_version", "")).split(".")[0]
    if cudnn:
        yield f"libcudnn.so.{cudnn}"


def _has_driver(root: Path) -> bool:
    """A device of NVIDIA's driver, or of the one that Windows lends to Linux (WSL 2)."""
    devices = root / "dev"
    return (devices / "dxg").exists() or any(path.name[6:].isdecimal() for path in devices.glob("nvidia*"))


def _has_card(root: Path) -> bool:
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == NVIDIA and kind.startswith("0x03"):      # a display controller, not a bridge or a sound card
            return True
    return False


def _loads(name: str) -> bool:
    """Whether a library is where the system looks, or where pip puts NVIDIA's packages."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for file in [name, *(str(path) for place in places for path in place.glob(f"*/lib/{name}"))]:
        try:
            ctypes.CDLL(file)
            return True
        except OSError:
            continue
    return False
