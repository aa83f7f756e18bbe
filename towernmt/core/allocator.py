"""Select a memory allocator that suits tensors: `env $(python -m towernmt.core.allocator) towernmt train ...`.

The allocator of a program is fixed when it starts, so it is set in the environment in which the program is started.
The sizes of tensors change with each batch. glibc's `malloc` returns freed memory to the system and requests it again
a moment later, page by page, and the system clears each page. Large blocks no longer fit between the small objects
that oneDNN caches for each shape. oneTBB's `malloc` (the package `tbb`, in the extra `fast`) has neither problem.
Without it, glibc is configured to retain freed memory. Measurements: docs/notes/performance.md.

`towernmt/__init__.py` must not import this module, or `python -m` warns that it is already imported.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata

_KEPT_FROM = 1 << 20
"""Bytes: oneTBB keeps freed blocks of at least this size, even if they are not used again for long."""
_KEEP = 2_000_000_000
"""Maximum freed memory that the process keeps with glibc's allocator, in bytes."""
TUNABLES = {
    "hugetlb": 1,               # huge pages on request (madvise)
    "mmap_threshold": _KEEP,
    "trim_threshold": _KEEP,
    "top_pad": 64 << 20,        # bytes to grow by
    "arena_max": 2,             # fewer heaps, each of which keeps freed memory
}
"""Tunables of `glibc.malloc` without oneTBB; glibc ignores unknown ones."""


def allocator_environment() -> dict[str, str]:
    """Return environment variables that select oneTBB's allocator or glibc's with `TUNABLES`; {} without glibc."""
    if platform.libc_ver()[0] != "glibc":
        return {}
    libraries = _tbb_malloc()
    if libraries:
        return {"LD_PRELOAD": ":".join(libraries), "TBB_MALLOC_SET_HUGE_SIZE_THRESHOLD": str(_KEPT_FROM)}
    return {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}


def _tbb_malloc() -> list[str]:
    """Return the paths of oneTBB's `malloc` and of its proxy in loading order, or [] if oneTBB is missing."""
    try:
        files = metadata.files("tbb") or []
    except metadata.PackageNotFoundError:
        return []
    paths = {file.name: os.path.normpath(file.locate()) for file in files}
    libraries = [paths.get(name, "") for name in ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")]
    # LD_PRELOAD has no way to write a path with a blank or a colon.
    loadable = all(os.path.exists(path) and not set(" :") & set(path) for path in libraries)
    return libraries if loadable else []


if __name__ == "__main__":
    print(" ".join(f"{name}={value}" for name, value in allocator_environment().items()))
