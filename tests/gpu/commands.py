"""A program that runs several towernmt commands one after the other on a machine with fake GPUs.

    python -m tests.gpu.commands COMMANDS.json      # lists of arguments
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.gpu import fake_gpu


def main(commands: str) -> int:
    """Run the commands of a file, and return the first status that is not 0."""
    fake_gpu.load()
    from towernmt.cli.main import main as towernmt

    for arguments in json.loads(Path(commands).read_text(encoding="utf-8")):
        if status := towernmt(arguments):
            print(f"{' '.join(arguments)}: status {status}", file=sys.stderr)
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
