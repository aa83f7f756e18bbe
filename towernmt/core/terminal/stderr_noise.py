"""Standard error without the lines that TensorFlow's C++ writes to it at each start, whatever the log level.

They go straight to file descriptor 2. While `without_noise` is active, that descriptor leads through a thread that
drops those lines and passes all others on; Python's own `sys.stderr` keeps writing to the real one.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

NOISE = re.compile(rb"^(I\d{4} |To enable the following instructions|WARNING: All log messages before"
                   rb"|[WE]\d{4} .*(cuInit|cuda|gpu|TensorRT|cost_estimator|local_rendezvous|cpu_allocator"
                   rb"|ring_alg|collective_executor)"
                   rb"|Additional GRPC error information|:UNKNOWN:Error received from peer"
                   rb"|\t ?\[\[\{\{node )", re.IGNORECASE)
_active = threading.Lock()


@contextmanager
def without_noise() -> Iterator[None]:
    """Drop those lines of TensorFlow's while the body runs. A nested call changes nothing.

    `TOWERNMT_DEBUG=1` keeps everything, and nothing changes where there is no standard error.
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
    real, python_stderr = os.dup(2), sys.stderr
    if _writes_to_descriptor_2(python_stderr):
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    pipe = os.fstat(2)
    thread = threading.Thread(target=_forward, args=(reader, os.dup(real)), name="stderr filter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if os.path.samestat(pipe, os.fstat(2)):     # whoever has led the descriptor elsewhere since keeps it
            os.dup2(real, 2)    # closes the last writing end of the pipe: the thread reads on to its end
        os.close(real)
        thread.join(timeout=2)
        if sys.stderr is not python_stderr:
            sys.stderr.close()
            sys.stderr = python_stderr


def _writes_to_descriptor_2(stream: TextIO) -> bool:
    """Not so in a notebook, for instance, which shows what Python writes in its own way."""
    try:
        return stream.fileno() == 2
    except (OSError, ValueError):
        return False


def _forward(reader: int, real: int) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if not NOISE.match(line):
                os.write(real, line)
    os.close(real)
