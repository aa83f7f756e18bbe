"""Which GPUs of NVIDIA a process may use, found without a library that would take their memory."""

from __future__ import annotations

import os
from pathlib import Path


def visible_gpus(devices: Path = Path("/dev")) -> list[str]:
    """Their names, as `CUDA_VISIBLE_DEVICES` has them; [] where there are none.

    Args:
        devices: where the driver's devices are.
    """
    there = sorted((path.name[6:] for path in devices.glob("nvidia*") if path.name[6:].isdecimal()), key=int)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not there or shown is None:
        return there
    named = [name.strip() for name in shown.split(",")]
    hidden = next((place for place, name in enumerate(named) if name in ("", "-1")), len(named))
    return named[:hidden]
