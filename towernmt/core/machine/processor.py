"""What the processor can do."""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.cache
def processor_flags() -> frozenset[str]:
    """The flags of the first processor, as Linux names them (`avx512_bf16`); empty on other systems."""
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:   # long on a large machine
            return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())
    except OSError:
        return frozenset()


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512_BF16 or AMX); False where unknown."""
    return not processor_flags().isdisjoint(("avx512_bf16", "amx_bf16"))


def processors() -> int:
    """How many processors this process may use."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return there if _share is None else min(there, _share)


def take_share(count: int) -> None:
    """Use so many processors from now on: other processes that work side by side with this one use the others."""
    global _share
    _share = max(1, count)


def has_share() -> bool:
    """Whether others use the other processors."""
    return _share is not None


_share: int | None = None
