"""A program that runs several towernmt commands one after the other on a machine with fake GPUs.

    python -m tests.gpu.commands COMMANDS.json      # lists of arguments

`["serve", ..., SOURCE, OUTPUT]` serves until the lines of SOURCE are translated to OUTPUT; what the GPUs did goes to
`OUTPUT.tsv`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.gpu import fake_gpu
from tests.waiting import PATIENCE


class Client(logging.Handler):
    """Translates a file by the server of this process when the server logs its address, and stops the server."""

    def __init__(self, source: Path, output: Path) -> None:
        super().__init__()
        self._source, self._output = source, output

    def emit(self, record: logging.LogRecord) -> None:
        before, found, address = record.getMessage().partition("Listening at ")
        if found and not before:
            threading.Thread(target=self._translate, args=(address.rstrip("."),)).start()

    def _translate(self, address: str) -> None:
        lines = self._source.read_text(encoding="utf-8").splitlines()
        request = urllib.request.Request(
            f"{address}/translate", json.dumps({"q": lines, "source": "de", "target": "en"}).encode(),
            {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                translations = json.load(response)["translatedText"]
            self._output.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)


def serve(arguments: Sequence[str]) -> int:
    """Serve until a file is translated, and return the status of the server."""
    from towernmt.cli.main import main as towernmt

    *arguments, source, output = arguments
    fake_gpu.reset()
    logging.getLogger("towernmt.serve.server").addHandler(Client(Path(source), Path(output)))
    status = towernmt(list(arguments))
    Path(f"{output}.tsv").write_text(fake_gpu.snapshot(), encoding="utf-8")
    return status


def main(commands: str) -> int:
    """Run the commands of a file, and return the first status that is not 0."""
    fake_gpu.load()
    from towernmt.cli.main import main as towernmt

    for arguments in json.loads(Path(commands).read_text(encoding="utf-8")):
        run = serve if arguments[0] == "serve" else towernmt
        if status := run(arguments):
            print(f"{' '.join(arguments)}: status {status}", file=sys.stderr)
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
