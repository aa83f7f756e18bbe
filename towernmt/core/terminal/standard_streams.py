"""Standard input, output and error of a program that was started without one of them (`2>&-`)."""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Open descriptors 0, 1 and 2, and Python's streams, where they are missing: they lead to the null device.

    Otherwise the next file that is opened gets the number of the missing one, and the output goes into that file.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))
