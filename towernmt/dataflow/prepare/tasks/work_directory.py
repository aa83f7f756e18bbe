"""Whether what an earlier process did in the stage of a preparation is of use for this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from towernmt.dataflow.prepare.running.ray_tasks import MARK
from towernmt.dataflow.prepare.running.task import putting

WORK = "work"
_PLAN = "plan.json"
_FORMAT = 1     # of the files that tasks leave for each other
_OTHERS = ("corpus.", "text-", MARK)    # what was read of the text (whose readers know whether it changed); a mark


def claim(stage: Path, key: str) -> bool:
    """Make the directory that of one preparation, and remove what belongs to another.

    Args:
        stage: where the preparation works.
        key: of the text and the settings.
    Returns:
        whether the same preparation was begun there.
    """
    work = stage / WORK
    work.mkdir(exist_ok=True)
    plan = {"format": _FORMAT, "key": key}
    try:
        if json.loads((work / _PLAN).read_text()) == plan:
            return True
    except (OSError, ValueError):
        pass    # none was begun
    for path in [*stage.iterdir(), *work.iterdir()]:
        if path != work and not path.name.startswith(_OTHERS):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    with putting(work / _PLAN) as unfinished:
        unfinished.write_text(json.dumps(plan))
    return False
