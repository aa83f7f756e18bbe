"""How much memory a process has had."""

from __future__ import annotations

from pathlib import Path


def peak_memory(pid: int | str = "self") -> int:
    """The most bytes that a process had in memory at once; 0 where the system does not report it.

    `ru_maxrss` would not do: a process inherits it from the one that started it.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
