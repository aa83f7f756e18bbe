"""Compare the training speed of commits or programs in alternation: medians, spreads and ratios.

    python benchmarks/compare_training.py --rounds 5 --commits HEAD~3 . -- --config tiny --batch-tokens 1024
    python benchmarks/compare_training.py --rounds 3 \
        --command torch='venvs/torch/bin/python run_plain.py train tiny 1024 --impl lean' \
        --command ours='python benchmarks/train.py --batches batches_1024.npz'

Each command runs once per round, in reverse order in every second round, and prints one line of JSON with the --metric.
Each commit is checked out into a temporary folder (`git worktree`), where its own `benchmarks/train.py` measures its
own package with the arguments after `--`; `.` means this working tree. If the default workloads of the commits differ,
pass the same --batches, or pass --same-program to measure every commit with this checkout's program.

--log keeps the lines of all runs. Ratios are relative to the first name (commits come before commands).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from alternation import in_turn, last_record, table

ROOT = Path(__file__).resolve().parents[1]
FURTHER_METRICS = ("src_tgt_tok_s", "gflops", "mfu", "peak_rss_mb", "others_cpu_share")


class Job(NamedTuple):
    """A command that prints one line of JSON.

    Attributes:
        command: program and arguments.
        path: prepended to PYTHONPATH; None leaves PYTHONPATH unchanged.
    """

    name: str
    command: list[str]
    path: Path | None = None


def main(arguments: list[str] | None = None) -> None:
    """Run the rounds and print the table after each round."""
    options = _parser().parse_args(arguments)
    with contextlib.ExitStack() as stack:
        jobs = [commit_job(commit, stack.enter_context(checked_out(commit)), options.train, options.same_program)
                for commit in options.commits]
        jobs += [command_job(text) for text in options.command]
        if len({job.name for job in jobs}) < max(len(jobs), 2):
            raise SystemExit("Name at least two different candidates: --commits A B, --command NAME='CMD'.")
        rounds(jobs, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", nargs="+", default=[], metavar="COMMIT", help="'.' for the working tree")
    parser.add_argument("--command", action="append", default=[], metavar="NAME=CMD", help="a command, in shell syntax")
    parser.add_argument("--same-program", action="store_true", help="measure all commits with this checkout's program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--metric", default="tgt_tok_s")
    parser.add_argument("--timeout", type=float, default=1800, metavar="SECONDS", help="limit of one run")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append the JSON line of each run")
    parser.add_argument("train", nargs="*", metavar="-- ARGUMENT", help="for benchmarks/train.py of the --commits")
    return parser


def rounds(jobs: list[Job], options: argparse.Namespace) -> None:
    """Run each job once per round and print the table of all complete rounds after each round."""
    records: dict[str, list[dict[str, Any]]] = {job.name: [] for job in jobs}
    by_name = {job.name: job for job in jobs}
    for number in range(options.rounds):
        for name in in_turn(list(by_name), number):
            record = run_job(by_name[name], options.timeout, options.metric)
            records[name].append(record)
            if options.log:
                with options.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps({"job": name, "round": number, **record}) + "\n")
            print(f"round {number + 1} of {options.rounds}: {name} {record[options.metric]:.5g}", flush=True)
        print(table(records, options.metric, FURTHER_METRICS), flush=True)


def run_job(job: Job, timeout: float, metric: str) -> dict[str, Any]:
    """Run a job and return the record that it prints.

    Raises:
        SystemExit: the job failed, or its record lacks the metric.
    """
    environment = dict(os.environ)
    if job.path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(job.path), environment.get("PYTHONPATH")]))
    done = subprocess.run(job.command, env=environment, capture_output=True, text=True, timeout=timeout,
                          errors="replace", check=False)
    record = last_record(done.stdout)
    if done.returncode or record is None or not isinstance(record.get(metric), (int, float)):
        raise SystemExit(f"{job.name}: {shlex.join(job.command)} ended with status {done.returncode} and printed no "
                         f"line of JSON with a number '{metric}'; its last words:\n"
                         f"{(done.stderr or done.stdout)[-2000:]}")
    return record


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out for the duration of the `with` block and yield its folder; '.' is the repository itself."""
    if commit == ".":
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "tree"
        _git("worktree", "add", "--detach", str(folder), commit)
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {shlex.join(arguments)} failed: {done.stderr.strip()}")


def commit_job(commit: str, folder: Path, arguments: list[str], same_program: bool = False) -> Job:
    """Return the job that runs `train.py` on the package in `folder`.

    Raises:
        SystemExit: Python imports towernmt from elsewhere.
    """
    job = Job(commit, [sys.executable, str((ROOT if same_program else folder) / "benchmarks" / "train.py"),
                       *arguments], folder)
    imported = subprocess.run([sys.executable, "-c", "import towernmt; print(towernmt.__file__)"], text=True,
                              env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, check=True, cwd="/")
    if not Path(imported.stdout.strip()).resolve().is_relative_to(folder.resolve()):
        raise SystemExit(f"{commit}: Python imports {imported.stdout.strip()} rather than the package in {folder}: use "
                         "an environment where towernmt is installed as editable, or not at all.")
    return job


def command_job(text: str) -> Job:
    """Return the job of one NAME=CMD.

    Raises:
        SystemExit: the name or the command is missing.
    """
    name, _, command = text.partition("=")
    words = shlex.split(command)
    if not name or not words:
        raise SystemExit(f"--command {text}: expected NAME='COMMAND WITH ARGUMENTS'.")
    return Job(name, words)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # so that the checkouts are removed
    main()
