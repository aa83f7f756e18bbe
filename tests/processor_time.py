"""The processor time of a piece of work, for tests that show how time grows with the length of the input."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the seconds of processor time that `work` takes in this thread.

    Other threads of the test process do not count, and the garbage collector is disabled, so that no collection occurs
    in the middle of the work.
    """
    gc.collect()
    gc.disable()
    try:
        begin = time.thread_time()
        work()
        return time.thread_time() - begin
    finally:
        gc.enable()
