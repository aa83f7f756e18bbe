"""Measure `towernmt prepare` by pass (lines/s, processor seconds, memory) and check that its output is identical.

    python benchmarks/prepare.py --source train.de --target train.en --lines 1000000 --workers 1 2 --ray 2 --kill

The text is repeated to the requested number of lines: after the first round, each line joins two of its sentences, one
of them random, and a fifth of the lines get a random number. Each variant prepares the text again, with new
vocabularies or with --vocab. Processor seconds are those of all processes of the command; memory is the sum of their
proportional set sizes (Linux). With --kill, each variant with several processes is repeated, and one process is killed
while it encodes. Other options are passed on to `towernmt prepare`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from towernmt.dataflow.preparation.output_directory import STAGE

_PASS = re.compile(r"(?P<label>[a-z ]+): (?P<lines>[\d,]+)(?: of (?P<total>[\d,]+))? lines, (?P<seconds>[\d.]+) s, ")
_TICKS = os.sysconf("SC_CLK_TCK")


def write_text(source: Path, target: Path, lines: int, directory: Path) -> list[str]:
    """Write two files of `lines` lines of real text and return their paths; existing files are reused."""
    outputs = [directory / f"{lines}.{path.suffix.lstrip('.')}" for path in (source, target)]
    if all(path.exists() for path in outputs):
        return list(map(str, outputs))
    draw, texts = random.Random(7), [path.read_text(encoding="utf-8").splitlines() for path in (source, target)]
    with open(outputs[0], "w", encoding="utf-8") as first, open(outputs[1], "w", encoding="utf-8") as second:
        for line in range(lines):
            pair = [text[line % len(text)] for text in texts]
            if line >= len(texts[0]):
                extra_line = draw.randrange(len(texts[0]))
                number = f" {draw.randrange(10**6)}" if draw.random() < 0.2 else ""
                pair = [f"{sentence} {text[extra_line]}{number}" for sentence, text in zip(pair, texts, strict=True)]
            first.write(pair[0] + "\n")
            second.write(pair[1] + "\n")
    return list(map(str, outputs))


def family(process: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield process
    with suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            yield from family(int(child))


@dataclass
class Watch:
    """Processor seconds and memory of a running command.

    Attributes:
        process: process id of the command.
        peak: largest memory of all its processes together, in bytes.
        largest: largest memory of a single process, in bytes.
        seconds: processor seconds by process id.
        killed: whether a worker was killed.
    """

    process: int
    peak: int = 0
    largest: int = 0
    seconds: dict[int, float] = field(default_factory=dict)
    killed: bool = False

    def look(self) -> None:
        """Read the current processor seconds and memory of all processes."""
        sizes = []
        for process_id in family(self.process):
            with suppress(OSError, IndexError):
                times = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[11:13]
                self.seconds[process_id] = sum(map(int, times)) / _TICKS
                memory = Path(f"/proc/{process_id}/smaps_rollup").read_text()
                sizes.append(1024 * int(memory.partition("\nPss:")[2].split()[0]))
        self.peak, self.largest = max(self.peak, sum(sizes)), max(self.largest, *sizes, 0)

    def watch(self, ended: threading.Event, first: Path | None) -> None:
        """Update the figures twice a second until `ended` is set; kill a worker as soon as the file `first` exists."""
        while not ended.wait(0.5):
            self.look()
            if first is not None and not self.killed and first.exists():
                self.killed = kill_a_worker(self.process)

    @property
    def cpu(self) -> float:
        """Processor seconds of all processes so far."""
        return sum(self.seconds.values())


def kill_a_worker(process: int) -> bool:
    """Kill one worker of the command and return whether one was found."""
    for process_id in list(family(process))[1:]:
        with suppress(OSError):
            name = Path(f"/proc/{process_id}/cmdline").read_bytes()
            if name.startswith(b"ray::WorkerActor") or b"towernmt" in name:
                os.kill(process_id, signal.SIGKILL)
                return True
    return False


def trial(title: str, arguments: list[str], output: Path, kill: bool) -> None:
    """Prepare once and print one line per pass and one in total."""
    shutil.rmtree(output, ignore_errors=True)
    begin = time.perf_counter()
    command = [sys.executable, "-m", "towernmt.cli.main", "prepare", "--output", str(output), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    watch, ended, before, label = Watch(process.pid), threading.Event(), 0.0, ""
    first = output / STAGE / "work" / "part-00000.distributed" if kill else None
    watcher = threading.Thread(target=watch.watch, args=(ended, first))
    watcher.start()
    for line in process.stderr or ():
        progress = _PASS.match(line)
        if progress is None:
            if "is started again" in line or "Error" in line or line.startswith("towernmt"):
                print(f"    {line.strip()}")
            continue
        if progress["total"] in (None, progress["lines"]) and progress["label"] != label:
            label = progress["label"]
            watch.look()
            print(f"    {progress['label']:26} {progress['seconds']:>7} s  {watch.cpu - before:7.1f} s of processors")
            before = watch.cpu
    ended.set()
    watcher.join()
    if process.wait() != 0:
        raise SystemExit(f"{title}: status {process.returncode}")
    contents = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(output.rglob("*")) if path.is_file()))
    print(f"{title}: {time.perf_counter() - begin:.1f} s, {watch.cpu:.1f} s of processors, {watch.peak / 1e6:,.0f} MB "
          f"(largest {watch.largest / 1e6:,.0f} MB){', a worker killed' if watch.killed else ''}, sha256 "
          f"{contents.hexdigest()[:16]}", flush=True)


def main() -> None:
    """Run the trials that the options request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ray", type=int, nargs="*", default=[], help="numbers of tasks at a time on Ray")
    parser.add_argument("--vocab", type=Path, help="directory of prepared data whose vocabularies are taken")
    parser.add_argument("--kill", action="store_true", help="repeat each way with several workers, and kill one")
    parser.add_argument("--directory", type=Path, default=Path("prepare-benchmark"))
    options, further = parser.parse_known_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    source, target = write_text(options.source, options.target, options.lines, options.directory)
    base = ["--source", source, "--target", target, *further]
    runners = [*((f"{n} processes", ["--workers", str(n)], n) for n in options.workers),
               *((f"Ray, {n} at a time", ["--ray", "local", "--workers", str(n)], n) for n in options.ray)]
    for title, arguments, several in runners:
        for kill in (False, True) if options.kill and several > 1 else (False,):
            vocabularies = [] if options.vocab is None else [
                argument for side in ("source", "target")
                for argument in (f"--{side}-vocab", str(next((options.vocab / "vocabulary").glob(f"{side}.*"))))]
            trial(title, [*base, *arguments, *vocabularies], options.directory / "out", kill)


if __name__ == "__main__":
    main()
