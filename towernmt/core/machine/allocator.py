"""The allocator of memory, chosen for tensors: `env $(python -m towernmt.core.machine.allocator) towernmt train ...`

Which allocator a program has is decided when it starts, so it is set in the environment that the program is started in.
The sizes of tensors change with each batch. glibc's `malloc` gives freed memory back to the system and gets it again a
moment later, page by page, each of which the system clears; and large blocks no longer fit between the small objects
that oneDNN keeps for each shape. oneTBB's `malloc` (the package `tbb`, in the extra `fast`) does neither; without it,
glibc is told to keep what is freed. What that gains: docs/notes/performance.md.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata

_KEPT_FROM = 1 << 20
"""Bytes: oneTBB keeps freed blocks of at least this size, even if they are not used again for long."""
_KEEP = 2_000_000_000
"""Bytes: with glibc's allocator, up to so much freed memory stays with the process."""
TUNABLES = {
    "hugetlb": 1,               # huge pages, where the system gives them to those that ask (madvise)
    "mmap_threshold": _KEEP,
    "trim_threshold": _KEEP,
    "top_pad": 64 << 20,        # grow by so many bytes
    "arena_max": 2,             # fewer heaps that each keep their own
}
"""Of `glibc.malloc`, where there is no oneTBB; a version that does not know one ignores it."""


def allocator_environment() -> dict[str, str]:
    """Variables that give a program oneTBB's allocator, else glibc's with `TUNABLES`; none on systems without glibc."""
    if platform.libc_ver()[0] != "glibc":
        return {}
    libraries = _tbb_malloc()
    if libraries:
        return {"LD_PRELOAD": ":".join(libraries), "TBB_MALLOC_SET_HUGE_SIZE_THRESHOLD": str(_KEPT_FROM)}
    return {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}


def _tbb_malloc() -> list[str]:
    """The paths of oneTBB's `malloc` and of what puts it in glibc's place, in the order to load them; `[]` for none."""
    try:
        files = metadata.files("tbb") or []
    except metadata.PackageNotFoundError:
        return []
    paths = {file.name: os.path.normpath(file.locate()) for file in files}
    wanted = [paths.get(name, "") for name in ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")]
    # LD_PRELOAD has no way to write a path with a blank or a colon.
    loadable = all(os.path.exists(path) and not set(" :") & set(path) for path in wanted)
    return wanted if loadable else []


if __name__ == "__main__":
    print(" ".join(f"{name}={value}" for name, value in allocator_environment().items()))
