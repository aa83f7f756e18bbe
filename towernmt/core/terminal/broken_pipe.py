"""How a program ends whose reader has gone (`| head`)."""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import Callable

from towernmt.core.terminal.lost_reader import lead_nowhere

BROKEN_PIPE = 128 + int(getattr(signal, "SIGPIPE", 13))
"""The exit status of a program whose reader has gone, as a shell shows it of those that the signal ends."""


def until_the_reader_has_gone(command: Callable[[], int]) -> int:
    """The status of a command, or `BROKEN_PIPE` if the reader of its output (`| head`) has closed it.

    Raises:
        BrokenPipeError: of another pipe or connection.
    """
    try:
        status = command()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        lead_nowhere(sys.stdout)
        return BROKEN_PIPE
    return status


def _reader_has_gone() -> bool:
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(1, 0)     # errors are reported in any case
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
