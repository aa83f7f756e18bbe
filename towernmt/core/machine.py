"""The machine and this process: processor, names of devices, peak memory, parent process, forks, and signals.

TensorFlow is not imported. Its threads do not survive a fork, so using it in a forked process is refused.

SIGTERM and SIGHUP still end the process, after it has cleaned up. A signal handler in Python would have to wait for
the end of a long library call (minutes, while a vocabulary is learned). So the handlers do nothing: a thread reads
the signal from Python's wake-up file descriptor, cleans up, and ends the process.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from towernmt.core.errors import SettingsError


@functools.cache
def processor_flags() -> frozenset[str]:
    """Return the flags of the first processor as named by Linux (`avx512_bf16`); empty on other systems."""
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:   # long on a large machine
            return frozenset(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())
    except OSError:
        return frozenset()


def has_fast_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 in hardware (AVX512_BF16 or AMX); False if unknown."""
    return not processor_flags().isdisjoint(("avx512_bf16", "amx_bf16"))


def processors() -> int:
    """Return the number of processors that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return count if _share is None else min(count, _share)


def limit_processors(count: int) -> None:
    """Limit this process to `count` processors; concurrent processes use the rest."""
    global _share
    _share = max(1, count)


def is_processor_limited() -> bool:
    """Return whether this process is limited to a share of the processors."""
    return _share is not None


_share: int | None = None


def parse_device(device: str) -> tuple[str, int]:
    """Return the kind of a device, "cpu" or "gpu", and its number.

    Args:
        device: "cpu", "gpu" or "gpu:N", perhaps with a slash before it, as in TensorFlow's names.

    Raises:
        SettingsError: the text is not a device.
    """
    match = re.fullmatch(r"/?(cpu|gpu)(?::(\d+))?", device.lower())
    if match is None:
        raise SettingsError(f"device '{device}': choose cpu, gpu or gpu:N.")
    return match[1], int(match[2] or 0)


def peak_memory(pid: int | str = "self") -> int:
    """Return the peak memory of a process in bytes; 0 if the system does not report it.

    `ru_maxrss` is not suitable, since a process inherits it from its parent.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def end_with_parent() -> None:
    """End this process, which `multiprocessing` started, when its parent ends."""
    threading.Thread(target=_wait, name="parent", daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_first_process: int | None = None
"""Id of the process that created the first session: this one or an ancestor that it was forked from."""


def refuse_second_process() -> None:
    """Refuse to make a session in a process that was forked from one that has made one.

    Raises:
        SettingsError: the process was forked from such a process.
    """
    global _first_process
    _first_process = _first_process or os.getpid()
    refuse_forked(_first_process)


def refuse_forked(process: int, library: str = "TensorFlow") -> None:
    """Refuse to use a library in a process forked from one that used it, since it would hang.

    The child process does not have the threads of the library.

    Args:
        process: id of the process that used the library.
        library: name of the library, for the message.

    Raises:
        SettingsError: the current process is a different one.
    """
    if os.getpid() != process:
        raise SettingsError(f"{library} was used before this process was forked, and cannot be used in it: use it in "
                            'one of the two only, or start processes by multiprocessing.get_context("spawn").')


_handled_signals: list[int] = []  # signals that have `_ignore_signal` as handler


@contextmanager
def cleanup_on_signal(clean: Callable[[], None]) -> Iterator[None]:
    """Call `clean` in a thread and end the process on SIGTERM or SIGHUP, while the block runs.

    Signals with other handlers (of a program or of `nohup`) are left alone. Outside the main thread, where Python
    cannot set handlers, nothing changes.

    Args:
        clean: called once while the main thread continues; the process ends when it returns or raises.
    """
    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
               and signal.getsignal(number) == signal.SIG_DFL]
    if os.name == "nt" or not numbers or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, numbers, clean), name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, _ignore_signal)
        _handled_signals.append(number)
    try:
        yield
    finally:
        _restore(previous_wakeup)
        os.close(writer)    # the thread ends


def _watch(reader: int, numbers: Sequence[int], clean: Callable[[], None]) -> None:
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while data := pipe.read(1):
            if data[0] in numbers:
                try:
                    clean()
                finally:
                    os._exit(128 + data[0])


def _ignore_signal(number: int, frame: object) -> None:
    """Handle a signal without effect on the main thread."""


def _restore(wakeup: int = -1) -> None:
    if _handled_signals:
        signal.set_wakeup_fd(wakeup)
    while _handled_signals:
        signal.signal(_handled_signals.pop(), signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore)    # else a child's signal would end its parent
