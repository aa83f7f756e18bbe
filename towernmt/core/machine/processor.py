"""What the processor can do."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def processor_flags() -> frozenset[str]:
    """The flags of the first processor, as Linux names them (`avx512_bf16`); empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512_BF16 or AMX); False where unknown."""
    return not processor_flags().isdisjoint(("avx512_bf16", "amx_bf16"))
