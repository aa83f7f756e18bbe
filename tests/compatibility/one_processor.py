"""Trains two steps on one processor, whatever the machine has: `one_processor.py TRAINER INPUT`."""

from __future__ import annotations

import faulthandler
import os
import sys

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
faulthandler.dump_traceback_later(60, exit=True)

from test_own_batches import INPUTS, TRAINERS, train  # noqa: E402 -- TensorFlow looks at the processors when imported

print(len(train(TRAINERS[sys.argv[1]], INPUTS[sys.argv[2]]).losses), "steps")
