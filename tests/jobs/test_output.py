"""The output of workers: worker 0 on the terminal, the others in files; the final error message of each is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from towernmt.jobs.training_process import ERRORS, OUTPUT, FileOutput, TerminalOutput


def test_worker_0_speaks_on_the_terminal_but_for_its_last_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    output = TerminalOutput()
    text = "Größe\n".encode()
    output.write([(OUTPUT, text[:4]), (ERRORS, b"a warn"), (OUTPUT, text[4:]), (ERRORS, b"ing\ntowernmt: no such ")])
    output.write([(ERRORS, b"data.\nend")])
    output.close()
    assert capsys.readouterr() == ("Größe\n", "a warning\nend")
    assert output.error == "no such data."


def test_the_others_speak_in_files_that_hold_all_attempts(tmp_path: Path) -> None:
    for number in (1, 2):
        output = FileOutput(tmp_path / "log" / "worker-1.log", f"--- attempt {number}")
        output.write([(OUTPUT, b"step 1\n"), (ERRORS, b"towernmt: Worker 0 is gone.\n")])
        output.close()
        assert output.error == "Worker 0 is gone."
    text = (tmp_path / "log" / "worker-1.log").read_text()
    assert text == "".join(f"--- attempt {n}\nstep 1\ntowernmt: Worker 0 is gone.\n" for n in (1, 2))


def test_a_worker_that_says_nothing_has_no_file(tmp_path: Path) -> None:
    FileOutput(tmp_path / "log" / "worker-1.log", "---").close()
    assert not list(tmp_path.iterdir())
