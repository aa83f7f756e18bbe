"""The script that exports a student as a web page: its commands exist, and it resumes after a stop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from towernmt.cli.commands import COMMANDS
from towernmt.cli.main import make_parser

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/student.sh"
PROGRAM = """
import json
import sys
from pathlib import Path

print(json.dumps(sys.argv[1:]))
for option, made in zip(sys.argv, sys.argv[1:]):
    if option in ("--output", "--logdir"):
        if sys.argv[1] == "prepare":
            Path(made).mkdir(exist_ok=True)
            made += "/manifest.json"
        Path(made).write_text("made")
"""
"""Makes the output of a command, and prints its arguments, which the test parses."""


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_commands_of_the_script_are_those_of_the_program_and_made_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/node").write_text("#!/bin/sh\ncat\n")
    (tmp_path / "bin/node").chmod(0o755)
    for name in ("train.de", "test.de"):
        (tmp_path / name).write_text("ein Haus\n")
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "OUTPUT": str(tmp_path / "student"),
                   "TOWERNMT": f"{sys.executable} -S {tmp_path}/program.py", "TEST": str(tmp_path / "test")}

    parser = make_parser(COMMANDS)[0]

    def steps() -> list[str]:
        """Run the script, and return the names of its commands, whose arguments are parsed."""
        done = subprocess.run(["bash", str(EXAMPLE)], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        commands = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        for arguments in commands:
            parser.parse_args(arguments)
        return [arguments[0] for arguments in commands]

    assert steps() == ["translate", "align", "prepare", "train", "export", "evaluate"]
    assert (tmp_path / "student/page.en").read_text() == "ein Haus\n"
    (tmp_path / "student/site").unlink()
    assert steps() == ["train", "export", "evaluate"]
    (tmp_path / "student/data/manifest.json").unlink()      # as if the preparation was interrupted
    assert steps() == ["prepare", "train", "evaluate"]
