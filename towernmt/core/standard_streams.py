"""Standard input, output and error: missing streams, closed readers, the stream of the log, TensorFlow's noise.

TensorFlow's C++ code writes some lines straight to file descriptor 2 at each start, whatever the log level. While
`without_noise` is active, a thread reads that descriptor, drops those lines and forwards all others. Python's own
`sys.stderr` still writes to the real one.

The stream of the log on a terminal is set before tensorpack is imported, because that import takes seconds.
"""

from __future__ import annotations

import io
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

NOISE = re.compile(rb"^(I\d{4} |To enable the following instructions|WARNING: All log messages before"
                   rb"|[WE]\d{4} .*cuInit"
                   rb"|[WE]\d{4} (?!.*(PTX|kernel binaries|CUDA_ERROR_)).*(cuda|gpu|TensorRT|cost_estimator"
                   rb"|local_rendezvous|cpu_allocator|ring_alg|collective_executor)"
                   rb"|Additional GRPC error information|:UNKNOWN:Error received from peer"
                   rb"|\t ?\[\[\{\{node )", re.IGNORECASE)
_active = threading.Lock()


@contextmanager
def without_noise() -> Iterator[None]:
    """Drop TensorFlow's start-up lines from standard error while the body runs. A nested call has no effect.

    With `TOWERNMT_DEBUG=1`, or without a standard error, nothing is dropped.
    """
    if os.environ.get("TOWERNMT_DEBUG") or sys.stderr is None or not _active.acquire(blocking=False):
        yield
        return
    try:
        with _filtered():
            yield
    finally:
        _active.release()


@contextmanager
def _filtered() -> Iterator[None]:
    sys.stderr.flush()
    original_stderr, python_stderr = os.dup(2), sys.stderr
    if _writes_to_descriptor_2(python_stderr):
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    pipe = os.fstat(2)
    thread = threading.Thread(target=_forward, args=(reader, os.dup(original_stderr)), name="stderr filter",
                              daemon=True)
    thread.start()
    try:
        yield
    finally:
        if os.path.samestat(pipe, os.fstat(2)):     # unless the body has redirected the descriptor itself
            os.dup2(original_stderr, 2)    # closes the last writing end of the pipe, so the thread reaches its end
        os.close(original_stderr)
        thread.join(timeout=2)
        if sys.stderr is not python_stderr:
            sys.stderr.flush()      # not closed: threads may still log to it, such as an export in the background
            sys.stderr = python_stderr


def _writes_to_descriptor_2(stream: TextIO) -> bool:
    """Return whether a stream writes to file descriptor 2; for example, the stderr of a notebook does not."""
    try:
        return stream.fileno() == 2
    except (OSError, ValueError):
        return False


def _forward(reader: int, original_stderr: int) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if not NOISE.match(line):
                os.write(original_stderr, line)
    os.close(original_stderr)


_stderr_requested = False


def log_to_stderr() -> None:
    """Send tensorpack's log, whose default is stdout, to stderr, because stdout is for the translations."""
    global _stderr_requested
    terminal_log = sys.modules.get("towernmt.core.terminal_log")
    if terminal_log is not None:
        terminal_log.move_to_stderr()
    else:
        _stderr_requested = True


def is_stderr_requested() -> bool:
    """Return whether `log_to_stderr` was called before the log was created."""
    return _stderr_requested


def open_missing_streams() -> set[str]:
    """Open the missing ones among descriptors 0, 1 and 2, and Python's streams, on the null device.

    Otherwise the next file that is opened gets the number of the missing one, and the output goes into that file.

    Returns:
        The names of the streams that were missing: `stdin`, `stdout`, `stderr`.
    """
    missing = set()
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            missing.add(name)
            null_device = os.open(os.devnull, os.O_RDWR)
            if null_device != descriptor:
                os.dup2(null_device, descriptor)
                os.close(null_device)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))
    return missing


def escape_unencodable_output() -> None:
    """Let `print` write a backslash escape for a character that the encoding of the locale lacks.

    Otherwise it raises `UnicodeEncodeError`. Translations do not pass through here: they are UTF-8 in every locale.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def redirect_to_null_device(stream: Any) -> None:
    """Redirect a stream's descriptor to the null device, because Python flushes its buffer again at exit."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, stream.fileno())
    os.close(null_device)


BROKEN_PIPE = 128 + int(getattr(signal, "SIGPIPE", 13))
"""The exit status of a program whose reader has ended: that of a program that SIGPIPE has ended."""


def run_handling_closed_pipe(command: Callable[[], int]) -> int:
    """Run a command, and return its exit status, or `BROKEN_PIPE` if the reader of its output has ended (`| head`).

    Raises:
        BrokenPipeError: another pipe or connection was closed.
    """
    try:
        status = command()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _is_reader_gone():
            raise
        redirect_to_null_device(sys.stdout)
        return BROKEN_PIPE
    return status


def _is_reader_gone() -> bool:
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(1, 0)     # errors are reported in any case
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
