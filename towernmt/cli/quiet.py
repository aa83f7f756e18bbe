"""Standard error without TensorFlow's own chatter, for command-line programs.

TensorFlow's C++ writes some lines straight to file descriptor 2, whatever the log level. While a command
runs, that descriptor leads through a thread that drops those lines and passes all others on; Python's own
`sys.stderr` keeps writing to the real one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from towernmt.stderr_noise import NOISE


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Drop TensorFlow's chatter while the body runs; `TOWERNMT_DEBUG=1` keeps everything."""
    if os.environ.get("TOWERNMT_DEBUG"):
        yield
        return
    sys.stderr.flush()
    real, python_stderr = os.dup(2), sys.stderr
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    thread = threading.Thread(target=_forward, args=(reader, real), name="stderr filter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.dup2(real, 2)        # closes the last writing end of the pipe: the thread reads on to its end
        thread.join(timeout=2)
        sys.stderr.close()
        sys.stderr = python_stderr


def _forward(reader: int, real: int) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if not NOISE.match(line):
                os.write(real, line)
