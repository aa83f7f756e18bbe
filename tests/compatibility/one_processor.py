"""Trains two steps on one processor, whatever the machine has: `one_processor.py TRAINER INPUT`."""

from __future__ import annotations

import faulthandler
import os
import sys

from tests.waiting import PATIENCE

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
faulthandler.dump_traceback_later(0.8 * PATIENCE, exit=True)

from tests.compatibility.test_own_batches import INPUTS, TRAINERS, train  # noqa: E402 -- after the processors are set

print(len(train(TRAINERS[sys.argv[1]], INPUTS[sys.argv[2]]).losses), "steps")
