"""Run Marian's training program with the clock of `quality_clock.py`.

`quality.py` starts it:

    python quality_marian.py FOLDER MINUTES EVERY marian --model FOLDER/model.npz its other arguments ...

Marian reports each update in its log. At a mark, it gets SIGTERM, on which it saves its state and ends. The weights are
kept, and Marian is started again to resume.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from quality_clock import Clock, read_marks

UPDATE = re.compile(r"Up\. ([\d,]+) .* after ([\d,]+) : ")
"""What Marian logs of an update: its number, and the target tokens since the beginning."""


class MarianError(Exception):
    """Marian ended by itself, or it ended at a mark without saving."""


def main(folder: Path, minutes: float, every: float, command: Sequence[str]) -> None:
    """Run Marian's training program until it has trained for `minutes`."""
    while not train_to_mark(folder, Clock(folder, minutes, every), command):
        pass


def train_to_mark(folder: Path, clock: Clock, command: Sequence[str]) -> bool:
    """Start or resume Marian, and return at the next mark whether training ends.

    Marian makes up to one more update before it saves. Its time is not counted.

    Raises:
        MarianError: Marian ended by itself, or did not save.
    """
    clock.end_on_signals()
    tokens_before = (read_marks(folder) or [{"target_tokens": 0}])[-1]["target_tokens"]
    # In another process group, so that Ctrl-C ends Marian only through the clock.
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as marian:
        def save() -> str:
            marian.terminate()
            sys.stderr.writelines(marian.stderr or ())
            if marian.wait() != 128 + signal.SIGTERM:      # its status after it has saved
                raise MarianError(f"Marian ended with status {marian.returncode} instead of saving; see its messages.")
            return str(shutil.copy(folder / "model.npz", folder / f"checkpoint-{updates}.npz"))

        try:
            for line in marian.stderr or ():
                sys.stderr.write(line)
                if update := UPDATE.search(line):
                    updates, tokens = (int(number.replace(",", "")) for number in update.groups())
                    ends = clock.tick(updates, tokens - tokens_before, save)
                    if ends or marian.returncode is not None:      # it has saved and ended
                        return ends
        finally:
            marian.kill()
    raise MarianError(f"Marian ended with status {marian.returncode} before its time; see its messages.")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
    except MarianError as error:
        raise SystemExit(str(error)) from error
