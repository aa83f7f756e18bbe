"""Train a counting tower by `towernmt train`, in processes that are killed one after another, except the last one.

    python killed_trainer.py KILLS SEED REPORT -- train --data ...

Each life is a child process of this program, which has imported TensorFlow already, so that a life begins in a fraction
of a second. It is killed from outside (SIGKILL). Some lives are killed a number of steps after their beginning plus a
random part of a twentieth of a second, the others at a random moment between their start and their first steps. A life
makes at most `MOST_STEPS`, even if the kill is late. REPORT gets a JSON object: the `steps` of each life, and the
`status` of the last.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path

import counting_tower

from towernmt.cli.main import main

MOST_STEPS = 18


class Life:
    """A child process that trains, and writes a byte for each step.

    If it is `to_be_killed`, it stops after `MOST_STEPS` steps and waits.
    """

    def __init__(self, arguments: list[str], to_be_killed: bool) -> None:
        self.began = time.monotonic()
        self._steps, self._report = os.pipe()
        self._parent, self._held = os.pipe()
        self.made = 0
        self._most = MOST_STEPS if to_be_killed else sys.maxsize
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._steps)
            os.close(self._held)
            counting_tower.install(setattr, {None: self._made_one})
            status = 1
            try:
                status = main(arguments)
                sys.stdout.flush()
            finally:
                os._exit(status)
        os.close(self._report)

    def _made_one(self) -> None:
        os.write(self._report, b".")
        self.made += 1
        if self.made == self._most:
            os.read(self._parent, 1)    # returns when the parent has ended
            os._exit(1)

    def wait_for_steps(self, count: int) -> None:
        """Wait until it has made a number of steps, or has ended."""
        while self.made < count and os.read(self._steps, 1):
            self.made += 1

    def end(self) -> int:
        """Wait for its end, and return the exit status, or the negative number of the signal."""
        self.wait_for_steps(sys.maxsize)
        for pipe in (self._steps, self._parent, self._held):
            os.close(pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def kill_at_random(life: Life, chance: random.Random, to_first_step: float) -> float:
    """Kill a life at a random moment, and return the minimum seconds from a start to a first step so far."""
    if to_first_step < math.inf and chance.random() < 0.3:
        time.sleep(chance.uniform(0, to_first_step))
    else:
        life.wait_for_steps(1)
        to_first_step = min(to_first_step, time.monotonic() - life.began)
        life.wait_for_steps(chance.randint(1, 12))
        time.sleep(chance.uniform(0, 0.05) * chance.random())
    os.kill(life.pid, signal.SIGKILL)
    return to_first_step


def live(kills: int, seed: int, report: Path, arguments: list[str]) -> int:
    """Run the lives one after another, and return the exit status of the last one."""
    chance, to_first_step, steps, status = random.Random(seed), math.inf, [], -signal.SIGKILL
    for number in range(kills + 1):
        life = Life(arguments, number < kills)
        if number < kills:
            to_first_step = kill_at_random(life, chance, to_first_step)
        status = life.end()
        steps.append(life.made)
        if status != -signal.SIGKILL:
            break
    report.write_text(json.dumps({"steps": steps, "status": status}))
    return status


if __name__ == "__main__":
    sys.exit(live(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[5:]))
