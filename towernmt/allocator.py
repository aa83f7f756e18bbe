"""How the C library hands out memory, chosen for tensors: their sizes change with each batch.

As it is, glibc gives freed memory back to the system and gets it again a moment later, page by page, each of which the
system clears. glibc reads its settings (tunables) only when a program starts, so a program that wants others starts
itself anew. What that gains: docs/performance.md.
"""

from __future__ import annotations

import os
import platform
import sys

_VARIABLE = "GLIBC_TUNABLES"
_KEEP = 2_000_000_000
"""Bytes: below it freed memory stays with the process."""
TUNABLES = {
    "hugetlb": 1,               # huge pages, where the system gives them to those that ask (madvise)
    "mmap_threshold": _KEEP,
    "trim_threshold": _KEEP,
    "top_pad": 64 << 20,        # grow by so many bytes
    "arena_max": 2,             # fewer heaps that each keep their own
}
"""Of `glibc.malloc`; a version that does not know one ignores it."""


def restart_with_tunables() -> None:
    """Start this program anew, in the same process, with `TUNABLES`; return if it has them, or `GLIBC_TUNABLES` is set.

    To be called first of all, by programs only: what was done before is done again. On systems without glibc it does
    nothing.
    """
    if _VARIABLE in os.environ or platform.libc_ver()[0] != "glibc" or not sys.executable:
        return
    tunables = ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _VARIABLE: tunables})
