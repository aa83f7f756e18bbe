"""The script that exports a student as a web page: its commands exist, and it resumes after a stop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/student.sh"
PROGRAM = """
import sys
from pathlib import Path
from towernmt.cli.commands import COMMANDS
from towernmt.cli.main import make_parser

options = make_parser(COMMANDS)[0].parse_args(sys.argv[1:])
made = getattr(options, "output", None) or getattr(options, "logdir", None)
print(sys.argv[1], made and Path(made).name)
if sys.argv[1] == "prepare":
    Path(made).mkdir(exist_ok=True)
    made += "/manifest.json"
if made:
    Path(made).write_text("made")
"""


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
                   "TOWERNMT": f"{sys.executable} {tmp_path}/program.py", "TEST": str(tmp_path / "test")}

    def steps() -> list[str]:
        done = subprocess.run(["bash", str(EXAMPLE)], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.split()[0] != "=="]

    first = steps()
    assert [line.split()[0] for line in first[:-1]] == ["translate", "align", "prepare", "train", "export", "evaluate"]
    assert (tmp_path / "student/page.en").read_text() == "ein Haus\n"
    (tmp_path / "student/site").unlink()
    assert [line.split()[0] for line in steps()[:-1]] == ["train", "export", "evaluate"]
    (tmp_path / "student/data/manifest.json").unlink()      # as if the preparation was interrupted
    assert [line.split()[0] for line in steps()[:-1]] == ["prepare", "train", "evaluate"]
