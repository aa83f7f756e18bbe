"""What hands out memory, chosen for tensors: their sizes change with each batch.

glibc's `malloc` gives freed memory back to the system and gets it again a moment later, page by page, each of which the
system clears; and large blocks no longer fit between the small objects that oneDNN keeps for each shape. oneTBB's
`malloc` does neither. The choice is made when a program starts, so a program that wants another starts itself anew.
What that gains: docs/notes/performance.md.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

_PRELOAD, _TUNABLES = "LD_PRELOAD", "GLIBC_TUNABLES"
_KEPT_FROM = 1 << 20
"""Bytes: oneTBB keeps freed blocks of this size and more, however long nobody asks for such a one."""
_KEEP = 2_000_000_000
"""Bytes: below it freed memory stays with the process, where glibc hands it out."""
TUNABLES = {
    "hugetlb": 1,               # huge pages, where the system gives them to those that ask (madvise)
    "mmap_threshold": _KEEP,
    "trim_threshold": _KEEP,
    "top_pad": 64 << 20,        # grow by so many bytes
    "arena_max": 2,             # fewer heaps that each keep their own
}
"""Of `glibc.malloc`, where there is no oneTBB; a version that does not know one ignores it."""


def restart_with_allocator() -> None:
    """Start this program anew, in the same process, with oneTBB's allocator, else with glibc's and `TUNABLES`.

    Returns if it was, or if `LD_PRELOAD` or `GLIBC_TUNABLES` is set: a user's own choice stays. To be called first of
    all, by programs only: what was done before is done again. On systems without glibc it does nothing.
    """
    if _PRELOAD in os.environ or _TUNABLES in os.environ:
        return
    if platform.libc_ver()[0] != "glibc" or not sys.executable:
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **_environment()})


def _environment() -> dict[str, str]:
    libraries = _tbb_malloc()
    if libraries:
        return {_PRELOAD: ":".join(libraries), "TBB_MALLOC_SET_HUGE_SIZE_THRESHOLD": str(_KEPT_FROM)}
    return {_TUNABLES: ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}


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
